//! Tests of the page cache, compared with a simple model.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn page(n: u64) -> Page {
    Page::from_slice(&n.to_le_bytes())
}

fn stamp(page: &Page) -> u64 {
    u64::from_le_bytes(page[..8].try_into().unwrap())
}

impl Cache {
    /// Checks that the cache's structures are consistent.
    fn verify(&self) {
        let mut listed = Vec::new();
        let (mut at, mut colder) = (self.coldest, NIL);
        while at != NIL {
            assert_eq!(self.slot(at).colder, colder);
            listed.push(at);
            (colder, at) = (at, self.slot(at).warmer);
        }
        assert_eq!(self.warmest, colder);
        let mut families = BTreeMap::<u64, Vec<u32>>::new();
        let mut live = 0;
        for (at, slot) in self.slots.iter().enumerate() {
            let at = at as u32;
            let Some(slot) = slot else {
                assert!(self.free.contains(&at));
                continue;
            };
            live += 1;
            assert_eq!(self.index.get(&slot.key), Some(&at));
            assert_eq!(slot.listed, slot.entry.evictable());
            assert_eq!(slot.listed, listed.contains(&at));
            let dirty = match slot.key {
                Key::Data(ino, block) => self.dirty_data.contains(&(ino, block)),
                Key::Node(nid) => self.dirty_nodes.contains(&(slot.entry.owner, nid)),
            };
            assert_eq!(slot.entry.dirty, dirty);
            families.entry(self.family_of(at)).or_default().push(at);
        }
        assert_eq!(live, self.index.len());
        assert_eq!(live + self.free.len(), self.slots.len());
        assert_eq!(families.len(), self.families.len());
        for (key, mut members) in families {
            let family = self.families[&key];
            let (mut at, mut before, mut walked) = (family.head, NIL, Vec::new());
            while at != NIL {
                assert_eq!(self.slot(at).before, before);
                walked.push(at);
                (before, at) = (at, self.slot(at).after);
            }
            walked.sort_unstable();
            members.sort_unstable();
            assert_eq!(walked, members);
            assert_eq!(family.count as usize, members.len());
        }
        let unlisted = self.len() - listed.len();
        assert!(self.len() <= self.capacity.max(unlisted + 1), "{self:?}");
    }
}

/// Uses the page of `key`, if it is in the cache.
fn look(cache: &mut Cache, key: &Key) -> bool {
    cache.find(key).map(|place| cache.at(place)).is_some()
}

#[test]
fn hits_outlive_what_is_not_used() {
    let mut cache = Cache::new(3);
    for block in 0..3 {
        cache.insert(Key::Data(1, block), Entry::clean(page(block.into()), None));
    }
    assert!(look(&mut cache, &Key::Data(1, 0)));
    cache.insert(Key::Data(1, 3), Entry::clean(page(3), None));
    cache.insert(Key::Data(1, 4), Entry::clean(page(4), None));
    let there: Vec<u32> = (0..5).filter(|&b| cache.contains(&Key::Data(1, b))).collect();
    assert_eq!(there, [0, 3, 4]);
    assert!(!look(&mut cache, &Key::Data(1, 1)));
    let stats = Stats { hits: 1, misses: 0, evictions: 2, insertions: 5 };
    assert_eq!(cache.stats(), stats);
}

#[test]
fn a_page_that_was_read_is_a_miss_and_no_hit() {
    let mut cache = Cache::new(3);
    cache.insert(Key::Data(1, 0), Entry::clean(page(0), None));
    // The operation needs blocks 0 and 1; block 1 is not in the cache.
    assert!(look(&mut cache, &Key::Data(1, 0)) && !look(&mut cache, &Key::Data(1, 1)));
    let missed = cache.count_attempt(0, Some(1), 0);
    assert_eq!((cache.stats().hits, cache.stats().misses), (0, 1));
    cache.insert(Key::Data(1, 1), Entry::clean(page(1), None));
    assert!(look(&mut cache, &Key::Data(1, 0)) && look(&mut cache, &Key::Data(1, 1)));
    cache.count_attempt(0, None, missed);
    assert_eq!((cache.stats().hits, cache.stats().misses), (1, 1));
}

#[test]
fn dirty_in_flight_and_pinned_pages_are_never_evicted() {
    let mut cache = Cache::new(1);
    let key = Key::Data(7, 9);
    cache.insert(key, Entry::dirty(page(1)));
    let other = |n| (Key::Node(n), Entry::clean(page(0), None).owned_by(7));
    let press = |cache: &mut Cache| {
        for n in 0..4 {
            let (key, entry) = other(n);
            cache.insert(key, entry);
        }
        cache.verify();
    };
    press(&mut cache);
    assert!(cache.contains(&key));
    let (frozen, ticket) = cache.begin_write(&key, 5).unwrap();
    assert!(!cache.peek(&key).unwrap().is_dirty());
    press(&mut cache);
    assert_eq!(cache.peek(&key).unwrap().crc(), Some(5));
    // A change during the write: the page handed to the device stays as it was, and the cached page
    // is dirty again.
    cache.get_mut(&key).unwrap()[0] = 2;
    assert_eq!((stamp(&frozen), stamp(cache.peek(&key).unwrap().page())), (1, 2));
    assert_eq!(cache.peek(&key).unwrap().crc(), None);
    cache.end_write(ticket);
    press(&mut cache);
    assert!(cache.peek(&key).unwrap().is_dirty());
    let pin = cache.pin(&key).unwrap();
    cache.mark_clean(&key);
    press(&mut cache);
    assert!(cache.contains(&key));
    cache.unpin(pin);
    press(&mut cache);
    assert!(!cache.contains(&key));
}

#[test]
fn an_old_ticket_does_not_touch_a_new_page() {
    let mut cache = Cache::new(8);
    let key = Key::Data(1, 1);
    cache.insert(key, Entry::dirty(page(1)));
    let (_, old) = cache.begin_write(&key, 0).unwrap();
    cache.remove_from(1, 0..);
    cache.insert(key, Entry::dirty(page(2)));
    let (_, new) = cache.begin_write(&key, 0).unwrap();
    assert_eq!((cache.key_of(old), cache.key_of(new)), (None, Some(key)));
    cache.end_write(old);
    assert!(cache.peek(&key).unwrap().is_in_flight());
    cache.end_write(new);
    assert!(!cache.peek(&key).unwrap().is_in_flight());
    cache.verify();
}

#[test]
fn a_node_that_only_cleaning_made_dirty_is_changed_by_any_other_change() {
    let mut cache = Cache::new(8);
    for nid in 1..=4 {
        cache.insert(Key::Node(nid), Entry::clean(page(0), None).owned_by(9));
    }
    // Cleaning changes nodes 1 to 3. Node 4 is clean, so the cache notes nothing about it.
    for nid in 1..=3 {
        cache.get_mut(&Key::Node(nid)).unwrap();
    }
    cache.note_moved_below(1..=4);
    assert_eq!((cache.dirty_pages(), cache.changed_pages()), (3, 0));
    cache.verify();
    // A user changes node 1, a checkpoint writes node 2, and node 3 is removed.
    cache.get_mut(&Key::Node(1)).unwrap();
    let (_, ticket) = cache.begin_write(&Key::Node(2), 0).unwrap();
    cache.end_write(ticket);
    cache.remove(&Key::Node(3));
    assert_eq!((cache.dirty_pages(), cache.changed_pages()), (1, 1));
    cache.verify();
}

#[test]
fn a_reader_does_not_overwrite_what_is_newer() {
    let mut cache = Cache::new(8);
    let key = Key::Node(3);
    cache.insert(key, Entry::dirty(page(2)).owned_by(5));
    cache.insert(key, Entry::clean(page(1), Some(1)).owned_by(5));
    assert_eq!(stamp(cache.peek(&key).unwrap().page()), 2);
    assert_eq!(cache.dirty_nodes_of(5).collect::<Vec<_>>(), [3]);
}

#[test]
fn removal_reaches_the_last_block() {
    let mut cache = Cache::new(8);
    for block in [0, 5, u32::MAX - 1, u32::MAX] {
        cache.insert(Key::Data(1, block), Entry::dirty(page(0)));
    }
    cache.insert(Key::Data(2, 5), Entry::dirty(page(0)));
    cache.insert(Key::Node(5), Entry::dirty(page(0)).owned_by(1));
    assert_eq!(cache.dirty_files().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(cache.remove_from(1, 5..), 3);
    assert_eq!(cache.all_dirty().count(), 3);
    assert_eq!(cache.remove_file(1), 2);
    assert_eq!(cache.all_dirty().collect::<Vec<_>>(), [Key::Data(2, 5)]);
    cache.verify();
}

proptest! {
    #[test]
    fn agrees_with_a_model(
        capacity in 1usize..12,
        ops in proptest::collection::vec((0u8..16, 0u32..4, 0u32..6), 1..300),
    ) {
        // The model holds all changes, which must not be lost. Clean pages may be evicted.
        let mut cache = Cache::new(capacity);
        let mut newest = BTreeMap::<Key, u64>::new();
        let mut dirty = BTreeMap::<Key, u64>::new();
        let mut tickets = Vec::<(bool, Ticket)>::new();
        let mut version = 0;
        for (op, ino, n) in ops {
            let node = n >= 4;
            let key = if node { Key::Node(ino * 10 + n) } else { Key::Data(ino, n) };
            version += 1;
            match op {
                0..=3 => {
                    let stored = newest.get(&key).copied().unwrap_or(0);
                    cache.insert(key, Entry::clean(page(stored), None).owned_by(ino));
                }
                4..=5 => {
                    cache.insert(key, Entry::dirty(page(version)).owned_by(ino));
                    newest.insert(key, version);
                    dirty.insert(key, version);
                }
                6..=7 => if let Some(bytes) = cache.get_mut(&key) {
                    bytes[..8].copy_from_slice(&version.to_le_bytes());
                    newest.insert(key, version);
                    dirty.insert(key, version);
                },
                8..=9 => if let Some((frozen, ticket)) = cache.begin_write(&key, 1) {
                    prop_assert_eq!(stamp(&frozen), newest.get(&key).copied().unwrap_or(0));
                    dirty.remove(&key);
                    tickets.push((true, ticket));
                },
                10 => if let Some(ticket) = cache.pin(&key) {
                    tickets.push((false, ticket));
                },
                11..=12 => if !tickets.is_empty() {
                    let (write, ticket) = tickets.remove(n as usize % tickets.len());
                    if write { cache.end_write(ticket) } else { cache.unpin(ticket) }
                },
                13 => {
                    cache.remove_range(ino, n..n + 2);
                    let dropped = |b: u32| (n..n + 2).contains(&b);
                    newest.retain(|k, _| !matches!(*k, Key::Data(i, b) if i == ino && dropped(b)));
                    dirty.retain(|k, _| newest.contains_key(k));
                }
                14 => {
                    look(&mut cache, &key);
                }
                _ => {
                    cache.remove(&key);
                    newest.remove(&key);
                    dirty.remove(&key);
                }
            }
            cache.verify();
            if let Some(entry) = cache.peek(&key) {
                prop_assert_eq!(stamp(entry.page()), newest.get(&key).copied().unwrap_or(0));
            }
            prop_assert_eq!(cache.dirty_pages(), dirty.len());
            let mut listed: Vec<Key> = cache.all_dirty().collect();
            listed.sort_unstable();
            prop_assert_eq!(listed, dirty.keys().copied().collect::<Vec<_>>());
            for (key, &v) in &dirty {
                prop_assert_eq!(stamp(cache.peek(key).unwrap().page()), v);
            }
        }
        for (write, ticket) in tickets {
            if write { cache.end_write(ticket) } else { cache.unpin(ticket) }
        }
        let dirty: Vec<Key> = cache.all_dirty().collect();
        dirty.iter().for_each(|key| assert!(cache.mark_clean(key)));
        cache.insert(Key::Node(999), Entry::clean(page(0), None));
        prop_assert!(cache.len() <= capacity);
    }
}

/// An operation finds the pages it needs, then inserts new ones. The pages found must still be in
/// the cache, even if all other pages are dirty and every clean page was just used.
#[test]
fn nothing_is_evicted_while_held_and_the_last_clean_pages_stay() {
    let mut cache = Cache::new(256);
    for block in 0..256 {
        cache.insert(Key::Data(2, block), Entry::dirty(Page::zeroed()));
    }
    cache.insert(Key::Node(1), Entry::clean(Page::zeroed(), None));
    assert!(look(&mut cache, &Key::Node(1)));
    cache.insert(Key::Node(3), Entry::clean(Page::zeroed(), None));
    assert!(cache.contains(&Key::Node(1)), "loading one page drops the other");
    for node in 100..200 {
        cache.insert(Key::Node(node), Entry::clean(Page::zeroed(), None));
    }
    assert!(cache.len() <= 256 + 64);
    cache.hold();
    let here: Vec<u32> = (1..200).filter(|node| cache.contains(&Key::Node(*node))).collect();
    for node in 200..300 {
        cache.insert(Key::Node(node), Entry::dirty(Page::zeroed()));
    }
    assert!(here.iter().all(|node| cache.contains(&Key::Node(*node))));
    for block in 0..256 {
        cache.mark_clean(&Key::Data(2, block));
    }
    cache.unhold();
    assert!(cache.len() <= 256);
}
