//! The RAID volume under the crash harness: drives that fail, are replaced and rebuilt without a
//! failure, and every defect built into the engine caught.

use crate::common::{holds, lived, no_failure, sweep};
use furrow_policy::RaidDefect;
use furrow_sim::crash::{Case, Effort, replay};
use furrow_sim::raid::crash::RaidSubject;
use furrow_sim::raid::sim;

#[test]
fn the_volume_keeps_what_it_acknowledged() {
    let effort = Effort { cuts_max: 8, samples: 2, nested_one_in: 4, ..Effort::default() };
    let figures = sweep(&RaidSubject::default(), 0..8, &effort);
    no_failure(&figures);
    for what in [
        "cut in a rebuild",
        "rebuilt after a reopening",
        "replaced after a reopening",
        "drives lost after a cut in a reopening",
        "a new spare taken after a reopening",
        "recovery continued without a zone that is to be rebuilt",
    ] {
        let least = if what.contains("went on") || what.contains("lost") { 1 } else { 10 };
        assert!(figures.reached.get(what).is_some_and(|count| *count > least), "{what}: {figures}");
    }
    assert!(figures.nested > 30, "{figures}");
}

/// Seeds that once found defects: only a replacement itself knew that it was a member; a rebuild
/// was cut in a segment that had ended without a checkpoint knowing it, so that the rebuilt part of
/// a zone was taken for the whole zone; a segment was released while it was being rebuilt.
#[test]
fn what_failed_once_holds() {
    let effort = Effort { cuts_max: 30, samples: 4, ..Effort::default() };
    for (seed, volatile) in [(1, false), (2, false), (3, false), (100, false), (500, true)] {
        let case = Case { seed, volatile };
        let figures = holds(&RaidSubject::default(), case, &effort);
        assert!(figures.reopens > 60, "{figures}");
    }
}

/// A member was replaced while the rebuild of another one finished its last rows. The new member
/// was marked as whole along with the other, although nothing had been restored to its drive.
#[test]
fn a_member_that_is_replaced_late_is_rebuilt() {
    for (volatile, cuts) in [
        (true, "784:N@S2444723689"),
        (true, "547:NNNNNND@L476091114+323:DD@S3540641908"),
        (false, "408:NDDNDND@L589586531+746:D@S3304260073"),
    ] {
        let case = Case { seed: 7001, volatile };
        assert_eq!(replay(&RaidSubject::default(), case, cuts, None), Ok(()), "{cuts}");
    }
}

/// A segment was begun without a member, and a power cut prevented the record of the member's
/// failure. The member came back as if it had not failed, and the blocks written without it stayed
/// without redundancy.
#[test]
fn a_member_missed_for_a_moment_holds() {
    let effort = Effort { cuts_max: 24, ..Effort::default() };
    let case = Case { seed: 30_057, volatile: false };
    let figures = holds(&RaidSubject::default(), case, &effort);
    assert!(figures.reopens > 60, "{figures}");
}

/// Without an out-of-band area, the second parity of two trims was taken for a metadata block: with
/// two drives gone, its stripe counted as never written.
#[test]
fn parity_that_looks_like_metadata_holds() {
    let effort = Effort { cuts_max: 24, ..Effort::default() };
    for volatile in [false, true] {
        let case = Case { seed: 30_007, volatile };
        let figures = holds(&RaidSubject::default(), case, &effort);
        assert!(figures.reopens > 60, "{figures}");
    }
}

/// Replacements and crashes had cut all ten segments. Recovery found no segment for the missing
/// chunks of stripes, although one was open except for a member that was being rebuilt.
#[test]
fn a_recovery_without_a_free_segment_holds() {
    let case = Case { seed: 30_072, volatile: false };
    let held = replay(&RaidSubject::default(), case, "328:NDNNNN@L3169934881", None);
    assert_eq!(held, Ok(()));
    let effort = Effort { cuts_max: 24, ..Effort::default() };
    let figures = holds(&RaidSubject::default(), case, &effort);
    assert!(figures.reopens > 60, "{figures}");
}

/// A power cut during a reopening left state records of two histories with the same number of
/// events. The harness took the older record for the newest, and removed one drive more than the
/// array tolerates.
#[test]
fn no_more_drives_are_lost_than_the_newest_record_allows() {
    let case = Case { seed: 7001, volatile: true };
    let cuts = "247:NNNNND@L2377674033+999:D@K134946772";
    assert_eq!(replay(&RaidSubject::default(), case, cuts, None), Ok(()));
}

/// `scripts/crash.sh`, a step of the same test tier, searches for the defects for minutes; this
/// test checks that it searches for all of them.
#[test]
fn the_sweep_looks_for_every_defect_built_in() {
    let script = include_str!("../../../scripts/crash.sh");
    let until_raid = script.split("caught \"raid:$defect\"").next().unwrap();
    let list = until_raid.rsplit("for defect in").next().unwrap();
    let named: Vec<&str> = list.split([' ', ';', '\\', '\n']).collect();
    for defect in RaidDefect::ALL {
        assert!(named.contains(&format!("{defect:?}").as_str()), "{defect:?} is not in {named:?}");
    }
}

/// Seeds of the simulation that once found defects. 1: footers lacked the blocks whose member
/// failed while their stripe was written, so that their segments could never be cleaned. 9: a zone
/// with a failed write kept its permit forever. 5, 14: a volume that had lost too many drives at
/// once recorded on the remaining drives that all others had failed. 104, 266: a scrub took blocks
/// for lost that were released during the scrub. 650: a zone that had become read-only could not be
/// reset, and its blocks of a segment released long before were taken for newer than a checkpoint.
/// 373: the power was cut while only cleaning was working, and nobody noticed the loss of the
/// drives. 927, 987: cleaning waited although there was space, in segments that were empty but not
/// reset. 181: without space, the same search was repeated endlessly, and no other task could run.
/// 209, 384: blocks that cleaning had handed over to users' streams waited with these streams for
/// the space that cleaning was to free. 796: after a crash had cut off a segment, recovery searched
/// for the segment's list of blocks again for each block, far beyond the written blocks. 824: a
/// segment was free, but the task notified of it had not run yet, and all requests were refused for
/// lack of a segment. 1057: cleaning continued forever, although it gained nothing that any request
/// waited for. 364, 1886, 2381: a member that refused every third write was kept until it had cut
/// every segment. 2171: a member was taken out for one zone that had become read-only, since each
/// of the writes in flight counted as a failure; 2337: an indispensable member was taken out for
/// ten zones. 503: a rebuild that waited for space counted as freeing some. 2385: a scrub took
/// blocks for lost that nothing refers to. 12029: blocks handed over to users' streams waited with
/// these streams, although the volume's own stream had a segment by then. 409: a segment writer
/// waited for space after its queue was handed over, and did not check again when a stripe was
/// queued for it.
#[test]
fn what_failed_once_in_a_volumes_lives_holds() {
    let failed = [
        1, 5, 9, 14, 104, 181, 209, 266, 364, 373, 384, 409, 503, 650, 796, 824, 927, 987, 1057,
        1886, 2171, 2337, 2381, 2385, 12029,
    ];
    lived(failed, sim::simulate);
}

/// Six zones of a drive of a RAID-0 array became read-only while two segments were written. Each
/// change from one segment's refusals to the other's counted as a further zone, and the volume
/// ended writes although four segments were left.
#[test]
fn a_needed_drive_is_written_while_it_has_zones() {
    lived([1614], sim::simulate);
}

/// Seeds in which an audit refused a volume that kept its promises. 79: the record of a trim was on
/// the drives, and the volume failed before the trim was answered. 403: a chunk was damaged before
/// recovery read it.
#[test]
fn a_sound_volume_passes_the_audit() {
    lived([79, 403], sim::simulate);
}

/// Seeds whose branches found defects. 4352: in a segment that a crash had cut off, on drives
/// without an out-of-band area, a scrub took rows whose metadata block was damaged for rows that
/// had never been written, and left them without redundancy. 561: a drive was added while a segment
/// was being opened without it, and its rebuild waited until that segment was full. 821, 20233: an
/// older image of a member, or ruined headers of its segments, left many stripes without a chunk,
/// and recovery found no space to rewrite them all, since no replaced copy was released before the
/// last stripe was rewritten. 988: a drive replaced a member when no segment was free, and the open
/// segments, the only space left, were ended. 204, 843: a crash had torn the header of a zone, and
/// stripes that had never counted were reported as possibly lost. 1984: a drive was replaced while
/// a segment waited for permits, and the new drive's zone got a permit of the old one. 17: a trim's
/// record in a checkpoint's stripe was taken for a mapping block. 3127: the rest of a read-only
/// zone of the ring was taken for a damaged record. 4165: a segment waited for a permit of a drive
/// that had been given up. 2016, 3012, 3041: the harness expected too much. 60327, 60449, 60872: an
/// older image of a drive, from the time when it was the only one, was taken for one half of a
/// split array.
#[test]
fn what_failed_once_in_a_branch_holds() {
    let seeds = [
        17, 204, 561, 821, 843, 988, 1984, 2016, 3012, 3041, 3127, 4165, 4352, 20233, 50897, 60327,
        60449, 60872, 70028,
    ];
    lived(seeds, sim::simulate);
}

/// Older images of members and offline zones, more than the level tolerates: acknowledged stripes
/// were taken for torn stripes, and their blocks read as zeros. No record shows which blocks these
/// are, so such an array is refused. 791: in a branch, the harness asked a drive for its identity
/// although no record makes it a member, because a crash came before the record. 60208: a flipped
/// bit in a chunk of zeros was taken for a torn block. Another chunk of its stripe was damaged too,
/// and the stripe was taken for one that a crash had cut off.
#[test]
fn what_may_have_been_acknowledged_is_not_taken_for_torn() {
    lived([1377, 791, 60208], sim::simulate);
}

/// A segment was released while it was still being read. Its worn zone, which cannot be reset, left
/// the segment at once, and a read of a volume without redundancy failed.
#[test]
fn a_worn_zone_stays_in_its_segment_until_reads_are_over() {
    lived([1533], sim::simulate);
}

/// The branches reach the situations they test: more than once in a few seeds.
#[test]
fn branches_reach_what_they_are_for() {
    let all = lived(1000..1030, sim::simulate);
    for what in [
        "members that came back older whole in the end",
        "arrays of too many older members refused",
        "members with ruined blocks whole in the end",
        "arrays with too much ruined that lost blocks",
        "members whole by spares",
        "spares taken",
    ] {
        assert!(all.reached.get(what).is_some_and(|count| *count > 1), "{what}: {all:?}");
    }
    let combinations: usize = all.lost.values().map(|sets| sets.len()).sum();
    assert!(combinations > 60, "{combinations}");
}

#[test]
fn a_volume_lives_through_power_cuts_and_faults() {
    let all = lived(20..40, sim::simulate);
    assert!(all.crashes > 30 && all.appends > 0, "{all}");
}

#[test]
fn one_seed_gives_one_run() {
    let hash = |seed| sim::simulate(seed, &mut |_| {}).map(|summary| summary.hash);
    assert_eq!(hash(30), hash(30));
    assert_ne!(hash(30), hash(31));
}
