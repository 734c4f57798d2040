//! The audit of the cache: compares its indexes, lists and counts with its slots.

use super::{Cache, Entry, Key, NIL, Slot, family_key};
use furrow_log::audit::{broken, equal, expect};
use furrow_zone::Result;

impl Cache {
    /// The page of `key`; the call counts neither as a use of the page nor as work.
    pub(crate) fn audited(&self, key: &Key) -> Option<&Entry> {
        self.index.get(key).map(|&slot| &self.slot(slot).entry)
    }

    /// All pages, in arbitrary order.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Key, &Entry)> {
        self.slots.iter().flatten().map(|slot| (slot.key, &slot.entry))
    }

    /// Compares the cache's accounts with its slots.
    ///
    /// # Errors
    /// `Internal`, naming the account that is wrong.
    pub(crate) fn audit(&self) -> Result<()> {
        equal("Cache::held", false, self.held)?;
        let (mut dirty_data, mut dirty_nodes, mut nodes, mut shared) = (0, 0, 0, 0);
        let (mut pages, mut listed, mut in_flight, mut logged) = (0, 0, 0, 0);
        for (at, slot) in self.slots.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let Slot { key, entry, .. } = slot;
            pages += 1;
            let found = self.index.get(key).copied().unwrap_or(NIL);
            equal(format_args!("Cache::index of {key:?}"), at as u32, found)?;
            let (set, item) = match *key {
                Key::Data(ino, block) => (&self.dirty_data, (ino, block)),
                Key::Node(nid) => (&self.dirty_nodes, (entry.owner, nid)),
            };
            if let Key::Node(_) = key {
                nodes += 1;
                dirty_nodes += usize::from(entry.dirty);
            } else {
                dirty_data += usize::from(entry.dirty);
            }
            let account = format_args!("Cache's list of dirty pages for {key:?}");
            expect(account, !entry.dirty || set.contains(&item), "an entry, as its slot is dirty")?;
            let account = format_args!("Cache's eviction list for {key:?}");
            match slot.listed {
                true => expect(account, entry.evictable(), "none of it: it cannot be evicted"),
                false => expect(account, !entry.evictable(), "an entry: it can be evicted"),
            }?;
            let account = format_args!("Slot::shared of {key:?}");
            expect(account, !slot.shared || entry.in_flight > 0, "a write in flight")?;
            let changed = entry.dirty && matches!(key, Key::Node(_));
            let account = format_args!("Entry::logged of {key:?}");
            expect(account, entry.logged.is_none() || changed, "a dirty node")?;
            logged += usize::from(entry.logged.is_some());
            listed += usize::from(slot.listed);
            shared += usize::from(slot.shared);
            in_flight += entry.in_flight as usize;
        }
        equal("Cache::index", pages, self.index.len())?;
        equal("Cache::free", self.slots.len() - pages, self.free.len())?;
        equal("Cache::dirty_data", dirty_data, self.dirty_data.len())?;
        equal("Cache::dirty_nodes", dirty_nodes, self.dirty_nodes.len())?;
        for nid in &self.moved_below {
            let dirty = self.audited(&Key::Node(*nid)).is_some_and(Entry::is_dirty);
            expect(format_args!("Cache::moved_below of node {nid}"), dirty, "a dirty node")?;
        }
        equal("Cache::nodes", nodes, self.nodes)?;
        equal("Cache::shared", shared, self.shared)?;
        equal("Cache::logged", logged, self.logged)?;
        equal("Cache::evictable", listed, self.evictable)?;
        // A page that was removed while being written has no slot, but its write still counts
        // in `out`.
        if in_flight > self.out {
            let out = self.out;
            let account = format_args!("Cache::out");
            return Err(broken(
                account,
                format_args!("expected {in_flight} at least, found {out}"),
            ));
        }
        self.audit_eviction_list()?;
        self.audit_families()
    }

    fn audit_eviction_list(&self) -> Result<()> {
        let (mut at, mut colder, mut count) = (self.coldest, NIL, 0);
        while at != NIL && count <= self.evictable {
            let slot = self.slots.get(at as usize).and_then(Option::as_ref);
            let Some(slot) = slot.filter(|slot| slot.listed) else {
                let why = format_args!("expected a slot that is listed, found slot {at}");
                return Err(broken("Cache's eviction list", why));
            };
            equal(format_args!("Slot::colder of {:?}", slot.key), colder, slot.colder)?;
            (colder, at, count) = (at, slot.warmer, count + 1);
        }
        equal("Cache::warmest", colder, self.warmest)?;
        equal("length of Cache's eviction list", self.evictable, count)
    }

    fn audit_families(&self) -> Result<()> {
        let mut count = 0;
        for slot in self.slots.iter().flatten().filter(|slot| slot.before == NIL) {
            let key = family_key(slot.entry.owner, matches!(slot.key, Key::Node(_)));
            let Some(family) = self.families.get(&key) else {
                let account = format_args!("Cache::families of {:?}", slot.key);
                return Err(broken(account, "expected a family"));
            };
            let (mut at, mut members) = (family.head, 0);
            while at != NIL && members <= family.count {
                let Some(slot) = self.slots.get(at as usize).and_then(Option::as_ref) else {
                    break;
                };
                (at, members) = (slot.after, members + 1);
            }
            equal(format_args!("Family::count of {:?}", slot.key), family.count, members)?;
            count += members as usize;
        }
        equal("pages of all families", self.index.len(), count)
    }
}

#[cfg(test)]
impl Cache {
    /// Removes a block from the dirty index; its slot stays dirty.
    pub(crate) fn corrupt_dirty_data(&mut self, ino: u32, block: u32) -> bool {
        self.dirty_data.remove(&(ino, block))
    }

    /// Notes that only cleaning made node `nid` dirty, whatever its real state.
    pub(crate) fn corrupt_moved_below(&mut self, nid: u32) {
        self.moved_below.insert(nid);
    }

    /// Puts a page on the eviction list, whatever its state.
    pub(crate) fn corrupt_eviction_list(&mut self, key: &Key) {
        let at = self.index[key];
        self.list_warmest(at);
    }
}
