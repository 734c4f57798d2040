//! A zone-aware file store: append-only files for log-structured merge trees, on one zoned drive.
//!
//! [`Store`] keeps directories and files whose content is appended and, at most, cut off; that is
//! what RocksDB does with its files. A file is durable as of its last [`Store::sync`]. Content goes
//! to zones by how long it is expected to live; zones with garbage are cleaned. Names and the
//! places of content are in a record ring (`furrow_log::ring`).
//!
//! | module | what |
//! |---|---|
//! | `store` | names, and what a store is made of |
//! | `file` | a file in memory |
//! | `content` | append, read, truncate; where blocks get their places |
//! | `gather` | what a caller prepares before it takes the engine |
//! | `place` | what kind a file is, and what shares a zone with what |
//! | `rounds` | sync: what makes names and files durable, for all who ask at once |
//! | `zones` | which zones are open and for what, what counts in each |
//! | `clean` | zone cleaning, relocation of what a failed zone lost |
//! | `holes` | what nobody reads any more, and the holes it leaves |
//! | `recover` | making and opening a store |
//! | `ring` | the record ring found on a drive: which half counts |
//! | `inspect` | looking at a store without writing to its drive |
//! | `check` | is everything as it must be? |
//! | `trace` | recorded runs, to be replayed |
//! | `entries`, `format` | what is on the drive |

mod check;
mod clean;
mod content;
mod entries;
pub mod file;
pub mod format;
mod gather;
mod holes;
mod inspect;
mod place;
mod recover;
mod ring;
mod rounds;
mod store;
pub mod trace;
mod zones;

pub use check::{CheckOptions, CheckReport, Checked, Problem, check};
pub use content::Data;
pub use file::{FileId, Lifetime};
pub use furrow_log::record::crc32c;
pub use gather::Gathered;
pub use inspect::{FileInfo, Snapshot, ZoneInfo, ZoneUse, identify};
pub use place::{Claim, Family, FileKind, Policy};
pub use recover::{FormatOptions, is_store};
pub use store::{Canary, Counters, KindSum, Node, Options, Space, Stat, Store};
