//! What the faults of a drive do to one command.

use furrow_zone::Status;

/// The effects of faults on one command.
#[derive(Default)]
pub(super) struct Verdict {
    pub fail: Option<Status>,
    pub torn: Option<u64>,
    pub flip: Option<u64>,
    pub polls: u32,
    pub nanoseconds: u64,
}
