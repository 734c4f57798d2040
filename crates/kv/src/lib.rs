//! A zone-aware file store: append-only files for log-structured merge trees, on one zoned drive.
//!
//! [`Store`] keeps directories and files whose content is appended and, at most, truncated, as
//! RocksDB uses files. A file is durable as of its last [`Store::sync`]. Content is placed in zones
//! by its expected lifetime; zones with garbage are cleaned. Names and the places of content are in
//! a record ring (`furrow_log::ring`).
//!
//! | module | what |
//! |---|---|
//! | `store` | the store's state, options and counters |
//! | `namespace` | directories, names of files |
//! | `extent` | where blocks of a file lie, with their checksums |
//! | `file` | a file in memory |
//! | `file_io` | append, read, truncate; where blocks get their places |
//! | `prepared_append` | pages and checksums that a caller prepares before it takes the engine |
//! | `file_kind` | what kind a file is, by its name |
//! | `zone_allocator` | which zones are open for which files; valid blocks; policies |
//! | `space` | how much space there is, and for which claims |
//! | `ring_load` | how many bytes a snapshot takes in the record ring |
//! | `ring_budget` | which requests may add entries to the record ring |
//! | `commits` | where the store is in its sequence of group commits, and who waits |
//! | `group_commit` | sync: makes names and files durable for all callers that wait |
//! | `flights` | writes under way |
//! | `leaving` | blocks that still count though no file refers to them |
//! | `sums_cache` | blocks of checksums in memory |
//! | `clean` | zone cleaning, and relocation of blocks that a failed zone lost |
//! | `dead_ranges` | bytes of files that no reader needs, and the holes they leave |
//! | `audit` | comparison of accounts in memory with what they count |
//! | `mkfs` | making a store |
//! | `recover` | opening a store: the steps, and what each decides |
//! | `ring_scan` | the record ring found on a drive: which half counts |
//! | `half_reader` | reading a half of the ring: its end, and damage in it |
//! | `inspect` | looking at a store without writing to its drive |
//! | `frozen`, `kept` | a view of an open store at one instant, and blocks kept for it |
//! | `fsck` | the check of a whole store |
//! | `trace` | recorded runs, to be replayed |
//! | `entries`, `format` | the entries and structures on the drive |

mod audit;
mod clean;
mod commits;
mod dead_ranges;
mod entries;
mod extent;
mod file;
mod file_io;
mod file_kind;
mod flights;
pub mod format;
mod frozen;
mod fsck;
mod group_commit;
mod half_reader;
mod inspect;
mod kept;
mod leaving;
mod mkfs;
mod namespace;
mod prepared_append;
mod recover;
mod ring_budget;
mod ring_load;
mod ring_scan;
mod scrub;
mod space;
mod store;
mod sums_cache;
pub mod trace;
mod wait_for_space;
mod zone_allocator;

pub use extent::{FileId, Lifetime};
pub use file_io::Data;
pub use file_kind::{Claim, Family, FileKind};
pub use frozen::Frozen;
pub use fsck::{About, CheckOptions, CheckReport, Checked, Problem, check};
pub use furrow_log::record::crc32c;
pub use furrow_log::scrub::{ScrubFinding, ScrubOrder, ScrubReport, ScrubState};
pub use inspect::{FileInfo, Snapshot, ZoneInfo, ZoneUse, identify, label_of};
pub use mkfs::FormatOptions;
pub use namespace::Stat;
pub use namespace::paths::{Node, clean as clean_path};
pub use prepared_append::PreparedAppend;
pub use ring_scan::is_store;
pub use space::{KindSum, Space};
pub use store::{Counters, Options, Store};
pub use zone_allocator::Policy;
