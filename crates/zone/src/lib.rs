//! The vocabulary and the rules of zoned drives.

pub mod command;
pub mod device;
pub mod error;
mod geometry;
pub mod machine;
pub mod presets;
pub mod rules;
pub mod size;
pub mod spec;
pub mod types;

pub use command::{Action, Command, Status, Target, ZoneState};
pub use device::{Outcome, Request, ZoneReport, ZonedDevice};
pub use error::{Error, ErrorKind, Result};
pub use machine::{Effect, Machine};
pub use rules::Zone;
pub use spec::DeviceSpec;
pub use types::{BlockCount, ByteLen, DeviceId, Geometry, Lba, QueueId, ZoneId};
