//! The meaning of each status of an NVMe drive for the command that got it. Pure.
//!
//! Status codes are those of the NVM Express Base Specification 2.0 (figures "Generic Command
//! Status Values", "Command Specific Status Values", "Media and Data Integrity Error Values" and
//! "Path Related Status Values") and the Zoned Namespace Command Set Specification 1.1.
//! `docs/use/real-drives.md` has the same table; a test compares the two.

use furrow_zone::Status;

/// The drive's statement that the same command would fail again (DNR).
const DO_NOT_RETRY: u16 = 0x4000;

/// The consequence of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The command gets this answer.
    Answer(Status),
    /// The medium failed: a read is answered with Unrecovered Read Error, any other command with
    /// Write Fault.
    Medium,
    /// The transport failed, or the drive does not know whether it carried out the command: the
    /// zone's report is requested, and the command is retried.
    Transport,
}

/// First and last status of a range, the meaning of these statuses, and their name.
type Row = (u16, u16, Meaning, &'static str);

const fn answer(status: Status) -> Meaning {
    Meaning::Answer(status)
}

/// Statuses by type (high byte) and code, in ascending order. Every other status is an error of
/// the medium.
const TABLE: &[Row] = &[
    (0x001, 0x003, answer(Status::InvalidField), "invalid command, field, or identifier in use"),
    (
        0x004,
        0x008,
        Meaning::Transport,
        "transfer error, power loss, internal error, command aborted",
    ),
    (0x009, 0x00a, Meaning::Transport, "aborted with a fused command"),
    (
        0x00b,
        0x00b,
        answer(Status::InternalError),
        "the namespace is not there, or has a new format",
    ),
    (0x00c, 0x014, answer(Status::InvalidField), "invalid sequence, or lists of memory"),
    (0x015, 0x015, answer(Status::InternalError), "operation denied"),
    (0x016, 0x01a, answer(Status::InvalidField), "invalid offset, host identifier, keep alive"),
    (0x01b, 0x01b, answer(Status::InternalError), "preempted by another host"),
    (0x01c, 0x01d, answer(Status::InternalError), "sanitize failed, or goes on"),
    (0x01e, 0x01f, answer(Status::InvalidField), "lists of memory, or a queue that cannot have it"),
    (0x020, 0x020, answer(Status::InternalError), "the namespace is write protected"),
    (0x021, 0x022, Meaning::Transport, "command interrupted, transient transport error"),
    (0x023, 0x023, answer(Status::InternalError), "prohibited by a lockdown"),
    (0x080, 0x080, answer(Status::LbaOutOfRange), "address beyond the end"),
    (0x081, 0x081, answer(Status::CapacityExceeded), "capacity exceeded"),
    (0x082, 0x082, Meaning::Transport, "the namespace is not ready"),
    (0x083, 0x083, answer(Status::InternalError), "reserved by another host"),
    (0x084, 0x084, answer(Status::InternalError), "a format is in progress"),
    (0x180, 0x181, answer(Status::InvalidField), "conflicting attributes, protection information"),
    (0x183, 0x183, answer(Status::InvalidField), "the command is too large"),
    (0x1b8, 0x1b8, answer(Status::ZoneBoundary), "zone boundary error"),
    (0x1b9, 0x1b9, answer(Status::ZoneFull), "the zone is full"),
    (0x1ba, 0x1ba, answer(Status::ZoneReadOnly), "the zone is read only"),
    (0x1bb, 0x1bb, answer(Status::ZoneOffline), "the zone is offline"),
    (0x1bc, 0x1bc, answer(Status::ZoneInvalidWrite), "a write not at the write pointer"),
    (0x1bd, 0x1bd, answer(Status::TooManyActive), "too many active zones"),
    (0x1be, 0x1be, answer(Status::TooManyOpen), "too many open zones"),
    (0x1bf, 0x1bf, answer(Status::InvalidTransition), "invalid zone state transition"),
    (0x280, 0x280, answer(Status::WriteFault), "write fault"),
    (0x281, 0x281, answer(Status::UnrecoveredRead), "unrecovered read error"),
    (0x286, 0x286, answer(Status::InternalError), "access denied"),
    (0x287, 0x287, answer(Status::Unwritten), "deallocated or unwritten block"),
    (0x300, 0x37f, Meaning::Transport, "path error, of the controller or of the host"),
];

/// The meaning of `status`: code type and code, with the flags that the kernel leaves in it.
pub(crate) fn meaning(status: u16) -> Meaning {
    let code = status & 0x7ff;
    let found = TABLE.iter().find(|(first, last, ..)| (*first..=*last).contains(&code));
    match found.map_or(Meaning::Medium, |(_, _, meaning, _)| *meaning) {
        // A command that would fail again is retried only if another path may carry it out.
        Meaning::Transport if status & DO_NOT_RETRY != 0 && code < 0x300 => Meaning::Medium,
        meaning => meaning,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_one_meaning_and_those_of_our_own_drives_are_themselves() {
        for pair in TABLE.windows(2) {
            assert!(pair[0].1 < pair[1].0, "{:x?}", pair);
        }
        for status in [
            Status::LbaOutOfRange,
            Status::CapacityExceeded,
            Status::ZoneBoundary,
            Status::ZoneFull,
            Status::ZoneReadOnly,
            Status::ZoneOffline,
            Status::ZoneInvalidWrite,
            Status::TooManyActive,
            Status::TooManyOpen,
            Status::InvalidTransition,
            Status::WriteFault,
            Status::UnrecoveredRead,
            Status::Unwritten,
            Status::InvalidField,
        ] {
            assert_eq!(meaning(status.code()), Meaning::Answer(status));
            assert_eq!(meaning(status.code() | DO_NOT_RETRY), Meaning::Answer(status));
        }
    }

    #[test]
    fn what_passes_is_tried_again_unless_the_drive_says_no() {
        assert_eq!(meaning(0x371), Meaning::Transport, "the host aborted it");
        assert_eq!(meaning(0x371 | DO_NOT_RETRY), Meaning::Transport, "another path may have it");
        assert_eq!(meaning(0x006), Meaning::Transport);
        assert_eq!(meaning(0x006 | DO_NOT_RETRY), Meaning::Medium);
        assert_eq!(meaning(0x7ff), Meaning::Medium, "a vendor's own");
    }

    /// The page for users has each row of this table.
    #[test]
    fn the_page_has_this_table() {
        let page = include_str!("../../../../docs/use/real-drives.md");
        for (first, last, meaning, name) in TABLE {
            let codes = match first == last {
                true => format!("{first:03X}h"),
                false => format!("{first:03X}h to {last:03X}h"),
            };
            let what = match meaning {
                Meaning::Answer(status) => status.to_string(),
                Meaning::Medium => "Write Fault, or Unrecovered Read Error".to_owned(),
                Meaning::Transport => "reported and sent again".to_owned(),
            };
            let line = format!("| {codes} | {name} | {what} |");
            assert!(page.contains(&line), "docs/use/real-drives.md needs the line\n{line}");
        }
    }
}
