//! Decides what an error means for a command, given a fresh report of the command's zone. Pure.
//!
//! An NVMe status says what the drive refused (`nvme/status.rs`). The kernel's block layer turns a
//! drive's statuses into few errnos (`block/blk-core.c`, table `blk_errors`), most of them into
//! EIO. Then the rules of zones give the drive's reason: a write that was not at the reported write
//! pointer was refused for that reason. Errors of the transport to the drive (a time-out, a reset
//! link) say nothing about the drive, and the command is retried.

use crate::nvme::{Meaning, meaning};
use crate::transport::Cause;
use furrow_zone::rules::{self, Headroom, Op};
use furrow_zone::{BlockCount, Status, Zone, ZoneReport, ZoneState};
use rustix::io::Errno;
use std::time::Duration;

/// Maximum number of retries of a command after errors of the transport to the drive.
const TRIES: u32 = 5;
/// Maximum number of retries of a legal write that failed with EIO. The kernel keeps its own write
/// pointers and refuses writes by them (block/blk-zoned.c). Such a pointer is wrong after a write
/// to an empty zone beyond the zone's capacity, and after commands that bypassed the block layer. A
/// zone report corrects the pointer only if the kernel has noted an error: when it refused a write
/// that can wait, or when the drive failed a write. io_uring first sends every write as one that
/// cannot wait, and the kernel may refuse such a write without noting an error. The first retry can
/// wait: the kernel refuses the retry, too, but notes an error. The next report then corrects the
/// pointer for the second retry.
const WRITE_TRIES: u32 = 2;
/// Milliseconds before the first retry; each further retry waits four times as long as the
/// one before.
const PAUSE: u64 = 100;
/// Sum of all pauses before retries of a command: 34 seconds. The kernel's own time-outs, often 30
/// s each, come on top.
pub const PATIENCE: Duration = {
    let (mut sum, mut tries) = (0, 0);
    while let Some(pause) = pause(tries) {
        sum += pause;
        tries += 1;
    }
    Duration::from_millis(sum)
};

/// The decision about a failed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The command gets this answer.
    Answer(Status),
    /// The command is retried after `milliseconds`, from its block `done` on.
    Again { milliseconds: u64, done: u64 },
}

/// The operation that a failed command asked of its zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A read that ends before block `end` of its zone.
    Read { end: u64 },
    /// A change of a sequential zone by a write or a management command.
    Zone(Op),
    /// An append.
    Append,
    /// A write to a conventional zone, or a flush.
    Other,
}

/// Pause before the next retry of a command, or of the report that explains an error, after `tries`
/// retries, in milliseconds. `None`: too many retries; the drive counts as not answering.
pub(crate) const fn pause(tries: u32) -> Option<u64> {
    if tries < TRIES { Some(PAUSE << (2 * tries)) } else { None }
}

/// Whether `errno` says that the drive has disappeared.
pub(crate) fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NODEV | Errno::NXIO)
}

/// Whether `cause` says that the drive has disappeared.
pub(crate) fn says_gone(cause: Cause) -> bool {
    matches!(cause, Cause::Errno(errno) if is_gone(errno))
}

/// Whether `cause` may mean that a write's stream does not exist. The kernel refuses such a write
/// before it reaches the drive (`blkdev_direct_IO`, block/fops.c; `nvme_setup_rw`). Other mistakes
/// cause the same error, but then a retry without a stream fails with the same error.
pub(crate) fn refuses_stream(cause: Cause) -> bool {
    cause == Cause::Errno(Errno::INVAL)
}

/// Judges `cause`: an errno like [`judge`], an NVMe status by its meaning.
pub(crate) fn judge_cause(
    cause: Cause,
    asked: Asked,
    tries: u32,
    zone: Option<&ZoneReport>,
) -> Verdict {
    match cause {
        Cause::Errno(errno) => judge(errno, asked, tries, zone),
        Cause::Nvme(status) => match meaning(status) {
            Meaning::Answer(status) => Verdict::Answer(status),
            Meaning::Medium => Verdict::Answer(of_the_medium(asked)),
            Meaning::Transport => judge(Errno::NOLINK, asked, tries, zone),
        },
    }
}

fn of_the_medium(asked: Asked) -> Status {
    match asked {
        Asked::Read { .. } => Status::UnrecoveredRead,
        _ => Status::WriteFault,
    }
}

/// Whether `errno` is an error of the transport to the drive, or of the kernel.
fn is_transport_error(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::INTR
            | Errno::AGAIN
            | Errno::NOMEM
            | Errno::BUSY
            | Errno::TIMEDOUT
            | Errno::TIME
            | Errno::NOLINK
            | Errno::CANCELED
    )
}

/// Judges `errno`, with which a command failed after `tries` retries. `zone` is a fresh report of
/// the command's zone; `None` if the command is for no zone.
pub(crate) fn judge(errno: Errno, asked: Asked, tries: u32, zone: Option<&ZoneReport>) -> Verdict {
    if is_gone(errno) {
        return Verdict::Answer(Status::InternalError);
    }
    let of_the_transport = is_transport_error(errno);
    let mut done = 0;
    if let Some(zone) = zone {
        let state = as_zone(zone);
        let verdict = match asked {
            Asked::Read { end } => match rules::read(state, BlockCount(end), true) {
                Status::Success => None,
                status => Some(status),
            },
            Asked::Zone(op) => {
                // The drive may have carried out the command without being able to answer. The
                // pointer of a full zone does not show that, because the drive or another command
                // may have finished the zone.
                if let Op::Write { offset, blocks } = op
                    && zone.state != ZoneState::Full
                {
                    let written = zone.write_pointer.0.saturating_sub(offset.0);
                    if of_the_transport && written >= blocks.0 {
                        return Verdict::Answer(Status::Success);
                    }
                    if of_the_transport {
                        done = written;
                    } else if (1..=blocks.0).contains(&written) {
                        // Two cases look alike here: the kernel retried a write after a time-out,
                        // and the drive refused the retry because the write had arrived; or the
                        // drive failed in the middle of the write. So the zone is given up, but not
                        // the drive.
                        return Verdict::Answer(Status::WriteFault);
                    }
                }
                let rest = match op {
                    Op::Write { offset, blocks } => Op::Write {
                        offset: BlockCount(offset.0 + done),
                        blocks: BlockCount(blocks.0 - done),
                    },
                    op => op,
                };
                rules::step(state, rest, Headroom::UNLIMITED).err()
            }
            // It is unknown whether the append was carried out, and a retry could append twice, so
            // the zone is given up.
            Asked::Append => Some(Status::WriteFault),
            Asked::Other => None,
        };
        if let Some(status) = verdict {
            return Verdict::Answer(status);
        }
    }
    let of_the_kernel = errno == Errno::IO && tries < WRITE_TRIES && zone.is_some();
    if of_the_kernel && matches!(asked, Asked::Zone(Op::Write { .. })) {
        return Verdict::Again { milliseconds: 0, done: 0 };
    }
    if of_the_transport
        && asked != Asked::Append
        && let Some(milliseconds) = pause(tries)
    {
        return Verdict::Again { milliseconds, done };
    }
    Verdict::Answer(match (errno, asked) {
        // The kernel's BLK_STS_ZONE_OPEN_RESOURCE and BLK_STS_ZONE_ACTIVE_RESOURCE.
        (Errno::TOOMANYREFS, _) => Status::TooManyOpen,
        (Errno::OVERFLOW, _) => Status::TooManyActive,
        (Errno::NOSPC, _) => Status::CapacityExceeded,
        (Errno::INVAL | Errno::OPNOTSUPP | Errno::NOTTY, _) => Status::InvalidField,
        // The retries are used up: the drive counts as not answering.
        _ if of_the_transport => Status::InternalError,
        (_, asked) => of_the_medium(asked),
    })
}

fn as_zone(report: &ZoneReport) -> Zone {
    let ZoneReport { state, capacity, write_pointer, .. } = *report;
    Zone { state, capacity, write_pointer }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_zone::{Action, ZoneId};

    fn zone(state: ZoneState, written: u64) -> ZoneReport {
        let (zone, capacity) = (ZoneId(3), BlockCount(100));
        ZoneReport { zone, state, capacity, write_pointer: BlockCount(written) }
    }

    fn write(offset: u64, blocks: u64) -> Asked {
        Asked::Zone(Op::Write { offset: BlockCount(offset), blocks: BlockCount(blocks) })
    }

    fn answer(errno: Errno, asked: Asked, zone: &ZoneReport) -> Status {
        match judge(errno, asked, 0, Some(zone)) {
            Verdict::Answer(status) => status,
            again => panic!("{again:?}"),
        }
    }

    #[test]
    fn one_errno_may_be_about_the_stream() {
        assert!(refuses_stream(Cause::Errno(Errno::INVAL)));
        for errno in [Errno::IO, Errno::NOSPC, Errno::NODEV] {
            assert!(!refuses_stream(Cause::Errno(errno)), "{errno}");
        }
        assert!(!refuses_stream(Cause::Nvme(0x2)));
    }

    #[test]
    fn the_rules_say_why_a_drive_refused() {
        let open = zone(ZoneState::ImplicitlyOpen, 10);
        assert_eq!(answer(Errno::IO, write(12, 1), &open), Status::ZoneInvalidWrite);
        assert_eq!(answer(Errno::IO, write(10, 91), &open), Status::ZoneBoundary);
        let of = |state| answer(Errno::IO, write(10, 1), &zone(state, 0));
        assert_eq!(of(ZoneState::ReadOnly), Status::ZoneReadOnly);
        assert_eq!(of(ZoneState::Offline), Status::ZoneOffline);
        let full = zone(ZoneState::Full, 100);
        assert_eq!(answer(Errno::IO, write(10, 1), &full), Status::ZoneFull);
        let close = Asked::Zone(Op::Manage(Action::Close));
        assert_eq!(answer(Errno::IO, close, &full), Status::InvalidTransition);
    }

    #[test]
    fn what_the_rules_allow_failed_in_the_drive() {
        let open = zone(ZoneState::ImplicitlyOpen, 10);
        let again = Verdict::Again { milliseconds: 0, done: 0 };
        for tries in 0..WRITE_TRIES {
            let verdict = judge(Errno::IO, write(10, 1), tries, Some(&open));
            assert_eq!(verdict, again, "the kernel may have refused it, {tries}");
        }
        let last = judge(Errno::IO, write(10, 1), WRITE_TRIES, Some(&open));
        assert_eq!(last, Verdict::Answer(Status::WriteFault));
        assert_eq!(answer(Errno::TOOMANYREFS, write(10, 1), &open), Status::TooManyOpen);
        assert_eq!(answer(Errno::OVERFLOW, write(10, 1), &open), Status::TooManyActive);
        let read = |end| answer(Errno::NODATA, Asked::Read { end }, &open);
        assert_eq!((read(10), read(11)), (Status::UnrecoveredRead, Status::Unwritten));
        let offline = zone(ZoneState::Offline, 0);
        assert_eq!(answer(Errno::IO, Asked::Read { end: 1 }, &offline), Status::ZoneOffline);
    }

    #[test]
    fn a_lost_way_is_tried_for_longer_than_the_kernel_waits() {
        let open = zone(ZoneState::ImplicitlyOpen, 10);
        let mut waited = 0;
        for tries in 0..TRIES {
            match judge(Errno::TIMEDOUT, write(10, 4), tries, Some(&open)) {
                Verdict::Again { milliseconds, done: 0 } => waited += milliseconds,
                other => panic!("{other:?}"),
            }
        }
        assert!((30_000..60_000).contains(&waited), "{waited}");
        let last = judge(Errno::TIMEDOUT, write(10, 4), TRIES, Some(&open));
        assert_eq!(last, Verdict::Answer(Status::InternalError), "the drive fails");
        assert_eq!(judge(Errno::IO, Asked::Other, 0, None), Verdict::Answer(Status::WriteFault));
    }

    #[test]
    fn what_was_written_before_the_way_was_lost_is_not_written_twice() {
        let after = |written| {
            let open = zone(ZoneState::ImplicitlyOpen, written);
            judge(Errno::NOLINK, write(10, 4), 0, Some(&open))
        };
        assert_eq!(after(14), Verdict::Answer(Status::Success));
        assert_eq!(after(12), Verdict::Again { milliseconds: PAUSE, done: 2 });
        assert_eq!(after(9), Verdict::Answer(Status::ZoneInvalidWrite));
    }

    #[test]
    fn an_error_with_the_pointer_amid_the_write_costs_the_zone_only() {
        let after = |errno, written| {
            let open = zone(ZoneState::ImplicitlyOpen, written);
            judge(errno, write(10, 4), 0, Some(&open))
        };
        // A disk and an NVMe drive give these answers to a write that the kernel sent twice.
        for errno in [Errno::REMOTEIO, Errno::IO] {
            for written in 11..=14 {
                assert_eq!(after(errno, written), Verdict::Answer(Status::WriteFault));
            }
            for written in [9, 15] {
                assert_eq!(after(errno, written), Verdict::Answer(Status::ZoneInvalidWrite));
            }
        }
    }

    #[test]
    fn a_full_zone_does_not_show_that_a_write_arrived() {
        let full = zone(ZoneState::Full, 100);
        for (offset, blocks) in [(10, 4), (96, 4), (0, 100)] {
            let lost = judge(Errno::NOLINK, write(offset, blocks), 0, Some(&full));
            assert_eq!(lost, Verdict::Answer(Status::ZoneFull), "at {offset}");
        }
    }

    #[test]
    fn a_status_of_the_drive_is_its_answer_and_an_append_is_not_sent_twice() {
        let open = zone(ZoneState::ImplicitlyOpen, 10);
        let judge = |status, asked| judge_cause(Cause::Nvme(status), asked, 0, Some(&open));
        let answer = |status| Verdict::Answer(status);
        // By the zone's report alone, this write would have been correct.
        assert_eq!(judge(0x1bd, write(10, 1)), answer(Status::TooManyActive));
        assert_eq!(judge(0x4280, write(10, 1)), answer(Status::WriteFault));
        assert_eq!(judge(0x7c5, Asked::Read { end: 4 }), answer(Status::UnrecoveredRead));
        let again = Verdict::Again { milliseconds: PAUSE, done: 0 };
        assert_eq!(judge(0x371, write(10, 1)), again, "the host aborted it");
        assert_eq!(judge(0x371, Asked::Append), answer(Status::WriteFault));
        assert_eq!(judge(0x371, write(6, 4)), answer(Status::Success), "it had arrived");
    }

    #[test]
    fn a_drive_that_is_gone_is_not_asked_again() {
        for errno in [Errno::NODEV, Errno::NXIO] {
            let verdict = judge(errno, Asked::Other, 0, None);
            assert_eq!(verdict, Verdict::Answer(Status::InternalError));
        }
    }
}
