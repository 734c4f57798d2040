//! The files of a file system as a target, through the library: one file for each client.
//!
//! The engine runs on the executor of the clients, so its work takes no time except that of the
//! drive; the host model adds processor time.
//!
//! Not here: files that are not regular; mixes of operations, which are `Flows`.

use super::Target;
use super::summary_pairs::SummaryPairs;
use crate::catalogue::Profile;
use crate::host::{Host, Pauses};
use crate::inside::{Ended, Moment, Space, Written};
use crate::policy::Sync;
use crate::workload::{Fill, Kind, Mode, Op, Order, Workload};
use anyhow::{Context as _, Result, ensure};
use furrow_fs::{Fs, Ino, MountOptions, NewNode, Order as WriteOrder, WriteData};
use furrow_policy::Commands;
use furrow_rt::{JoinHandle, Nanos, PAGE_SIZE, Rt};
use furrow_zone::ZonedDevice;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Largest read or write that is passed to the library.
const PIECE: u64 = 1 << 20;

/// A file system made for a profile on a host.
pub(super) struct Library {
    rt: Rt,
    device: Rc<dyn ZonedDevice>,
    /// The copies of summaries, if the profile has them.
    pairs: Option<SummaryPairs>,
    options: MountOptions,
    pub(super) fs: Fs,
    /// Number of zones in a superzone.
    width: u32,
    /// The order of an fsync's writes.
    sync: Sync,
    /// The content of writes: zeros. The emulated drive stores zeros in no space, so that a
    /// full-size drive fits into memory, and in virtual time content makes no difference.
    content: Vec<u8>,
}

impl Library {
    /// Makes and mounts a file system.
    ///
    /// # Errors
    /// If the drive cannot hold the file system, or the host model asks for something that the
    /// engine lacks.
    pub(super) async fn new(
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        profile: &Profile,
        host: &Host,
    ) -> Result<Library> {
        let pages = |bytes: u64| (bytes > 0).then_some(bytes as usize / PAGE_SIZE);
        let mut options = profile.policy.mount();
        options.cache_pages = pages(host.memory.0).unwrap_or(options.cache_pages);
        options.dirty_pages = pages(host.dirty.0);
        options.background_pages = pages(host.background.0);
        if host.zone_lock {
            options.order = WriteOrder::Blocking;
        }
        if let Some(cap) = pages(host.request_cap.0) {
            let own = options.variant.commands.blocks().unwrap_or(u32::MAX);
            options.variant.commands = Commands::AtMost(own.min(cap as u32));
        }
        let pairs = profile.policy.summary_pairs.then(|| SummaryPairs::behind(rt, device.clone()));
        let device = pairs.clone().map_or(device, |pairs| Rc::new(pairs));
        let made = Fs::format(rt, device.clone(), &profile.policy.mkfs()).await.context("mkfs")?;
        let fs = Fs::mount(rt, device.clone(), options.clone()).await.context("mount")?;
        if let Some(pairs) = &pairs {
            pairs.begin(&fs).await.context("pairs of summaries")?;
        }
        let content = vec![0; PIECE as usize];
        let (width, sync) = (made.width, profile.policy.sync);
        Ok(Library { rt: rt.clone(), device, pairs, options, fs, width, sync, content })
    }

    /// Mounts the file system again, so that nothing is cached.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(super) async fn mount_again(&mut self) -> Result<()> {
        self.fs.unmount().await.context("unmount")?;
        let fs = Fs::mount(&self.rt, self.device.clone(), self.options.clone()).await;
        self.fs = fs.context("mount")?;
        Ok(())
    }

    /// Writes `bytes` to `file` at `at`.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(super) async fn write(&self, file: Ino, at: u64, bytes: u64) -> Result<()> {
        let mut done = 0;
        while done < bytes {
            let piece = PIECE.min(bytes - done);
            let from = &self.content[..piece as usize];
            let data = WriteData::copy(self.fs.pool(), at + done, from);
            self.fs.write(file, data).await?;
            done += piece;
        }
        Ok(())
    }

    /// Reads up to `bytes` of `file` from `at`. Returns the number of bytes read.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(super) async fn read(&self, file: Ino, at: u64, bytes: u64) -> Result<u64> {
        let mut done = 0;
        while done < bytes {
            let piece = PIECE.min(bytes - done);
            let read = self.fs.read(file, at + done, piece as usize).await?;
            if read.is_empty() {
                break;
            }
            done += read.len() as u64;
        }
        Ok(done)
    }

    /// Makes `file` durable as the profile's policy says.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(super) async fn fsync(&self, file: Ino, data_only: bool) -> Result<()> {
        if matches!(self.sync, Sync::Ordered | Sync::Serial) {
            self.fs.sync_range(file, 0, u64::MAX / 2).await?;
        }
        Ok(self.fs.fsync(file, data_only).await?)
    }

    /// Bytes of the cache that are dirty or in flight.
    fn dirty(&self) -> u64 {
        let (now, _) = self.fs.memory();
        now.dirty + now.in_flight
    }

    /// The state inside the file system for [`Target::moment`].
    pub(super) fn moment(&self) -> Moment {
        let (total, held) = self.fs.permits();
        let streams = self.fs.streams();
        let zones = |open: u32| open * self.width;
        Moment {
            at_ns: self.rt.now().0,
            permits: total,
            active: held,
            streams: streams.iter().map(|s| zones(s.open + s.parked)).collect(),
            busy: streams.iter().map(|s| zones(s.open)).collect(),
            names: streams.iter().map(|s| s.name.to_owned()).collect(),
        }
    }

    /// Unmounts the file system. Returns the bytes written since it was mounted, and the
    /// memory held.
    ///
    /// # Errors
    /// If the last checkpoint fails.
    pub(super) async fn end(&self) -> Result<Ended> {
        let space = Space::from(&self.fs.statfs());
        self.fs.unmount().await.context("unmount")?;
        let mut written = Written::from(&self.fs.counters());
        written.summaries += self.pairs.as_ref().map_or(0, SummaryPairs::copied);
        let (_, peak) = self.fs.memory();
        let memory = peak.parts().map(|(name, _, bytes)| (name.to_owned(), bytes)).to_vec();
        Ok(Ended { written, space, memory })
    }
}

/// The files of a file system as a target, one for each client.
pub struct Files {
    library: Rc<Library>,
    files: Vec<File>,
    workload: Workload,
    /// Number of bytes read ahead for a sequential reader; 0: none.
    ahead: u64,
    /// Pauses of writers, if the host has them.
    pauses: Option<Pauses>,
    /// Start of the measured time.
    open: Nanos,
    /// The different endings of names: each client has a file with each ending.
    endings: Vec<String>,
}

struct File {
    ino: Ino,
    /// Offset at which the last read ended.
    end: Cell<u64>,
    /// Read-ahead in progress: its offset, and its task.
    ahead: RefCell<Option<(u64, JoinHandle<Result<()>>)>>,
}

impl Files {
    /// Makes a file system on `device`, mounts it and makes the files. If they will be read, or the
    /// profile asks for it, writes the files and mounts again so that nothing is cached.
    ///
    /// # Errors
    /// If the drive cannot hold the file system, or the host model asks for something that the
    /// engine lacks.
    pub async fn new(
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        profile: &Profile,
        workload: &Workload,
        host: &Host,
    ) -> Result<Files> {
        let name = device.name();
        ensure!(workload.span.0 > 0, "{name}: how large are the files? `span` is not set");
        let mut library = Library::new(rt, device, profile, host).await?;
        let mut files = Vec::new();
        let mut endings: Vec<String> = workload.phases.concat();
        endings.sort_unstable();
        endings.dedup();
        if endings.is_empty() {
            endings.push(String::new());
        }
        let all =
            (0..workload.clients()).flat_map(|thread| endings.iter().map(move |e| (thread, e)));
        for (thread, ending) in all {
            let name = format!("client-{thread}{ending}");
            let file = library.fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?;
            files.push(File { ino: file.ino, end: Cell::new(u64::MAX), ahead: RefCell::default() });
        }
        if workload.op == Kind::Read || workload.read_percent > 0 || workload.fill != Fill::None {
            library = fill(rt, library, &files, workload).await?;
            library.mount_again().await?;
        }
        let sequential = workload.order == Order::Sequential;
        let ahead = if sequential { host.readahead.0 } else { 0 };
        let pauses = (host.pause.0 > 0).then(|| {
            let limit = library.options.dirty_pages.unwrap_or(library.options.cache_pages / 2);
            let background = library.options.background_pages.unwrap_or(limit / 2);
            let bytes = |pages: usize| (pages * PAGE_SIZE) as u64;
            Pauses::new(rt, host.pause.0, workload.clients(), bytes(background), bytes(limit))
        });
        let open = rt.now().after(workload.warm.0);
        let (library, workload) = (Rc::new(library), workload.clone());
        Ok(Files { library, files, workload, ahead, pauses, open, endings })
    }

    /// The file that client `thread` uses at this moment.
    fn file(&self, thread: u32) -> &File {
        let phases = &self.workload.phases;
        let close = self.open.after(self.workload.run.0);
        let now = self.library.rt.now().max(self.open);
        let phase = phases.get(crate::measure::part(self.open, close, now, phases.len()));
        let ending = phase.map(|endings| &endings[thread as usize % endings.len()]);
        let at = ending.and_then(|ending| self.endings.iter().position(|known| known == ending));
        let at = thread as usize * self.endings.len() + at.unwrap_or(0);
        &self.files[at % self.files.len()]
    }

    /// Reads ahead for a sequential reader that enters a new window: reads the whole window, unless
    /// its read-ahead is already in progress, and starts reading the next one, as a kernel does.
    async fn read_ahead(&self, file: &File, op: Op) -> Result<()> {
        let goes_on = op.at == 0 || file.end.get() == op.at;
        if !goes_on || !op.at.is_multiple_of(self.ahead) {
            return Ok(());
        }
        let under_way = file.ahead.borrow_mut().take().filter(|(from, _)| *from == op.at);
        match under_way {
            Some((_, window)) => window.await?,
            None => drop(self.library.read(file.ino, op.at, self.ahead).await?),
        }
        let (library, ino, bytes) = (self.library.clone(), file.ino, self.ahead);
        let from = op.at + bytes;
        if from < self.workload.span.0 {
            let next = async move { library.read(ino, from, bytes).await.map(drop) };
            *file.ahead.borrow_mut() = Some((from, self.library.rt.spawn(next)));
        }
        Ok(())
    }
}

/// Writes all files, either at once, as clients would, or one after the other.
async fn fill(rt: &Rt, library: Library, files: &[File], workload: &Workload) -> Result<Library> {
    let library = Rc::new(library);
    let span = workload.span.0;
    let mut writers = Vec::new();
    for file in files {
        let (library, ino) = (library.clone(), file.ino);
        let writer = rt.spawn(async move {
            let mut at = 0;
            while at < span {
                let bytes = (PIECE / 8).min(span - at);
                library.write(ino, at, bytes).await?;
                at += bytes;
                library.rt.yield_now().await;
            }
            anyhow::Ok(())
        });
        match workload.fill {
            Fill::InTurn => writer.await.context("filling files")?,
            Fill::None | Fill::AtOnce => writers.push(writer),
        }
    }
    for writer in writers {
        writer.await.context("filling files")?;
    }
    library.fs.sync().await.context("sync")?;
    Rc::try_unwrap(library).map_err(|_| anyhow::anyhow!("a writer did not end"))
}

impl Target for Files {
    fn space(&self, _thread: u32) -> (u64, bool) {
        (self.workload.span.0, false)
    }

    async fn perform(&self, thread: u32, op: Op) -> Result<u64> {
        let file = self.file(thread);
        if op.kind == Kind::Read {
            if self.ahead > 0 {
                self.read_ahead(file, op).await?;
            }
            file.end.set(op.at + op.bytes);
            let done = self.library.read(file.ino, op.at, op.bytes).await?;
            ensure!(done == op.bytes, "file of client {thread} ends before {}", op.at + op.bytes);
            return Ok(done);
        }
        self.library.write(file.ino, op.at, op.bytes).await?;
        if let Some(pauses) = &self.pauses {
            let dirty = || self.library.dirty();
            pauses.dirtied(thread, op.bytes, dirty).await;
        }
        if op.sync {
            self.library.fsync(file.ino, true).await?;
        } else if self.workload.mode == Mode::Direct {
            self.library.fs.sync_range(file.ino, op.at, op.bytes).await?;
        }
        Ok(op.bytes)
    }

    fn moment(&self) -> Option<Moment> {
        Some(self.library.moment())
    }

    async fn end(&self) -> Result<Option<Ended>> {
        self.library.end().await.map(Some)
    }
}
