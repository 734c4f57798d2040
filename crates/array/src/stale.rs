//! Stale members: drives that come back in an older state, for example from a restored backup, or
//! because the drive lost acknowledged writes.
//!
//! Each state record names, for each member, the last state record that the member's drive
//! acknowledged. An older image of a member lacks a record that, according to the other members,
//! the member had.

use crate::format::MemberEntry;
use furrow_log::Uuid;
use furrow_log::record::RecordHeader;
use furrow_zone::{Error, ErrorKind};

/// Number of the state record that a member certainly has, according to another member's record; 0:
/// not known.
pub(crate) fn known(header: &RecordHeader, entry: &MemberEntry) -> u64 {
    match u64::from(entry.behind.get()) {
        0 => 0,
        behind => header.sequence.get().saturating_sub(behind),
    }
}

/// A member whose newest state record is older than one that it once had.
pub(crate) struct Stale {
    /// Name of the drive.
    pub(crate) name: String,
    /// Number of the member.
    pub(crate) index: usize,
    /// Number of the newest state record in this image of the member.
    pub(crate) record: u64,
    /// Number of a record that the member must have had.
    pub(crate) least: u64,
}

/// The reason why `array` is not started with the stale members `behind`; `enough`: whether it
/// could start without them.
pub(crate) fn refusal(array: Uuid, behind: &[Stale], newest: &str, enough: bool) -> Error {
    let Stale { name, index, record, least } = &behind[0];
    let others: Vec<&str> = behind[1..].iter().map(|other| &*other.name).collect();
    let also = match others.is_empty() {
        true => String::new(),
        false => format!(" (and so is {})", others.join(", ")),
    };
    let advice = match enough {
        true => format!(
            "leave it out, and give it back with `furrow raid replace {array} {index} {name} \
             --force`"
        ),
        false => "the array cannot do without it: give the newest images of the drives".to_owned(),
    };
    let what = format!(
        "{name} is stale{also}: its last state record is number {record}, but {newest} says that \
         it took number {least}: it is an older image of the drive, or it lost writes that it had \
         acknowledged: {advice}"
    );
    Error::new(ErrorKind::Invalid, what)
}
