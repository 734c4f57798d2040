//! Members that come back older than they were: a restored backup, or a drive that lost writes that
//! it had acknowledged.
//!
//! Each state record tells, for each member, which state record the member certainly has: the last
//! that its drive acknowledged. So an earlier image of a member is older than what the other
//! members have recorded of it.

use crate::format::MemberEntry;
use furrow_log::Uuid;
use furrow_log::record::RecordHeader;
use furrow_zone::{Error, ErrorKind};

/// The state record that a member certainly has, according to another member; 0: not known.
pub(crate) fn known(header: &RecordHeader, entry: &MemberEntry) -> u64 {
    match u64::from(entry.behind.get()) {
        0 => 0,
        behind => header.sequence.get().saturating_sub(behind),
    }
}

/// A member with an older state than it once had.
pub(crate) struct Stale {
    /// The drive.
    pub(crate) name: String,
    /// Its number.
    pub(crate) index: usize,
    /// Number of its newest state record.
    pub(crate) record: u64,
    /// Number of the record that it must once have had.
    pub(crate) least: u64,
}

/// The reason why `array` is not started with such members; `enough`: whether the array could
/// start without them.
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
