//! Tests the pool's states, and each condition of a release separately.

use super::*;
use crate::toy::{Toy, geometry};
use crate::writer::{Durability, Kind, Order, ZoneWrite};
use furrow_rt::{Config, Page, Pages, Rt};
use furrow_zone::ZonedDevice;
use proptest::prelude::*;
use zerocopy::FromZeros;

struct Bench {
    rt: Rt,
    toy: Rc<Toy>,
    writer: Writer,
    pool: ZonePool,
}

/// Makes a drive of 13 zones: one outside the pool, then 3 superzones of 4 zones.
fn bench(groups: u32) -> Bench {
    bench_of(groups, false)
}

fn bench_of(groups: u32, volatile_cache: bool) -> Bench {
    let rt = Rt::new(Config::shuffled(1));
    let toy = Toy::on(&rt, Geometry { volatile_cache, ..geometry(13, 16) }, 1);
    let writer = Writer::new(&rt, toy.clone(), Order::Queued, 2);
    let descriptors = describe(toy.geometry(), ZoneId(1), 4, &[]).unwrap();
    let pool = ZonePool::new(&writer, &descriptors, groups).unwrap();
    Bench { rt, toy, writer, pool }
}

impl Bench {
    fn write(&self, zone: u32, blocks: usize) {
        let zone = ZoneId(zone);
        if !self.writer.is_open(zone) {
            self.writer.open_empty(zone);
        }
        let pages: Pages = (0..blocks).map(|_| Page::zeroed()).collect();
        drop(self.writer.submit(ZoneWrite::pages(zone, Kind::Data, pages)));
    }

    /// Makes a durable snapshot that shows superzones empty.
    fn empties(&self, ids: &[u32]) -> DurableSnapshot {
        let snapshot = self.pool.snapshot();
        ids.iter().for_each(|id| snapshot.note_empty(SuperzoneId(*id)));
        self.rt.block_on(snapshot.flushed()).unwrap()
    }

    /// Notes a superzone as empty and releases it.
    fn note_and_release(&self, id: SuperzoneId) -> Option<Result<()>> {
        let durable = self.empties(&[id.0]);
        self.release(id, durable)
    }

    /// Starts a release and runs all ready tasks.
    fn release(&self, id: SuperzoneId, proof: DurableSnapshot) -> Option<Result<()>> {
        let pool = self.pool.clone();
        let task = self.rt.spawn(async move { pool.release(id, &proof).await });
        self.rt.run_ready();
        self.pool.audit().unwrap();
        task.try_take()
    }

    fn empty(&self, zone: u32) -> bool {
        self.toy.machine(|m| m.zone(ZoneId(zone)).unwrap().state == ZoneState::Empty)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.rt.clear();
    }
}

#[test]
fn superzones_come_from_the_idlest_group_and_wear_evenly() {
    let bench = bench(2);
    let pool = &bench.pool;
    assert_eq!((pool.total(), pool.free_count()), (3, 3));
    let order: Vec<u32> = (0..3).map(|_| pool.allocate(&[]).unwrap().0).collect();
    // First superzone 0 (group 0), then 1 (group 1 is idle), then 2.
    assert_eq!(order, [0, 1, 2]);
    assert_eq!(pool.allocate(&[]), None);
    pool.mark_full(SuperzoneId(0));
    pool.mark_full(SuperzoneId(2));
    for id in [0, 0, 2] {
        assert!(bench.note_and_release(SuperzoneId(id)).unwrap().is_ok());
    }
    // Superzones 0 and 2 belong to one group; 2 was released once, 0 twice.
    assert_eq!(pool.allocate(&[]), Some(SuperzoneId(2)));
    assert_eq!(pool.generation(SuperzoneId(0)), 2);
    assert_eq!(pool.owner(ZoneId(0)), None);
    assert_eq!(pool.owner(ZoneId(12)), Some(SuperzoneId(2)));
    assert_eq!(pool.blocks(SuperzoneState::Free), 4 * 16);
}

#[test]
fn load_says_more_than_numbers() {
    let bench = bench(2);
    let pool = &bench.pool;
    assert_eq!(pool.allocate(&[]), Some(SuperzoneId(0)));
    let [light, heavy] = [1, 100].map(|load| GroupLoad { load, class: 1, ..GroupLoad::default() });
    // Group 1 has no active superzone, but little is expected to be written to the open superzone
    // of group 0.
    assert_eq!(pool.allocate(&[light, heavy]), Some(SuperzoneId(2)));
    assert_eq!(pool.allocate(&[light, heavy]), Some(SuperzoneId(1)), "group 0 is exhausted");
}

#[test]
fn a_stream_does_not_share_dies_with_itself() {
    let bench = bench(2);
    let [own, other] = [(1, 1), (0, 100)].map(|(own, load)| GroupLoad { own, load, class: 1 });
    assert_eq!(bench.pool.allocate(&[own, other]), Some(SuperzoneId(1)));
}

/// Each condition alone delays or refuses a release, and nothing is reset before all hold.
#[test]
fn nothing_is_reset_before_every_condition_holds() {
    let bench = bench(1);
    let (pool, id) = (&bench.pool, SuperzoneId(0));
    assert_eq!(pool.allocate(&[]), Some(id));
    (1..5).for_each(|zone| bench.write(zone, 16));
    bench.rt.run_ready();
    let refused = |proof: &DurableSnapshot, word: &str| {
        let error = bench.release(id, proof.clone()).unwrap().unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(bench.writer.counters().resets, 0);
    };
    // Nothing is noted for an active superzone.
    let early = bench.empties(&[0]);
    refused(&early, "Active");
    pool.mark_full(id);
    refused(&early, "no snapshot shows it empty");
    let snapshot = pool.snapshot();
    snapshot.note_empty(id);
    refused(&early, "snapshot 2 shows it empty, but the newest durable one is 1");
    let proof = bench.rt.block_on(snapshot.flushed()).unwrap();
    let other = ZonePool::new(&bench.writer, &pool.descriptors(), 1).unwrap();
    refused(&bench.rt.block_on(other.snapshot().flushed()).unwrap(), "another drive");

    let pin = pool.pin(ZoneId(3));
    let other = pool.pin(ZoneId(3));
    let task = {
        let (pool, proof) = (pool.clone(), proof.clone());
        bench.rt.spawn(async move { pool.release(id, &proof).await })
    };
    bench.rt.run_ready();
    assert!(task.try_take().is_none() && pool.is_pinned(ZoneId(3)));
    refused(&proof, "being released");
    drop(pin);
    bench.rt.run_ready();
    assert!(task.try_take().is_none() && !bench.empty(1));
    drop(other);
    bench.rt.run_ready();
    assert!(task.try_take().unwrap().is_ok());
    assert!((1..5).all(|zone| bench.empty(zone)));
    let superzone = pool.get(id);
    assert_eq!((superzone.state, superzone.generation), (SuperzoneState::Free, 1));
    // After the release, the old snapshot proves nothing about the superzone's next content.
    let again = bench.release(id, proof).unwrap().unwrap_err();
    assert!(again.to_string().contains("no snapshot shows it empty"), "{again}");
    assert_eq!(bench.writer.counters().resets, 4);
    assert!(!bench.writer.is_open(ZoneId(1)));
}

/// A release waits for the writes in flight, and continues if its caller is dropped meanwhile.
#[test]
fn a_release_waits_for_writes_and_outlives_its_caller() {
    let bench = bench(1);
    let id = bench.pool.allocate(&[]).unwrap();
    bench.write(2, 10);
    bench.pool.mark_full(id);
    bench.toy.wish(|wishes| wishes.only = Some([ZoneId(9)].into()));
    let proof = bench.empties(&[id.0]);
    let mut release = Box::pin(bench.pool.release(id, &proof));
    let mut context = std::task::Context::from_waker(Waker::noop());
    assert!(release.as_mut().poll(&mut context).is_pending());
    drop(release);
    bench.rt.run_ready();
    assert_eq!(bench.pool.state(id), SuperzoneState::Full);
    assert!(bench.toy.log().is_empty() && !bench.toy.owes_a_change());
    bench.toy.wish(|wishes| wishes.only = None);
    bench.rt.run_ready();
    assert_eq!(bench.pool.state(id), SuperzoneState::Free);
    assert!(bench.empty(2));
}

/// The audit finds a full superzone that becomes free without a reset.
#[test]
fn the_audit_finds_a_superzone_freed_without_a_reset() {
    let bench = bench(1);
    let id = bench.pool.allocate(&[]).unwrap();
    (1..5).for_each(|zone| bench.write(zone, 16));
    bench.rt.run_ready();
    bench.pool.mark_full(id);
    bench.pool.audit().unwrap();
    let superzones = &bench.pool.0.superzones;
    bench.pool.turn(&mut superzones.borrow_mut()[id.0 as usize], SuperzoneState::Free);
    let found = bench.pool.audit().unwrap_err().to_string();
    assert!(
        found.contains("expected nothing in zone 1 of superzone 0, found 16 blocks"),
        "{found}"
    );
    bench.pool.turn(&mut superzones.borrow_mut()[id.0 as usize], SuperzoneState::Full);
    superzones.borrow_mut()[id.0 as usize].state = SuperzoneState::Active;
    let found = bench.pool.audit().unwrap_err().to_string();
    assert!(found.contains("superzones by state"), "{found}");
}

/// A zone that cannot be reset is removed. The superzone continues with fewer zones, and is retired
/// with its last zone.
#[test]
fn a_bad_zone_shortens_its_superzone() {
    let bench = bench(1);
    let id = SuperzoneId(1);
    let release = || bench.note_and_release(id).unwrap();
    bench.toy.wish(|wishes| wishes.no_reset = [ZoneId(6)].into());
    release().unwrap();
    let superzone = bench.pool.get(id);
    assert_eq!(superzone.zones, [ZoneId(5), ZoneId(7), ZoneId(8)]);
    // The superzone is not handed out before a snapshot records which zone it lacks.
    assert_eq!(superzone.state, SuperzoneState::Full);
    assert_eq!(superzone.descriptor().missing.get(), 0b10);
    let stored = bench.pool.descriptors();
    let again = ZonePool::new(&bench.writer, &stored, 1).unwrap();
    assert_eq!(again.get(id), superzone);
    let before = bench.pool.durable().unwrap();
    assert!(!before.shows_empty(id));
    release().unwrap();
    assert_eq!(bench.pool.state(id), SuperzoneState::Free);
    assert_eq!(bench.pool.get(id).zones, superzone.zones);

    bench.toy.wish(|wishes| wishes.no_reset = (5..9).map(ZoneId).collect());
    release().unwrap();
    assert_eq!(bench.pool.state(id), SuperzoneState::Retired);
    let again = ZonePool::new(&bench.writer, &bench.pool.descriptors(), 1).unwrap();
    assert_eq!(again.state(id), SuperzoneState::Retired);
    assert!(release().unwrap_err().to_string().contains("Retired"));
}

/// If the drive does not answer, its zones do not count as bad.
#[test]
fn a_drive_that_is_gone_costs_no_zone() {
    let bench = bench(1);
    let id = SuperzoneId(0);
    bench.toy.wish(|wishes| {
        wishes.no_reset = [ZoneId(1)].into();
        wishes.gone = true;
    });
    assert!(bench.note_and_release(id).unwrap().is_err());
    assert_eq!(bench.pool.get(id).zones.len(), 4);
    bench.toy.wish(|wishes| {
        wishes.no_reset.clear();
        wishes.gone = false;
    });
    assert!(bench.note_and_release(id).unwrap().is_ok());
    assert_eq!(bench.pool.get(id).zones.len(), 4);
}

#[test]
fn single_zones_are_released_on_the_same_path() {
    let bench = bench(1);
    let durable = bench.empties(&[]);
    let release = |zone: u32| {
        let (pool, durable) = (bench.pool.clone(), durable.clone());
        let task = bench.rt.spawn(async move { pool.release_zone(ZoneId(zone), &durable).await });
        bench.rt.run_ready();
        task.try_take().unwrap()
    };
    bench.write(0, 5);
    assert!(release(4).unwrap_err().to_string().contains("belongs to superzone 0"));
    assert!(bench.writer.is_open(ZoneId(0)));
    release(0).unwrap();
    assert!(bench.empty(0) && !bench.writer.is_open(ZoneId(0)));
    bench.toy.wish(|wishes| wishes.no_reset = [ZoneId(0)].into());
    assert_eq!(release(0).unwrap_err().kind(), ErrorKind::Io);
}

/// A record that reaches the medium makes the state before it durable: at once with FUA, otherwise
/// by a flush. A record written before the snapshot does not, nor does one without blocks.
#[test]
fn a_snapshot_is_durable_by_a_record_written_after_it() {
    let bench = bench_of(1, true);
    bench.writer.open_empty(ZoneId(0));
    let record = |durability, pages: usize| {
        let pages: Pages = (0..pages).map(|_| Page::zeroed()).collect();
        let write = ZoneWrite::pages(ZoneId(0), Kind::Checkpoint, pages);
        bench.writer.submit(ZoneWrite { durability, ..write })
    };
    let committed = |snapshot: Snapshot, record| {
        let task = bench.rt.spawn(snapshot.committed(record));
        bench.rt.run_ready();
        task.try_take().unwrap().map(drop).map_err(|error| error.to_string())
    };
    let before = record(Durability::Fua, 1);
    let error = committed(bench.pool.snapshot(), before).unwrap_err();
    assert!(error.contains("snapshot 1 was written before it"), "{error}");
    let snapshot = bench.pool.snapshot();
    assert!(committed(snapshot, record(Durability::Fua, 0)).is_err());
    assert!(bench.pool.durable().is_none());
    for (durability, flushes) in [(Durability::Fua, 0), (Durability::Cached, 1)] {
        let snapshot = bench.pool.snapshot();
        committed(snapshot, record(durability, 1)).unwrap();
        assert_eq!(bench.writer.counters().flushes, flushes);
    }
    bench.toy.wish(|wishes| wishes.fail.extend([(furrow_zone::Lba(3), Status::WriteFault)]));
    let snapshot = bench.pool.snapshot();
    committed(snapshot, record(Durability::Fua, 1)).unwrap_err();
    assert_eq!(format!("{:?}", bench.pool.durable().unwrap()), "DurableSnapshot(4)");
}

/// A drive can be wiped before any zone is open, and not afterwards.
#[test]
fn a_drive_in_use_is_not_wiped() {
    let bench = bench(1);
    bench.toy.machine(|machine| machine.set_offline(ZoneId(9)).unwrap());
    let wipe = |zone: u32| {
        let writer = bench.writer.clone();
        bench.rt.block_on(async move { ZonePool::wipe(&writer, [ZoneId(zone)].into_iter()).await })
    };
    wipe(1).unwrap();
    assert_eq!(wipe(9).unwrap_err().kind(), ErrorKind::Io);
    bench.write(1, 3);
    assert_eq!(wipe(2).unwrap_err().kind(), ErrorKind::Busy);
}

/// Zones found dead at mount are removed from free superzones, but not from superzones that
/// hold data.
#[test]
fn dead_zones_of_free_superzones_leave_at_mount() {
    let bench = bench(1);
    bench.pool.mark_full(SuperzoneId(1));
    for zone in [2, 6] {
        bench.toy.machine(|machine| machine.set_offline(ZoneId(zone)).unwrap());
    }
    bench.pool.adopt_reports(&bench.toy.report_now(ZoneId(0), 13).unwrap());
    assert_eq!(bench.pool.get(SuperzoneId(0)).zones.len(), 3);
    assert_eq!(bench.pool.state(SuperzoneId(0)), SuperzoneState::Full);
    assert_eq!(bench.pool.get(SuperzoneId(1)).zones.len(), 4);
}

#[test]
fn describe_covers_every_zone_once() {
    let shape = geometry(45, 16);
    let bad = [ZoneId(3), ZoneId(40), ZoneId(41), ZoneId(42), ZoneId(43), ZoneId(44)];
    let rt = Rt::new(Config::simulated(1));
    let writer = Writer::new(&rt, Toy::new(shape.clone(), 1), Order::Queued, 1);
    for width in 1..=32 {
        let descriptors = describe(&shape, ZoneId(3), width, &bad).unwrap();
        let pool = ZonePool::new(&writer, &descriptors, 3).unwrap();
        let ids = (0..pool.total()).map(SuperzoneId);
        let zones: Vec<ZoneId> = ids.flat_map(|id| pool.get(id).zones).collect();
        let expected: Vec<ZoneId> =
            (3..45).map(ZoneId).filter(|zone| !bad.contains(zone)).collect();
        assert_eq!(zones, expected, "width {width}");
        assert_eq!(pool.descriptors(), descriptors);
    }
    assert!(describe(&shape, ZoneId(0), 0, &[]).is_err());
    assert!(describe(&shape, ZoneId(0), 33, &[]).is_err());
}

proptest! {
    /// Descriptors are read from media: any bytes give a pool or an error, and descriptors that
    /// give a pool are stored again as the same bytes.
    #[test]
    fn any_descriptor_is_survived(
        raw in proptest::collection::vec((0..15u32, 0..40u8, 0..7u8, any::<u32>(), 0..3u32), 0..6),
    ) {
        let rt = Rt::new(Config::simulated(1));
        let writer = Writer::new(&rt, Toy::new(geometry(13, 16), 1), Order::Queued, 1);
        let descriptors: Vec<Descriptor> = raw
            .into_iter()
            .map(|(first, width, state, missing, shift)| {
                let mut descriptor = Descriptor::new_zeroed();
                descriptor.first = first.into();
                descriptor.width = width % (1 << (2 * shift + 2));
                descriptor.state = state;
                descriptor.missing = (missing & missing >> 7 & ((1u32 << shift) - 1)).into();
                descriptor
            })
            .collect();
        if let Ok(pool) = ZonePool::new(&writer, &descriptors, 2) {
            prop_assert_eq!(pool.descriptors(), descriptors);
        }
    }
}
