//! Soft zones under the crash harness. The harness cuts the power of the *plain* drive: any sectors
//! that were not flushed are lost, in any order, and discarded sectors read as anything.
//!
//! There are two subjects. In the first, clients use zones directly, and the oracle is the contract
//! of a zoned drive with a volatile cache. In the second, the file system's clients and oracle run
//! on soft zones. The first subject's plain drive also has faults in some of the runs and
//! recoveries. A recovery with faults may fail, but the next recovery, without faults, must find
//! nothing lost. Some cuts leave the drive its power and its cache, as if the process were killed.

use crate::crash::{Case, Subject};
use crate::fs;
use crate::fs::crash::Setup;
use crate::soft::zones::{self, Expected, History};
use furrow_emu::{Emulator, Fault, FaultKind, Plain, When};
use furrow_log::Uuid;
use furrow_policy::{SoftDefect, SoftVariant};
use furrow_rt::{Rng, Rt};
use furrow_soft::{MakeOptions, SoftDrive, make};
use furrow_zone::{Access, BlockCount, ByteLen, Geometry, Lba, PlainDevice, ZonedDevice};
use std::cell::RefCell;
use std::rc::Rc;

const BLOCK: u64 = 4096;
/// Number of sectors per block.
const SECTORS: u64 = 8;
/// Number of additional zones in a quarter of the cases.
const MANY: u64 = 60;

/// The shape of the soft zones of a case.
#[derive(Clone, Copy)]
struct Shape {
    zones: u64,
    zone_blocks: u64,
    /// Number of blocks for records in each half of the journal.
    records: u32,
}

impl Shape {
    /// Size in bytes of a plain drive that holds this shape.
    fn bytes(self) -> u64 {
        let table = (self.zones * 12).div_ceil(BLOCK) + 2;
        (self.zones * self.zone_blocks + 2 * (table + u64::from(self.records)) + 4) * BLOCK
    }
}

/// Makes soft zones of `shape` on `device`, which is an emulated plain drive.
async fn prepare(rt: &Rt, device: Rc<dyn ZonedDevice>, shape: Shape) -> Result<(), String> {
    let options = MakeOptions {
        zone: ByteLen(shape.zone_blocks * BLOCK),
        records: Some(shape.records),
        uuid: Uuid([0x50; 16]),
    };
    let plain = Plain::new(rt, device);
    make(&plain, &options).await.map(drop).map_err(|error| format!("make: {error}"))
}

/// Opens the soft zones on `device`.
async fn open(
    rt: &Rt,
    device: Rc<dyn ZonedDevice>,
    access: Access,
    defect: Option<SoftDefect>,
) -> Result<Rc<SoftDrive>, String> {
    let plain: Rc<dyn PlainDevice> = Rc::new(Plain::new(rt, device));
    let opened = SoftDrive::open(rt, plain, access, SoftVariant { defect }).await;
    opened.map(Rc::new).map_err(|error| format!("open: {error}"))
}

fn name(kind: &str, defect: Option<SoftDefect>) -> String {
    match defect {
        None => kind.to_owned(),
        Some(defect) => format!("{kind}:{defect:?}"),
    }
}

/// The subject of clients that use soft zones directly.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoftSubject {
    /// The defect built in, if any.
    pub defect: Option<SoftDefect>,
}

impl SoftSubject {
    /// Draws a fault of the plain drive. It strikes one command among the first `within` of its
    /// kind, or several writes in a row.
    fn fault(rng: &mut Rng, within: u64) -> Fault {
        let once = Fault::new(
            [
                FaultKind::ReadError,
                FaultKind::WriteError,
                FaultKind::WriteTorn,
                FaultKind::Disappear { commands: Some(1 + rng.below(20)) },
            ][rng.below(4) as usize],
        );
        // In a third of the cases, a write error hits every write for a time.
        let times = if rng.one_in(3) { 2 + rng.below(30) } else { 1 };
        match once.kind {
            FaultKind::WriteError if times > 1 => Fault::new(FaultKind::WriteError).times(times),
            _ => once.when(When::Nth(1 + rng.below(within))).times(1),
        }
    }

    /// Draws one to eight faults, each of which fails one write to a certain block of a zone.
    fn failing_blocks(rng: &mut Rng, shape: Shape) -> impl Iterator<Item = Fault> {
        let zones = shape.zones * shape.zone_blocks;
        let first = shape.bytes() / BLOCK - zones;
        (0..1 + rng.below(8)).map(move |_| {
            let lba = Lba((first + rng.below(zones)) * SECTORS);
            Fault::new(FaultKind::WriteError).at_blocks(lba, BlockCount(SECTORS)).times(1)
        })
    }

    /// Whether the plain drive has faults in the run of a case.
    fn is_faulty(case: Case) -> bool {
        Rng::new(case.seed ^ 0xfa_017).one_in(3)
    }

    fn shape(case: Case) -> Shape {
        let mut rng = Rng::new(case.seed ^ 0x50f7);
        // The table of many zones has more than one sector: it can be torn.
        let more = if case.seed % 4 == 3 { MANY } else { 0 };
        Shape {
            zones: more + 4 + rng.below(8),
            zone_blocks: 5 + rng.below(30),
            records: 2 + rng.below(12) as u32,
        }
    }
}

impl Subject for SoftSubject {
    type History = History;
    type Expected = Expected;

    fn name(&self) -> String {
        name("soft", self.defect)
    }

    fn drive(&self, case: Case) -> Geometry {
        Plain::geometry(SoftSubject::shape(case).bytes(), case.volatile)
    }

    fn prepare(&self, rt: &Rt, device: Rc<dyn ZonedDevice>, case: Case) -> Result<(), String> {
        let engine = rt.clone();
        rt.block_on(async move { prepare(&engine, device, SoftSubject::shape(case)).await })
    }

    fn run(
        &self,
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        case: Case,
        history: Rc<RefCell<History>>,
    ) -> Result<(), String> {
        let (engine, defect) = (rt.clone(), self.defect);
        rt.block_on(async move {
            let drive = match open(&engine, device, Access::ReadWrite, defect).await {
                Err(_) if SoftSubject::is_faulty(case) => return Ok(()),
                drive => drive?,
            };
            zones::run(engine, drive, (case.seed, SoftSubject::is_faulty(case)), history).await
        })
    }

    fn kills(&self) -> bool {
        true
    }

    fn provoke(&self, drive: &Emulator, case: Case) {
        let mut rng = Rng::new(case.seed ^ 0xfa_017 << 1);
        let shape = SoftSubject::shape(case);
        if SoftSubject::is_faulty(case) && rng.clone().one_in(2) {
            for fault in SoftSubject::failing_blocks(&mut rng, shape) {
                let _ = drive.inject(fault);
            }
        } else if SoftSubject::is_faulty(case) {
            let _ = drive.inject(SoftSubject::fault(&mut rng, 200));
        }
    }

    fn disturb(&self, drive: &Emulator, _: Case, seed: u64) {
        // The faults of the run do not strike the reopening, which may get a fault of its own.
        let _ = drive.clear_faults(None);
        let mut rng = Rng::new(seed ^ 0xd1_57);
        if rng.one_in(6) {
            let _ = drive.inject(SoftSubject::fault(&mut rng, 12));
        }
    }

    fn mark(history: &History) -> usize {
        history.mark()
    }

    fn expect(&self, history: &History, mark: usize) -> Expected {
        history.cut(mark)
    }

    fn again(&self, expected: &mut Expected) {
        expected.probed(MANY as u32 + 12);
    }

    fn reopen(
        &self,
        rt: &Rt,
        drive: &Emulator,
        case: Case,
        expected: &Expected,
    ) -> Result<(), String> {
        let (engine, defect, expected) = (rt.clone(), self.defect, expected.clone());
        let (device, faulty): (Rc<dyn ZonedDevice>, _) = (Rc::new(drive.clone()), drive.clone());
        rt.block_on(async move {
            if !faulty.faults().is_empty() {
                let access = [Access::ReadOnly, Access::ReadWrite][(case.seed % 2) as usize];
                let _ = open(&engine, device.clone(), access, defect).await;
                let done = faulty.clear_faults(None);
                done.map_err(|error| error.to_string())?;
                faulty.power_on();
            }
            if engine.random().is_multiple_of(3) {
                let drive = open(&engine, device.clone(), Access::ReadOnly, defect).await?;
                let found = zones::check(&*drive, case.seed, &expected).await;
                found.map_err(|why| format!("opened for reading: {why}"))?;
            }
            let drive = open(&engine, device.clone(), Access::ReadWrite, defect).await?;
            let mut found = zones::check(&*drive, case.seed, &expected).await?;
            zones::probe(&engine, &*drive, case.seed, &mut found).await?;
            drop(drive);
            // Everything was flushed, so another recovery must change nothing.
            let drive = open(&engine, device, Access::ReadWrite, defect).await?;
            let again = zones::check(&*drive, case.seed, &found).await;
            again.map(drop).map_err(|why| format!("opened again: {why}"))
        })
    }
}

/// The subject of a file system on soft zones.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoftFsSubject {
    /// The defect of soft zones that is built in, if any.
    pub defect: Option<SoftDefect>,
}

impl SoftFsSubject {
    fn setup(case: Case) -> Setup {
        let setup = Setup::draw(case, None);
        let setup = match () {
            () if Setup::is_full(case) => setup.full(case),
            () if Setup::is_merging(case) => setup.merging(case),
            () if case.seed.is_multiple_of(2) => setup,
            () => setup.busy(case),
        };
        // Soft zones have no limits of open and active zones, and no blocks beyond their capacity.
        let geometry = Geometry {
            zone_size: setup.geometry.zone_capacity,
            max_open: None,
            max_active: None,
            max_transfer: Some(BlockCount(16)),
            ..setup.geometry
        };
        Setup { geometry, ..setup }
    }

    fn shape(case: Case) -> Shape {
        let geometry = SoftFsSubject::setup(case).geometry;
        Shape {
            zones: u64::from(geometry.zones),
            zone_blocks: geometry.zone_capacity.0,
            records: 4 + (case.seed % 29) as u32,
        }
    }
}

impl Subject for SoftFsSubject {
    type History = fs::history::History;
    type Expected = fs::history::Expected;

    fn name(&self) -> String {
        name("soft-fs", self.defect)
    }

    fn drive(&self, case: Case) -> Geometry {
        Plain::geometry(SoftFsSubject::shape(case).bytes(), case.volatile)
    }

    fn prepare(&self, rt: &Rt, device: Rc<dyn ZonedDevice>, case: Case) -> Result<(), String> {
        let (engine, setup) = (rt.clone(), SoftFsSubject::setup(case));
        rt.block_on(async move {
            prepare(&engine, device.clone(), SoftFsSubject::shape(case)).await?;
            let drive = open(&engine, device, Access::ReadWrite, None).await?;
            Ok(fs::crash::prepare(engine, drive, setup).await?)
        })
    }

    fn run(
        &self,
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        case: Case,
        history: Rc<RefCell<Self::History>>,
    ) -> Result<(), String> {
        let (engine, defect, setup) = (rt.clone(), self.defect, SoftFsSubject::setup(case));
        rt.block_on(async move {
            let drive = open(&engine, device, Access::ReadWrite, defect).await?;
            Ok(fs::crash::run(engine, drive, case, setup, false, history).await?)
        })
    }

    fn kills(&self) -> bool {
        true
    }

    fn mark(history: &Self::History) -> usize {
        history.mark()
    }

    fn expect(&self, history: &Self::History, mark: usize) -> Self::Expected {
        history.cut(mark)
    }

    fn reopen(
        &self,
        rt: &Rt,
        drive: &Emulator,
        case: Case,
        expected: &Self::Expected,
    ) -> Result<(), String> {
        let (engine, defect, expected) = (rt.clone(), self.defect, expected.clone());
        let (setup, device) = (SoftFsSubject::setup(case), Rc::new(drive.clone()));
        rt.block_on(async move {
            let drive = open(&engine, device, Access::ReadWrite, defect).await?;
            Ok(fs::crash::reopen(engine, (drive, None), case, setup, expected).await?)
        })
    }
}
