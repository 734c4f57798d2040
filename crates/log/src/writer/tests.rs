//! The writer on a drive that answers in any order, fails, and lets commands overtake each other.

use super::*;
use crate::budget::{Budget, Class};
use crate::toy::{Toy, geometry};
use furrow_rt::{Config, Pages};
use furrow_zone::{BlockCount, ByteLen, ErrorKind, Lba, Status};
use proptest::prelude::*;
use std::collections::BTreeSet;

mod audit;
mod flushes;
mod observers;

fn stamp(zone: ZoneId, offset: u32) -> Page {
    let mut page = Page::zeroed();
    let text = format!("zone {zone} offset {offset};");
    for chunk in page.make_mut().chunks_mut(512) {
        chunk[..text.len()].copy_from_slice(text.as_bytes());
    }
    page
}

/// `count` pages stamped with their future place.
fn stamped(writer: &Writer, zone: ZoneId, count: u32) -> Pages {
    let at = writer.position(zone);
    (at..at + count).map(|offset| stamp(zone, offset)).collect()
}

fn write(writer: &Writer, zone: u32, count: u32) -> WriteHandle {
    let pages = stamped(writer, ZoneId(zone), count);
    writer.submit(ZoneWrite::pages(ZoneId(zone), Kind::Data, pages))
}

fn append(writer: &Writer, zone: ZoneId, pages: Pages) -> WriteHandle {
    let write = ZoneWrite::pages(zone, Kind::Data, pages);
    writer.submit(ZoneWrite { placement: Placement::Append, ..write })
}

#[test]
#[should_panic(expected = "zone 0: only pages can be appended")]
fn a_block_whose_page_comes_later_is_not_appended() {
    let rt = Rt::new(Config::simulated(1));
    let toy = Toy::on(&rt, geometry(1, 64), 1);
    let writer = Writer::with_options(&rt, toy, options(Order::Append, 1, 4));
    writer.open_empty(ZoneId(0));
    let reserve = ZoneWrite::reserve(ZoneId(0), Kind::Summary);
    drop(writer.submit(ZoneWrite { placement: Placement::Append, ..reserve }));
}

/// Whatever zones are open, they are spread evenly over the queues. A zone that continues another
/// one uses the other's queue.
#[test]
fn open_zones_are_spread_evenly_over_the_queues() {
    let rt = Rt::new(Config::simulated(1));
    let toy = Toy::on(&rt, geometry(64, 8), 1);
    let writer = Writer::with_options(&rt, toy, options(Order::Queued, 4, 4));
    let spread = |zones: &[u32]| {
        let mut counts = [0; 4];
        zones.iter().for_each(|zone| counts[usize::from(writer.queue(ZoneId(*zone)).0)] += 1);
        counts
    };
    // If the zone number chose the queue, all these zones would be in one queue.
    let first: Vec<u32> = (0..12).map(|i| i * 4).collect();
    first.iter().for_each(|zone| writer.open_empty(ZoneId(*zone)));
    assert_eq!(spread(&first), [3; 4]);
    // The next zone of a stream keeps the stream's queue, though its number differs.
    for zone in &first {
        writer.open_zone_after(ZoneId(zone + 1), ZoneId(*zone));
        assert_eq!(writer.queue(ZoneId(zone + 1)), writer.queue(ZoneId(*zone)));
    }
    // Finished zones leave their queues: here two of the four queues lose zones.
    let ended = [0, 16, 4, 20];
    for zone in ended.map(ZoneId) {
        let (writer, next) = (writer.clone(), ZoneId(zone.0 + 1));
        rt.block_on(async move {
            writer.finish(zone).await.unwrap();
            writer.finish(next).await.unwrap();
        });
    }
    let again: Vec<u32> = (46..54).collect();
    again.iter().for_each(|zone| writer.open_empty(ZoneId(*zone)));
    let left = first.iter().filter(|zone| !ended.contains(zone));
    let left: Vec<u32> = left.flat_map(|zone| [*zone, zone + 1]).collect();
    assert_eq!(spread(&[&left[..], &again[..]].concat()), [6; 4]);
}

/// Returns the geometry of a drive of `zones` zones of `capacity` blocks, and its number of logical
/// blocks per block.
fn shape(zones: u32, capacity: u64, small_sectors: bool) -> (Geometry, u64) {
    let mut shape = geometry(zones, capacity);
    if !small_sectors {
        return (shape, 1);
    }
    // The capacity is not a whole number of blocks: the zone must become full nevertheless.
    shape.block_size = ByteLen(512);
    shape.zone_capacity = BlockCount(capacity * 8 + capacity % 8);
    shape.zone_size = BlockCount(1024);
    shape.max_transfer = Some(BlockCount(67));
    (shape, 8)
}

fn options(order: Order, queues: u16, depth: u32) -> WriterOptions {
    WriterOptions { order, queues, depth, ..Default::default() }
}

fn written(toy: &Toy, zone: ZoneId, offset: u32, per_block: u64) -> bool {
    let page = stamp(zone, offset);
    let size = 4096 / per_block as usize;
    (0..per_block).all(|i| {
        let expected = &page[i as usize * size..(i as usize + 1) * size];
        toy.sector(zone, u64::from(offset) * per_block + i).as_deref() == Some(expected)
            && toy.is_answered(zone, u64::from(offset) * per_block + i)
    })
}

#[derive(Clone, Debug)]
enum Op {
    Write { zone: u32, blocks: u32, fua: bool },
    Fill { zone: u32, blocks: u32 },
    Yield,
    Drain,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => (0..5u32, 1..12u32, any::<bool>())
            .prop_map(|(zone, blocks, fua)| Op::Write { zone, blocks, fua }),
        1 => (0..5u32, 1..40u32).prop_map(|(zone, blocks)| Op::Fill { zone, blocks }),
        2 => Just(Op::Yield),
        1 => Just(Op::Drain),
    ];
    proptest::collection::vec(op, 1..80)
}

proptest! {
    /// Whatever the order of answers, of tasks, and of commands within a queue: data is in its
    /// place when the write counts as written, and no limit is exceeded.
    #[test]
    fn data_lands_where_it_was_placed(
        seed in any::<u64>(),
        ops in ops(),
        blocking in any::<bool>(),
        small_sectors in any::<bool>(),
        overtake in 0..3usize,
        pieces in 1..5u32,
        learns_pieces in any::<bool>(),
        capacity in 60..90u64,
    ) {
        let rt = Rt::new(Config::shuffled(seed));
        let (shape, per_block) = shape(5, capacity, small_sectors);
        let toy = Toy::on(&rt, shape, seed);
        toy.wish(|wishes| wishes.overtake = overtake);
        let order = if blocking { Order::Blocking } else { Order::Queued };
        let options = WriterOptions { pieces, learns_pieces, ..options(order, 3, 4) };
        let writer = Writer::with_options(&rt, toy.clone(), options);
        (0..5).for_each(|zone| writer.open_empty(ZoneId(zone)));
        let (rt2, toy2) = (rt.clone(), toy.clone());
        let full = rt.block_on(async move {
            let mut placed = Vec::new();
            for op in ops {
                match op {
                    Op::Write { zone, blocks, fua } => {
                        let zone = ZoneId(zone);
                        let blocks = blocks.min(writer.space_left(zone));
                        let pages = stamped(&writer, zone, blocks);
                        let durability = if fua { Durability::Fua } else { Durability::Cached };
                        let position = writer.position(zone);
                        let write = ZoneWrite::pages(zone, Kind::Data, pages);
                        let done = writer.submit(ZoneWrite { durability, ..write });
                        let at = done.at();
                        assert_eq!(at, position);
                        let range = at..at + blocks;
                        placed.extend(range.clone().map(|offset| (zone, offset)));
                        let toy = toy2.clone();
                        rt2.spawn_detached(async move {
                            assert_eq!(done.await.unwrap(), at);
                            assert!(range.clone().all(|at| written(&toy, zone, at, per_block)));
                            let forced = |at| toy.is_forced(zone, u64::from(at) * per_block);
                            assert!(range.clone().all(|at| forced(at) == fua));
                        });
                    }
                    Op::Fill { zone, blocks } => {
                        let zone = ZoneId(zone);
                        let upto = writer.position(zone) + blocks.min(writer.space_left(zone));
                        drop(writer.submit(ZoneWrite::zeros_to(zone, upto)));
                    }
                    Op::Yield => rt2.yield_now().await,
                    Op::Drain => {
                        writer.drain().await.unwrap();
                        let all = placed.iter();
                        assert!(all.clone().all(|(z, at)| written(&toy2, *z, *at, per_block)));
                    }
                }
                writer.audit().unwrap();
            }
            writer.drain().await.unwrap();
            let zones = (0..5).map(ZoneId);
            zones.filter(|z| writer.space_left(*z) == 0).collect::<Vec<ZoneId>>()
        });
        rt.run_ready();
        prop_assert!(!blocking || toy.most_in_flight() <= 1);
        prop_assert!(toy.most_in_flight() <= 4);
        for zone in full {
            let state = toy.machine(|machine| machine.zone(zone).unwrap().state);
            prop_assert_eq!(state, ZoneState::Full);
        }
        rt.clear();
    }
}

#[derive(Clone, Debug)]
enum AppendOp {
    Append(u32),
    Write(u32),
    /// A reserved block whose page is set after this number of steps.
    Late(u32),
    Yield,
}

fn append_ops() -> impl Strategy<Value = Vec<AppendOp>> {
    let op = prop_oneof![
        6 => (1..6u32).prop_map(AppendOp::Append),
        2 => (1..6u32).prop_map(AppendOp::Write),
        1 => (0..8u32).prop_map(AppendOp::Late),
        3 => Just(AppendOp::Yield),
    ];
    proptest::collection::vec(op, 1..60)
}

/// Pages stamped with a number instead of a place.
fn numbered(next: &mut u32, count: u32) -> Vec<Page> {
    (0..count)
        .map(|_| {
            *next += 1;
            stamp(ZoneId(1000), *next)
        })
        .collect()
}

/// Whether `page` is at block `offset` of zone 0, and its write has succeeded.
fn lies(toy: &Toy, page: &Page, offset: u32, per_block: u64) -> bool {
    let size = 4096 / per_block as usize;
    (0..per_block).all(|i| {
        let expected = &page[i as usize * size..(i as usize + 1) * size];
        let at = u64::from(offset) * per_block + i;
        toy.sector(ZoneId(0), at).as_deref() == Some(expected) && toy.is_answered(ZoneId(0), at)
    })
}

proptest! {
    /// In whatever order the drive takes appends: each append is at the place that its completion
    /// reports, no two are at one place, and the writes and reserved blocks between them are where
    /// they were placed.
    #[test]
    fn appends_lie_where_they_say(
        seed in any::<u64>(),
        ops in append_ops(),
        small_sectors in any::<bool>(),
        overtake in 0..6usize,
        capacity in 60..120u64,
        append_pieces in 0..4u32,
    ) {
        let rt = Rt::new(Config::shuffled(seed));
        let (shape, per_block) = shape(1, capacity, small_sectors);
        let toy = Toy::on(&rt, shape, seed);
        toy.wish(|wishes| wishes.overtake = overtake);
        let options = WriterOptions { append_pieces, ..options(Order::Append, 1, 5) };
        let writer = Writer::with_options(&rt, toy.clone(), options);
        let zone = ZoneId(0);
        writer.open_empty(zone);
        let (rt2, toy2, writer2) = (rt.clone(), toy.clone(), writer.clone());
        rt.block_on(async move {
            let (mut next, mut late, mut flights) = (0, Vec::new(), Vec::new());
            let mut found: Vec<(Page, u32)> = Vec::new();
            for op in ops {
                late.retain_mut(|(steps, at, page): &mut (u32, u32, Page)| {
                    *steps = steps.saturating_sub(1);
                    if *steps == 0 {
                        writer2.fill_reserved(zone, *at, page.clone());
                    }
                    *steps > 0
                });
                let room = writer2.space_left(zone);
                match op {
                    AppendOp::Append(blocks) => {
                        let blocks = blocks.min(room).min(writer2.append_limit());
                        let pages = numbered(&mut next, blocks);
                        let handed = Pages::from_iter(pages.iter().cloned());
                        let placed = append(&writer2, zone, handed);
                        flights.push(rt2.spawn(async move { (placed.await.unwrap(), pages) }));
                    }
                    AppendOp::Write(blocks) => {
                        let pages = numbered(&mut next, blocks.min(room));
                        let handed: Pages = pages.iter().cloned().collect();
                        let done = writer2.submit(ZoneWrite::pages(zone, Kind::Node, handed));
                        found.extend(pages.into_iter().zip(done.at()..));
                    }
                    AppendOp::Late(steps) if room > 0 => {
                        let page = numbered(&mut next, 1).remove(0);
                        let at = writer2.submit(ZoneWrite::reserve(zone, Kind::Summary)).at();
                        found.push((page.clone(), at));
                        late.push((steps + 1, at, page));
                    }
                    AppendOp::Late(_) => {}
                    AppendOp::Yield => rt2.yield_now().await,
                }
                writer2.audit().unwrap();
            }
            for (_, at, page) in late {
                writer2.fill_reserved(zone, at, page);
            }
            let end = writer2.position(zone);
            writer2.drain().await.unwrap();
            for flight in flights {
                let (at, pages) = flight.await;
                found.extend(pages.into_iter().zip(at..));
            }
            assert_eq!(found.len() as u32, end);
            assert_eq!(found.iter().map(|(_, at)| *at).collect::<BTreeSet<_>>().len(), found.len());
            assert!(found.iter().all(|(page, at)| lies(&toy2, page, *at, per_block)));
        });
        prop_assert!(toy.most_in_flight() <= 5);
        rt.clear();
    }
}

#[test]
fn what_depends_on_appends_waits_for_them() {
    let rt = Rt::new(Config::simulated(1));
    let toy = Toy::on(&rt, geometry(1, 64), 1);
    let writer = Writer::with_options(&rt, toy.clone(), options(Order::Append, 1, 8));
    let zone = ZoneId(0);
    writer.open_empty(zone);
    let mut next = 0;
    for _ in 0..3 {
        drop(append(&writer, zone, Pages::from_iter(numbered(&mut next, 1))));
    }
    let at = writer.submit(ZoneWrite::reserve(zone, Kind::Summary)).at();
    drop(writer.submit(ZoneWrite::pages(zone, Kind::Node, stamped(&writer, zone, 1))));
    rt.run_ready();
    // Three appends are in flight at once; nothing after the reserved block is sent.
    assert_eq!((toy.log().len(), toy.most_in_flight(), writer.in_flight()), (3, 3, 2));
    writer.fill_reserved(zone, at, stamp(zone, at));
    rt.run_ready();
    assert_eq!((toy.log().len(), writer.in_flight()), (4, 0));
    assert!(written(&toy, zone, 3, 1) && written(&toy, zone, 4, 1));
    // Under other orders there are no appends.
    let queued = Writer::with_options(&rt, toy, options(Order::Queued, 1, 8));
    assert_eq!((queued.append_limit(), writer.append_limit()), (0, 8));
    // On a drive that takes no appends, the limit is 0 under this order too.
    let none = Geometry { max_append: Some(BlockCount(0)), ..geometry(2, 64) };
    let block_device = Toy::on(&rt, none, 2);
    let writer = Writer::with_options(&rt, block_device, options(Order::Append, 1, 8));
    assert_eq!(writer.append_limit(), 0);
    rt.clear();
}

#[test]
fn a_failed_append_fails_its_zone_and_what_waits_behind() {
    let rt = Rt::new(Config::simulated(2));
    let toy = Toy::on(&rt, geometry(2, 64), 2);
    toy.machine(|machine| {
        let start = machine.geometry().start(ZoneId(1));
        let target = Target::Zone(start);
        machine.apply(&Command::Manage { target, action: Action::Finish }).unwrap();
    });
    let writer = Writer::with_options(&rt, toy, options(Order::Append, 1, 8));
    (0..2).for_each(|zone| writer.open_empty(ZoneId(zone)));
    let mut next = 0;
    let mut page = || numbered(&mut next, 1).into_iter().collect::<Pages>();
    let good = append(&writer, ZoneId(0), page());
    let bad = append(&writer, ZoneId(1), page());
    drop(writer.submit(ZoneWrite::reserve(ZoneId(1), Kind::Summary)));
    let (failed, drained) = rt.block_on({
        let writer = writer.clone();
        async move {
            assert_eq!(good.await.unwrap(), 0);
            let failed = bad.await.unwrap_err();
            // The page of the reserved block is never set, and still no wait hangs.
            writer.drained(ZoneId(1)).await;
            (failed, writer.drain().await.unwrap_err())
        }
    });
    assert!(failed.to_string().contains("Zone Is Full"), "{failed}");
    assert!(drained.to_string().contains("zone 1"), "{drained}");
    writer.fill_reserved(ZoneId(1), 1, Page::zeroed());
    rt.clear();
}

#[test]
fn adjacent_writes_become_one_command() {
    let rt = Rt::new(Config::simulated(1));
    let toy = Toy::on(&rt, geometry(2, 64), 1);
    let writer = Writer::new(&rt, toy.clone(), Order::Queued, 1);
    writer.open_empty(ZoneId(0));
    (0..16).for_each(|_| drop(write(&writer, 0, 1)));
    let writer2 = writer.clone();
    rt.block_on(async move { writer2.drain().await }).unwrap();
    // 16 blocks, at 8 blocks per command, take two commands.
    assert_eq!((writer.counters().commands, toy.log().len()), (2, 2));
    assert_eq!(writer.counters().of(Kind::Data), 16 * 4096);
    drop(writer.submit(ZoneWrite::zeros_to(ZoneId(0), 64)));
    rt.run_ready();
    assert_eq!(writer.counters().of(Kind::Padding), 48 * 4096);
    assert_eq!(writer.counters().commands, 2 + 6);
    rt.clear();
}

/// Without joining, each call is a command, even if many calls wait.
#[test]
fn calls_are_not_joined_where_that_is_not_wanted() {
    for order in [Order::Blocking, Order::Queued] {
        let rt = Rt::new(Config::simulated(1));
        let toy = Toy::on(&rt, geometry(1, 64), 1);
        let options = WriterOptions { join: false, ..options(order, 1, 8) };
        let writer = Writer::with_options(&rt, toy.clone(), options);
        writer.open_empty(ZoneId(0));
        (0..5).for_each(|_| drop(write(&writer, 0, 2)));
        let writer2 = writer.clone();
        rt.block_on(async move { writer2.drain().await }).unwrap();
        assert_eq!(writer.counters().commands, 5, "{order:?}");
        rt.clear();
    }
}

/// With `pieces`, the waiting writes are divided into several commands.
#[test]
fn what_waits_goes_in_pieces_where_asked() {
    let commands = |pieces, order| {
        let rt = Rt::new(Config::simulated(1));
        let mut shape = geometry(1, 128);
        shape.max_transfer = Some(BlockCount(64));
        let toy = Toy::on(&rt, shape, 1);
        let options = WriterOptions { pieces, ..options(order, 1, 8) };
        let writer = Writer::with_options(&rt, toy.clone(), options);
        writer.open_empty(ZoneId(0));
        (0..40).for_each(|_| drop(write(&writer, 0, 1)));
        rt.run_ready();
        assert!((0..40).all(|at| written(&toy, ZoneId(0), at, 1)));
        rt.clear();
        let blocks = toy.log().into_iter().map(|command| match command {
            Command::Write { blocks, .. } => blocks.0,
            other => panic!("{other:?}"),
        });
        blocks.collect::<Vec<u64>>()
    };
    assert_eq!(commands(1, Order::Queued), [40]);
    assert_eq!(commands(4, Order::Queued), [10, 10, 10, 10]);
    // No piece is below 16 KiB. If only one command may be in flight, the writes are not divided.
    assert_eq!(commands(8, Order::Queued)[..2], [5, 5]);
    assert_eq!(commands(4, Order::Blocking), [40]);
}

/// Commands that are refused because others overtook them are retried at the same address,
/// and succeed.
#[test]
fn overtaken_writes_are_sent_again() {
    let rt = Rt::new(Config::shuffled(3));
    let toy = Toy::on(&rt, geometry(1, 4096), 3);
    toy.wish(|wishes| wishes.overtake = 5);
    let writer = Writer::new(&rt, toy.clone(), Order::Queued, 1);
    writer.open_empty(ZoneId(0));
    (0..200).for_each(|_| drop(write(&writer, 0, 8)));
    let writer2 = writer.clone();
    rt.block_on(async move { writer2.drain().await }).unwrap();
    assert!((0..1600).all(|offset| written(&toy, ZoneId(0), offset, 1)));
    let retries = writer.counters().retries;
    assert!(retries > 20, "only {retries} writes were sent again");
    rt.clear();
}

/// A refusal that is not explained by an earlier write in flight is a failure, and is not retried.
#[test]
fn a_wrong_write_pointer_is_a_failure() {
    let rt = Rt::new(Config::simulated(3));
    let toy = Toy::on(&rt, geometry(1, 64), 3);
    let writer = Writer::new(&rt, toy.clone(), Order::Queued, 1);
    let report = toy.report_now(ZoneId(0), 1).unwrap()[0];
    let write_pointer = BlockCount(5);
    writer.open_reported(&ZoneReport { state: ZoneState::Closed, write_pointer, ..report });
    let done = write(&writer, 0, 1);
    let error = rt.block_on(done).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("zone 0 offset 5"), "{error}");
    assert_eq!(toy.log().len(), 1);
    rt.clear();
}

/// After a failure, earlier writes of the zone have succeeded, and every later write of the zone
/// fails. Other zones are not affected, and waits for earlier sequence points succeed. Forgetting
/// the zone ends the failure.
#[test]
fn a_failure_stops_its_zone_only() {
    for order in [Order::Blocking, Order::Queued] {
        let rt = Rt::new(Config::shuffled(4));
        let toy = Toy::on(&rt, geometry(2, 512), 4);
        toy.wish(|wishes| wishes.fail.extend([(Lba(20), Status::WriteFault)]));
        let writer = Writer::with_options(&rt, toy.clone(), options(order, 2, 3));
        (0..2).for_each(|zone| writer.open_empty(ZoneId(zone)));
        let good = write(&writer, 0, 16);
        let before = writer.sequence_point();
        let bad = write(&writer, 0, 16);
        // These are more blocks than can be in flight, so some are still queued when the
        // failure comes.
        let behind = write(&writer, 0, 200);
        let other = write(&writer, 1, 40);
        let writer2 = writer.clone();
        rt.block_on(async move {
            good.await.unwrap();
            writer2.wait(before).await.unwrap();
            let error = bad.await.unwrap_err();
            assert!(error.to_string().contains("Write Fault (280h)"), "{error}");
            behind.await.unwrap_err();
            other.await.unwrap();
            writer2.drain().await.unwrap_err();
            writer2.drained(ZoneId(0)).await;
            write(&writer2, 0, 1).await.unwrap_err();
            assert_eq!(writer2.failures().len(), 1);
            assert!(writer2.failed().is_some());
            writer2.forget(ZoneId(0));
            assert!(writer2.failed().is_none());
            writer2.drain().await.unwrap();
        });
        assert_eq!(writer.in_flight(), 0);
        rt.clear();
    }
}

/// A drain waits only for writes dispatched before it.
#[test]
fn later_writes_do_not_delay_a_drain() {
    let rt = Rt::new(Config::shuffled(5));
    let toy = Toy::on(&rt, geometry(3, 1024), 5);
    let writer = Writer::new(&rt, toy.clone(), Order::Queued, 3);
    (0..3).for_each(|zone| writer.open_empty(ZoneId(zone)));
    toy.wish(|wishes| wishes.only = Some(BTreeSet::from([ZoneId(0)])));
    (0..500).for_each(|_| drop(write(&writer, 0, 1)));
    let early = writer.clone();
    let early = rt.spawn(async move { early.drain().await });
    let point = writer.sequence_point();
    let waits = writer.clone();
    let until_point = rt.spawn(async move { waits.wait(point).await });
    rt.run_ready();
    (0..500).for_each(|_| drop(write(&writer, 1, 1)));
    let late = writer.clone();
    let late = rt.spawn(async move { late.drain().await });
    rt.run_ready();
    assert!(matches!(early.try_take(), Some(Ok(()))));
    assert!(matches!(until_point.try_take(), Some(Ok(()))));
    assert!(late.try_take().is_none());
    toy.wish(|wishes| wishes.only = None);
    rt.run_ready();
    assert!(matches!(late.try_take(), Some(Ok(()))));
    rt.clear();
}

/// A chain of zones on a drive with one active zone: a zone is begun only when the zone before it
/// is full, and takes over that zone's permit.
#[test]
fn a_chain_of_zones_needs_one_permit() {
    let rt = Rt::new(Config::shuffled(8));
    let mut shape = geometry(4, 20);
    (shape.max_open, shape.max_active) = (Some(1), Some(1));
    let toy = Toy::on(&rt, shape, 8);
    let writer = Writer::new(&rt, toy.clone(), Order::Queued, 4);
    let budget = Budget::new(1, &[]);
    writer.open_empty(ZoneId(0));
    writer.attach(ZoneId(0), budget.try_acquire(Class::User, 1).unwrap());
    drop(write(&writer, 0, 20));
    for zone in 1..4 {
        writer.open_zone_after(ZoneId(zone), ZoneId(zone - 1));
        drop(write(&writer, zone, if zone == 3 { 19 } else { 20 }));
    }
    let writer2 = writer.clone();
    rt.block_on(async move { writer2.drain().await }).unwrap();
    assert_eq!(budget.available(), 0);
    let last = write(&writer, 3, 1);
    rt.block_on(last).unwrap();
    assert_eq!(budget.available(), 1);
    rt.clear();
}

#[test]
fn finish_waits_for_writes_and_gives_the_permit_back() {
    let rt = Rt::new(Config::shuffled(9));
    let toy = Toy::on(&rt, geometry(1, 64), 9);
    let writer = Writer::new(&rt, toy.clone(), Order::Queued, 1);
    let budget = Budget::new(1, &[]);
    writer.open_empty(ZoneId(0));
    writer.attach(ZoneId(0), budget.try_acquire(Class::User, 1).unwrap());
    let done = write(&writer, 0, 30);
    let writer2 = writer.clone();
    rt.block_on(async move { writer2.finish(ZoneId(0)).await }).unwrap();
    rt.block_on(done).unwrap();
    assert_eq!((writer.space_left(ZoneId(0)), budget.available()), (0, 1));
    let state = toy.machine(|machine| machine.zone(ZoneId(0)).unwrap().state);
    assert_eq!((state, writer.counters().finishes), (ZoneState::Full, 1));
    rt.clear();
}

/// A torn write left the write pointer within a block: the block is filled with zeros, and later
/// writes go after it.
#[test]
fn a_zone_torn_within_a_block_is_levelled() {
    let rt = Rt::new(Config::simulated(10));
    let mut shape = geometry(2, 64);
    shape.block_size = ByteLen(512);
    let toy = Toy::on(&rt, shape, 10);
    let torn = Command::Write { lba: Lba(0), blocks: BlockCount(8) };
    let rest = Command::Write { lba: Lba(8), blocks: BlockCount(3) };
    toy.machine(|machine| machine.apply(&torn).and(machine.apply(&rest)).unwrap());
    let writer = Writer::new(&rt, toy.clone(), Order::Queued, 1);
    let report = toy.report_now(ZoneId(0), 1).unwrap()[0];
    assert_eq!(writer.open_reported(&report), 2);
    let done = write(&writer, 0, 6);
    rt.block_on(done).unwrap();
    assert!((2..8).all(|offset| written(&toy, ZoneId(0), offset, 8)));
    let state = toy.machine(|machine| machine.zone(ZoneId(0)).unwrap().state);
    assert_eq!(state, ZoneState::Full);
    rt.clear();
}

/// Without a write, `level` fills the torn block on request. If a zone has no whole block left, the
/// rest of its last block and the part after it are written at once. Then the drive holds no
/// resources for the zone any more, and writes go to the zone opened after it.
#[test]
fn a_torn_block_is_levelled_when_asked_and_a_torn_end_at_once() {
    let rt = Rt::new(Config::simulated(10));
    let mut shape = geometry(4, 64);
    shape.block_size = ByteLen(512);
    shape.zone_capacity = BlockCount(64 - 3);
    shape.max_transfer = Some(BlockCount(64));
    let toy = Toy::on(&rt, shape, 10);
    for (lba, blocks) in [(0, 11), (64, 58), (128, 51)] {
        let command = Command::Write { lba: Lba(lba), blocks: BlockCount(blocks) };
        toy.machine(|machine| machine.apply(&command).unwrap());
    }
    let writer = Writer::new(&rt, toy.clone(), Order::Queued, 1);
    let reports = toy.report_now(ZoneId(0), 3).unwrap();
    assert_eq!(writer.open_reported(&reports[0]), 2);
    let budget = Budget::new(2, &[]);
    for zone in [1, 2] {
        assert_eq!(writer.open_reported(&reports[zone]), 7);
        let zone = ZoneId(zone as u32);
        writer.attach(zone, budget.try_acquire(Class::User, 1).unwrap());
        assert_eq!(writer.space_left(zone), 0);
    }
    assert_eq!(writer.position(ZoneId(0)), 2);
    let drained = writer.clone();
    rt.block_on(async move { drained.drain().await }).unwrap();
    let report = |zone| toy.report_now(ZoneId(zone), 1).unwrap()[0];
    assert_eq!(report(0).write_pointer, BlockCount(11), "nothing was to be written there");
    assert_eq!([report(1).state, report(2).state], [ZoneState::Full; 2]);
    assert_eq!(budget.available(), 2, "a full zone gives its permit back");
    writer.open_zone_after(ZoneId(3), ZoneId(2));
    rt.block_on(write(&writer, 3, 1)).unwrap();
    writer.level(ZoneId(0));
    let drained = writer.clone();
    rt.block_on(async move { drained.drain().await }).unwrap();
    assert_eq!(report(0).write_pointer, BlockCount(16));
    rt.clear();
}

#[test]
fn one_seed_gives_one_order_of_commands() {
    let run = |seed| {
        let rt = Rt::new(Config::shuffled(seed));
        let toy = Toy::on(&rt, geometry(8, 256), seed);
        let writer = Writer::new(&rt, toy.clone(), Order::Queued, 4);
        (0..8).for_each(|zone| writer.open_empty(ZoneId(zone)));
        let (rt2, writer2) = (rt.clone(), writer.clone());
        rt.block_on(async move {
            for step in 0..200 {
                drop(write(&writer2, (step * 5) % 8, 1 + step % 3));
                if step % 7 == 0 {
                    rt2.yield_now().await;
                }
            }
            writer2.drain().await
        })
        .unwrap();
        rt.clear();
        toy.log()
    };
    assert_eq!(run(11), run(11));
    assert_ne!(run(11), run(12));
}

proptest! {
    /// Out-of-band bytes stay with their blocks, whether the blocks are written or appended, split
    /// over commands, or joined with blocks that have no out-of-band bytes.
    #[test]
    fn what_is_beside_a_block_goes_with_it(
        seed in any::<u64>(),
        writes in proptest::collection::vec((1..12u32, any::<bool>(), any::<bool>()), 1..20),
        small_sectors in any::<bool>(),
    ) {
        let rt = Rt::new(Config::shuffled(seed));
        let mut shape = geometry(1, 300);
        let per_block = if small_sectors { 8 } else { 1 };
        shape.oob_bytes = 2;
        if small_sectors {
            shape.block_size = ByteLen(512);
            shape.zone_capacity = BlockCount(300 * 8 + 3);
            shape.zone_size = BlockCount(4096);
            shape.max_transfer = Some(BlockCount(67));
        }
        let toy = Toy::on(&rt, shape, seed);
        let writer = Writer::with_options(&rt, toy.clone(), options(Order::Append, 2, 4));
        writer.open_empty(ZoneId(0));
        let expected = rt.block_on(async move {
            let (mut number, mut expected) = (0u8, Vec::new());
            for (blocks, beside, append) in writes {
                let pages = Pages::from_elem(Page::zeroed(), blocks as usize);
                let sectors = if beside { blocks as usize * per_block } else { 0 };
                let oob: Vec<u8> = (0..sectors).flat_map(|i| [number, i as u8]).collect();
                number += 1;
                let write = ZoneWrite::pages(ZoneId(0), Kind::Data, pages);
                let write = ZoneWrite { oob: &oob, ..write };
                if append && blocks <= writer.append_limit() {
                    let placement = Placement::Append;
                    let at = writer.submit(ZoneWrite { placement, ..write }).await.unwrap();
                    expected.push((at, oob));
                } else {
                    let at = writer.submit(write).at();
                    expected.push((at, oob));
                }
            }
            writer.drain().await.unwrap();
            expected
        });
        for (at, oob) in expected {
            for (sector, bytes) in (u64::from(at) * per_block as u64..).zip(oob.chunks(2)) {
                prop_assert_eq!(toy.oob(ZoneId(0), sector), Some(bytes.to_vec()));
            }
        }
        rt.clear();
    }
}
