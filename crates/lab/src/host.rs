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
    /// Number of tasks that write back at once; 0: the engine's own number.
    #[serde(default)]
    pub flushers: u32,
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

impl Host {
    /// A description in one line: the fields that concern commands to a drive and, for an `engine`,
    /// the fields that concern the engine.
    pub fn describe(&self, engine: bool) -> String {
        let or = |none: &str, bytes: Bytes| match bytes.0 {
            0 => none.to_owned(),
            _ => bytes.to_string(),
        };
        let cap = or("of any size", self.request_cap);
        let lock = if self.zone_lock { "one write in flight per zone" } else { "no zone lock" };
        let mut cpu = match self.cpu.0 {
            0 => "none".to_owned(),
            _ => self.cpu.to_string(),
        };
        if self.page_cpu.0 > 0 {
            cpu.push_str(&format!(" and {} for each 4KiB", self.page_cpu));
        }
        let stage = match self.stage.0 {
            0 => String::new(),
            _ => format!(", {} for each write command, one after the other", self.stage),
        };
        let mut text = format!("requests {cap}, {lock}{stage}, processor time per operation {cpu}");
        if engine {
            let flushers = match self.flushers {
                0 => "the engine's own".to_owned(),
                count => count.to_string(),
            };
            let own = |bytes| or("the engine's own", bytes);
            if self.pause.0 > 0 {
                text.push_str(&format!(", writers pause for {}", self.pause));
            }
            text.push_str(&format!(
                ", memory {}, dirty limit {}, background limit {}, flushers {flushers}, \
                 readahead {}",
                own(self.memory),
                own(self.dirty),
                own(self.background),
                or("none", self.readahead)
            ));
        }
        text
    }
}
