//! What every engine on a zoned drive shares.

pub mod address;
pub mod budget;
pub mod format;
mod lane;
pub mod layout;
pub mod pool;
pub mod record;
mod window;
pub mod writer;

pub use address::{BlockAddr, read_blocks};
pub use budget::{Budget, Class, Permit};
pub use format::BLOCK_SIZE;
pub use pool::{ReadPin, ReleaseProof, Superzone, SuperzoneId, SuperzoneState, ZonePool};
pub use record::{Expect, RecordHeader, RecordId, Uuid, crc32c, crc32c_append};
pub use window::Mark;
pub use writer::{Counters, Durability, Kind, Order, Writer, WriterOptions, Written};
