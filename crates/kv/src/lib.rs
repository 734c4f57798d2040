//! A zone-aware file store: append-only files for log-structured merge trees, on one zoned drive.
//!
//! [`Store`] keeps directories and files whose content is appended and, at most, truncated, as
//! RocksDB uses files. A file is durable as of its last [`Store::sync`]. Content is placed in zones
//! by its expected lifetime; zones with garbage are cleaned. Names and the places of content are in
//! a record ring (`furrow_log::ring`).
//!
//! | module | what |
//! |---|---|
//! | `store` | what a store is made of |
//! | `namespace` | directories, names of files |
//! | `extent` | where blocks of a file lie, with their checksums |
//! | `file` | a file in memory |
//! | `file_io` | append, read, truncate; where blocks get their places |
//! | `prepared_append` | what a caller copies and checksums before it takes the engine |
//! | `file_kind` | what kind a file is, by its name |
//! | `zone_allocator` | which zones are open and for what, what counts in each; policies |
//! | `space` | how much space there is, and for whom |
//! | `ring_load` | how many bytes a snapshot takes in the record ring |
//! | `ring_budget` | who may add to what the record ring has to hold |
//! | `commits` | where the store is in its sequence of group commits, and who waits |
//! | `group_commit` | sync: what makes names and files durable, for all who ask at once |
//! | `flights` | writes under way |
//! | `leaving` | blocks that still count though no file refers to them |
//! | `sums_cache` | blocks of checksums in memory |
//! | `clean` | zone cleaning, relocation of what a failed zone lost |
//! | `dead_ranges` | bytes of files that no reader needs, and the holes they leave |
//! | `audit` | accounts in memory, each against what it counts |
//! | `mkfs` | making a store |
//! | `recover` | opening a store: the steps, and what each decides |
//! | `ring_scan` | the record ring found on a drive: which half counts |
//! | `half_reader` | a half of the ring: where it ends, and what of it is damaged |
//! | `inspect` | looking at a store without writing to its drive |
//! | `frozen`, `kept` | a view of an open store at one instant, and what it keeps of files |
//! | `fsck` | the check of a whole store |
//! | `trace` | recorded runs, to be replayed |
//! | `entries`, `format` | what is on the drive |

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
