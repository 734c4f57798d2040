//! The file system under the crash harness: a short sweep without a failure, and every defect built
//! into the engine caught. `make crash` and `make crash-full` run longer sweeps.

use crate::common::{holds, no_failure, sweep};
use furrow_policy::FsDefect;
use furrow_sim::crash::{Case, Effort, replay};
use furrow_sim::fates::print_case;
use furrow_sim::fs::crash::{FsSubject, Setup};

fn few() -> Effort {
    Effort { cuts_max: 6, samples: 3, ..Effort::default() }
}

#[test]
fn the_file_system_keeps_the_durability_contract() {
    let figures = sweep(&FsSubject::default(), 0..20, &few());
    no_failure(&figures);
    assert!(figures.reopens > 500 && figures.nested > 30, "{figures}");
}

/// Seeds that once found defects of the engine. The power is cut at every command: the failing
/// command is not recorded, since each change of the engine moves it.
#[test]
fn what_failed_once_holds() {
    let seeds = [
        // 20: after a crash with a full zone of the sync log, an fsync wrote to that zone again.
        20, // 2144: an operation's own new page evicted an inode that the operation had found.
        2144,
    ];
    let effort = Effort { cuts_max: 0, samples: 1, ..Effort::default() };
    for seed in seeds {
        let case = Case { seed, volatile: false };
        let figures = holds(&FsSubject::default(), case, &effort);
        assert!(figures.reopens > 100, "{figures}");
    }
}

/// Seeds of drives that fail: a record was torn in a zone that was full or read-only by the time
/// fsck read it; a mount began a merge twice, so that units of the first merge were forgotten. In
/// another case a crash had cut off a sync record, and the next mount had filled the zone after it;
/// fsck took the record for damage.
#[test]
fn a_record_cut_off_by_an_older_crash_is_no_damage() {
    let busy = FsSubject { fsync: true, ..FsSubject::default() };
    let case = Case { seed: 3, volatile: false };
    let cuts = "27:NDDDN@L3474580365+55:DD@L1338480550+41:D@L2536242416";
    assert_eq!(replay(&busy, case, cuts, None), Ok(()));
    // The crash cut off a record within a block of 4 KiB, on a drive of 512-byte blocks, in a zone
    // that is full.
    let case = Case { seed: 15, volatile: false };
    assert_eq!(replay(&FsSubject::default(), case, "172:T1DT1@L2293185332", None), Ok(()));
    // The crash cut off a record within a block that is not its last.
    let case = Case { seed: 215, volatile: true };
    assert_eq!(replay(&FsSubject::default(), case, "46:T27DD@S563912339", None), Ok(()));
    // The crash cut off a summary within a block.
    let case = Case { seed: 60, volatile: false };
    assert_eq!(replay(&FsSubject::default(), case, "51:DT1@L1509501809", None), Ok(()));
}

/// Replay of a record that placed an inode dropped the new nodes of an earlier record.
#[test]
fn nodes_of_an_earlier_record_stay() {
    let cuts = [
        (false, "63:DDNDD@L4111848735"),
        (false, "63:DNNNN@S1994458410"),
        (true, "63:ND@K3287164446"),
        (true, "80:NN@S3099508373"),
    ];
    for (volatile, cuts) in cuts {
        let case = Case { seed: 12_115, volatile };
        assert_eq!(replay(&FsSubject::default(), case, cuts, None), Ok(()), "{cuts}");
    }
}

#[test]
fn what_failed_once_on_a_drive_that_fails_holds() {
    let effort = Effort { cuts_max: 60, samples: 4, ..Effort::default() };
    for seed in [10, 26, 58, 102, 3047, 5011, 9114] {
        for volatile in [false, true] {
            holds(&FsSubject::default(), Case { seed, volatile }, &effort);
        }
    }
}

/// Seeds that once found defects on drives that rot. If sync records show that there was a newer
/// checkpoint, and it is damaged, mount must not use an older one: the name changes of the sync
/// records would be replayed with a gap. And a block that was never written, according to the
/// drive, is damage and not a transient error.
#[test]
fn what_failed_once_on_a_drive_that_rots_holds() {
    let effort = Effort { cuts_max: 0, samples: 2, ..Effort::default() };
    let rot = FsSubject { rot: true, ..FsSubject::default() };
    for (seed, volatile) in [(5, false), (5, true), (89, false), (89, true)] {
        let figures = holds(&rot, Case { seed, volatile }, &effort);
        assert!(figures.reopens > 100, "{figures}");
    }
}

/// Free superzones were scarce, so a stream began a segment in a superzone of its own that was lent
/// to another stream. Its next block went elsewhere, and no stream continued the segment.
#[test]
fn a_segment_begun_in_a_lent_superzone_is_continued() {
    let rot = FsSubject { rot: true, ..FsSubject::default() };
    let case = Case { seed: 1009, volatile: false };
    assert_eq!(replay(&rot, case, "200:T1D@K2022345486", None), Ok(()));
}

/// A sweep stops at the first failure. The defect must cause one within these cases.
fn is_caught(defect: FsDefect, rot: bool) {
    is_caught_by(defect, rot, |_| true);
}

fn is_caught_by(defect: FsDefect, rot: bool, seeds: impl Fn(&u64) -> bool) {
    let files = FsSubject { defect: Some(defect), rot, ..FsSubject::default() };
    let effort = Effort { cuts_max: 40, samples: 4, failures_max: 1, ..Effort::default() };
    let figures = sweep(&files, (0..40).filter(seeds), &effort);
    let failure = figures.failures.first().unwrap_or_else(|| panic!("{defect:?} not caught"));
    println!("{defect:?}, after {} reopens: {failure}", figures.reopens);
    let cuts = match print_case(&failure.cuts) {
        empty if empty.is_empty() => "run".to_owned(),
        cuts => cuts,
    };
    assert_eq!(replay(&files, failure.case, &cuts, None), Err(failure.why.clone()));
}

#[test]
fn a_skipped_flush_is_caught() {
    is_caught(FsDefect::SkippedFlush, false);
}

#[test]
fn an_early_acknowledgement_is_caught() {
    is_caught(FsDefect::EarlyAck, false);
}

/// Nothing orders a sync record after the blocks that it names: a crash may leave the record
/// without the blocks.
#[test]
fn a_record_without_its_write_pointers_is_caught() {
    is_caught(FsDefect::NoWritePointers, false);
}

/// Records after a record that does not count depend on it.
#[test]
fn a_cut_that_skips_a_failed_record_is_caught() {
    is_caught(FsDefect::SkippedRecord, false);
}

/// A zone fails, and its lost blocks are not written elsewhere.
#[test]
fn blocks_that_stay_lost_are_caught() {
    is_caught(FsDefect::ForgottenBlocks, false);
}

/// A rename over a file survives, but the earlier writes to the new file do not.
#[test]
fn a_replacement_without_its_content_is_caught() {
    is_caught(FsDefect::BareRename, false);
}

/// A node moves, and the record of a later change of the node does not contain its new place.
#[test]
fn a_change_without_the_place_of_its_node_is_caught() {
    is_caught(FsDefect::UnplacedChange, false);
}

#[test]
fn an_ignored_extent_is_caught() {
    is_caught(FsDefect::IgnoredExtent, false);
}

#[test]
fn reuse_before_release_is_caught() {
    is_caught(FsDefect::ReuseBeforeRelease, false);
}

/// Sync records made between the snapshot and the end of a checkpoint still name blocks that
/// cleaning removes meanwhile.
#[test]
fn a_release_with_a_live_sync_record_is_caught() {
    is_caught(FsDefect::ReleaseLiveRecord, false);
}

/// The delta log is released although a table page that needs its changes was not written.
#[test]
fn a_merge_that_skips_a_unit_is_caught() {
    let merging = |seed: &u64| Setup::is_merging(Case { seed: *seed, volatile: false });
    is_caught_by(FsDefect::SkippedUnit, false, merging);
}

/// If cleaning computes a new checksum for the blocks it moves, damage looks whole.
#[test]
fn a_checksum_recomputed_by_cleaning_is_caught() {
    is_caught(FsDefect::RecomputedCrc, true);
}

/// Drives that are soon full and cleaned all the time, with more power cuts than in other sweeps.
#[test]
fn what_is_promised_holds_while_a_full_drive_is_cleaned() {
    let effort = Effort { cuts_max: 25, samples: 4, ..Effort::default() };
    let full = |seed: &u64| Setup::is_full(Case { seed: *seed, volatile: false });
    let figures = sweep(&FsSubject::default(), (0..70).filter(full), &effort);
    no_failure(&figures);
    assert!(figures.reopens > 2000, "{figures}");
}

/// Delta logs that are merged repeatedly, and checkpoint rings that turn.
#[test]
fn what_is_promised_holds_while_logs_are_merged() {
    let effort = Effort { cuts_max: 25, samples: 4, ..Effort::default() };
    let merging = |seed: &u64| Setup::is_merging(Case { seed: *seed, volatile: false });
    let figures = sweep(&FsSubject::default(), (0..70).filter(merging), &effort);
    no_failure(&figures);
    assert!(figures.reopens > 1000, "{figures}");
}

/// A torn write never needs the CRC in a pointer: the write pointers in the sync record show it. A
/// block that changed on the drive does need the CRC.
#[test]
fn a_dropped_crc_is_caught() {
    is_caught(FsDefect::DroppedCrc, true);
}

#[test]
fn a_drive_that_rots_shows_errors_but_never_wrong_data() {
    let figures = sweep(&FsSubject { rot: true, ..FsSubject::default() }, 0..25, &few());
    no_failure(&figures);
    assert!(figures.reopens > 400, "{figures}");
}

/// The same seed gives the same run, command by command; another seed gives another run.
#[test]
fn one_seed_gives_one_hash() {
    let run = |seed| sweep(&FsSubject::default(), seed..seed + 1, &few());
    for seed in [4, 5] {
        let (one, two, other) = (run(seed), run(seed), run(seed + 2));
        assert_eq!((one.hash, one.commands), (two.hash, two.commands));
        assert_eq!((one.reopens, one.fates), (two.reopens, two.fates));
        assert_ne!(one.hash, other.hash);
    }
}
