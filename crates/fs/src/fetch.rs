//! Fetches: blocks on their way from the drive into the cache.
//!
//! The blocks that an operation lacks are read, adjacent blocks in one command, and are pinned
//! until the operation is applied. If another operation is reading a block already, the operation
//! waits for that read instead of reading again. The reason: readers that advance together all lack
//! the same leaf of pointers, which is on one die. If each of ten readers read the leaf, the last
//! reader would get it only after the die had sensed it ten times.

use crate::blocked::Fetch;
use crate::core::{Core, Inner};
use crate::format::{HOLE, Pointer};
use crate::tree::cache::{Entry, Key, Ticket};
use crate::tree::node;
use crate::types::{Ino, Kind};
use furrow_log::address::{BlockAddr, read_blocks};
use furrow_log::record::crc32c;
use furrow_policy::FsDefect;
use furrow_rt::{Notified, Notify, Page, Pages};
use furrow_zone::{Error, ErrorKind, QueueId, Result};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Number of times that an operation waits for reads of other operations before it reads for
/// itself. Without this limit the operation could wait forever, because the blocks can be evicted
/// before it runs.
const JOINS: u32 = 16;

/// Runs of blocks that are being read, by first address: the number of blocks, and the operations
/// that wait for the read.
#[derive(Default)]
pub(crate) struct Fetches(RefCell<BTreeMap<u32, (u32, Notify)>>);

/// A run that is being read; the read counts as ended when this value is dropped.
struct Run<'a> {
    fetches: &'a Fetches,
    start: u32,
}

impl Fetches {
    /// The first addresses of the runs that are being read.
    pub(crate) fn starts(&self) -> Vec<u32> {
        self.0.borrow().keys().copied().collect()
    }

    /// Lets other operations wait for `blocks` blocks from `start`, which nobody is reading yet.
    fn begin(&self, start: u32, blocks: u32) -> Run<'_> {
        self.0.borrow_mut().insert(start, (blocks, Notify::new()));
        Run { fetches: self, start }
    }

    /// Removes from `fetches` the blocks that are being read already, and returns the reads to wait
    /// for instead.
    fn join(&self, fetches: &mut SmallVec<[Fetch; 4]>) -> Option<Joined> {
        let under_way = self.0.borrow();
        let mut joined = Joined::default();
        fetches.retain(|fetch| {
            let addr = fetch.pointer.addr.get();
            match under_way.range(..=addr).next_back() {
                Some((start, (blocks, over))) if addr - start < *blocks => {
                    joined.over.entry(*start).or_insert_with(|| over.wait());
                    joined.fetches.push(*fetch);
                    false
                }
                _ => true,
            }
        });
        (!joined.fetches.is_empty()).then_some(joined)
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if let Some((_, over)) = self.fetches.0.borrow_mut().remove(&self.start) {
            over.notify_all();
        }
    }
}

/// Blocks that other operations are reading. For each of these reads, by the first address read: a
/// future that resolves when the read ends.
#[derive(Default)]
struct Joined {
    fetches: Vec<Fetch>,
    over: BTreeMap<u32, Notified>,
}

/// Pages pinned for an operation that waits.
pub(crate) struct Pins {
    inner: Rc<Inner>,
    tickets: Vec<Ticket>,
    /// Number of times that the operation has waited for reads of other operations.
    joins: u32,
}

impl Pins {
    pub(crate) fn new(inner: &Rc<Inner>) -> Pins {
        Pins { inner: inner.clone(), tickets: Vec::new(), joins: 0 }
    }

    /// Pins the blocks of `fetches` that are in the cache.
    fn hold(&mut self, fetches: &[Fetch]) {
        let mut core = self.inner.core.borrow_mut();
        let tickets = fetches.iter().filter_map(|fetch| core.cache.pin(&fetch.key));
        self.tickets.extend(tickets);
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        // The borrow cannot fail while the engine lives, because an operation is never dropped
        // while it is applied. If the whole engine is dropped, nothing is evicted any more.
        if let Ok(mut core) = self.inner.core.try_borrow_mut() {
            for ticket in self.tickets.drain(..) {
                core.cache.unpin(ticket);
            }
        }
    }
}

impl Inner {
    /// Reads blocks into the cache.
    pub(crate) async fn load(
        self: &Rc<Self>,
        mut fetches: SmallVec<[Fetch; 4]>,
        pins: &mut Pins,
    ) -> Result<()> {
        fetches.sort_by_key(|fetch| fetch.pointer.addr.get());
        fetches.dedup_by_key(|fetch| fetch.pointer.addr.get());
        let alone = pins.joins == JOINS;
        let joined = if alone { None } else { self.fetches.join(&mut fetches) };
        // First read the blocks that nobody is reading, so that no operation waits for another
        // operation that is itself waiting.
        self.read(&fetches, !alone, pins).await?;
        if let Some(joined) = joined {
            pins.joins += 1;
            for over in joined.over.into_values() {
                over.await;
            }
            pins.hold(&joined.fetches);
        }
        Ok(())
    }

    /// Reads blocks, in the order of their addresses. If `shared`, other operations may wait for
    /// these reads.
    async fn read(self: &Rc<Self>, fetches: &[Fetch], shared: bool, pins: &mut Pins) -> Result<()> {
        let (device, geometry, zones) = {
            let core = self.core.borrow();
            (core.env.device.clone(), core.env.geometry.clone(), core.alloc.zones().clone())
        };
        let mut flights = Vec::new();
        let mut runs = Vec::new();
        let mut rest = fetches;
        while let Some(first) = rest.first() {
            let start = BlockAddr(first.pointer.addr.get());
            let Some((zone, _)) = start.locate(&geometry) else {
                let message = format!("{}: block address {start} out of range", device.name());
                return Err(Error::new(ErrorKind::Corrupt, message));
            };
            let run = rest
                .iter()
                .enumerate()
                .take_while(|(i, f)| {
                    let addr = BlockAddr(f.pointer.addr.get());
                    addr.0 == start.0 + *i as u32
                        && addr.locate(&geometry).is_some_and(|(z, _)| z == zone)
                })
                .count();
            let (now, later) = rest.split_at(run);
            let pin = zones.pin(zone);
            let (device, pages) = (device.clone(), self.pages.clone());
            let (queue, key) = (QueueId(0), first.key);
            let read = async move {
                let pages = read_blocks(&*device, queue, start, run as u32, &pages).await;
                drop(pin);
                pages.map_err(|error| error.at(key.owner()))
            };
            if shared {
                runs.push(self.fetches.begin(start.0, run as u32));
            }
            flights.push((now, read));
            rest = later;
        }
        if let [_] = flights[..] {
            let (now, read) = flights.pop().expect("invariant: one flight");
            return self.insert_all_fetched(now, read.await?, pins);
        }
        // Read several runs in parallel.
        let tasks: Vec<_> =
            flights.into_iter().map(|(now, read)| (now, self.rt.spawn(read))).collect();
        for (now, task) in tasks {
            self.insert_all_fetched(now, task.await?, pins)?;
        }
        Ok(())
    }

    fn insert_all_fetched(&self, fetches: &[Fetch], pages: Pages, pins: &mut Pins) -> Result<()> {
        for (fetch, page) in fetches.iter().zip(pages) {
            self.core.borrow_mut().insert_fetched(fetch, page)?;
            pins.hold(std::slice::from_ref(fetch));
        }
        Ok(())
    }
}

impl Core {
    /// The pointer to the content of `key`, if the content is on the drive and its place is known.
    fn place_of(&mut self, key: Key) -> Option<Pointer> {
        match key {
            Key::Node(nid) => {
                let entry = self.tables.nat().get(nid);
                (entry.ino.get() != 0 && entry.addr.get() != HOLE)
                    .then_some(Pointer { addr: entry.addr, crc: entry.crc })
            }
            Key::Data(ino, block) => self.pointer(Ino(ino), block).ok(),
        }
    }

    /// Puts a page read for `fetch` into the cache, unless the content has moved in the meantime.
    pub(crate) fn insert_fetched(&mut self, fetch: &Fetch, page: Page) -> Result<()> {
        if self.cache.contains(&fetch.key) || self.place_of(fetch.key) != Some(fetch.pointer) {
            return Ok(());
        }
        self.verify(fetch, &page)?;
        let owner = match fetch.key {
            Key::Node(nid) => self.tables.nat().get(nid).ino.get(),
            Key::Data(ino, block) => {
                self.verify_directory(Ino(ino), block, &page)?;
                ino
            }
        };
        let crc = Some(fetch.pointer.crc.get());
        self.cache.insert(fetch.key, Entry::clean(page, crc).owned_by(owner));
        Ok(())
    }

    fn verify(&self, fetch: &Fetch, page: &Page) -> Result<()> {
        let addr = BlockAddr(fetch.pointer.addr.get());
        let place = || {
            let (zone, offset) = (addr.zone(&self.env.geometry), addr.offset(&self.env.geometry));
            let whose = fetch.key.owner();
            format!("{}: zone {zone} offset {offset}: {whose}", self.env.device.name())
        };
        let (expected, found) = (fetch.pointer.crc.get(), crc32c(page.bytes()));
        if expected != found && !self.env.options.variant.has(FsDefect::DroppedCrc) {
            let message = format!("{}: expected CRC {expected:08x}, found {found:08x}", place());
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        if let Key::Node(nid) = fetch.key {
            node::check(page, nid, self.tables.nat().get(nid).ino.get())
                .map_err(|what| Error::new(ErrorKind::Corrupt, format!("{}: {what}", place())))?;
        }
        Ok(())
    }

    /// If `ino` is a directory, checks that its block is valid, so that no operation changes an
    /// invalid block.
    fn verify_directory(&mut self, ino: Ino, block: u32, page: &Page) -> Result<()> {
        let directory = match self.inode(ino) {
            Ok(inode) => inode.head.kind == Kind::Directory.code(),
            Err(_) => false,
        };
        if !directory {
            return Ok(());
        }
        crate::tree::dirent::check(page.bytes()).map_err(|error| {
            let name = self.env.device.name();
            let message = format!("{name}: directory {ino} block {block}: {error}");
            Error::new(ErrorKind::Corrupt, message)
        })
    }
}
