//! A record ring with a damaged block: nothing is lost silently.

#![allow(clippy::unwrap_used, reason = "a test")]

use furrow_emu::{Emulator, Fates, Fault, FaultKind, Medium, Options as DriveOptions, When};
use furrow_kv::{CheckOptions, FormatOptions, Lifetime, Node, Options, Snapshot, Store, check};
use furrow_rt::{Config, Page, Pages, Rt};
use furrow_zone::{
    Action, BlockCount, Command, ErrorKind, Geometry, Lba, QueueId, Request, Target, ZoneReport,
    ZoneState, ZonedDevice,
};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Blocks of a zone.
const ZONE: u64 = 16;

async fn made(rt: &Rt, half: u64) -> (Rc<Emulator>, Store) {
    made_on(rt, half, Geometry::unlimited(64, ZONE, ZONE)).await
}

async fn made_on(rt: &Rt, half: u64, shape: Geometry) -> (Rc<Emulator>, Store) {
    let shape =
        Geometry { max_open: Some(6), max_active: Some(6), unwritten_reads_fail: true, ..shape };
    let device =
        Emulator::new(rt, shape.clone(), Medium::memory(&shape), DriveOptions::simulated());
    let device = Rc::new(device.unwrap());
    let options = FormatOptions { half_bytes: Some(half), ..FormatOptions::default() };
    Store::format(rt, device.clone(), &options).await.unwrap();
    let store = Store::open(rt, device.clone(), Options::default()).await.unwrap();
    (device, store)
}

fn content(number: usize) -> Vec<u8> {
    format!("{number:04}").repeat(50 + 900 * (number % 3)).into_bytes()
}

async fn add(store: &Store, number: usize) {
    let id = store.create(&format!("{number:02}.tmp"), Lifetime::Short).unwrap();
    store.append(id, &content(number)).await.unwrap();
    store.sync(id).await.unwrap();
    store.close(id).await.unwrap();
    store.rename(&format!("{number:02}.tmp"), &format!("{number:02}")).unwrap();
    store.sync_names().await.unwrap();
}

async fn files(store: &Store) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for (name, node) in store.list("").unwrap() {
        let Node::File(id) = node else { continue };
        files.insert(name, store.read(id, 0, 1 << 20).await.unwrap().to_vec());
    }
    files
}

/// A copy of `device` with one damaged block.
fn damaged(rt: &Rt, device: &Emulator, block: u64) -> Rc<Emulator> {
    let left = device.snapshot();
    let copy = Emulator::from_snapshot(rt, &left, DriveOptions::simulated());
    let fault = Fault::new(FaultKind::BitFlip).at_blocks(Lba(block), BlockCount(1));
    copy.inject(fault.when(When::Always)).unwrap();
    Rc::new(copy)
}

/// Damages each written block of the ring in turn. Returns how often opening found the whole store,
/// and how often it refused.
async fn each_block(
    rt: &Rt,
    device: &Rc<Emulator>,
    known: &BTreeMap<String, Vec<u8>>,
) -> (u32, u32) {
    let ring = Snapshot::open(device.clone()).await.unwrap().ring_zones().0;
    let (mut whole, mut refused) = (0, 0);
    for report in device.report_now(furrow_zone::ZoneId(ring.start), ring.count()).unwrap() {
        let end = if report.state == ZoneState::Full { ZONE } else { report.write_pointer.0 };
        for at in 0..end {
            let block = u64::from(report.zone.0) * ZONE + at;
            let copy = damaged(rt, device, block);
            let place = format!("zone {} offset {at}", report.zone);
            let checked = check(&*copy, &CheckOptions::default()).await.unwrap();
            match Store::open(rt, copy.clone(), Options::default()).await {
                Ok(store) => {
                    assert_eq!(files(&store).await, *known, "{place}");
                    store.audit().unwrap();
                    whole += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{place}: {error}");
                    let text = error.to_string();
                    assert!(text.contains(&place) && text.contains("--repair"), "{place}: {text}");
                    assert!(!checked.is_ok(), "{place}: {checked:?}");
                    // The refused opening wrote nothing.
                    assert_eq!(copy.report_now(report.zone, 1).unwrap()[0], report);
                    assert!(Snapshot::open(copy.clone()).await.is_err());
                    let looked = Snapshot::open_with(copy.clone(), true).await.unwrap();
                    assert!(!looked.losses().is_empty());
                    let accepted = Options { accept_loss: true, ..Options::default() };
                    let store = Store::open(rt, copy.clone(), accepted).await.unwrap();
                    let left = files(&store).await;
                    let same = known.iter().filter(|(name, data)| left.get(*name) == Some(data));
                    // If a turn's records did not fit into the half before, its
                    // snapshot has no copy.
                    let kept = same.count() + 2 >= known.len();
                    assert!(kept || text.contains("snapshot"), "{place}: {:?}", left.keys());
                    add(&store, 90).await;
                    store.stop().await.unwrap();
                    copy.clear_faults(None).unwrap();
                    let checked = check(&*copy, &CheckOptions::default()).await.unwrap();
                    assert!(checked.is_ok(), "{place}: {:?}", checked.problems);
                    refused += 1;
                }
            }
        }
    }
    (whole, refused)
}

/// On a drive with logical blocks of 512 bytes, a block of content that ends in zeros may look torn
/// by a power cut if it lies at the end of a zone. A flipped bit in such a block, or in its
/// checksums, must damage nothing else.
#[test]
fn a_flipped_bit_in_content_is_not_a_torn_end() {
    const SECTORS: u64 = 8;
    // The extent fills a zone, so its checksums are in a block of their own.
    const ZONE: u64 = 32;
    let rt = Rt::new(Config::shuffled(5));
    let on = rt.clone();
    rt.block_on(async move {
        let zone = ZONE * SECTORS;
        let mut shape = Geometry::unlimited(64, zone, zone);
        shape.block_size = furrow_zone::ByteLen(512);
        let (device, store) = made_on(&on, 1, shape).await;
        let block = [vec![7; 100], vec![0; 3996]].concat();
        let content = block.repeat(2 * ZONE as usize + 8);
        let id = store.create("a", Lifetime::Long).unwrap();
        store.append(id, &content).await.unwrap();
        store.sync(id).await.unwrap();
        let ring = Snapshot::open(device.clone()).await.unwrap().ring_zones().0;
        let mut full = 0;
        for report in device.report_now(furrow_zone::ZoneId(0), 64).unwrap() {
            if (ring.start..ring.end()).contains(&report.zone.0) {
                continue;
            }
            full += u32::from(report.state == ZoneState::Full);
            for at in 0..report.write_pointer.0.min(zone) / SECTORS {
                let lba = (u64::from(report.zone.0) * ZONE + at) * SECTORS;
                let copy = damaged(&on, &device, lba);
                let store = Store::open(&on, copy, Options::default()).await.unwrap();
                let id = store.open_file("a").expect("the name is there");
                let read = store.read(id, 0, content.len()).await;
                let place = format!("zone {} offset {at}", report.zone);
                let size = store.size(id).unwrap();
                assert_eq!(size, content.len() as u64, "{place}");
                assert_eq!(read.unwrap_err().kind(), ErrorKind::Corrupt, "{place}");
            }
        }
        assert!(full >= 2, "{full} full zones of content");
    });
    rt.clear();
}

/// After a clean stop, damage to any block of the ring is either harmless or makes opening refuse
/// the store.
#[test]
fn after_a_stop_nothing_is_lost_without_a_word() {
    for (half, files) in [(1, 3), (1, 12), (3 * ZONE * 4096, 12), (3 * ZONE * 4096, 30)] {
        let rt = Rt::new(Config::shuffled(3));
        let on = rt.clone();
        let (whole, refused) = rt.block_on(async move {
            let (device, store) = made(&on, half).await;
            for number in 0..files {
                add(&store, number).await;
            }
            let known = self::files(&store).await;
            store.stop().await.unwrap();
            each_block(&on, &device, &known).await
        });
        // Damage of superblock and snapshot is harmless, in the half that counts and in
        // the one before.
        assert!(whole >= 4 && refused >= 1, "{half}: {whole} whole, {refused} refused");
        rt.clear();
    }
}

/// Opens a store anew for each file, as `furrow kv put` does: the ring turns each time.
#[test]
fn snapshots_and_superblocks_have_a_second_copy() {
    let rt = Rt::new(Config::shuffled(4));
    let on = rt.clone();
    let (whole, refused) = rt.block_on(async move {
        let (device, mut store) = made(&on, 1).await;
        for number in 0..8 {
            add(&store, number).await;
            store.stop().await.unwrap();
            store = Store::open(&on, device.clone(), Options::default()).await.unwrap();
        }
        let known = files(&store).await;
        store.stop().await.unwrap();
        each_block(&on, &device, &known).await
    });
    // Only one record follows the snapshot; if it is damaged, nothing else has its content.
    assert!(refused <= 1 && whole > 8, "{whole} whole, {refused} refused");
    rt.clear();
}

/// After a power cut, only the very last record may be lost.
#[test]
fn after_a_power_cut_only_the_last_record_may_be_lost() {
    let rt = Rt::new(Config::shuffled(5));
    let on = rt.clone();
    rt.block_on(async move {
        let (device, store) = made(&on, 1).await;
        for number in 0..2 {
            add(&store, number).await;
        }
        let known = files(&store).await;
        let left = device.snapshot().power_cut(&Fates::nothing(1));
        device.power_cut(&Fates::nothing(1));
        let device = Rc::new(Emulator::from_snapshot(&on, &left, DriveOptions::simulated()));
        let half = Snapshot::open(device.clone()).await.unwrap().ring_zones().1[0];
        let end = device.report_now(half, 1).unwrap()[0].write_pointer.0;
        let mut lost = 0;
        for at in 0..end {
            let copy = damaged(&on, &device, u64::from(half.0) * ZONE + at);
            if let Ok(store) = Store::open(&on, copy, Options::default()).await {
                lost += u32::from(files(&store).await != known);
            }
        }
        assert_eq!(lost, 1, "the last of {end} blocks");
    });
    rt.clear();
}

/// Overwrites everything written in a zone with blocks of `byte`.
async fn overwrite(drive: &Emulator, report: &ZoneReport, byte: u8) {
    let start = u64::from(report.zone.0) * ZONE;
    let reset = Command::Manage { target: Target::Zone(Lba(start)), action: Action::Reset };
    assert!(drive.submit(QueueId(0), Request::bare(reset)).await.status.is_ok());
    let end = if report.state == ZoneState::Full { ZONE } else { report.write_pointer.0 };
    for block in start..start + end {
        let mut page = Page::zeroed();
        page.make_mut().fill(byte);
        let write = Command::Write { lba: Lba(block), blocks: BlockCount(1) };
        let request = Request::with_data(write, Pages::from_iter([page]));
        assert!(drive.submit(QueueId(0), request).await.status.is_ok());
    }
}

/// Opening must notice if the data of a whole zone of the ring was replaced, though no record tells
/// what is lost.
#[test]
fn a_zone_of_the_ring_without_a_record_is_not_passed_over() {
    for (half, files) in [(1, 3), (1, 12), (3 * ZONE * 4096, 30)] {
        let rt = Rt::new(Config::shuffled(6));
        let on = rt.clone();
        rt.block_on(async move {
            let (device, mut store) = made(&on, half).await;
            for number in 0..files {
                add(&store, number).await;
                if number % 4 == 3 {
                    store.stop().await.unwrap();
                    store = Store::open(&on, device.clone(), Options::default()).await.unwrap();
                }
            }
            let known = self::files(&store).await;
            store.stop().await.unwrap();
            let snapshot = Snapshot::open(device.clone()).await.unwrap();
            let (ring, newest) = snapshot.ring_zones();
            let mut refused = 0;
            let reports = device.report_now(furrow_zone::ZoneId(ring.start), ring.count()).unwrap();
            let written = reports.iter().filter(|report| report.state != ZoneState::Empty);
            for (report, byte) in written.flat_map(|report| [(report, 0), (report, 0x5a)]) {
                let zone = report.zone;
                let left = device.snapshot();
                let copy = Rc::new(Emulator::from_snapshot(&on, &left, DriveOptions::simulated()));
                overwrite(&copy, report, byte).await;
                let checked = check(&*copy, &CheckOptions::default()).await.unwrap();
                match Store::open(&on, copy, Options::default()).await {
                    Ok(store) => {
                        assert_eq!(self::files(&store).await, known, "{half} {files}: zone {zone}");
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt, "zone {zone}: {error}");
                        assert!(error.to_string().contains(&format!("zone {zone} ")), "{error}");
                        assert!(!checked.is_ok(), "{half} {files}: zone {zone}: {checked:?}");
                        refused += 1;
                    }
                }
            }
            assert!(refused > 0, "{half} {files}: the newest half is {newest:?}");
        });
        rt.clear();
    }
}
