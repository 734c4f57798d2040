//! Cost of a 4 KiB write through the ordered writer to a drive that answers at once.
//!
//! Run with `cargo bench -p furrow-log`. Prints nanoseconds of wall time per write on one core, for
//! the call alone, and with dispatcher, merging and answer. For comparison it submits one command
//! per write directly to the same drive.

use furrow_log::{Kind, Order, Writer, ZoneWrite};
use furrow_rt::{Completion, CompletionTable, Config, Page, Pages, Rt};
use furrow_zone::{
    BlockCount, Command, Geometry, Lba, Outcome, QueueId, Reports, Request, Status, ZoneId,
    ZonedDevice, reported,
};
use std::rc::Rc;

const ZONES: u32 = 64;
const CAPACITY: u64 = 65_536;
const BATCH: u32 = 64;
const ROUNDS: u32 = 60_000;

struct Null {
    geometry: Geometry,
    table: CompletionTable<Outcome>,
}

impl ZonedDevice for Null {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }
    fn submit(&self, _: QueueId, request: Request) -> Completion<Outcome> {
        let (ticket, completion) = self.table.open();
        let lba = match request.command {
            Command::Write { lba, .. } => lba,
            _ => Lba(0),
        };
        drop(request);
        let outcome = Outcome { status: Status::Success, lba, data: Pages::new(), oob: Vec::new() };
        self.table.complete(ticket, outcome);
        completion
    }
    fn report(&self, _: ZoneId, _: u32) -> Reports<'_> {
        reported(Ok(Vec::new()))
    }
    fn name(&self) -> String {
        "null".into()
    }
}

fn null() -> Rc<Null> {
    let geometry = Geometry::unlimited(ZONES, CAPACITY, CAPACITY);
    Rc::new(Null { geometry, table: CompletionTable::new() })
}

/// Submits `BATCH` writes of one page, alternating among `spread` zones, before the
/// dispatchers run.
fn through_writer(order: Order, spread: u32) -> (u64, u64) {
    let rt = Rt::new(Config::real());
    let writer = Writer::new(&rt, null(), order, 1);
    (0..ZONES).for_each(|zone| writer.open_empty(ZoneId(zone)));
    rt.run_ready();
    let page = Page::zeroed();
    let (mut calls, mut total) = (0, 0);
    let mut next = 0;
    for _ in 0..ROUNDS {
        let start = rt.now();
        for index in 0..BATCH {
            let zone = ZoneId(next + index % spread);
            let pages = Pages::from_iter([page.clone()]);
            drop(writer.submit(ZoneWrite::pages(zone, Kind::Data, pages)));
        }
        calls += rt.now().since(start);
        rt.run_ready();
        total += rt.now().since(start);
        if writer.space_left(ZoneId(next)) < BATCH {
            next += spread;
        }
    }
    assert_eq!(writer.in_flight(), 0);
    rt.clear();
    (calls, total)
}

fn direct() -> u64 {
    let rt = Rt::new(Config::real());
    let device = null();
    let page = Page::zeroed();
    let start = rt.now();
    for index in 0..u64::from(ROUNDS * BATCH) {
        let command = Command::Write { lba: Lba(index), blocks: BlockCount(1) };
        let request = Request::with_data(command, Pages::from_iter([page.clone()]));
        let done = device.submit(QueueId(0), request);
        let waker = std::task::Waker::noop();
        let poll = std::future::Future::poll(
            std::pin::pin!(done),
            &mut std::task::Context::from_waker(waker),
        );
        assert!(poll.is_ready());
    }
    rt.now().since(start)
}

fn main() {
    let per_write = |nanoseconds: u64| nanoseconds as f64 / f64::from(ROUNDS * BATCH);
    println!("direct, 1 command per write     {:6.1} ns", per_write(direct()));
    for (name, order, spread) in [
        ("blocking, 1 zone ", Order::Blocking, 1),
        ("queued,   1 zone ", Order::Queued, 1),
        ("queued,   16 zones", Order::Queued, 16),
        ("queued,   64 zones", Order::Queued, 64),
    ] {
        let (calls, total) = through_writer(order, spread.min(ZONES));
        println!(
            "{name:20} call {:6.1} ns, to the answer {:6.1} ns",
            per_write(calls),
            per_write(total)
        );
    }
}
