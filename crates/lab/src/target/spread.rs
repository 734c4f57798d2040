//! Files as XFS keeps them on a zoned drive, as a target: a model of what XFS sends, not a
//! file system.
//!
//! Each file's data go to one of a few open zones, file i to zone i modulo their number, with one
//! write in flight per zone. Metadata are in place on a conventional second drive. An fsync writes
//! the file's data, and then commits its change to the journal on the second drive: one block.
//! Clients that ask while a block is being written share the next one. Either write is followed by
//! a flush if the drive's cache is volatile; otherwise Linux sends no flush (`blk_insert_flush`,
//! `bdev_write_cache`). Buffered writes stay in memory. At half of the dirty limit, writing back
//! begins, file by file, in commands of up to 1 MiB; at the whole limit, writers wait.
//!
//! These are left out, each in favour of the model: writes of metadata to their places, space
//! and time of cleaning, and look-ups of many extents. Nothing is cached for readers except
//! their read-ahead.

use super::Target;
use super::zones::Zones;
use crate::host::Host;
use crate::policy::Policy;
use crate::workload::{Fill, Kind, Mode, Op, Order, Pick, Workload};
use anyhow::{Context as _, Error, Result, bail, ensure};
use furrow_emu::timing::quantity::Bytes;
use furrow_rt::{JoinHandle, Notify, Page, Rt};
use furrow_zone::{Access, BlockCount, Command, DeviceSpec, Lba, QueueId, Request, ZonedDevice};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Limit of dirty bytes, if the host does not set one.
const DIRTY: u64 = 128 << 20;

/// Size limit of the commands that write back buffered data.
const WRITE_BACK: u64 = 1 << 20;

/// Size of the journal in bytes, after which it starts over.
const JOURNAL: u64 = 64 << 20;

/// Files as XFS keeps them on a zoned drive, as a target.
pub struct Spread {
    rt: Rt,
    zones: Rc<Zones>,
    device: Rc<dyn ZonedDevice>,
    journal: Journal,
    files: Vec<File>,
    workload: Workload,
    /// Number of bytes read ahead for a sequential reader; 0: none.
    ahead: u64,
    /// Limit of bytes that are buffered and not on the drive.
    limit: u64,
    /// Number of bytes that are buffered and not on the drive.
    dirty: Cell<u64>,
    /// For each zone, whether a task writes it back.
    writing_back: Vec<Cell<bool>>,
    progress: Notify,
    /// The error that ended writing back.
    failed: RefCell<Option<Error>>,
}

#[derive(Default)]
struct File {
    /// Number of bytes buffered and not sent.
    waiting: Cell<u64>,
    /// Number of bytes sent and not answered.
    sent: Cell<u64>,
    /// Offset at which the last read ended.
    end: Cell<u64>,
    /// Read-ahead in progress: its offset, and its task.
    ahead: RefCell<Option<(u64, JoinHandle<Result<u64>>)>>,
}

impl Spread {
    /// Puts the files of `workload`'s clients on `device`, and opens the journal's drive. Files
    /// that are to be read are written first.
    ///
    /// # Errors
    /// If the drive is too small, or the workload asks for something that the model lacks.
    pub async fn new(
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        policy: &Policy,
        workload: &Workload,
        host: &Host,
        seed: u64,
    ) -> Result<Rc<Spread>> {
        let name = device.name();
        let mixed = workload.read_percent > 0 && !workload.only_reads();
        let plain = workload.flow.is_none() && workload.phases.is_empty();
        let left_out = mixed || !plain || workload.fill != Fill::None;
        ensure!(!left_out, "{name}: `spread` knows plain reads or plain writes only");
        ensure!(workload.span.0 > 0, "{name}: how large are the files? `span` is not set");
        ensure!(host.zone_lock, "{name}: `spread` writes zones one command at a time: `zone_lock`");
        let count = policy.data_zones.unwrap_or(1);
        let each = u64::from(workload.clients().div_ceil(count));
        let on_zones = Workload {
            zones: count,
            stride: 1,
            pick: Pick::Own,
            fsync: 0,
            span: Bytes(workload.span.0 * if workload.only_reads() { each } else { 0 }),
            ..workload.clone()
        };
        let zones = Rc::new(Zones::new(device.clone(), &on_zones, host, seed)?);
        zones.prepare(rt).await.context("before measuring")?;
        let sequential = workload.order == Order::Sequential;
        Ok(Rc::new(Spread {
            rt: rt.clone(),
            zones,
            device,
            journal: Journal::new(rt, policy.journal.as_deref().unwrap_or_default())?,
            files: (0..workload.clients()).map(|_| File::default()).collect(),
            workload: workload.clone(),
            ahead: if sequential { host.readahead.0 } else { 0 },
            limit: if host.dirty.0 > 0 { host.dirty.0 } else { DIRTY },
            dirty: Cell::new(0),
            writing_back: (0..count).map(|_| Cell::new(false)).collect(),
            progress: Notify::new(),
            failed: RefCell::new(None),
        }))
    }

    fn zone(&self, thread: u32) -> usize {
        thread as usize % self.writing_back.len()
    }

    /// Sends up to `most` buffered bytes of a file to the drive.
    async fn write_some(&self, thread: u32, most: u64) -> Result<()> {
        let file = &self.files[thread as usize];
        let bytes = file.waiting.get().min(most);
        file.waiting.set(file.waiting.get() - bytes);
        file.sent.set(file.sent.get() + bytes);
        let mut left = bytes;
        while left > 0 {
            let op = Op { kind: Kind::Write, at: 0, bytes: left, sync: false };
            // The end of a zone cuts the write short.
            left -= self.zones.write(thread, self.zone(thread), op).await?.min(left);
        }
        file.sent.set(file.sent.get() - bytes);
        self.dirty.set(self.dirty.get() - bytes);
        self.progress.notify_all();
        Ok(())
    }

    /// Writes back the files of `zone` until the dirty bytes are down to a quarter of the limit.
    async fn write_back(&self, zone: usize) -> Result<()> {
        while self.dirty.get() > self.limit / 4 {
            let threads = (zone..self.files.len()).step_by(self.writing_back.len());
            let most = threads.max_by_key(|thread| self.files[*thread].waiting.get());
            let Some(thread) = most.filter(|thread| self.files[*thread].waiting.get() > 0) else {
                return Ok(());
            };
            self.write_some(thread as u32, WRITE_BACK).await?;
        }
        Ok(())
    }

    fn start_write_back(self: &Rc<Spread>) {
        for zone in 0..self.writing_back.len() {
            if self.writing_back[zone].replace(true) {
                continue;
            }
            let this = self.clone();
            self.rt.spawn_detached(async move {
                let result = this.write_back(zone).await;
                this.writing_back[zone].set(false);
                // Answers wake waiting writers. A notification without an answer would only make
                // them start writing back again. After an error no further answer may come, so the
                // writers are notified here.
                if let Err(error) = result {
                    this.failed.borrow_mut().get_or_insert(error);
                    this.progress.notify_all();
                }
            });
        }
    }

    fn check(&self) -> Result<()> {
        match &*self.failed.borrow() {
            Some(error) => bail!("writing back: {error:#}"),
            None => Ok(()),
        }
    }

    async fn buffer(self: &Rc<Spread>, thread: u32, bytes: u64) -> Result<()> {
        while self.dirty.get() + bytes > self.limit.max(bytes) {
            self.check()?;
            self.start_write_back();
            self.progress.wait().await;
        }
        let file = &self.files[thread as usize];
        file.waiting.set(file.waiting.get() + bytes);
        self.dirty.set(self.dirty.get() + bytes);
        if self.dirty.get() > self.limit / 2 {
            self.start_write_back();
        }
        Ok(())
    }

    async fn fsync(&self, thread: u32) -> Result<()> {
        let file = &self.files[thread as usize];
        while file.waiting.get() > 0 {
            self.write_some(thread, WRITE_BACK).await?;
        }
        while file.sent.get() > 0 {
            self.check()?;
            self.progress.wait().await;
        }
        if self.device.geometry().volatile_cache {
            command(&*self.device, thread, Command::Flush).await?;
        }
        self.journal.commit(thread).await
    }

    /// Reads from a file, which lies in one piece.
    async fn read(self: &Rc<Spread>, thread: u32, at: u64, bytes: u64) -> Result<u64> {
        let before = u64::from(thread) / self.writing_back.len() as u64 * self.workload.span.0;
        let zone = self.zones.first(self.zone(thread));
        let offset = (before + at) / self.device.geometry().block_size.0;
        self.zones.read(thread, zone, offset, bytes).await
    }

    /// Reads ahead for a sequential reader that enters a new window: reads the whole window, unless
    /// its read-ahead is already in progress, and starts reading the next one, as a kernel does.
    async fn read_ahead(self: &Rc<Spread>, thread: u32, op: Op) -> Result<u64> {
        let file = &self.files[thread as usize];
        let goes_on = op.at == 0 || file.end.get() == op.at;
        file.end.set(op.at + op.bytes);
        if !goes_on || op.bytes > self.ahead {
            return self.read(thread, op.at, op.bytes).await;
        }
        if !op.at.is_multiple_of(self.ahead) {
            return Ok(op.bytes);
        }
        let under_way = file.ahead.borrow_mut().take().filter(|(from, _)| *from == op.at);
        match under_way {
            Some((_, window)) => window.await?,
            None => self.read(thread, op.at, self.ahead).await?,
        };
        let (this, from) = (self.clone(), op.at + self.ahead);
        if from < self.workload.span.0 {
            let next = async move { this.read(thread, from, this.ahead).await };
            *file.ahead.borrow_mut() = Some((from, self.rt.spawn(next)));
        }
        Ok(op.bytes)
    }
}

async fn command(device: &dyn ZonedDevice, thread: u32, command: Command) -> Result<()> {
    let pages = match command {
        Command::Write { .. } => vec![Page::zeroed()],
        _ => Vec::new(),
    };
    let request = Request::with_data(command, pages.into_iter().collect());
    let outcome = device.submit(QueueId(thread as u16), request).await;
    ensure!(outcome.status.is_ok(), "{}: {command:?}: {}", device.name(), outcome.status);
    Ok(())
}

/// A journal in place: one block at a time, and a flush if the drive's cache is volatile.
struct Journal {
    device: Rc<dyn ZonedDevice>,
    blocks: u64,
    /// Number of blocks begun.
    begun: Cell<u64>,
    /// Number of blocks durable.
    done: Cell<u64>,
    progress: Notify,
}

impl Journal {
    fn new(rt: &Rt, spec: &str) -> Result<Journal> {
        let parsed: DeviceSpec = spec.parse().with_context(|| format!("journal on `{spec}`"))?;
        let device = furrow_emu::open(rt, &parsed, Access::ReadWrite)?;
        let geometry = device.geometry().clone();
        let blocks = JOURNAL / geometry.block_size.0;
        let fits = geometry.conventional_zones > 0 && geometry.zone_size.0 >= blocks;
        let page = furrow_rt::PAGE_SIZE as u64;
        ensure!(
            fits && geometry.block_size.0 == page,
            "{}: a journal takes {JOURNAL} bytes of {page} written anywhere",
            device.name()
        );
        let (begun, done) = (Cell::new(0), Cell::new(0));
        Ok(Journal { device, blocks, begun, done, progress: Notify::new() })
    }

    /// Returns when a block whose write began after this call is durable. Writes the block if no
    /// other caller does.
    async fn commit(&self, thread: u32) -> Result<()> {
        let wanted = self.begun.get() + 1;
        while self.done.get() < wanted {
            if self.begun.get() > self.done.get() {
                self.progress.wait().await;
                continue;
            }
            let lba = Lba(self.begun.get() % self.blocks);
            self.begun.set(self.begun.get() + 1);
            let write = Command::Write { lba, blocks: BlockCount(1) };
            command(&*self.device, thread, write).await?;
            if self.device.geometry().volatile_cache {
                command(&*self.device, thread, Command::Flush).await?;
            }
            self.done.set(self.begun.get());
            self.progress.notify_all();
        }
        Ok(())
    }
}

/// A [`Spread`] whose own tasks hold references to it.
pub struct Files(pub Rc<Spread>);

impl Target for Files {
    fn space(&self, _thread: u32) -> (u64, bool) {
        (self.0.workload.span.0, false)
    }

    async fn perform(&self, thread: u32, op: Op) -> Result<u64> {
        let this = &self.0;
        this.check()?;
        if op.kind == Kind::Read {
            return match this.ahead {
                0 => this.read(thread, op.at, op.bytes).await,
                _ => this.read_ahead(thread, op).await,
            };
        }
        match this.workload.mode {
            Mode::Direct => {
                let mut left = op.bytes;
                while left > 0 {
                    let op = Op { bytes: left, ..op };
                    left -= this.zones.write(thread, this.zone(thread), op).await?.min(left);
                }
            }
            Mode::Buffered => this.buffer(thread, op.bytes).await?,
        }
        if op.sync {
            this.fsync(thread).await?;
        }
        Ok(op.bytes)
    }
}

#[cfg(test)]
mod tests {
    use crate::catalogue::{Engine, Point, Profile};
    use crate::host::Host;
    use crate::measure::Measures;
    use crate::policy::Policy;
    use crate::workload::Workload;
    use furrow_emu::timing::quantity::Bytes;

    /// Runs one write of 4 KiB in flight in each of two zones, which are on different dies.
    fn run(workload: &str, journal: &str) -> Result<Measures, String> {
        let journal = format!("mem:cns,timing=virtual{journal}");
        let policy = Policy { data_zones: Some(2), journal: Some(journal), ..Policy::default() };
        let profile = Profile {
            engine: Engine::Spread,
            about: String::new(),
            policy,
            array: None,
            store: None,
        };
        let workload: Workload = toml::from_str(workload).unwrap();
        let host = Host { zone_lock: true, dirty: Bytes(1 << 20), ..Host::default() };
        let device = "mem:zn540-4t,timing=virtual".to_owned();
        let point = Point { device, profile, host, workload };
        let run = || crate::scenario::run(&point, 1, &Default::default());
        let first = run().map_err(|error| format!("{error:#}"))?;
        assert_eq!(first, run().unwrap());
        Ok(first)
    }

    const WRITES: &str = "op = 'write'\nsize = '4KiB'\nspan = '64MiB'\nrun = '20ms'\n";

    #[test]
    fn zones_are_written_one_command_at_a_time() {
        let rate = |threads: u32, depth: u32| {
            let more = format!("threads = {threads}\ndepth = {depth}\nmode = 'direct'");
            run(&format!("{WRITES}{more}"), "").unwrap().ops_per_second
        };
        let one = rate(1, 1);
        assert!((0.95..1.05).contains(&(rate(1, 8) / one)), "{one}");
        assert!((1.5..2.1).contains(&(rate(2, 8) / one)), "{one}");
        assert!((0.95..1.05).contains(&(rate(4, 8) / rate(2, 8))));
    }

    /// A block of the journal takes 15 us, plus a flush if the cache is volatile. Clients that ask
    /// in the meantime share the next block.
    #[test]
    fn an_fsync_waits_for_its_data_and_then_for_the_journal() {
        let one = |more: &str, journal: &str| {
            run(&format!("{WRITES}depth = 1\nfsync = 1\n{more}"), journal).unwrap()
        };
        let direct = run(&format!("{WRITES}threads = 1\ndepth = 1\nmode = 'direct'"), "").unwrap();
        let volatile = ",volatile-cache=on,model.flush=1ms";
        let (alone, slow) = (one("threads = 1", ""), one("threads = 1", volatile));
        assert!(alone.p50_ns > direct.p50_ns + 10_000, "{alone:?} {direct:?}");
        assert_eq!(one("threads = 1", ",model.flush=1ms").p50_ns, alone.p50_ns);
        assert!(slow.p50_ns > alone.p50_ns + 900_000, "{slow:?}");
        let shared = one("threads = 8", volatile);
        // Two groups of four clients alternate.
        assert!(shared.ops > 3 * slow.ops, "{} {}", shared.ops, slow.ops);
        assert!(shared.p50_ns < slow.p50_ns * 5 / 2, "{shared:?} {slow:?}");
    }

    #[test]
    fn what_is_buffered_is_written_in_large_commands_and_read_where_it_is() {
        let buffered = run(&format!("{WRITES}threads = 4\ndepth = 1\nwarm = '20ms'"), "").unwrap();
        let direct = run(&format!("{WRITES}threads = 4\ndepth = 1\nmode = 'direct'"), "").unwrap();
        assert!(buffered.bytes > direct.bytes * 3 / 2, "{} {}", buffered.bytes, direct.bytes);
        let reads = "op = 'read'\nsize = '4KiB'\nspan = '1MiB'\nrun = '20ms'\nthreads = 5\n\
                     depth = 1\norder = 'random'";
        // A read takes at least as long as a die needs to sense, which shows that the file
        // was written.
        assert!(run(reads, "").unwrap().p50_ns > 40_000);
    }

    #[test]
    fn what_it_does_not_know_is_refused() {
        let plain = format!("{WRITES}threads = 1\ndepth = 1\n");
        for (more, word) in [("fill = 'at-once'", "plain"), ("read_percent = 50", "plain")] {
            let error = run(&format!("{plain}{more}"), "").unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        let small = run(&plain, ",capacity=1GiB,block=512").unwrap_err();
        assert!(small.contains("journal"), "{small}");
    }
}
