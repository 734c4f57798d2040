//! The machine a workload runs on, as far as results depend on it.
//!
//! A comparison uses one host for all its runs, and every result is printed with its host: buffered
//! results depend on the host's memory as much as on the drive.

mod pauses;
mod stage;

pub use pauses::Pauses;
pub use stage::Staged;

use furrow_emu::timing::quantity::{Bytes, Time};
use serde::{Deserialize, Serialize};

/// A host model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Memory for a file system's cache; 0: the file system's own default.
    #[serde(default)]
    pub memory: Bytes,
    /// Dirty data at which writers are held up; 0: the engine's own limit, half of its memory.
    #[serde(default)]
    pub dirty: Bytes,
    /// Dirty data at which writing back begins; 0: the engine's own limit.
    #[serde(default)]
    pub background: Bytes,
    /// Length of the pause of a writer that has dirtied its share, as in a Linux kernel (see
    /// [`Pauses`]); 0: the engine delays each write at the dirty limit.
    #[serde(default, skip_serializing_if = "no_time")]
    pub pause: Time,
    /// Largest command sent to a drive. Larger ones are sent in pieces, one after the other; 0:
    /// no limit.
    #[serde(default)]
    pub request_cap: Bytes,
    /// Whether only one write per zone is in flight, as with a kernel's zone write
    /// lock (mq-deadline).
    #[serde(default)]
    pub zone_lock: bool,
    /// Time that the host's stack takes for each write command, one after the other; a profile may
    /// have a stack of its own.
    #[serde(default, skip_serializing_if = "no_time")]
    pub stage: Time,
    /// Bytes read ahead for sequential readers of a file; 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub readahead: Bytes,
    /// Time that a client's processor takes for each operation, before the operation is sent.
    #[serde(default)]
    pub cpu: Time,
    /// Time that a client's processor takes for each 4 KiB that an operation moves, after
    /// the operation.
    #[serde(default, skip_serializing_if = "no_time")]
    pub page_cpu: Time,
}

fn no_time(time: &Time) -> bool {
    time.0 == 0
}

fn is_zero(bytes: &Bytes) -> bool {
    bytes.0 == 0
}
