//! Inspecting a store writes nothing, and shows what opening the store now would find.

#![allow(clippy::unwrap_used, reason = "tests")]

use furrow_emu::{Emulator, Fates, Fault, FaultKind, Medium, Options as DriveOptions, When};
use furrow_kv::{
    CheckOptions, CheckReport, FileId, FormatOptions, Lifetime, Node, Options, Snapshot, Space,
    Store, ZoneUse, check, identify,
};
use furrow_log::{BlockAddr, read_blocks, record};
use furrow_rt::buf::concat;
use furrow_rt::{Completion, Config, Page, Pages, Pool, Rng, Rt};
use furrow_zone::{
    BlockCount, Command, ErrorKind, Geometry, Lba, Outcome, QueueId, Reports, Request, ZoneId,
    ZoneState, ZonedDevice,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A drive that counts reads, and commands that would change its content.
struct Watched {
    drive: Rc<Emulator>,
    changes: Cell<u64>,
    reads: Cell<u64>,
}

impl ZonedDevice for Watched {
    fn geometry(&self) -> &Geometry {
        self.drive.geometry()
    }

    fn submit(&self, queue: QueueId, request: Request) -> Completion<Outcome> {
        match request.command {
            Command::Read { .. } => self.reads.set(self.reads.get() + 1),
            _ => self.changes.set(self.changes.get() + 1),
        }
        self.drive.submit(queue, request)
    }

    fn report(&self, first: ZoneId, count: u32) -> Reports<'_> {
        self.drive.report(first, count)
    }

    fn name(&self) -> String {
        self.drive.name()
    }
}

fn drive(rt: &Rt) -> Rc<Emulator> {
    let limits = Geometry { max_open: Some(8), max_active: Some(8), ..unlimited() };
    let medium = Medium::memory(&limits);
    Rc::new(Emulator::new(rt, limits, medium, DriveOptions::simulated()).unwrap())
}

fn unlimited() -> Geometry {
    Geometry::unlimited(48, 64, 64)
}

async fn made(rt: &Rt, device: &Rc<Emulator>) -> Store {
    let options = FormatOptions { label: "looked at".into(), ..FormatOptions::default() };
    Store::format(rt, device.clone(), &options).await.unwrap();
    opened(rt, device).await
}

async fn opened(rt: &Rt, device: &Rc<Emulator>) -> Store {
    Store::open(rt, device.clone(), Options::default()).await.unwrap()
}

async fn checked(device: &Rc<Emulator>) -> CheckReport {
    check(&**device, &CheckOptions::default()).await.unwrap()
}

fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..bytes.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes()).take(bytes).collect()
}

async fn written(store: &Store, path: &str, bytes: &[u8]) -> FileId {
    let id = store.create(path, Lifetime::Medium).unwrap();
    for piece in bytes.chunks(30_000) {
        store.append(id, piece).await.unwrap();
    }
    store.sync(id).await.unwrap();
    store.close(id).await.unwrap();
    id
}

/// Everything visible of a store: node, size, time and content of each path.
type Seen = BTreeMap<String, (Node, u64, i64, Vec<u8>)>;

async fn seen(store: &Store) -> Seen {
    let mut all = Seen::new();
    let mut directories = vec![String::new()];
    while let Some(directory) = directories.pop() {
        for (name, node) in store.list(&directory).unwrap() {
            let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
            let stat = store.stat(&path).unwrap();
            let mut bytes = Vec::new();
            match node {
                Node::Directory => directories.push(path.clone()),
                Node::File(_) => {
                    let id = store.open_file(&path).unwrap();
                    bytes = store.read(id, 0, usize::MAX).await.unwrap().to_vec();
                    store.close(id).await.unwrap();
                }
            }
            all.insert(path, (node, stat.size, stat.modified, bytes));
        }
    }
    all
}

async fn looked_at(snapshot: &Snapshot) -> Seen {
    let mut all = Seen::new();
    for (path, node) in snapshot.names() {
        let (mut size, mut modified, mut bytes) = (0, 0, Vec::new());
        if let Node::File(id) = node {
            let file = snapshot.file(id).unwrap();
            (size, modified) = (file.size, file.modified);
            bytes = snapshot.read(id, 0, usize::MAX).await.unwrap();
        }
        assert_eq!(snapshot.node(path).unwrap(), node);
        all.insert(path.to_owned(), (node, size, modified, bytes));
    }
    all
}

/// After each power cut, whatever it left, the snapshot equals what the next opening finds, and
/// inspecting does not change the drive.
#[test]
fn a_snapshot_is_what_the_next_opening_finds_and_changes_nothing() {
    for seed in 0..40 {
        let rt = Rt::new(Config::shuffled(seed));
        let rt2 = rt.clone();
        rt.block_on(async move {
            let device = drive(&rt2);
            let mut store = made(&rt2, &device).await;
            let mut rng = Rng::new(seed);
            store.make_directory("db").unwrap();
            for life in 0..4u64 {
                for step in 0..30 {
                    let path = format!("db/{}", rng.below(12));
                    let bytes = content(rng.next(), rng.below(200_000) as usize);
                    match rng.below(6) {
                        0 => drop(store.remove(&path)),
                        1 => drop(store.rename(&path, &format!("db/{step}"))),
                        2 => {
                            // The file is not synced: it may survive or not.
                            let id = store.create(&path, Lifetime::Short).unwrap();
                            store.append(id, &bytes).await.unwrap();
                        }
                        3 => {
                            if let Ok(id) = store.open_file(&path) {
                                store.append(id, &bytes).await.unwrap();
                                store.sync(id).await.unwrap();
                                store.close(id).await.unwrap();
                            }
                        }
                        _ => drop(written(&store, &path, &bytes).await),
                    }
                }
                let cut = if life == 0 { Fates::nothing(seed) } else { Fates::seeded(seed) };
                device.power_cut(&cut);
                rt2.sleep(2_000_000_000).await;
                device.power_on();
                let watched = Rc::new(Watched {
                    drive: device.clone(),
                    changes: Cell::new(0),
                    reads: Cell::new(0),
                });
                let before = device.report_now(ZoneId(0), 48).unwrap();
                let snapshot = Snapshot::open(watched.clone()).await.unwrap();
                let was = looked_at(&snapshot).await;
                let report = check(&*watched, &CheckOptions::default()).await.unwrap();
                assert_eq!(report.problems, [], "{seed} {life}");
                assert_eq!(report.checked.verified, report.checked.blocks);
                assert_eq!(watched.changes.get(), 0);
                assert!(watched.reads.get() > 0);
                assert_eq!(device.report_now(ZoneId(0), 48).unwrap(), before);
                store = opened(&rt2, &device).await;
                let room = |space: Space| (space.capacity, space.used, space.available);
                assert_eq!(room(snapshot.space()), room(store.space()), "{seed} {life}");
                assert!(was == seen(&store).await, "{seed} {life}");
                assert_eq!((snapshot.uuid(), snapshot.label()), (store.uuid(), store.label()));
            }
        });
        rt.clear();
    }
}

#[test]
fn zones_names_and_pieces_of_files_are_told() {
    let rt = Rt::new(Config::simulated(3));
    let rt2 = rt.clone();
    rt.block_on(async move {
        let device = drive(&rt2);
        let store = made(&rt2, &device).await;
        let all = content(1, 500_123);
        let id = written(&store, "file", &all).await;
        store.make_directory("db").unwrap();
        store.link("file", "db/again").unwrap();
        store.create("empty", Lifetime::Short).unwrap();
        store.stop().await.unwrap();
        let snapshot = Snapshot::open(device.clone()).await.unwrap();
        let file = snapshot.file(id).unwrap();
        assert_eq!((file.size, file.names, file.lifetime), (500_123, 2, Lifetime::Medium));
        assert!(file.blocks >= 123 && file.extents > 0, "{file:?}");
        for (offset, len) in [(0, 1), (4095, 2), (100_000, 300_000), (500_122, 9), (500_123, 9)] {
            let end = (offset + len).min(all.len());
            let read = snapshot.read(id, offset as u64, len).await.unwrap();
            assert_eq!(read, all[offset..end], "{offset}+{len}");
        }
        assert_eq!(snapshot.read(id, u64::MAX, usize::MAX).await.unwrap(), []);
        let Node::File(empty) = snapshot.node("/empty").unwrap() else { panic!("no file") };
        assert_eq!(snapshot.read(empty, 0, 10).await.unwrap(), []);
        assert_eq!(snapshot.node("a/../../b").unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(snapshot.node("a/../empty").unwrap(), Node::File(empty));
        assert_eq!(snapshot.node("gone").unwrap_err().kind(), ErrorKind::NotFound);
        let gone = snapshot.read(FileId(99), 0, 1).await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
        let zones = snapshot.zones();
        assert_eq!(zones.len(), 48);
        assert_eq!(zones.iter().filter(|zone| zone.usage == ZoneUse::Ring).count(), 7);
        let content = zones.iter().filter(|zone| zone.usage != ZoneUse::Ring);
        let valid: u64 = content.clone().map(|zone| u64::from(zone.valid)).sum();
        assert_eq!(valid * 4096, snapshot.space().used);
        let of_file = content.filter_map(|zone| zone.files.get(&id));
        assert_eq!(of_file.map(|blocks| u64::from(*blocks)).sum::<u64>(), file.blocks);
    });
    rt.clear();
}

#[test]
fn a_drive_without_a_store_is_none_and_a_damaged_one_is_one_still() {
    let rt = Rt::new(Config::simulated(3));
    let rt2 = rt.clone();
    rt.block_on(async move {
        let device = drive(&rt2);
        assert_eq!(identify(&*device).await.unwrap(), None);
        let none = Snapshot::open(device.clone()).await.err().unwrap();
        assert_eq!(none.kind(), ErrorKind::WrongFormat);
        let none = check(&*device, &CheckOptions::default()).await.unwrap_err();
        assert_eq!(none.kind(), ErrorKind::WrongFormat);
        let store = made(&rt2, &device).await;
        let uuid = store.uuid();
        written(&store, "a", &content(1, 90_000)).await;
        store.stop().await.unwrap();
        assert_eq!(identify(&*device).await.unwrap(), Some(uuid));
        // The superblock, wherever it lies, becomes unreadable.
        for zone in 0..6u32 {
            let fault = Fault::new(FaultKind::ReadError)
                .at_blocks(Lba(u64::from(zone) * 64), BlockCount(1));
            device.inject(fault).unwrap();
        }
        assert_eq!(identify(&*device).await.unwrap(), Some(uuid));
        let report = checked(&device).await;
        assert!(report.problems[0].what.contains("zone"), "{:?}", report.problems);
        assert!(!report.is_ok() && report.uuid == uuid);
    });
    rt.clear();
}

/// Whatever block is damaged, a check ends. It reports damage of content with the file's name, and
/// reports nothing that is intact.
#[test]
fn a_check_tells_what_is_damaged_and_where() {
    let (mut of_content, mut of_sums) = (0, 0);
    for seed in 0..60 {
        let rt = Rt::new(Config::simulated(seed));
        let rt2 = rt.clone();
        let (more, sums) = rt.block_on(async move {
            let device = drive(&rt2);
            let store = made(&rt2, &device).await;
            let all = content(seed, 700_000);
            let id = written(&store, "db.sst", &all).await;
            store.stop().await.unwrap();
            assert!(checked(&device).await.is_ok());
            let snapshot = Snapshot::open(device.clone()).await.unwrap();
            let zones = snapshot.zones();
            let homes: Vec<_> = zones.iter().filter(|zone| zone.files.contains_key(&id)).collect();
            let zone = homes[seed as usize % homes.len()];
            let at = u64::from(zone.zone.0) * 64 + seed * 7 % u64::from(zone.written);
            let kind = if seed % 2 == 0 { FaultKind::BitFlip } else { FaultKind::ReadError };
            let fault = Fault::new(kind).at_blocks(Lba(at), BlockCount(1)).when(When::Always);
            device.inject(fault).unwrap();
            let report = checked(&device).await;
            let place = Some((zone.zone.0, (at % 64) as u32));
            for problem in &report.problems {
                assert_eq!(problem.file.as_deref(), Some("db.sst"), "{problem}");
                assert_eq!(problem.place, place, "{problem}");
            }
            let of = |structure| report.problems.iter().any(|p| p.structure == structure);
            if of("content") {
                let block = report.problems[0].block.unwrap();
                let error = snapshot.read(id, u64::from(block) * 4096, 1).await.unwrap_err();
                assert!(error.to_string().contains("db.sst"), "{error}");
                assert_eq!(report.checked.verified + 1, report.checked.blocks);
            }
            (of("content"), of("checksums"))
        });
        of_content += u32::from(more);
        of_sums += u32::from(sums);
        rt.clear();
    }
    assert!(of_content > 20 && of_sums > 0, "{of_content} of content, {of_sums} of checksums");
}

/// Whatever part of the ring is damaged, inspection and check end and invent no content.
#[test]
fn a_damaged_ring_is_told_or_is_no_store_and_no_panic() {
    let mut told = 0;
    for seed in 0..150u64 {
        let rt = Rt::new(Config::simulated(seed));
        let rt2 = rt.clone();
        let found = rt.block_on(async move {
            let device = drive(&rt2);
            let store = made(&rt2, &device).await;
            let all = content(seed, 90_000);
            for name in ["a", "b", "c", "d"] {
                written(&store, name, &all).await;
            }
            store.stop().await.unwrap();
            let zone = ZoneId((seed % 6) as u32);
            let kind = if seed % 3 == 0 { FaultKind::ReadError } else { FaultKind::BitFlip };
            let when = When::Nth(1 + seed / 6 % 12);
            device.inject(Fault::new(kind).when(when).times(2).at_zone(zone)).unwrap();
            let report = check(&*device, &CheckOptions::default()).await;
            device.clear_faults(None).unwrap();
            device.inject(Fault::new(kind).when(when).times(2).at_zone(zone)).unwrap();
            if let Ok(snapshot) = Snapshot::open(device.clone()).await {
                for (path, node) in snapshot.names() {
                    let Node::File(id) = node else { continue };
                    if let Ok(data) = snapshot.read(id, 0, usize::MAX).await {
                        assert_eq!(data, all[..data.len()], "{path}");
                    }
                }
            }
            report.is_ok_and(|report| !report.is_ok())
        });
        told += u32::from(found);
        rt.clear();
    }
    assert!(told > 10, "{told} told");
}

/// Copies a drive, with changed bytes in the records' bodies and recomputed checksums.
async fn with_other_records(rt: &Rt, from: &Rc<Emulator>, rng: &mut Rng) -> Rc<Emulator> {
    let to = drive(rt);
    let pages = Pool::new(64);
    for report in from.report_now(ZoneId(0), 48).unwrap() {
        let count = report.write_pointer.0 as u32;
        if report.state == ZoneState::Empty || count == 0 {
            continue;
        }
        let at = BlockAddr::new(from.geometry(), report.zone, 0);
        let read = read_blocks(&**from, QueueId(0), at, count, &pages).await.unwrap();
        let mut bytes: Vec<u8> = concat(&read);
        let mut block = 0;
        while block < count {
            let rest = &bytes[block as usize * 4096..];
            let header = record::peek(rest).filter(|header| header.kind.get() >= 0x30);
            let Some(header) = header else {
                block += 1;
                continue;
            };
            let mut body = rest[record::RecordHeader::SIZE..][..header.body_len()].to_vec();
            for _ in 0..rng.below(3) {
                let at = rng.below(body.len() as u64) as usize;
                body[at] = if rng.one_in(2) { rng.next() as u8 } else { body[at] ^ 1 };
            }
            let sealed = record::seal(&header.id(), &body, &pages);
            let start = block as usize * 4096;
            for (index, page) in sealed.iter().enumerate() {
                bytes[start + index * 4096..][..4096].copy_from_slice(page.bytes());
            }
            block += header.blocks();
        }
        let data: Pages = bytes.chunks(4096).map(Page::from_slice).collect();
        let command = Command::Write {
            lba: Lba(u64::from(report.zone.0) * 64),
            blocks: BlockCount(u64::from(count)),
        };
        let outcome = to.submit(QueueId(0), Request::with_data(command, data)).await;
        assert!(outcome.status.is_ok(), "{:?}", outcome.status);
    }
    to
}

/// Records with valid checksums are not trusted blindly either.
#[test]
fn records_that_lie_are_an_error_or_a_problem_and_no_panic() {
    let (mut told, mut refused) = (0, 0);
    for seed in 0..400 {
        let rt = Rt::new(Config::simulated(seed));
        let rt2 = rt.clone();
        let report = rt.block_on(async move {
            let device = drive(&rt2);
            let store = made(&rt2, &device).await;
            store.make_directory("db").unwrap();
            for file in 0..4 {
                let bytes = content(seed, 1000 + 60_000 * file);
                written(&store, &format!("db/{file}"), &bytes).await;
            }
            store.rename("db/1", "db/9").unwrap();
            store.stop().await.unwrap();
            let mut rng = Rng::new(seed);
            let other = with_other_records(&rt2, &device, &mut rng).await;
            let report = check(&*other, &CheckOptions::default()).await;
            if let Ok(snapshot) = Snapshot::open(other).await {
                snapshot.zones();
                snapshot.space();
                for (_, node) in snapshot.names() {
                    if let Node::File(id) = node {
                        let _ = snapshot.read(id, 0, 1 << 30).await;
                    }
                }
            }
            report
        });
        match report {
            Ok(report) => told += u32::from(!report.is_ok()),
            Err(_) => refused += 1,
        }
        rt.clear();
    }
    assert!(told > 100 && refused > 0, "{told} told, {refused} refused");
}

/// A drive that vanishes at any command of a check, for good or for a moment, ends it with an
/// error, and without findings.
#[test]
fn a_drive_that_vanishes_during_the_check_is_not_damaged() {
    [None, Some(1), Some(3)].into_iter().for_each(vanishes_during_the_check);
}

fn vanishes_during_the_check(commands: Option<u64>) {
    let rt = Rt::new(Config::simulated(1));
    let device = drive(&rt);
    let rt2 = rt.clone();
    rt.block_on(async move {
        let store = made(&rt2, &device).await;
        for file in 0..4 {
            written(&store, &format!("{file}"), &content(file, 200_000)).await;
        }
        store.stop().await.unwrap();
        let mut failed = 0;
        for at in 1.. {
            let vanish = Fault::new(FaultKind::Disappear { commands });
            device.inject(vanish.when(When::Nth(at)).times(1)).unwrap();
            match check(&*device, &CheckOptions::default()).await {
                Err(error) => assert_eq!(error.kind(), ErrorKind::Io, "{at}: {error}"),
                Ok(report) => {
                    assert!(report.problems.is_empty(), "{at}: {report:?}");
                    break;
                }
            }
            failed += 1;
            device.clear_faults(None).unwrap();
            device.power_on();
        }
        assert!(failed > 20, "{failed}");
    });
}
