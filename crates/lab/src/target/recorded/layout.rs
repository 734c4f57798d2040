//! Recorded runs on a volume: files laid out on its blocks the simplest way.
//!
//! This stands for Ext4 in the published results, without its metadata and journal. Buffered writes
//! leave memory in requests of up to 1 MiB as soon as a file has that much. A file's blocks are
//! taken from the first free space. A sync writes the rest of its file, waits, and flushes the
//! volume. The host's `dirty` is the number of bytes in flight at which writers wait. If the last
//! block of a file was synced before it was full, it is written again with the data that follow.
//! Blocks of removed files are reused without being trimmed. Nothing is cached for readers except
//! their read-ahead.
//!
//! All ways in which a volume writes are measured with the same omissions.

use super::{Ahead, Files, Id, Keeper, found, path_of};
use crate::host::Host;
use crate::inside::Array;
use crate::target::Blocks;
use crate::target::blocks;
use anyhow::{Context as _, Error, Result, anyhow};
use furrow_kv::trace::Op;
use furrow_rt::{Notify, PAGE_SIZE, Rt};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Largest request with which buffered data is written out, in blocks.
const PIECE: u64 = (1 << 20) / PAGE_SIZE as u64;

/// Limit of bytes in flight, if the host does not set one.
const DIRTY: u64 = 128 << 20;

/// Consecutive blocks of a file: the number of the first one in the file and on the volume, and the
/// number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    first: u64,
    at: u64,
    count: u64,
}

#[derive(Default)]
struct File {
    size: Cell<u64>,
    /// Number of bytes that were sent to the volume.
    sent: Cell<u64>,
    extents: RefCell<Vec<Extent>>,
    /// Number of requests in flight.
    flights: Cell<u32>,
    ahead: Ahead,
}

impl File {
    /// The places of `count` blocks from `first` on, as runs of blocks.
    fn places(&self, first: u64, count: u64) -> Vec<(u64, u64)> {
        let end = first + count;
        let extents = self.extents.borrow();
        let within = extents.iter().filter_map(|extent| {
            let (from, to) = (first.max(extent.first), end.min(extent.first + extent.count));
            (from < to).then(|| (extent.at + from - extent.first, to - from))
        });
        within.collect()
    }
}

/// Free space of the volume, in blocks: start and length.
#[derive(Debug)]
struct Room(BTreeMap<u64, u64>);

impl Room {
    /// Takes up to `count` blocks from the first free space.
    fn take(&mut self, count: u64) -> Option<(u64, u64)> {
        let (at, free) = self.0.pop_first()?;
        let taken = free.min(count);
        if free > taken {
            self.0.insert(at + taken, free - taken);
        }
        Some((at, taken))
    }

    fn give(&mut self, mut at: u64, mut count: u64) {
        if let Some((before, free)) = self.0.range(..at).next_back().map(|(at, free)| (*at, *free))
            && before + free == at
        {
            self.0.remove(&before);
            (at, count) = (before, count + free);
        }
        if let Some(free) = self.0.remove(&(at + count)) {
            count += free;
        }
        self.0.insert(at, count);
    }
}

/// Files laid out on a volume, which carry out the calls of recorded runs.
pub struct Layout(Rc<Inner>);

struct Inner {
    rt: Rt,
    blocks: RefCell<Blocks>,
    room: RefCell<Room>,
    files: Files<File>,
    names: RefCell<BTreeMap<String, Id>>,
    limit: u64,
    dirty: Cell<u64>,
    landed: Notify,
    failed: RefCell<Option<Error>>,
    ahead: u64,
}

impl Layout {
    /// Lays out files on the part of a volume that clients use.
    pub fn new(rt: &Rt, blocks: Blocks, host: &Host) -> Layout {
        let room = Room(BTreeMap::from([(0, blocks.span() / PAGE_SIZE as u64)]));
        Layout(Rc::new(Inner {
            rt: rt.clone(),
            blocks: RefCell::new(blocks),
            room: RefCell::new(room),
            files: RefCell::default(),
            names: RefCell::default(),
            limit: if host.dirty.0 > 0 { host.dirty.0 } else { DIRTY },
            dirty: Cell::new(0),
            landed: Notify::new(),
            failed: RefCell::new(None),
            ahead: host.readahead.0,
        }))
    }

    fn file(&self, copy: u32, file: u64) -> Result<Rc<File>> {
        found(&self.0.files, copy, file)
    }

    fn create(&self, id: Id, path: String) -> Rc<File> {
        let file = Rc::new(File::default());
        self.0.files.borrow_mut().insert(id, file.clone());
        if let Some(lost) = self.0.names.borrow_mut().insert(path, id) {
            self.forget(lost);
        }
        file
    }

    /// Frees the blocks of a file that lost its name. Nobody uses the file then: a thread that
    /// removes a file waits for all earlier calls on it.
    fn forget(&self, id: Id) {
        if self.0.names.borrow().values().any(|other| *other == id) {
            return;
        }
        if let Some(file) = self.0.files.borrow_mut().remove(&id) {
            self.free(&file, 0);
        }
    }

    /// Frees the file's blocks from `first` on.
    fn free(&self, file: &File, first: u64) {
        let mut room = self.0.room.borrow_mut();
        file.extents.borrow_mut().retain_mut(|extent| {
            let kept = first.saturating_sub(extent.first).min(extent.count);
            if kept < extent.count {
                room.give(extent.at + kept, extent.count - kept);
            }
            extent.count = kept;
            kept > 0
        });
    }

    async fn append(&self, file: &Rc<File>, at: u64, len: u64) -> Result<u64> {
        if at < file.size.get() {
            self.truncate(file, at).await?;
        }
        let inner = &self.0;
        let mut left = len;
        while left > 0 {
            inner.check()?;
            while inner.dirty.get() >= inner.limit {
                inner.landed.wait().await;
                inner.check()?;
            }
            let some = left.min(PIECE * PAGE_SIZE as u64);
            file.size.set(file.size.get() + some);
            inner.dirty.set(inner.dirty.get() + some);
            left -= some;
            let whole = PIECE * PAGE_SIZE as u64;
            while file.size.get() - file.sent.get() >= whole {
                self.send(file, file.sent.get() + whole)?;
            }
        }
        Ok(len)
    }

    /// Sends the unsent part of a file, up to `end`.
    fn send(&self, file: &Rc<File>, end: u64) -> Result<()> {
        let page = PAGE_SIZE as u64;
        let (first, last) = (file.sent.get() / page, end.div_ceil(page));
        let fresh = end - file.sent.replace(end);
        if fresh == 0 {
            return Ok(());
        }
        let mut has = file.extents.borrow().last().map_or(0, |e| e.first + e.count);
        while has < last {
            let (at, count) =
                self.0.room.borrow_mut().take(last - has).context("the volume is full")?;
            let mut extents = file.extents.borrow_mut();
            match extents.last_mut().filter(|extent| extent.at + extent.count == at) {
                Some(extent) => extent.count += count,
                None => extents.push(Extent { first: has, at, count }),
            }
            has += count;
        }
        let places = file.places(first, last - first);
        file.flights.set(file.flights.get() + 1);
        let (inner, file) = (self.0.clone(), file.clone());
        self.0.rt.spawn_detached(async move {
            for (at, count) in places {
                let (volume, zeros) = inner.volume();
                let bytes = count * PAGE_SIZE as u64;
                if let Err(error) = blocks::write(&volume, at * page, bytes, &zeros).await {
                    inner.failed.borrow_mut().get_or_insert(error);
                }
            }
            inner.dirty.set(inner.dirty.get() - fresh);
            file.flights.set(file.flights.get() - 1);
            inner.landed.notify_all();
        });
        Ok(())
    }

    /// Sends the rest of a file, and waits until all of it is on the volume.
    async fn settle(&self, file: &Rc<File>) -> Result<()> {
        self.send(file, file.size.get())?;
        while file.flights.get() > 0 {
            self.0.landed.wait().await;
        }
        self.0.check()
    }

    async fn sync(&self, file: &Rc<File>) -> Result<()> {
        self.settle(file).await?;
        let (volume, _) = self.0.volume();
        Ok(volume.flush().await?)
    }

    async fn truncate(&self, file: &Rc<File>, size: u64) -> Result<()> {
        if size < file.size.get() {
            self.settle(file).await?;
            self.free(file, size.div_ceil(PAGE_SIZE as u64));
            file.size.set(size);
            file.sent.set(size);
        }
        Ok(())
    }

    async fn read(&self, copy: u32, file: u64, offset: u64, len: u64) -> Result<u64> {
        let file = self.file(copy, file)?;
        let (inner, read) = (self.0.clone(), file.clone());
        let fetch = move |at: u64, bytes: u64| {
            let (inner, file) = (inner.clone(), read.clone());
            async move {
                // Unsent data are in memory, so only sent data is read from the volume.
                let end = (at + bytes).min(file.sent.get()).div_ceil(PAGE_SIZE as u64);
                let first = at / PAGE_SIZE as u64;
                for (at, count) in file.places(first, end.saturating_sub(first)) {
                    let (volume, _) = inner.volume();
                    let pages = volume.read(at, count as u32).await?;
                    anyhow::ensure!(pages.len() as u64 == count, "a read of {count} blocks");
                }
                Ok(())
            }
        };
        let size = file.size.get();
        file.ahead.read(&self.0.rt, (offset, len, size), self.0.ahead, fetch).await?;
        Ok(len.min(size.saturating_sub(offset)))
    }
}

impl Inner {
    fn volume(&self) -> (furrow_raid::Volume, furrow_rt::Page) {
        let blocks = self.blocks.borrow();
        (blocks.volume().clone(), blocks.page().clone())
    }

    fn check(&self) -> Result<()> {
        match &*self.failed.borrow() {
            Some(error) => Err(anyhow!("writing out: {error:#}")),
            None => Ok(()),
        }
    }
}

impl Keeper for Layout {
    async fn make_directory(&self, _path: &str) -> Result<()> {
        Ok(())
    }

    async fn make_file(&self, id: Id, path: &str, size: u64) -> Result<()> {
        let file = self.create(id, path.to_owned());
        self.append(&file, 0, size).await?;
        self.settle(&file).await
    }

    async fn begin(&mut self) -> Result<()> {
        let (volume, _) = self.0.volume();
        volume.flush().await?;
        self.0.blocks.borrow_mut().begin();
        Ok(())
    }

    async fn perform(&self, copy: u32, op: &Op) -> Result<u64> {
        match op {
            Op::Create { file, path, .. } => {
                self.create(Id { copy, file: *file }, path_of(copy, path));
            }
            Op::Append { file, len, .. } => {
                let file = self.file(copy, *file)?;
                return self.append(&file, file.size.get(), *len).await;
            }
            Op::AppendAt { file, offset, len, .. } => {
                return self.append(&self.file(copy, *file)?, *offset, *len).await;
            }
            Op::Truncate { file, size } => self.truncate(&self.file(copy, *file)?, *size).await?,
            Op::Sync { file } => self.sync(&self.file(copy, *file)?).await?,
            Op::Read { file, offset, len, .. } => {
                return self.read(copy, *file, *offset, *len).await;
            }
            Op::SyncNames | Op::SyncAll => {
                let (volume, _) = self.0.volume();
                volume.flush().await?;
            }
            Op::Rename { from, to } => {
                let moved = self.0.names.borrow_mut().remove(&path_of(copy, from));
                if let Some(id) = moved {
                    let lost = self.0.names.borrow_mut().insert(path_of(copy, to), id);
                    lost.into_iter().for_each(|lost| self.forget(lost));
                }
            }
            Op::Link { from, to } => {
                let id = self.0.names.borrow().get(&path_of(copy, from)).copied();
                id.map(|id| self.0.names.borrow_mut().insert(path_of(copy, to), id));
            }
            Op::Remove { path } => {
                let lost = self.0.names.borrow_mut().remove(&path_of(copy, path));
                lost.into_iter().for_each(|lost| self.forget(lost));
            }
            _ => {}
        }
        Ok(0)
    }

    fn array(&self) -> Option<Array> {
        use crate::target::Target as _;
        self.0.blocks.borrow().array()
    }
}
