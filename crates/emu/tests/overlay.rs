//! A view of a drive behaves like the drive, does not change the drive until it is applied, and
//! then leaves it like a drive that was written to directly.

use furrow_emu::{Emulator, Medium, Options};
use furrow_rt::buf::concat;
use furrow_rt::{Config, PAGE_SIZE, Page, Pages, Rng, Rt};
use furrow_zone::{
    Action, BlockCount, ByteLen, Command, Geometry, Lba, Overlay, QueueId, Request, Target, ZoneId,
    ZoneReport, ZoneState, ZonedDevice,
};
use proptest::prelude::*;
use std::rc::Rc;

fn geometry(block: u64, fail: bool, volatile: bool) -> Geometry {
    let text = "zones=8,zone-size=128KiB,zone-capacity=112KiB,max-active=3,max-open=2";
    let mut geometry = furrow_zone::spec::parse_geometry(text).expect("a geometry");
    let per = geometry.block_size.0 / block;
    geometry.block_size = ByteLen(block);
    geometry.zone_size.0 *= per;
    geometry.zone_capacity.0 *= per;
    geometry.unwritten_reads_fail = fail;
    geometry.volatile_cache = volatile;
    geometry.read_across_zones = false;
    geometry.max_transfer = Some(BlockCount(16));
    geometry.max_append = None;
    geometry
}

fn pages(rng: &mut Rng, bytes: usize) -> Pages {
    let mut left = bytes;
    let mut pages = Pages::new();
    while left > 0 {
        let mut page = Page::zeroed();
        let length = left.min(PAGE_SIZE);
        page.make_mut()[..length].fill_with(|| rng.next() as u8);
        pages.push(page);
        left -= length;
    }
    pages
}

/// A random command, which is valid in most cases.
async fn command(rng: &mut Rng, drive: &dyn ZonedDevice) -> Request {
    let geometry = drive.geometry();
    let zone = ZoneId(rng.below(u64::from(geometry.zones)) as u32);
    let report = drive.report(zone, 1).await.expect("a report")[0];
    let start = geometry.start(zone).0;
    let blocks = BlockCount(1 + rng.below(12));
    let data = pages(rng, geometry.bytes(blocks).0 as usize);
    match rng.below(12) {
        0..=4 => {
            let lba = Lba(start + report.write_pointer.0 + u64::from(rng.one_in(20)));
            let mut request = Request::with_data(Command::Write { lba, blocks }, data);
            request.fua = rng.one_in(3);
            request
        }
        5 => Request::with_data(Command::Append { zone_start: Lba(start), blocks }, data),
        6..=8 => {
            let lba = Lba(start + rng.below(geometry.zone_capacity.0));
            let pages = geometry.bytes(blocks).0.div_ceil(PAGE_SIZE as u64);
            let data = (0..pages).map(|_| Page::zeroed()).collect();
            Request::with_data(Command::Read { lba, blocks }, data)
        }
        9 => Request::bare(Command::Flush),
        _ => {
            let actions = [Action::Reset, Action::Finish, Action::Open, Action::Close];
            let action = actions[rng.below(4) as usize];
            Request::bare(Command::Manage { target: Target::Zone(Lba(start)), action })
        }
    }
}

/// The readable content of a drive, block by block.
async fn content(drive: &dyn ZonedDevice) -> Vec<Option<Vec<u64>>> {
    let geometry = drive.geometry();
    let mut all = Vec::new();
    for zone in 0..geometry.zones {
        for block in 0..geometry.zone_capacity.0 {
            let lba = Lba(geometry.start(ZoneId(zone)).0 + block);
            let command = Command::Read { lba, blocks: BlockCount(1) };
            let data = Pages::from_iter([Page::zeroed()]);
            let outcome = drive.submit(QueueId(0), Request::with_data(command, data)).await;
            let bytes = geometry.block_size.0 as usize;
            all.push(outcome.status.is_ok().then(|| sums(&outcome.data[0].bytes()[..bytes])));
        }
    }
    all
}

/// The report of every zone, with implicitly open zones as closed: no report says which zone was
/// opened first, but that is the zone that the drive closes to let another open.
async fn zones(drive: &dyn ZonedDevice) -> Vec<ZoneReport> {
    let mut reports = drive.report(ZoneId(0), drive.geometry().zones).await.expect("a report");
    for report in &mut reports {
        if report.state == ZoneState::ImplicitlyOpen {
            report.state = ZoneState::Closed;
        }
    }
    reports
}

/// Submits a copy of `request`; returns status, place, and the sums of the blocks read.
async fn submit(drive: &dyn ZonedDevice, request: &Request) -> (u16, u64, Vec<u64>) {
    let again = Request {
        command: request.command,
        data: request.data.clone(),
        oob: Vec::new(),
        fua: request.fua,
    };
    let bytes = match request.command {
        Command::Read { blocks, .. } => drive.geometry().bytes(blocks).0 as usize,
        _ => 0,
    };
    let outcome = drive.submit(QueueId(0), again).await;
    let good = outcome.status.is_ok();
    let all = concat(&outcome.data);
    // Data of a failed command is unspecified.
    let data = if good { sums(&all[..bytes]) } else { Vec::new() };
    let placed = matches!(request.command, Command::Write { .. } | Command::Append { .. });
    (outcome.status.code(), if good && placed { outcome.lba.0 } else { 0 }, data)
}

/// A sum of each block instead of its bytes, so that failure messages stay readable.
fn sums(bytes: &[u8]) -> Vec<u64> {
    let sum = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.chunks(512).map(|sector| sector.iter().fold(0, sum)).collect()
}

fn drive(rt: &Rt, geometry: &Geometry) -> Emulator {
    let medium = Medium::memory(geometry);
    Emulator::new(rt, geometry.clone(), medium, Options::simulated()).expect("a drive")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn a_view_is_the_drive_it_would_become(
        seed in any::<u64>(), small in any::<bool>(), fail in any::<bool>(),
        volatile in any::<bool>(), oob in any::<bool>(),
    ) {
        let rt = Rt::new(Config::shuffled(seed));
        let geometry = geometry(if small { 512 } else { 4096 }, fail, volatile);
        // A view of a drive with out-of-band bytes has none.
        let with_oob = Geometry { oob_bytes: if oob { 64 } else { 0 }, ..geometry.clone() };
        let (direct, below) = (drive(&rt, &geometry), drive(&rt, &with_oob));
        let on = rt.clone();
        let result: Result<(), TestCaseError> = rt.block_on(async move {
            let mut rng = Rng::new(seed);
            for _ in 0..60 {
                let request = command(&mut rng, &direct).await;
                let (a, b) = (submit(&direct, &request).await, submit(&below, &request).await);
                prop_assert_eq!(a, b);
            }
            let before = content(&below).await;
            let view = Overlay::new(&on, Rc::new(below.clone())).await.expect("a view");
            prop_assert_eq!(view.geometry(), &geometry);
            let mut changed = 0;
            for _ in 0..120 {
                let request = command(&mut rng, &direct).await;
                let (a, b) = (submit(&direct, &request).await, submit(&view, &request).await);
                prop_assert_eq!(&a, &b, "{:?}", request.command);
                let is_change = !matches!(request.command, Command::Read { .. });
                changed += usize::from(is_change && a.0 == 0);
                prop_assert_eq!(zones(&direct).await, zones(&view).await);
            }
            prop_assert_eq!(view.changes(), changed);
            let after = content(&direct).await;
            prop_assert_eq!(&after, &content(&view).await);
            prop_assert_eq!(&before, &content(&below).await, "the drive is left alone");
            let mut seen = 0;
            view.apply(|done, total| seen += usize::from(done <= total)).await.expect("applied");
            prop_assert_eq!(seen, changed + 1);
            prop_assert_eq!(&after, &content(&below).await);
            Ok(())
        });
        rt.clear();
        result?;
    }
}

#[test]
fn a_drive_that_somebody_else_used_is_left_alone() {
    let rt = Rt::new(Config::simulated(1));
    let geometry = geometry(4096, true, false);
    let below = drive(&rt, &geometry);
    let on = rt.clone();
    rt.block_on(async move {
        let view = Overlay::new(&on, Rc::new(below.clone())).await.expect("a view");
        let mut rng = Rng::new(5);
        let write = |at: u64, rng: &mut Rng| {
            let command = Command::Write { lba: Lba(at), blocks: BlockCount(1) };
            Request::with_data(command, pages(rng, PAGE_SIZE))
        };
        assert_eq!(submit(&view, &write(0, &mut rng)).await.0, 0);
        assert_eq!(submit(&below, &write(0, &mut rng)).await.0, 0);
        let before = content(&below).await;
        let error = view.apply(|_, _| {}).await.expect_err("refused");
        assert!(error.to_string().contains("another program uses the drive"), "{error}");
        assert_eq!(before, content(&below).await);
    });
    rt.clear();
}
