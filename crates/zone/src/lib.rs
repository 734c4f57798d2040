//! The vocabulary and the rules of zoned drives.
//!
//! - [`types`], [`command`], [`error`]: units that do not mix, commands, states and statuses by
//!   their NVMe names and codes, errors with a kind on which a caller can act.
//! - [`rules`] and [`machine`]: the zone state machine, for one zone as pure functions, and for a
//!   whole drive.
//! - [`device`]: the interface of every zoned drive, real or emulated; [`plain`]: the interface of
//!   a drive without zones; [`overlay`]: a view of a drive that keeps its writes in memory.
//! - [`spec`], [`presets`], [`size`]: how drives are named and described in text.
//!
//! Everything is deterministic and independent of the outside: no I/O, no clock, no threads.

pub mod command;
pub mod device;
pub mod error;
pub mod fault;
mod geometry;
pub mod machine;
pub mod overlay;
pub mod plain;
pub mod presets;
pub mod rules;
pub mod size;
pub mod spec;
pub mod types;
pub mod words;

pub use command::{Action, Command, Status, Target, ZoneState};
pub use device::{Access, Outcome, Reports, Request, ZoneReport, ZonedDevice, reported};
pub use error::{Error, ErrorKind, Result};
pub use fault::{Fault, FaultInjection, FaultKind, Place, When};
pub use machine::{Effect, Machine};
pub use overlay::Overlay;
pub use plain::PlainDevice;
pub use rules::Zone;
pub use spec::DeviceSpec;
pub use types::{BlockCount, ByteLen, DeviceId, Geometry, Lba, QueueId, ZoneId};
