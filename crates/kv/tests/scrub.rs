//! Scrubs of an open store: they find and name damage, write records again, and do not report
//! intact data, whatever is written meanwhile.

#![allow(clippy::unwrap_used, reason = "tests")]

use furrow_emu::{Emulator, Fault, FaultKind, Medium, Options as DriveOptions, When};
use furrow_kv::{
    CheckOptions, FormatOptions, Lifetime, Options, ScrubOrder, ScrubReport, ScrubState, Store,
    check,
};
use furrow_log::{BlockAddr, read_blocks, record};
use furrow_rt::{Config, Nanos, Pool, Rng, Rt};
use furrow_zone::{BlockCount, ErrorKind, Geometry, QueueId, ZoneId, ZonedDevice};
use std::cell::Cell;
use std::rc::Rc;

async fn store(rt: &Rt) -> (Rc<Emulator>, Store) {
    let geometry =
        Geometry { max_open: Some(8), max_active: Some(8), ..Geometry::unlimited(48, 64, 64) };
    let medium = Medium::memory(&geometry);
    let drive = Emulator::new(rt, geometry, medium, DriveOptions::simulated()).unwrap();
    let drive = Rc::new(drive);
    Store::format(rt, drive.clone(), &FormatOptions::default()).await.unwrap();
    let store = Store::open(rt, drive.clone(), Options::default()).await.unwrap();
    (drive, store)
}

async fn written(store: &Store, path: &str, seed: u64, bytes: usize) {
    let mut rng = Rng::new(seed);
    let id = store.create(path, Lifetime::Medium).unwrap();
    let content: Vec<u8> = (0..bytes).map(|_| rng.next() as u8).collect();
    for piece in content.chunks(30_000) {
        store.append(id, piece).await.unwrap();
    }
    store.sync(id).await.unwrap();
    store.close(id).await.unwrap();
}

async fn scrub(rt: &Rt, store: &Store, repair: bool) -> ScrubReport {
    store.scrub(ScrubOrder::Start { repair }).unwrap();
    loop {
        match store.scrub_report() {
            Some(report) if !report.state.is_under_way() => return report,
            _ => rt.yield_now().await,
        }
    }
}

/// Flips a bit in the first written block, from zone `from` on, that `wanted` accepts.
async fn damage(drive: &Emulator, from: u32, wanted: impl Fn(&[u8]) -> bool) -> (u32, u32) {
    let geometry = drive.geometry().clone();
    let reports = drive.report(ZoneId(0), geometry.zones).await.unwrap();
    for (zone, report) in (from..).zip(&reports[from as usize..]) {
        for offset in 0..report.write_pointer.0 as u32 {
            let at = BlockAddr::new(&geometry, ZoneId(zone), offset);
            let pages = read_blocks(drive, QueueId(0), at, 1, &Pool::new(4)).await;
            if pages.is_ok_and(|pages| wanted(pages[0].bytes())) {
                let flip = Fault::new(FaultKind::BitFlip);
                drive.inject(flip.at_blocks(at.lba(&geometry), BlockCount(1))).unwrap();
                return (zone, offset);
            }
        }
    }
    panic!("no such block");
}

fn is_entries(block: &[u8]) -> bool {
    record::peek(block).is_some_and(|header| header.kind.get() == furrow_kv::format::kind::ENTRIES)
}

fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rt) -> F) {
    let rt = Rt::new(Config::shuffled(11));
    rt.block_on(test(rt.clone()));
    rt.clear();
}

/// A drive that is gone for a moment during a scrub is read again: nothing is damaged, and nothing
/// is left out.
#[test]
fn a_drive_that_was_gone_for_a_moment_is_not_damaged() {
    for commands in [1, 2] {
        run(move |rt| async move {
            let (drive, store) = store(&rt).await;
            for file in 0..4 {
                written(&store, &format!("{file}.sst"), file, 400_000).await;
            }
            let whole = scrub(&rt, &store, false).await.done;
            store.stop().await.unwrap();
            let mut struck = 0;
            for at in 1.. {
                let store = Store::open(&rt, drive.clone(), Options::default()).await.unwrap();
                let (leave, before) =
                    (FaultKind::Disappear { commands: Some(commands) }, drive.misses());
                drive.inject(Fault::new(leave).when(When::Nth(at)).times(1)).unwrap();
                store.scrub(ScrubOrder::Start { repair: false }).unwrap();
                // Time must pass: the scrub may wait for the drive.
                rt.sleep(10_000_000_000).await;
                let report = store.scrub_report().unwrap();
                assert!(!report.state.is_under_way(), "{at}: {report:?}");
                assert_eq!((report.damaged, &report.findings[..]), (0, &[][..]), "{at}");
                let done = report.state == ScrubState::Finished;
                assert!(!done || report.done == whole, "{at}: {report:?} of {whole}");
                let missed = drive.misses() > before;
                struck += u32::from(missed && done);
                drive.clear_faults(None).unwrap();
                drive.power_on();
                store.stop().await.unwrap();
                if !missed {
                    break;
                }
            }
            assert!(struck > 10 || commands > 1, "{struck}");
        });
    }
}

#[test]
fn damaged_content_is_named_and_never_repaired() {
    run(|rt| async move {
        let (drive, store) = store(&rt).await;
        written(&store, "db-1.sst", 1, 200_000).await;
        let whole = scrub(&rt, &store, false).await;
        assert_eq!((whole.state, whole.damaged), (ScrubState::Finished, 0), "{whole:?}");
        assert!(whole.done >= 48 && whole.records > 0, "{whole:?}");
        let (zone, offset) = damage(&drive, 0, |block| record::peek(block).is_none()).await;
        for repair in [false, true] {
            let found = scrub(&rt, &store, repair).await;
            assert_eq!((found.damaged, found.repaired), (1, 0), "{found:?}");
            let finding = &found.findings[0];
            assert_eq!(finding.path.as_deref(), Some("db-1.sst"));
            assert_eq!((finding.structure, finding.blocks), ("content", 1));
            assert_eq!(finding.place, format!("zone {zone} offset {offset}"));
            let block = u64::from(finding.block.unwrap());
            let id = store.open_file("db-1.sst").unwrap();
            let read = store.read(id, block * 4096, 4096).await;
            assert_eq!(read.unwrap_err().kind(), ErrorKind::Corrupt);
            store.close(id).await.unwrap();
        }
        store.stop().await.unwrap();
    });
}

#[test]
fn a_damaged_ring_is_found_and_written_again() {
    run(|rt| async move {
        let (drive, store) = store(&rt).await;
        for n in 0..6 {
            written(&store, &format!("f{n}"), n, 20_000).await;
        }
        // Damages the half that counts, not the one before it.
        damage(&drive, 1, is_entries).await;
        let found = scrub(&rt, &store, false).await;
        assert!(found.damaged > 0 && found.repaired == 0, "{found:?}");
        assert_eq!(found.findings[0].structure, "ring");
        let mended = scrub(&rt, &store, true).await;
        assert!(mended.damaged > 0 && mended.repaired == mended.damaged, "{mended:?}");
        assert_eq!(scrub(&rt, &store, false).await.damaged, 0);
        store.stop().await.unwrap();
        let report = check(&*drive, &CheckOptions::default()).await.unwrap();
        assert!(report.is_ok(), "{:?}", report.problems);
        let store = Store::open(&rt, drive, Options::default()).await.unwrap();
        assert_eq!(store.list("").unwrap().len(), 6);
        store.stop().await.unwrap();
    });
}

#[test]
fn what_is_whole_is_not_called_damaged_while_everything_changes() {
    run(|rt| async move {
        let (_drive, store) = store(&rt).await;
        let over = Rc::new(Cell::new(false));
        let (writer, ended) = (store.clone(), over.clone());
        let busy = rt.spawn(async move {
            for n in 0u64.. {
                if ended.get() {
                    return;
                }
                written(&writer, &format!("f{n}"), n, 5_000 + (n as usize * 7919) % 60_000).await;
                if n >= 8 {
                    writer.remove(&format!("f{}", n - 8)).unwrap();
                }
            }
        });
        for round in 0..30 {
            let report = scrub(&rt, &store, round % 2 == 0).await;
            assert_eq!((report.state, report.damaged), (ScrubState::Finished, 0), "{report:?}");
        }
        over.set(true);
        busy.await;
        store.stop().await.unwrap();
    });
}

#[test]
fn a_scrub_pauses_and_ends_with_the_store() {
    run(|rt| async move {
        let (_drive, store) = store(&rt).await;
        written(&store, "f", 1, 800_000).await;
        assert_eq!(store.scrub(ScrubOrder::Stop).unwrap_err().kind(), ErrorKind::Busy);
        store.scrub(ScrubOrder::Start { repair: false }).unwrap();
        store.scrub(ScrubOrder::Pause).unwrap();
        rt.sleep(Nanos::SECOND).await;
        let paused = store.scrub_report().unwrap();
        assert_eq!(paused.state, ScrubState::Paused, "{paused:?}");
        assert!(paused.done < paused.total, "{paused:?}");
        rt.sleep(Nanos::SECOND).await;
        assert_eq!(store.scrub_report().unwrap().done, paused.done);
        store.scrub(ScrubOrder::Resume).unwrap();
        rt.sleep(10 * Nanos::SECOND).await;
        assert_eq!(store.scrub_report().unwrap().state, ScrubState::Finished);
        store.scrub(ScrubOrder::Start { repair: false }).unwrap();
        store.scrub(ScrubOrder::Pause).unwrap();
        store.stop().await.unwrap();
        assert_eq!(store.scrub_report().unwrap().state, ScrubState::Stopped);
    });
}
