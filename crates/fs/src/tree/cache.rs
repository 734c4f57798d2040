//! The engine's only page cache: a bounded cache of data blocks and nodes that evicts the least
//! recently used clean pages first.
//!
//! **States.** A page is *clean*, *dirty* (changed since it was last handed to a device) or *in
//! flight* (being written; it may be dirty again at the same time), and it can be *pinned*. Only
//! pages that are clean, not in flight and not pinned can be evicted. Only these pages are on the
//! eviction list, so an eviction takes constant time for any number of dirty pages. Dirty and
//! in-flight pages may exceed the capacity: the engine slows writers down
//! ([`Cache::dirty_pages`], [`Cache::len`]).
//!
//! **Invariants.** Eviction never loses a change. A reader that fills the cache never overwrites a
//! page in it ([`Cache::insert`] of a clean page keeps the present one). A page handed out for
//! writing is frozen: a later change copies it first. A [`Ticket`] of a page that was removed in
//! the meantime has no effect. Everything is deterministic: hashing is fixed, listings are sorted.
//!
//! The order of eviction is *second chance*: a hit only marks the page, and a marked page at the
//! cold end moves to the warm end once. The dirty index is sorted by owner, so finding one file's
//! dirty pages touches no pages of other files.
//!
//! Not here: reading, writing, waiting, and the limit of dirty pages.

use crate::memory_use::{map_bytes, set_bytes};
use furrow_log::audit::Broken;
use furrow_rt::buf::{PAGE_SIZE, Page};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::{Range, RangeFrom};

/// The identity of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Block `block` of file `ino`.
    Data(u32, u32),
    /// Node `nid`.
    Node(u32),
}

impl Key {
    /// Describes the owner of the page, for messages.
    pub(crate) fn owner(self) -> String {
        match self {
            Key::Data(ino, block) => format!("inode {ino} block {block}"),
            Key::Node(nid) => format!("node {nid}"),
        }
    }
}

/// A fixed multiplicative hasher. Keys are small integers that the engine itself chooses, and the
/// engine's behaviour must not depend on a random seed.
#[derive(Default)]
pub struct FixedHasher(u64);

impl FixedHasher {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(26) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Hasher for FixedHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.add(u64::from(b)));
    }
    fn write_u32(&mut self, n: u32) {
        self.add(u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        self.add(n);
    }
    fn write_isize(&mut self, n: isize) {
        self.add(n as u64);
    }
    fn finish(&self) -> u64 {
        // The hash table takes its bucket from the low bits of the hash and its tag from the
        // top bits.
        self.0 ^ (self.0 >> 32)
    }
}

/// A map that is only used for look-ups and never iterated.
#[allow(clippy::disallowed_types, reason = "a fixed hasher, and never iterated")]
type Map<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<FixedHasher>>;

const NIL: u32 = u32::MAX;

/// Number of evictable pages that stay in the cache even if it exceeds its capacity; no operation
/// needs more pages at the same time. A cache whose capacity is less than four times this number
/// may evict all of them.
const EVICTABLE_MIN: usize = 64;

/// A page with its state in the cache.
#[derive(Debug, Clone)]
pub struct Entry {
    page: Page,
    crc: Option<u32>,
    owner: u32,
    dirty: bool,
    in_flight: u32,
    pins: u32,
    /// See [`Entry::logged`].
    logged: Option<Page>,
}

impl Entry {
    /// A page with the device's content, and its CRC32C if known.
    pub fn clean(page: Page, crc: Option<u32>) -> Entry {
        Entry { page, crc, owner: 0, dirty: false, in_flight: 0, pins: 0, logged: None }
    }

    /// A page whose content is not on the device.
    pub fn dirty(page: Page) -> Entry {
        Entry { dirty: true, ..Entry::clean(page, None) }
    }

    /// Makes the page a node of file `ino`. (Data pages have their owner in the key.)
    pub fn owned_by(self, ino: u32) -> Entry {
        Entry { owner: ino, ..self }
    }

    /// Sets the page's CRC32C, if known.
    pub fn with_crc(self, crc: Option<u32>) -> Entry {
        Entry { crc, ..self }
    }

    /// The content of the page. A clone of it freezes the page.
    pub fn page(&self) -> &Page {
        &self.page
    }

    /// CRC32C of the present content, if known.
    pub fn crc(&self) -> Option<u32> {
        self.crc
    }

    /// True if the page changed since it was last handed to a device.
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// True while a write of the page is in flight, perhaps with older content.
    pub fn is_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    /// For a dirty node, the content that recovery would find: the node on the drive, with the
    /// changes in sync records. `None` if the drive does not have the node (it is new, or its write
    /// failed), for nodes of directories, and if [`Cache::keep_logged_contents`] was not called.
    pub(crate) fn logged(&self) -> Option<&Page> {
        self.logged.as_ref()
    }

    /// The file that owns the page.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    fn evictable(&self) -> bool {
        !self.dirty && self.in_flight == 0 && self.pins == 0
    }
}

/// Identifies a page of the cache across an `await`, for a write in flight or a pin. The ticket may
/// outlive the page; a ticket of a removed page has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a page with a ticket out cannot be evicted"]
pub struct Ticket {
    slot: u32,
    generation: u32,
}

/// The place of a page in the cache, valid until the next change of the cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place(u32);

/// Counters since the cache was made, in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Look-ups by operations that found their page; see [`Cache::count_attempt`].
    pub hits: u64,
    /// Look-ups by operations whose page had to be read from the drive.
    pub misses: u64,
    /// Number of pages evicted to free space.
    pub evictions: u64,
    /// Number of pages inserted.
    pub insertions: u64,
}

struct Slot {
    key: Key,
    entry: Entry,
    /// True if the write in flight carries the present content of the page.
    shared: bool,
    generation: u32,
    /// True if the page was hit since it was last at the cold end.
    marked: bool,
    /// True if the slot is on the eviction list, where `colder` and `warmer` are its neighbours.
    listed: bool,
    colder: u32,
    warmer: u32,
    /// Neighbours in the list of pages of the same owner (one list for data, one for nodes).
    before: u32,
    after: u32,
}

/// Pages in a cache, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Number of pages of files and directories.
    pub(crate) data: usize,
    /// Number of nodes.
    pub(crate) nodes: usize,
    /// Number of data pages and nodes whose present content is being written.
    pub(crate) shared: usize,
    /// Number of logged contents of dirty nodes.
    pub(crate) logged: usize,
}

/// The pages of one file in the cache: the head of their list, and their number.
#[derive(Clone, Copy)]
struct Family {
    head: u32,
    count: u32,
}

/// The cache; see the module's header.
///
/// Invariants:
/// - `index` names each slot in use once; a slot is in use or in `free`.
/// - `dirty_data` and `dirty_nodes` are the slots whose entry is dirty.
/// - Each node in `moved_below` is dirty.
/// - Only dirty nodes have a logged content; `logged` counts them.
/// - The eviction list holds the entries that can be evicted, and `evictable` counts them.
/// - `nodes`, `shared` and `families` count slots; `out` is at least the number of writes in flight
///   of all slots.
pub struct Cache {
    capacity: usize,
    index: Map<Key, u32>,
    slots: Vec<Option<Slot>>,
    /// Generation that the next page in each slot gets, so that tickets of earlier pages do
    /// not match.
    generations: Vec<u32>,
    free: Vec<u32>,
    coldest: u32,
    warmest: u32,
    /// Number of pages on the eviction list.
    evictable: usize,
    /// See [`Cache::hold`].
    held: bool,
    /// The list of each owner's pages, by owner and by whether they are nodes.
    families: Map<u64, Family>,
    dirty_data: BTreeSet<(u32, u32)>,
    dirty_nodes: BTreeSet<(u32, u32)>,
    /// See [`Cache::note_moved_below`].
    moved_below: BTreeSet<u32>,
    /// See [`Cache::keep_logged_contents`].
    keeps_logged: bool,
    /// Number of nodes with a logged content.
    logged: usize,
    nodes: usize,
    shared: usize,
    /// Number of pages handed out for writing whose write has not ended, including pages that were
    /// removed in the meantime.
    out: usize,
    /// See [`Cache::lend`].
    lent: usize,
    stats: Stats,
    /// See [`Cache::look`].
    looked: Cell<u64>,
    broken: Broken,
}

impl Cache {
    /// Builds a cache of `capacity` pages (at least 1).
    pub fn new(capacity: usize) -> Cache {
        Cache {
            capacity: capacity.max(1),
            index: Map::default(),
            slots: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            coldest: NIL,
            warmest: NIL,
            evictable: 0,
            held: false,
            families: Map::default(),
            dirty_data: BTreeSet::new(),
            dirty_nodes: BTreeSet::new(),
            moved_below: BTreeSet::new(),
            keeps_logged: false,
            logged: 0,
            nodes: 0,
            shared: 0,
            out: 0,
            lent: 0,
            stats: Stats::default(),
            looked: Cell::new(0),
            broken: Broken::default(),
        }
    }

    /// Makes the cache report to `broken` each count that would go below zero.
    pub(crate) fn noting_broken_in(self, broken: &Broken) -> Cache {
        Cache { broken: broken.clone(), ..self }
    }

    /// Capacity in pages.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of pages in the cache.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// True if the cache has no page.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Number of pages in the cache, by kind.
    pub(crate) fn pages(&self) -> Held {
        Held {
            data: self.len() - self.nodes,
            nodes: self.nodes,
            shared: self.shared,
            logged: self.logged,
        }
    }

    /// Bytes of memory for the cache's structures, without its pages.
    pub(crate) fn index_bytes(&self) -> u64 {
        let slots = self.slots.capacity() * size_of::<Option<Slot>>()
            + (self.generations.capacity() + self.free.capacity()) * size_of::<u32>();
        slots as u64
            + map_bytes(self.index.capacity(), size_of::<(Key, u32)>())
            + map_bytes(self.families.capacity(), size_of::<(u64, Family)>())
            + set_bytes(self.dirty_pages(), size_of::<(u32, u32)>())
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Counts `units` of work. Look-ups of pages are counted here; other code counts the items that
    /// it reads.
    pub(crate) fn look(&self, units: u64) {
        self.looked.set(self.looked.get() + units);
    }

    /// Number of units of work counted so far.
    pub(crate) fn looked(&self) -> u64 {
        self.looked.get()
    }

    /// Corrects the counters after an attempt of an operation. `hits` is [`Stats::hits`] before the
    /// attempt, `lacks` the number of pages that the attempt lacked (`None` if it had all),
    /// `missed` the number that earlier attempts lacked. Returns the number that all attempts
    /// lacked so far.
    ///
    /// An attempt that lacks pages is repeated after they are read, and looks up all its pages
    /// again. So its hits do not count, and each page that was read counts as a miss, not as a hit
    /// of the last attempt.
    pub(crate) fn count_attempt(&mut self, hits: u64, lacks: Option<usize>, missed: u64) -> u64 {
        let Some(lacks) = lacks else {
            self.stats.hits = hits.max(self.stats.hits.saturating_sub(missed));
            return missed;
        };
        self.stats.hits = hits;
        self.stats.misses += lacks as u64;
        missed + lacks as u64
    }

    // ---- looking up ------------------------------------------------------------------------

    /// The place of the page of `key`, for [`Cache::at`]. With a place, a caller needs one look-up
    /// where the borrow rules would otherwise require two.
    pub(crate) fn find(&self, key: &Key) -> Option<Place> {
        self.look(1);
        self.index.get(key).copied().map(Place)
    }

    /// The page at a place that was just found; the page counts as used.
    pub(crate) fn at(&mut self, place: Place) -> &Entry {
        self.stats.hits += 1;
        let slot = self.slot_mut(place.0);
        slot.marked = true;
        &slot.entry
    }

    /// The page of `key`; it does not count as used.
    pub fn peek(&self, key: &Key) -> Option<&Entry> {
        self.look(1);
        self.index.get(key).map(|&slot| &self.slot(slot).entry)
    }

    /// True if the page of `key` is in the cache.
    pub fn contains(&self, key: &Key) -> bool {
        self.look(1);
        self.index.contains_key(key)
    }

    /// The bytes of the page of `key`, to be changed: the page becomes dirty, its CRC is forgotten,
    /// and it is copied first if it is frozen.
    pub fn get_mut(&mut self, key: &Key) -> Option<&mut [u8; PAGE_SIZE]> {
        self.look(1);
        let at = *self.index.get(key)?;
        self.keep_logged(at);
        self.set_dirty(at, true);
        self.unshare(at);
        let slot = self.slot_mut(at);
        slot.marked = true;
        slot.entry.crc = None;
        Some(slot.entry.page.make_mut())
    }

    // ---- coming and going ------------------------------------------------------------------

    /// Inserts a page, and evicts pages beyond the capacity. If `key` is already in the cache, a
    /// clean `entry` is dropped (the present page is at least as new), and a dirty `entry` replaces
    /// the old content. Tickets stay valid.
    pub fn insert(&mut self, key: Key, entry: Entry) {
        self.look(1);
        if let Some(&at) = self.index.get(&key) {
            if entry.dirty {
                self.keep_logged(at);
                self.set_dirty(at, true);
                self.unshare(at);
                let slot = self.slot_mut(at);
                slot.marked = true;
                slot.entry.page = entry.page;
                slot.entry.crc = entry.crc;
            }
            return;
        }
        self.stats.insertions += 1;
        let owner = match key {
            Key::Data(ino, _) => ino,
            Key::Node(_) => entry.owner,
        };
        let dirty = entry.dirty;
        let entry = Entry { owner, dirty: false, ..entry };
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.generations.push(0);
            (self.slots.len() - 1) as u32
        });
        self.slots[at as usize] = Some(Slot {
            key,
            entry,
            shared: false,
            generation: self.generations[at as usize],
            marked: false,
            listed: false,
            colder: NIL,
            warmer: NIL,
            before: NIL,
            after: NIL,
        });
        self.index.insert(key, at);
        self.join_family(at);
        self.set_dirty(at, dirty);
        if !self.held {
            self.shrink(at);
        }
    }

    /// Stops eviction until [`Cache::unhold`]: an operation that has found all of its pages must
    /// find them again while it applies its changes, even after it inserts pages.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// Sets aside `pages` pages of the capacity, at most half of it, for use outside the cache.
    pub(crate) fn lend(&mut self, pages: usize) {
        self.lent = pages.min(self.capacity / 2);
    }

    /// Ends [`Cache::hold`], and evicts pages beyond the capacity.
    pub fn unhold(&mut self) {
        self.held = false;
        self.shrink(NIL);
    }

    /// Removes the page of `key`, dirty or not.
    pub fn remove(&mut self, key: &Key) -> Option<Entry> {
        self.look(1);
        let at = *self.index.get(key)?;
        self.set_dirty(at, false);
        self.unshare(at);
        self.unlist(at);
        self.leave_family(at);
        self.index.remove(key);
        let slot = self.slots[at as usize].take().expect("invariant: the index names live slots");
        self.generations[at as usize] = slot.generation.wrapping_add(1);
        self.free.push(at);
        Some(slot.entry)
    }

    /// Removes the data pages of `ino` in `blocks`, dirty or not (for truncation and hole
    /// punching), and returns their number. The cost is in proportion to the range or to the file's
    /// pages in the cache, whichever is smaller.
    pub fn remove_range(&mut self, ino: u32, blocks: Range<u32>) -> usize {
        let Some(family) = self.families.get(&family_key(ino, false)).copied() else { return 0 };
        let before = self.len();
        if (blocks.len() as u64) < u64::from(family.count) {
            blocks.for_each(|block| {
                self.remove(&Key::Data(ino, block));
            });
        } else {
            let mut at = family.head;
            while at != NIL {
                self.look(1);
                let (key, next) = (self.slot(at).key, self.slot(at).after);
                if matches!(key, Key::Data(_, block) if blocks.contains(&block)) {
                    self.remove(&key);
                }
                at = next;
            }
        }
        before - self.len()
    }

    /// Removes the data pages of `ino` from block `blocks.start` on, and returns their number.
    pub fn remove_from(&mut self, ino: u32, blocks: RangeFrom<u32>) -> usize {
        let last = self.remove(&Key::Data(ino, u32::MAX)).is_some();
        self.remove_range(ino, blocks.start..u32::MAX) + usize::from(last)
    }

    /// Removes every page and node of `ino`, and returns their number.
    pub fn remove_file(&mut self, ino: u32) -> usize {
        let before = self.len();
        for nodes in [false, true] {
            while let Some(family) = self.families.get(&family_key(ino, nodes)) {
                let key = self.slot(family.head).key;
                self.remove(&key);
            }
        }
        before - self.len()
    }

    // ---- states ----------------------------------------------------------------------------

    /// Hands the page of `key` to a device: returns the frozen page, with a ticket for
    /// [`Cache::end_write`]. The page becomes clean, because only a later change needs another
    /// write. `crc` is the CRC32C of its content.
    pub fn begin_write(&mut self, key: &Key, crc: u32) -> Option<(Page, Ticket)> {
        let at = *self.index.get(key)?;
        self.out += 1;
        self.slot_mut(at).entry.in_flight += 1;
        self.set_dirty(at, false);
        let slot = self.slot_mut(at);
        slot.entry.crc = Some(crc);
        let shared = std::mem::replace(&mut slot.shared, true);
        self.shared += usize::from(!shared);
        let slot = self.slot(at);
        Some((slot.entry.page.clone(), Ticket { slot: at, generation: slot.generation }))
    }

    /// Ends a write. After a failed write, call [`Cache::mark_dirty`] too.
    pub fn end_write(&mut self, ticket: Ticket) {
        self.out = self.broken.less("Cache::out", self.out, 1);
        if let Some(entry) = self.by_ticket(ticket).map(|slot| &slot.entry) {
            let left = entry.in_flight;
            let left = self.broken.less("Entry::in_flight", left, 1);
            self.slot_mut(ticket.slot).entry.in_flight = left;
            if left == 0 {
                self.unshare(ticket.slot);
            }
            self.relist(ticket.slot);
            self.shrink(NIL);
        }
    }

    /// Keeps the page of `key` from eviction until [`Cache::unpin`].
    pub fn pin(&mut self, key: &Key) -> Option<Ticket> {
        let at = *self.index.get(key)?;
        let slot = self.slot_mut(at);
        slot.entry.pins += 1;
        let ticket = Ticket { slot: at, generation: slot.generation };
        self.relist(at);
        Some(ticket)
    }

    /// Ends a pin of [`Cache::pin`].
    pub fn unpin(&mut self, ticket: Ticket) {
        if let Some(entry) = self.by_ticket(ticket).map(|slot| &slot.entry) {
            let left = entry.pins;
            let left = self.broken.less("Entry::pins", left, 1);
            self.slot_mut(ticket.slot).entry.pins = left;
            self.relist(ticket.slot);
            self.shrink(NIL);
        }
    }

    /// The key of a ticket's page, if the page is still in the cache.
    pub fn key_of(&self, ticket: Ticket) -> Option<Key> {
        let slot = self.slots.get(ticket.slot as usize)?.as_ref()?;
        (slot.generation == ticket.generation).then_some(slot.key)
    }

    /// Marks the page of `key` dirty without changing it, because its write failed. False if the
    /// page is not in the cache.
    pub fn mark_dirty(&mut self, key: &Key) -> bool {
        let Some(&at) = self.index.get(key) else { return false };
        self.set_dirty(at, true);
        self.set_logged(at, None);
        true
    }

    /// Marks the page of `key` clean, because its content is elsewhere or no longer needed. False
    /// if the page is not in the cache.
    pub fn mark_clean(&mut self, key: &Key) -> bool {
        let Some(&at) = self.index.get(key) else { return false };
        self.set_dirty(at, false);
        true
    }

    /// Stores the CRC32C of the present content of the page of `key`.
    pub fn set_crc(&mut self, key: &Key, crc: u32) {
        if let Some(&at) = self.index.get(key) {
            self.slot_mut(at).entry.crc = Some(crc);
        }
    }

    /// Number of pages handed out for writing whose write has not ended.
    pub(crate) fn writes_out(&self) -> usize {
        self.out
    }

    /// Keys of the pages that are being written, perhaps with older content, in ascending order.
    pub(crate) fn in_flight(&self) -> Vec<Key> {
        let slots = self.slots.iter().flatten().filter(|slot| slot.entry.is_in_flight());
        let mut keys: Vec<Key> = slots.map(|slot| slot.key).collect();
        keys.sort_unstable();
        keys
    }

    // ---- inside ----------------------------------------------------------------------------

    fn slot(&self, at: u32) -> &Slot {
        self.slots[at as usize].as_ref().expect("invariant: indexes name live slots")
    }

    fn slot_mut(&mut self, at: u32) -> &mut Slot {
        self.slots[at as usize].as_mut().expect("invariant: indexes name live slots")
    }

    fn by_ticket(&mut self, ticket: Ticket) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(ticket.slot as usize)?.as_mut()?;
        (slot.generation == ticket.generation).then_some(slot)
    }

    /// Notes that a write in flight no longer carries the present content.
    fn unshare(&mut self, at: u32) {
        let shared = std::mem::replace(&mut self.slot_mut(at).shared, false);
        self.shared = self.broken.less("Cache::shared", self.shared, usize::from(shared));
    }

    /// Puts the slot on the eviction list or takes it off, according to its state.
    fn relist(&mut self, at: u32) {
        let slot = self.slot(at);
        match (slot.entry.evictable(), slot.listed) {
            (true, false) => self.list_warmest(at),
            (false, true) => self.unlist(at),
            _ => {}
        }
    }

    fn list_warmest(&mut self, at: u32) {
        let warmest = self.warmest;
        let slot = self.slot_mut(at);
        (slot.listed, slot.colder, slot.warmer) = (true, warmest, NIL);
        self.evictable += 1;
        match warmest {
            NIL => self.coldest = at,
            other => self.slot_mut(other).warmer = at,
        }
        self.warmest = at;
    }

    fn unlist(&mut self, at: u32) {
        let slot = self.slot_mut(at);
        if !slot.listed {
            return;
        }
        slot.listed = false;
        let (colder, warmer) = (slot.colder, slot.warmer);
        self.evictable = self.broken.less("Cache::evictable", self.evictable, 1);
        match colder {
            NIL => self.coldest = warmer,
            other => self.slot_mut(other).warmer = warmer,
        }
        match warmer {
            NIL => self.warmest = colder,
            other => self.slot_mut(other).colder = colder,
        }
    }

    /// Evicts pages down to the capacity, but never `keep` (the page just inserted), and never the
    /// last [`EVICTABLE_MIN`] evictable pages. Without this minimum, an operation that needs
    /// several clean pages would lose one of these pages by loading the next, if nearly all pages
    /// are dirty.
    fn shrink(&mut self, keep: u32) {
        let floor = if self.capacity >= 4 * EVICTABLE_MIN { EVICTABLE_MIN } else { 0 };
        let others = self.lent + self.logged;
        while self.index.len() + others > self.capacity && self.evictable > floor {
            let at = self.coldest;
            let slot = self.slot_mut(at);
            if slot.marked || at == keep {
                if at == keep && self.warmest == at {
                    return;
                }
                self.slot_mut(at).marked = false;
                self.unlist(at);
                self.list_warmest(at);
                continue;
            }
            let key = slot.key;
            self.remove(&key);
            self.stats.evictions += 1;
        }
    }

    fn family_of(&self, at: u32) -> u64 {
        let slot = self.slot(at);
        family_key(slot.entry.owner, matches!(slot.key, Key::Node(_)))
    }

    fn join_family(&mut self, at: u32) {
        self.nodes += usize::from(matches!(self.slot(at).key, Key::Node(_)));
        let family =
            self.families.entry(self.family_of(at)).or_insert(Family { head: NIL, count: 0 });
        let head = family.head;
        (family.head, family.count) = (at, family.count + 1);
        self.slot_mut(at).after = head;
        if head != NIL {
            self.slot_mut(head).before = at;
        }
    }

    fn leave_family(&mut self, at: u32) {
        let node = usize::from(matches!(self.slot(at).key, Key::Node(_)));
        self.nodes = self.broken.less("Cache::nodes", self.nodes, node);
        let key = self.family_of(at);
        let (before, after) = (self.slot(at).before, self.slot(at).after);
        if after != NIL {
            self.slot_mut(after).before = before;
        }
        if before != NIL {
            self.slot_mut(before).after = after;
        }
        let family = self.families.get_mut(&key).expect("invariant: each page has its family");
        family.count = self.broken.less("Family::count", family.count, 1);
        if before == NIL {
            family.head = after;
        }
        if family.count == 0 {
            self.families.remove(&key);
        }
    }
}

fn family_key(ino: u32, nodes: bool) -> u64 {
    u64::from(ino) << 1 | u64::from(nodes)
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache")
            .field("capacity", &self.capacity)
            .field("pages", &self.len())
            .field("dirty", &self.dirty_pages())
            .field("stats", &self.stats)
            .finish()
    }
}

mod audit;
mod dirty;
mod logged;
#[cfg(test)]
mod tests;
