//! The file system under the crash harness: random clients on a small random drive, the
//! durability contract as oracle.
//!
//! A run mounts, lets several clients work at once, unmounts, mounts again, continues, and ends
//! with a sync. So power is also cut during a mount, an unmount and a checkpoint. A reopened file
//! system is compared with what is expected, used a little, unmounted and checked by fsck; some are
//! then mounted and compared once more.

use crate::crash::{Case, Subject};
use crate::fs::client::{Client, SharedHistory};
use crate::fs::faults;
use crate::fs::generate::Generator;
use crate::fs::history::{Expected, History};
use crate::fs::isolation::Damaged;
use crate::fs::model::Model;
use crate::fs::observe::{PROBE, Recovered, Trouble, check, observe, told, wrong};
use crate::fs::op::{HASH_SEED, Ino, Object, Op};
use crate::fs::read_only;
use crate::limits::{fewer_open, late_zone};
use furrow_emu::{Emulator, Fault, FaultKind, When};
use furrow_fs::FsckOptions;
use furrow_fs::{AccessTime, CleanOptions, GcOptions, OnDamage, VictimPolicy, WriteData};
use furrow_fs::{Fs, MkfsOptions, MountOptions, NewNode, Order};
use furrow_policy::{FsDefect, FsVariant, Metadata, Pieces, StreamHeads};
use furrow_rt::{Nanos, Rng, Rt};
use furrow_zone::{BlockCount, ByteLen, ErrorKind, Geometry, Lba, ZoneId, ZonedDevice};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The file system as a subject. The last two bits of a seed select a busy setup ([`Setup::busy`]),
/// a drive with faults ([`faults`]), both, or neither. A full or merging drive ([`Setup::full`],
/// [`Setup::merging`]) takes precedence over a busy setup.
#[derive(Clone, Copy, Debug, Default)]
pub struct FsSubject {
    /// The defect built in, if any.
    pub defect: Option<FsDefect>,
    /// Whether bits flip on the drive before it is reopened: errors are allowed then, wrong answers
    /// are not.
    pub rot: bool,
    /// Whether every run is a busy setup, in which many clients sync often.
    pub fsync: bool,
}

/// Parameters of a case other than its operations.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Geometry of the emulated drive.
    pub geometry: Geometry,
    /// How the drive is formatted.
    pub format: MkfsOptions,
    /// How the file system is mounted.
    pub mount: MountOptions,
    /// Number of clients that work at once.
    pub clients: u8,
    /// Number of operations of each client between two mounts.
    pub operations: u32,
    /// Number of mounts in the run.
    pub mounts: u32,
    /// Whether clients fsync often.
    pub busy: bool,
    /// Number of cleanings requested while clients work.
    pub cleanings: u32,
    /// Whether clients sync everything often; each such sync is a checkpoint.
    pub syncing: bool,
    /// Number of files that the first client makes and removes at the beginning, if they fit.
    pub flood: u16,
}

impl Setup {
    /// The setup of `case`: odd capacities, zones larger than their capacity, few permits.
    pub fn draw(case: Case, defect: Option<FsDefect>) -> Setup {
        let mut rng = Rng::new(case.seed ^ 0x5e70_9000);
        let capacity = 41 + rng.below(24);
        // Number of permits, and the width of the widest superzone that they allow.
        let (max_active, widest) =
            [(6, 1), (8, 1), (14, 1), (16, 2), (22, 3)][rng.below(5) as usize];
        let width = 1 + rng.below(widest) as u32;
        let zones = 36 + rng.below(20) as u32;
        let size = capacity + [0, 1, 23][rng.below(3) as usize];
        let geometry = Geometry {
            max_open: Some(max_active),
            max_active: Some(max_active),
            max_transfer: Some(BlockCount([4, 16, 64][rng.below(3) as usize])),
            unwritten_reads_fail: rng.one_in(2),
            volatile_cache: case.volatile,
            channels: Some(width as u16),
            dies: (case.seed % 2 == 1).then_some(4 * width as u16),
            ..Geometry::unlimited(zones, size, capacity)
        };
        let format = MkfsOptions {
            label: "simulated".to_owned(),
            uuid: None,
            hash_seed: Some(HASH_SEED),
            width: if rng.one_in(4) { None } else { Some(width) },
            segment_blocks: if rng.one_in(2) { None } else { Some(5 + rng.below(30) as u32) },
            ..MkfsOptions::default()
        };
        let mount = MountOptions {
            read_only: false,
            commit_interval: [Nanos::MILLI, Nanos::SECOND, 5 * Nanos::SECOND]
                [rng.below(3) as usize],
            cache_pages: [64, 256, 4096][rng.below(3) as usize],
            order: order(case),
            gc: GcOptions::default(),
            variant: FsVariant { defect, heads: heads(case), ..FsVariant::default() },
            ..habits(case, defect)
        };
        Setup {
            geometry,
            format,
            mount,
            clients: 1 + rng.below(3) as u8,
            operations: [20, 40, 80][rng.below(3) as usize],
            mounts: 1 + rng.below(2) as u32,
            busy: false,
            cleanings: 0,
            syncing: false,
            flood: 0,
        }
    }
}

/// Mixed into the seed to draw the size of logical blocks.
const SECTORED: u64 = 0x512_b10c;

/// Returns the geometry with blocks of 512 bytes instead of 4 KiB, and `more` additional blocks in
/// each zone.
pub(crate) fn in_sectors(geometry: &Geometry, more: u64) -> Geometry {
    let capacity = geometry.zone_capacity.0 * 8 + more;
    let sectors = |blocks: BlockCount| BlockCount(blocks.0 * 8 + more);
    Geometry {
        block_size: ByteLen(512),
        oob_bytes: geometry.oob_bytes / 8,
        zone_capacity: BlockCount(capacity),
        zone_size: BlockCount(capacity.max(geometry.zone_size.0 * 8)),
        max_transfer: geometry.max_transfer.map(sectors),
        max_append: geometry.max_append.map(sectors),
        ..geometry.clone()
    }
}

/// Half of the cases have several superzones open for each stream from the start.
fn heads(case: Case) -> StreamHeads {
    let mut rng = Rng::new(case.seed ^ 0x41ea_d500);
    if rng.one_in(2) { StreamHeads::Quota } else { StreamHeads::Fixed(2 + rng.below(3) as u32) }
}

/// Mount options for access times and the reaction to damage.
fn habits(case: Case, defect: Option<FsDefect>) -> MountOptions {
    let mut rng = Rng::new(case.seed ^ 0x4ab1_7500);
    let access = [AccessTime::Relative, AccessTime::Always, AccessTime::Never];
    let read_only = rng.one_in(4) && defect.is_none();
    MountOptions {
        access_time: access[rng.below(3) as usize],
        directory_access_time: rng.one_in(2),
        lazy_time: rng.one_in(3),
        on_damage: if read_only { OnDamage::ReadOnly } else { OnDamage::Continue },
        ..MountOptions::default()
    }
}

/// The order of a zone's writes: each policy in a third of the cases.
fn order(case: Case) -> Order {
    let orders = [Order::Queued, Order::Append, Order::Blocking];
    orders[Rng::new(case.seed ^ 0x0de4_0de4).below(3) as usize]
}

impl Setup {
    /// Changes the setup to many clients that sync often, on a larger drive with short commands and
    /// a small cache: then most power cuts find many commands in flight.
    #[must_use]
    pub fn busy(self, case: Case) -> Setup {
        let mut rng = Rng::new(case.seed ^ 0xb5_5e70);
        let wide = 1 + rng.below(3) as u32;
        let permits = Some(8 + 6 * wide);
        let geometry = Geometry {
            zones: 90 + rng.below(40) as u32,
            max_open: permits,
            max_active: permits,
            max_transfer: Some(BlockCount([1, 4, 16][rng.below(3) as usize])),
            channels: Some(wide as u16),
            ..self.geometry
        };
        let sync_zones = Some(1 + (case.seed >> 3) as u32 % 3);
        let format = MkfsOptions { width: Some(wide), sync_zones, ..self.format };
        let mount = MountOptions { cache_pages: [64, 256][rng.below(2) as usize], ..self.mount };
        let (clients, operations) = (5 + rng.below(6) as u8, 10 + rng.below(15) as u32);
        Setup { geometry, format, mount, clients, operations, busy: true, ..self }
    }
}

impl Setup {
    /// Changes the setup to a drive so small that it is soon full and cleaned all the time: on
    /// request, in the background, and because clients wait for space.
    #[must_use]
    pub fn full(self, case: Case) -> Setup {
        let mut rng = Rng::new(case.seed ^ 0xf0_11ed);
        let capacity = 20 + rng.below(20);
        let geometry = Geometry {
            zones: 20 + rng.below(10) as u32,
            zone_size: BlockCount(capacity + [0, 1, 23][rng.below(3) as usize]),
            zone_capacity: BlockCount(capacity),
            max_open: Some([6, 8, 14][rng.below(3) as usize]),
            max_active: Some(14),
            channels: Some(1),
            ..self.geometry
        };
        let geometry = Geometry { max_active: geometry.max_open, ..geometry };
        let format = MkfsOptions {
            width: Some(1),
            segment_blocks: rng.one_in(2).then(|| 5 + rng.below(12) as u32),
            ..self.format
        };
        let policy = [VictimPolicy::Greedy, VictimPolicy::CostBenefit][rng.below(2) as usize];
        let gc = GcOptions { background: !rng.one_in(4), policy, start: 100, urgent: 90 };
        let mount = MountOptions { gc, ..self.mount };
        let cleanings = rng.below(12) as u32;
        // Uses a separate random generator, so that seeds that once failed keep their runs.
        let mut rng = Rng::new(case.seed ^ 0xf100d);
        let flood = if rng.one_in(4) { 40 + rng.below(200) as u16 } else { 0 };
        // A flooding client creates, writes and removes each file.
        let operations = self.operations.max(40) + 3 * u32::from(flood);
        Setup { geometry, format, mount, cleanings, operations, flood, ..self }
    }

    /// Changes the setup to a drive of another shape: 2 to 32 channels, 8 to 64 active zones, and
    /// superzones up to the width that these allow.
    #[must_use]
    pub fn wide(self, case: Case) -> Setup {
        let mut rng = Rng::new(case.seed ^ 0x71_de5e);
        let permits = 8 + rng.below(57) as u32;
        let channels = 2 + rng.below(31) as u16;
        // The widest superzone with which six streams and the logs have enough permits.
        let most = ((permits.saturating_sub(8)) / 6).clamp(1, u32::from(channels));
        let width = 1 + rng.below(u64::from(most)) as u32;
        let capacity = 24 + rng.below(24);
        let geometry = Geometry {
            zones: 20 + width * (10 + rng.below(20) as u32),
            zone_size: BlockCount(capacity + [0, 1, 23][rng.below(3) as usize]),
            zone_capacity: BlockCount(capacity),
            max_open: Some(permits),
            max_active: Some(permits),
            channels: Some(channels),
            dies: rng.one_in(2).then_some(channels * (1 + rng.below(4) as u16)),
            ..self.geometry
        };
        // Let mkfs choose the width, unless that may leave too few superzones.
        let automatic = most == 1 || rng.one_in(4);
        let format = MkfsOptions {
            width: (!automatic).then_some(width),
            segment_blocks: rng.one_in(2).then(|| 5 + rng.below(16) as u32),
            ..self.format
        };
        // The permits that the streams and six logs leave.
        let left = permits.saturating_sub(6 + 6 * width).min(6);
        let sync_zones = Some(1 + rng.below(u64::from(left) + 1) as u32).filter(|_| !automatic);
        let format = MkfsOptions { sync_zones, ..format };
        Setup { geometry, format, ..self }
    }

    /// Whether the drive of this case has an arbitrary shape.
    pub fn is_wide(case: Case) -> bool {
        !Setup::is_full(case) && case.seed.is_multiple_of(3)
    }

    /// Changes the setup to a drive of small zones with frequent checkpoints: the delta log is
    /// merged into the tables repeatedly, and the ring turns.
    #[must_use]
    pub fn merging(self, case: Case) -> Setup {
        let mut rng = Rng::new(case.seed ^ 0x6e_6269);
        let capacity = 10 + rng.below(12);
        let permits = Some([6, 8, 14, 20][rng.below(4) as usize]);
        let geometry = Geometry {
            zones: 80 + rng.below(100) as u32,
            zone_size: BlockCount(capacity + [0, 1, 23][rng.below(3) as usize]),
            zone_capacity: BlockCount(capacity),
            max_open: permits,
            max_active: permits,
            channels: Some(1),
            ..self.geometry
        };
        let format = MkfsOptions {
            width: Some(1),
            segment_blocks: rng.one_in(2).then(|| 4 + rng.below(6) as u32),
            unit_blocks: Some(1 + rng.below(3) as u32),
            delta_blocks: Some(1),
            logs: (permits >= Some(14)).then(|| 1 + rng.below(2) as u32),
            ..self.format
        };
        let metadata = if rng.one_in(5) { Metadata::Pair } else { Metadata::Log };
        let variant = FsVariant { metadata, ..self.mount.variant };
        let mount = MountOptions { variant, ..self.mount };
        let operations = 2 * self.operations;
        Setup { geometry, format, mount, syncing: true, operations, mounts: 2, ..self }
    }

    /// Changes the setup to imitate a drive with few large zones: superzones of one zone because
    /// few may be active, shared logs, writes in pieces.
    #[must_use]
    pub fn large(self, case: Case) -> Setup {
        let mut rng = Rng::new(case.seed ^ 0x1a_46e0);
        let permits = Some([6, 10, 14, 14, 15, 15][rng.below(6) as usize]);
        let max_active = self.geometry.max_active.min(permits);
        let capacity = self.geometry.zone_capacity.0 * (1 + rng.below(3));
        let geometry = Geometry {
            max_open: max_active,
            max_active,
            zone_capacity: BlockCount(capacity),
            zone_size: BlockCount(capacity + [0, 1, 23][rng.below(3) as usize]),
            channels: None,
            dies: None,
            ..self.geometry
        };
        let large_zones = Some(true);
        let format =
            MkfsOptions { width: None, sync_zones: None, logs: None, large_zones, ..self.format };
        let variant = FsVariant { pieces: Pieces::Several, ..self.mount.variant };
        Setup { geometry, format, mount: MountOptions { variant, ..self.mount }, ..self }
    }

    /// Changes some cases to logical blocks of 512 bytes, with zones that may end within a block of
    /// the file system: then a write can also be torn within such a block.
    #[must_use]
    pub fn in_sectors(self, case: Case) -> Setup {
        // Uses a separate random generator, so that seeds that once failed keep their runs.
        let mut rng = Rng::new(case.seed ^ SECTORED);
        if !rng.one_in(3) {
            return self;
        }
        Setup { geometry: in_sectors(&self.geometry, [0, 0, 3, 7][rng.below(4) as usize]), ..self }
    }

    /// Whether the drive of this case is set up as for large zones.
    pub fn is_large(case: Case) -> bool {
        matches!(case.seed % 13, 3 | 4 | 8)
    }

    /// Whether this case has many checkpoints.
    pub fn is_merging(case: Case) -> bool {
        case.seed % 5 == 3
    }

    /// Whether the drive of this case gets full.
    pub fn is_full(case: Case) -> bool {
        case.seed % 7 < 2
    }
}

/// Formats the drive and makes the directories all clients share.
///
/// # Errors
/// If the engine fails.
pub async fn prepare(rt: Rt, device: Rc<dyn ZonedDevice>, setup: Setup) -> Result<(), Trouble> {
    Fs::format(&rt, device.clone(), &setup.format).await.map_err(told("mkfs"))?;
    let fs = Fs::mount(&rt, device, setup.mount).await.map_err(told("mount"))?;
    for object in Object::SHARED {
        if let Some(name) = object.shared_name() {
            fs.create(furrow_fs::Ino::ROOT, name, &NewNode::directory())
                .await
                .map_err(told("mkdir"))?;
        }
    }
    fs.unmount().await.map_err(told("unmount"))
}

/// Records the inode numbers of the shared directories in `history`.
///
/// # Errors
/// If one does not exist.
pub async fn learn_shared(fs: &Fs, history: &SharedHistory) -> Result<(), Trouble> {
    history.borrow_mut().know(Object::ROOT, Ino::ROOT);
    for object in Object::SHARED {
        if let Some(name) = object.shared_name() {
            let attr =
                fs.lookup(furrow_fs::Ino::ROOT, name).await.map_err(told("shared directory"))?;
            history.borrow_mut().know(object, Ino(attr.ino.0));
        }
    }
    Ok(())
}

/// Generator and model of each client, kept between two mounts.
pub type Idle = BTreeMap<u8, (Generator, Model)>;

/// Clients without any operations yet.
pub fn fresh_clients(seed: u64, setup: &Setup) -> Idle {
    let generator = |n| match setup.busy {
        _ if setup.syncing => Generator::syncing(seed, n),
        true => Generator::busy(seed, n),
        false => Generator::new(seed, n),
    };
    let flooding = |n: u8| generator(n).flooding(if n == 0 { setup.flood } else { 0 });
    (0..setup.clients).map(|n| (n, (flooding(n), Model::default()))).collect()
}

/// Cleans `times` times at random moments. Stops at the first error, which a failing or full drive
/// may cause.
async fn clean(rt: Rt, fs: Fs, times: u32) {
    for _ in 0..times {
        for _ in 0..rt.random() % 200 {
            rt.yield_now().await;
        }
        let options = CleanOptions {
            policy: VictimPolicy::Greedy,
            superzones: 1 + (rt.random() % 3) as u32,
            garbage_percent: 0,
        };
        if fs.clean(options).await.is_err() {
            return;
        }
    }
}

/// Lets all clients work at once, while the drive is cleaned. `load` is the number of operations of
/// each client and the number of cleanings. Clients of a `tolerant` run give up after a few errors
/// of the drive.
///
/// # Errors
/// Describes the first thing that is wrong.
pub async fn work(
    rt: &Rt,
    fs: &Fs,
    clients: Idle,
    load: (u32, u32),
    history: &SharedHistory,
    tolerant: bool,
) -> Result<Idle, Trouble> {
    let of = |client: Client| if tolerant { client.tolerant() } else { client };
    work_as(rt, fs, clients, load, history, of).await
}

/// Like [`work`], but alongside damaged files.
///
/// # Errors
/// The errors of [`work`].
pub(crate) async fn work_around(
    rt: &Rt,
    fs: &Fs,
    clients: Idle,
    load: (u32, u32),
    history: &SharedHistory,
    damaged: &Rc<Damaged>,
) -> Result<Idle, Trouble> {
    work_as(rt, fs, clients, load, history, |client| client.around(damaged.clone())).await
}

async fn work_as(
    rt: &Rt,
    fs: &Fs,
    clients: Idle,
    (operations, cleanings): (u32, u32),
    history: &SharedHistory,
    of: impl Fn(Client) -> Client,
) -> Result<Idle, Trouble> {
    let cleaning = rt.spawn(clean(rt.clone(), fs.clone(), cleanings));
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|(number, (generator, model))| {
            let client = Client::new(rt, fs, number, generator, model, history.clone());
            (number, rt.spawn(of(client).run(operations)))
        })
        .collect();
    let mut idle = Idle::new();
    for (number, task) in tasks {
        idle.insert(number, task.await?);
    }
    cleaning.await;
    Ok(idle)
}

/// Runs `work`, which makes everything answered so far durable, and records a sync in the history.
pub(crate) async fn durably<T>(
    rt: &Rt,
    history: &SharedHistory,
    work: impl Future<Output = furrow_zone::Result<T>>,
) -> Result<T, furrow_zone::Error> {
    let id = history.borrow_mut().begin(rt.now(), u8::MAX, Op::Sync);
    let result = work.await;
    let kind = result.as_ref().map(|_| ()).map_err(furrow_zone::Error::kind);
    history.borrow_mut().end(rt.now(), id, kind);
    result
}

pub(crate) async fn run(
    rt: Rt,
    device: Rc<dyn ZonedDevice>,
    case: Case,
    setup: Setup,
    faults: bool,
    history: SharedHistory,
) -> Result<(), Trouble> {
    // Faults void the commit interval: slow commands advance the clock, and after a failed command
    // the engine commits no more.
    if !faults {
        history.borrow_mut().promise_commits(setup.mount.commit_interval);
    }
    let mut clients = fresh_clients(case.seed, &setup);
    for mount in 0..setup.mounts {
        let fs =
            Fs::mount(&rt, device.clone(), setup.mount.clone()).await.map_err(told("mount"))?;
        if mount == 0 {
            learn_shared(&fs, &history).await?;
            let zones = faults::metadata_zones(&fs).await;
            history.borrow_mut().know_metadata(zones);
        } else {
            exactly(&fs, &history).await.map_err(|why| why.at("after a clean remount"))?;
        }
        let load = (setup.operations, setup.cleanings);
        clients = work(&rt, &fs, clients, load, &history, faults).await?;
        if mount + 1 == setup.mounts {
            match durably(&rt, &history, fs.sync()).await {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NoSpace => {}
                Err(error) => return Err(told("sync")(error)),
            }
            // The run ends here: everything is durable, so a later power cut must lose nothing.
            return exactly(&fs, &history).await.map_err(|why| why.at("at the end"));
        }
        durably(&rt, &history, fs.unmount()).await.map_err(told("unmount"))?;
        for (_, model) in clients.values_mut() {
            model.close_all();
        }
    }
    Ok(())
}

/// Compares the file system with the state at the end of the history. No change may be missing.
async fn exactly(fs: &Fs, history: &SharedHistory) -> Result<(), Trouble> {
    let expected = {
        let history = history.borrow();
        history.cut(history.mark()).all_durable()
    };
    check(fs, &expected).await.map(|_| ())
}

/// Uses a recovered file system a little, since reading alone would not show that it works.
pub(crate) async fn probe(fs: &Fs, seed: u64) -> Result<(), Trouble> {
    let full = |error: &furrow_zone::Error| error.kind() == ErrorKind::NoSpace;
    let root = furrow_fs::Ino::ROOT;
    match fs.lookup(root, PROBE).await {
        Ok(_) => fs.unlink(root, PROBE).await.map_err(told("unlink of an old probe"))?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(told("lookup of the probe")(error)),
    }
    let attr = match fs.create(root, PROBE, &NewNode::file()).await {
        Err(error) if full(&error) => return Ok(()),
        other => other.map_err(told("create after recovery"))?,
    };
    fs.audit().map_err(wrong("create after recovery"))?;
    let bytes: Vec<u8> = (0..5000u64).map(|at| (at.wrapping_mul(seed | 1) >> 3) as u8).collect();
    match fs.write(attr.ino, WriteData::copy(fs.pool(), 0, &bytes)).await {
        Err(error) if full(&error) => return Ok(()),
        other => other.map_err(told("write after recovery"))?,
    }
    fs.audit().map_err(wrong("write after recovery"))?;
    match fs.fsync(attr.ino, false).await {
        Err(error) if full(&error) => return Ok(()),
        other => other.map_err(told("fsync after recovery"))?,
    }
    fs.audit().map_err(wrong("fsync after recovery"))?;
    let found = fs.read(attr.ino, 0, bytes.len()).await.map_err(told("read after recovery"))?;
    if found.to_vec() != bytes {
        return Err("a file written after recovery reads back wrong".to_owned().into());
    }
    if seed.is_multiple_of(2) {
        fs.unlink(root, PROBE).await.map_err(told("unlink after recovery"))?;
    }
    fs.audit().map_err(wrong("unlink after recovery"))?;
    Ok(())
}

/// Checks the drive with fsck, which shares no code for reading or recovery with the engine.
pub(crate) async fn fsck(device: &Rc<dyn ZonedDevice>, when: &str) -> Result<(), Trouble> {
    let options = FsckOptions::default();
    let report = furrow_fs::fsck(device.clone(), &options).await.map_err(told("fsck"))?;
    if report.is_ok() {
        return Ok(());
    }
    let findings: Vec<String> = report.findings.iter().take(3).map(|f| f.to_string()).collect();
    Err(Trouble::Wrong(format!("fsck {when}: {}", findings.join("; "))))
}

/// Compares the file system on `device` with the expected states, and uses it. `emulator` is the
/// same drive, if its commands can be counted.
pub(crate) async fn reopen(
    rt: Rt,
    (device, emulator): (Rc<dyn ZonedDevice>, Option<Emulator>),
    case: Case,
    setup: Setup,
    expected: Expected,
) -> Result<(), Trouble> {
    let choice = rt.random();
    let seen = match (choice % 5, emulator) {
        (0, Some(drive)) => Some(read_only::look(&rt, &drive, &setup.mount, &expected).await?),
        _ => None,
    };
    if choice.is_multiple_of(3) {
        // The state that a crash leaves is not damage, so fsck must not report it.
        fsck(&device, "after the crash").await?;
    }
    let fs = Fs::mount(&rt, device.clone(), setup.mount.clone()).await.map_err(told("mount"))?;
    let recovered = check(&fs, &expected).await?;
    same(seen, &recovered)?;
    probe(&fs, choice ^ case.seed).await?;
    match fs.unmount().await {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::NoSpace => {}
        Err(error) => return Err(told("unmount after recovery")(error)),
    }
    drop(fs);
    fsck(&device, "after recovery").await?;
    if choice.is_multiple_of(4) {
        let fs = Fs::mount(&rt, device, setup.mount).await.map_err(told("second mount"))?;
        let history = History::resume(recovered.models, recovered.inos);
        check(&fs, &history.cut(0)).await.map_err(|why| why.at("at the second mount"))?;
    }
    Ok(())
}

/// Compares the findings of a mount for reading with those of the next mount, which may write: they
/// must be the same.
pub(crate) fn same(seen: Option<Recovered>, found: &Recovered) -> Result<(), Trouble> {
    match seen {
        Some(seen) if seen != *found => {
            Err(format!("mounted for reading {seen:?}, then {found:?}").into())
        }
        _ => Ok(()),
    }
}

/// Flips a bit in each of one to six written blocks.
fn flip_bits(emulator: &Emulator, rng: &mut Rng) {
    let geometry = emulator.geometry().clone();
    let Ok(report) = emulator.report_now(ZoneId(0), geometry.zones) else { return };
    let written: Vec<_> = report.iter().filter(|zone| zone.write_pointer.0 > 0).collect();
    for _ in 0..1 + rng.below(6) {
        let zone = written[rng.below(written.len() as u64) as usize];
        let offset = rng.below(zone.write_pointer.0);
        let block = Lba(geometry.start(zone.zone).0 + offset);
        let fault = Fault::new(FaultKind::BitFlip).at_blocks(block, BlockCount(1));
        // A full zone may have lost its last blocks. Then there is nothing to flip.
        let _ = emulator.inject(fault);
    }
}

/// Reopens a drive that has rotted: the engine may refuse, but everything it shows must be true.
async fn reopen_rotten(
    rt: Rt,
    device: Rc<dyn ZonedDevice>,
    setup: Setup,
    expected: Expected,
) -> Result<(), Trouble> {
    let stops = setup.mount.on_damage == OnDamage::ReadOnly;
    let looked = async {
        let fs = Fs::mount(&rt, device.clone(), setup.mount).await.map_err(told("mount"))?;
        // Reads and cleaning may refuse damaged blocks, but cleaning must not make them
        // look intact.
        if rt.random().is_multiple_of(2) {
            let all = CleanOptions { garbage_percent: 0, ..CleanOptions::default() };
            let _ = fs.clean(all).await;
        }
        // Perhaps only the very first checkpoint can be read, with an empty root. Then nothing
        // is compared.
        if observe(&fs).await?.nodes.len() > 1 {
            check(&fs, &expected).await?;
        }
        fs.unmount().await.map_err(told("unmount"))
    };
    match looked.await {
        Ok(()) => Ok(()),
        Err(Trouble::Refused(_, ErrorKind::Corrupt | ErrorKind::WrongFormat)) => Ok(()),
        // With errors=remount-ro, the remaining writes of recovery may be refused.
        Err(Trouble::Refused(_, ErrorKind::ReadOnly)) if stops => Ok(()),
        // Recovery may also lack space for its writes.
        Err(Trouble::Refused(_, ErrorKind::NoSpace)) => Ok(()),
        Err(other) => Err(other),
    }
}

impl FsSubject {
    /// The setup of this subject for the case.
    fn setup(&self, case: Case) -> Setup {
        let setup = Setup::draw(case, self.defect);
        let setup = match () {
            () if self.fsync => setup.busy(case),
            () if Setup::is_full(case) => setup.full(case),
            () if Setup::is_merging(case) => setup.merging(case),
            () if self.rot || case.seed.is_multiple_of(2) => setup,
            () => setup.busy(case),
        };
        let setup = if Setup::is_large(case) && !self.rot { setup.large(case) } else { setup };
        // The fault of a `rot` subject damages whole blocks, so its drive keeps blocks of 4 KiB.
        let setup = if self.rot { setup } else { setup.in_sectors(case) };
        Setup { geometry: fewer_open(setup.geometry, case.seed), ..setup }
    }

    /// True if the drive of this case has faults.
    fn fails(&self, case: Case) -> bool {
        // Only the defect `ForgottenBlocks` may need faults; the harness must find the
        // others without.
        let wanted = matches!(self.defect, None | Some(FsDefect::ForgottenBlocks));
        !self.rot && wanted && faults::strikes(case)
    }
}

impl Subject for FsSubject {
    type History = History;
    type Expected = Expected;

    fn name(&self) -> String {
        let name = match self {
            FsSubject { rot: true, .. } => "rot",
            FsSubject { fsync: true, .. } => "fsync",
            _ => "fs",
        };
        match self.defect {
            None => name.to_owned(),
            Some(defect) => format!("{name}:{defect:?}"),
        }
    }

    fn drive(&self, case: Case) -> Geometry {
        self.setup(case).geometry
    }

    fn prepare(&self, rt: &Rt, device: Rc<dyn ZonedDevice>, case: Case) -> Result<(), String> {
        let setup = self.setup(case);
        let mount = MountOptions {
            variant: FsVariant { defect: None, ..setup.mount.variant },
            ..setup.mount
        };
        let whole = Setup { mount, ..setup };
        Ok(rt.block_on(prepare(rt.clone(), device, whole))?)
    }

    fn run(
        &self,
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        case: Case,
        history: Rc<RefCell<History>>,
    ) -> Result<(), String> {
        let (setup, faults) = (self.setup(case), self.fails(case));
        match rt.block_on(run(rt.clone(), device, case, setup, faults, history)) {
            // The drive failed and the engine reported it. Earlier promises are still checked.
            Err(Trouble::Refused(_, kind)) if faults && faults::explains(kind) => Ok(()),
            done => Ok(done?),
        }
    }

    fn mark(history: &History) -> usize {
        history.mark()
    }

    fn expect(&self, history: &History, mark: usize) -> Expected {
        if self.rot { history.cut_unpromised(mark) } else { history.cut(mark) }
    }

    fn provoke(&self, emulator: &Emulator, case: Case) {
        // A drive may take appends in any order. Engines that do not append are not affected.
        let _ = emulator.inject(Fault::new(FaultKind::ReorderAppends).when(When::OneIn(2)));
        if self.fails(case) {
            let late = late_zone(emulator.geometry(), case.seed);
            for fault in faults::in_run(case).into_iter().chain(late) {
                // These faults name no place except a zone, so the drive cannot refuse them.
                let _ = emulator.inject(fault);
            }
        }
    }

    fn disturb(&self, emulator: &Emulator, case: Case, seed: u64) {
        if self.rot {
            flip_bits(emulator, &mut Rng::new(seed));
        } else if self.fails(case) {
            faults::at_rest(emulator, seed);
        }
    }

    fn reopen(
        &self,
        rt: &Rt,
        drive: &Emulator,
        case: Case,
        expected: &Expected,
    ) -> Result<(), String> {
        let setup = self.setup(case);
        if self.fails(case) {
            let (rt, drive, expected) = (rt.clone(), drive.clone(), expected.clone());
            return Ok(rt.clone().block_on(faults::reopen(rt, drive, case, setup, expected))?);
        }
        if self.rot {
            let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
            return Ok(rt.block_on(reopen_rotten(rt.clone(), device, setup, expected.clone()))?);
        }
        let drive: (Rc<dyn ZonedDevice>, _) = (Rc::new(drive.clone()), Some(drive.clone()));
        Ok(rt.block_on(reopen(rt.clone(), drive, case, setup, expected.clone()))?)
    }
}
