//! The RAID volume under the crash harness.
//!
//! Clients write and trim; the volume is small, so that it cleans, and checkpoints often; in some
//! runs a drive is pulled under load. Promised: each block has the content of its last acknowledged
//! write or trim, or of a later one that was under way. After each reopening the volume is written
//! on, and read once more with as many drives gone as its level allows, a different set each time.

use crate::crash::{Case, Subject};
use crate::part::Part;
use furrow_emu::Emulator;
use furrow_raid::{Canary, Config, DriveOptions, Level, Options, Volume, assemble, create};
use furrow_rt::{Page, Pages, Rng, Rt};
use furrow_zone::{BlockCount, ByteLen, Geometry, ZonedDevice};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

const CLIENTS: u64 = 3;
/// Versions from here on are of a reopened volume. It may be crashed again, and then has promised
/// nothing of them.
const AFTER: u64 = 1 << 20;
/// Versions from here on are trims: zeros.
const TRIM: u64 = 1 << 40;

/// What happened in a run.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// Blocks were to get a version; from [`TRIM`] on: to be trimmed.
    Began {
        /// Which operation.
        operation: u64,
        /// First block.
        block: u64,
        /// How many.
        count: u64,
        /// What they get.
        version: u64,
    },
    /// An operation was acknowledged.
    Acknowledged(u64),
    /// A drive was pulled.
    Pulled(u32),
}

/// Events, in order.
#[derive(Clone, Debug, Default)]
pub struct History(Vec<Event>);

/// What must hold after a crash.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// Versions a block may have; blocks that are not here are zeros.
    versions: BTreeMap<u64, Vec<u64>>,
    /// Drives that were pulled.
    pulled: Vec<u32>,
}

/// The volume, with a built-in defect if any.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolumeSubject {
    /// The defect.
    pub canary: Option<Canary>,
}

/// The shape of a case.
struct Setup {
    level: Level,
    drives: u32,
    config: Config,
    options: Options,
    geometry: Geometry,
    /// Operation after which a drive is pulled.
    pull: Option<(u64, u32)>,
    operations: u64,
}

fn setup(case: Case, canary: Option<Canary>) -> Setup {
    let mut rng = Rng::new(case.seed ^ 0x7a1d);
    let (level, drives) = [
        (Level::Raid5, 4),
        (Level::Raid5, 3),
        (Level::Raid6, 4),
        (Level::Raid01, 4),
        (Level::Raid4, 3),
        (Level::Raid5, 2),
        (Level::Raid0, 2),
    ][rng.below(7) as usize];
    let capacity = 20 + rng.below(20);
    let permits = 6 + rng.below(3) as u32;
    let geometry = Geometry {
        zones: 12 + rng.below(4) as u32,
        zone_size: BlockCount(capacity + rng.below(4)),
        zone_capacity: BlockCount(capacity),
        block_size: ByteLen(4096),
        oob_bytes: 48 + 16 * rng.below(2) as u16,
        conventional_zones: 0,
        max_open: Some(permits),
        max_active: Some(permits),
        max_append: None,
        max_transfer: None,
        read_across_zones: false,
        unwritten_reads_fail: rng.below(2) == 0,
        volatile_cache: case.volatile,
        channels: None,
        dies: None,
    };
    let config = Config {
        small: 1 + rng.below(2) as u32,
        large: rng.below(2) as u32,
        chunk_large: 2,
        group: [1, 4, 8][rng.below(3) as usize],
        reserve: 25,
        ..Config::new(level, &geometry)
    };
    let options = Options {
        drive: DriveOptions {
            queues: 2,
            depth: 1 + rng.below(6) as u32,
            ..DriveOptions::default()
        },
        depth: 1 + rng.below(6) as u32,
        checkpoint_blocks: 20 + rng.below(200),
        canary,
        ..Options::default()
    };
    let operations = 40 + rng.below(160);
    let may = !matches!(level, Level::Raid0);
    let pull = (may && rng.below(3) == 0)
        .then(|| (rng.below(operations), rng.below(drives.into()) as u32));
    Setup { level, drives, config, options, geometry, pull, operations }
}

fn page(block: u64, version: u64) -> Page {
    let mut page = Page::zeroed();
    for chunk in page.make_mut().chunks_mut(16) {
        chunk[..8].copy_from_slice(&block.to_le_bytes());
        chunk[8..].copy_from_slice(&version.to_le_bytes());
    }
    page
}

/// The version of what was read as `block`; an error if it is none.
fn version(block: u64, found: &Page) -> Result<u64, String> {
    let word = |at: usize| {
        let bytes = found.bytes()[at..at + 8].try_into().expect("invariant: eight bytes");
        u64::from_le_bytes(bytes)
    };
    let version = word(8);
    if found.bytes().iter().all(|byte| *byte == 0) {
        return Ok(0);
    }
    if found.bytes() != page(block, version).bytes() {
        return Err(format!("block {block} reads as block {} version {version}", word(0)));
    }
    Ok(version)
}

fn devices(parts: &[Rc<Part>], without: &[u32]) -> Vec<Rc<dyn ZonedDevice>> {
    (0..)
        .zip(parts)
        .filter(|(index, _)| !without.contains(index))
        .map(|(_, part)| part.clone() as Rc<dyn ZonedDevice>)
        .collect()
}

/// One client's operations.
async fn client(
    volume: Volume,
    (number, share, volatile): (u64, u64, bool),
    mut rng: Rng,
    history: Rc<RefCell<History>>,
    parts: Vec<Rc<Part>>,
    pull: Option<(u64, u32)>,
) -> Result<(), String> {
    for step in 0..share {
        let operation = step * CLIENTS + number + 1;
        if pull.is_some_and(|(at, _)| at / CLIENTS == step && at % CLIENTS == number) {
            let (_, drive) = pull.expect("invariant: asked for in this line");
            history.borrow_mut().0.push(Event::Pulled(drive));
            parts[drive as usize].set_gone(true);
        }
        let count = 1 + rng.below(5).min(volume.blocks() - 1);
        // Half of it goes to a few blocks, so that there is what dies early.
        let span = if rng.below(2) == 0 { volume.blocks() } else { volume.blocks().min(16) };
        let block = rng.below(span.saturating_sub(count).max(1));
        let trim = rng.below(8) == 0;
        let version = if trim { TRIM + operation } else { operation };
        let begun = Event::Began { operation, block, count, version };
        history.borrow_mut().0.push(begun);
        let result = if trim {
            volume.trim(block, count, volatile).await
        } else {
            let pages: Pages = (block..block + count).map(|block| page(block, version)).collect();
            volume.write(block, pages, volatile).await
        };
        result.map_err(|error| format!("operation {operation}: {error}"))?;
        history.borrow_mut().0.push(Event::Acknowledged(operation));
    }
    Ok(())
}

impl Expected {
    fn after(history: &[Event]) -> Expected {
        let mut expected = Expected::default();
        let mut operations = BTreeMap::new();
        for event in history {
            match *event {
                Event::Began { operation, block, count, version } => {
                    operations.insert(operation, (block, count, version));
                    for block in block..block + count {
                        let versions = expected.versions.entry(block).or_insert_with(|| vec![0]);
                        versions.push(version);
                    }
                }
                Event::Acknowledged(operation) => {
                    let (block, count, version) = operations[&operation];
                    for block in block..block + count {
                        let versions = expected.versions.entry(block).or_default();
                        // What came before it is gone.
                        if let Some(at) = versions.iter().skip(1).position(|v| *v == version) {
                            versions.drain(..=at);
                        }
                    }
                }
                Event::Pulled(drive) => expected.pulled.push(drive),
            }
        }
        expected
    }

    fn check(&self, block: u64, found: &Page) -> Result<(), String> {
        let version = version(block, found)?;
        match self.versions.get(&block) {
            _ if (AFTER..TRIM).contains(&version) => Ok(()),
            None if version == 0 => Ok(()),
            Some(versions) if versions.contains(&version) => Ok(()),
            Some(versions) if version == 0 && versions.iter().any(|v| *v >= TRIM) => Ok(()),
            versions => Err(format!("block {block} has version {version}, expected {versions:?}")),
        }
    }
}

async fn check(volume: &Volume, expected: &Expected) -> Result<BTreeMap<u64, u64>, String> {
    let (mut at, mut all) = (0, BTreeMap::new());
    while at < volume.blocks() {
        let count = 32.min(volume.blocks() - at);
        let read = volume.read(at, count as u32).await;
        let read = read.map_err(|error| format!("blocks {at} + {count}: {error}"))?;
        for (block, page) in (at..).zip(&read) {
            expected.check(block, page)?;
            all.insert(block, version(block, page)?);
        }
        at += count;
    }
    Ok(all)
}

impl Subject for VolumeSubject {
    type History = History;
    type Expected = Expected;

    fn name(&self) -> String {
        match self.canary {
            None => "raid".to_owned(),
            Some(canary) => format!("raid:{canary:?}"),
        }
    }

    fn drive(&self, case: Case) -> Geometry {
        let Setup { geometry, drives, .. } = setup(case, None);
        Geometry {
            zones: geometry.zones * drives,
            max_open: geometry.max_open.map(|open| open * drives),
            max_active: geometry.max_active.map(|active| active * drives),
            ..geometry
        }
    }

    fn prepare(&self, rt: &Rt, device: Rc<dyn ZonedDevice>, case: Case) -> Result<(), String> {
        let setup = setup(case, self.canary);
        let parts = Part::split(rt, &device, setup.drives);
        let rt2 = rt.clone();
        rt.block_on(async move {
            let all = devices(&parts, &[]);
            let made = create(&rt2, all, &setup.config, &setup.options, false).await;
            let volume = made.map_err(|error| error.to_string())?;
            volume.stop().await.map_err(|error| error.to_string())
        })
    }

    fn run(
        &self,
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        case: Case,
        history: Rc<RefCell<History>>,
    ) -> Result<(), String> {
        let setup = setup(case, self.canary);
        let parts = Part::split(rt, &device, setup.drives);
        let rt2 = rt.clone();
        rt.block_on(async move {
            let volume = assemble(&rt2, devices(&parts, &[]), &setup.options).await;
            let volume = volume.map_err(|error| error.to_string())?;
            let mut rng = Rng::new(case.seed ^ 0xc11e);
            let clients: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let share = setup.operations / CLIENTS;
                    let what = (number, share, case.volatile);
                    let (history, parts) = (history.clone(), parts.clone());
                    let rng = Rng::new(rng.next());
                    rt2.spawn(client(volume.clone(), what, rng, history, parts, setup.pull))
                })
                .collect();
            for client in clients {
                client.await?;
            }
            volume.stop().await.map_err(|error| error.to_string())
        })
    }

    fn mark(history: &History) -> usize {
        history.0.len()
    }

    fn expect(&self, history: &History, mark: usize) -> Expected {
        Expected::after(&history.0[..mark])
    }

    fn reopen(
        &self,
        rt: &Rt,
        drive: &Emulator,
        case: Case,
        expected: &Expected,
    ) -> Result<(), String> {
        let setup = setup(case, self.canary);
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        let (rt2, expected) = (rt.clone(), expected.clone());
        rt.block_on(reopen(rt2, device, setup, case, expected))
    }
}

/// The drive that is refused because the array went on without it.
fn stale(error: &furrow_zone::Error, parts: &[Rc<Part>], without: &[u32]) -> Option<u32> {
    let text = error.to_string();
    // Stale, or one that a crash left while it was put in the place of another.
    let ends = [" is stale", " was a member", ": no member of"];
    let named = |index: &u32| {
        let name = parts[*index as usize].name();
        ends.iter().any(|end| text.starts_with(&format!("{name}{end}")))
    };
    (0..parts.len() as u32).filter(|index| !without.contains(index)).find(named)
}

async fn reopen(
    rt: Rt,
    device: Rc<dyn ZonedDevice>,
    setup: Setup,
    case: Case,
    expected: Expected,
) -> Result<(), String> {
    let told = |error: furrow_zone::Error| error.to_string();
    let parts = Part::split(&rt, &device, setup.drives);
    // A pulled drive stays away, or comes back: then it is stale, or nothing went on without it.
    let back = rt.random().is_multiple_of(2);
    let mut without = if back { Vec::new() } else { expected.pulled.clone() };
    let redundant = setup.level != Level::Raid0 && setup.drives > 2;
    if back && redundant && rt.random().is_multiple_of(2) {
        // Another one may be lost instead, if nothing went on without the first. (With two drives
        // the one that would know is the one that is lost.)
        let others = (0..setup.drives).filter(|drive| !expected.pulled.contains(drive));
        let others: Vec<u32> = others.collect();
        let lost = others[(rt.random() % others.len() as u64) as usize];
        match assemble(&rt, devices(&parts, &[lost]), &setup.options).await {
            Ok(volume) => return check(&volume, &expected).await.map(drop),
            Err(error) if stale(&error, &parts, &[lost]).is_some() => {}
            Err(error) if error.to_string().contains("cannot do without") => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let volume = loop {
        match assemble(&rt, devices(&parts, &without), &setup.options).await {
            Err(error) => without.push(stale(&error, &parts, &without).ok_or(error.to_string())?),
            Ok(volume) => break volume,
        }
    };
    let found = check(&volume, &expected).await?;
    // It goes on, and what was found stays.
    let mut now = Expected { pulled: expected.pulled.clone(), ..Expected::default() };
    now.versions = found.iter().map(|(block, version)| (*block, vec![*version])).collect();
    let mut rng = Rng::new(case.seed ^ rt.random());
    for step in 0..4 {
        let block = rng.below(volume.blocks());
        let version = AFTER + (rng.next() % (1 << 19)) + step;
        volume
            .write(block, [page(block, version)].into_iter().collect(), true)
            .await
            .map_err(told)?;
        now.versions.insert(block, vec![version]);
    }
    check(&volume, &now).await?;
    if rng.below(2) == 0 {
        volume.stop().await.map_err(told)?;
    }
    drop(volume);
    // What it was still doing by itself ends as by a crash; others take its place.
    parts.iter().for_each(|part| part.set_gone(true));
    rt.sleep(1_000_000_000).await;
    let parts = Part::split(&rt, &device, setup.drives);
    // As many drives as may be gone besides, a different set each time.
    let tolerated = match setup.level {
        Level::Raid0 => 0,
        Level::Raid6 => 2,
        _ => 1,
    };
    while without.len() < tolerated && rng.below(4) > 0 {
        let drive = rng.below(setup.drives.into()) as u32;
        if !without.contains(&drive) {
            without.push(drive);
        }
    }
    let volume = assemble(&rt, devices(&parts, &without), &setup.options).await.map_err(told)?;
    check(&volume, &now).await.map(drop)
}
