//! Types that callers of the file system use: inode numbers, attributes, requests and answers.

pub use furrow_log::writer::Order;
use furrow_policy::FsVariant;
use furrow_rt::{PAGE_SIZE, Page, Pages, Pool};
use std::fmt;

/// Inode number; also the id of the inode's node. The root directory is [`Ino::ROOT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u32);

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Kinds of inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// FIFO.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

impl Kind {
    /// The kind's number on the medium.
    pub fn code(self) -> u8 {
        match self {
            Kind::File => 1,
            Kind::Directory => 2,
            Kind::Symlink => 3,
            Kind::CharDevice => 4,
            Kind::BlockDevice => 5,
            Kind::Fifo => 6,
            Kind::Socket => 7,
        }
    }

    /// The kind with this number.
    pub fn from_code(code: u8) -> Option<Kind> {
        use Kind::*;
        let kinds = [File, Directory, Symlink, CharDevice, BlockDevice, Fifo, Socket];
        kinds.into_iter().find(|kind| kind.code() == code)
    }
}

/// A time: seconds since 1970 (negative before) and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970-01-01 00:00:00 UTC.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Tells reuses of an inode number apart (NFS, FUSE generation).
    pub generation: u32,
    /// Kind of the inode.
    pub kind: Kind,
    /// Permission bits, set-id bits and sticky bit (07777).
    pub mode: u16,
    /// Hard links; 1 of a directory with more than 65,533 subdirectories.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a special file.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// 4 KiB blocks in use.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
}

/// Changes to attributes; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Truncate or extend to this many bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<Time>,
    /// Last change of the content.
    pub mtime: Option<Time>,
    /// Last change of anything; `None`: now.
    pub ctime: Option<Time>,
}

/// Properties of a new inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Kind of the inode.
    pub kind: Kind,
    /// Permission bits (07777).
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for a character or block device.
    pub rdev: u32,
    /// Target, for a symbolic link (1 to 4095 bytes).
    pub target: Vec<u8>,
    /// Permission bits to take away, unless the directory has a default access list.
    pub umask: u16,
}

impl NewNode {
    /// A regular file, mode 0644, owned by root.
    pub fn file() -> NewNode {
        NewNode {
            kind: Kind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: Vec::new(),
            umask: 0,
        }
    }

    /// A directory, mode 0755, owned by root.
    pub fn directory() -> NewNode {
        NewNode { kind: Kind::Directory, mode: 0o755, ..NewNode::file() }
    }

    /// A symbolic link to `target`, owned by root.
    pub fn symlink(target: &[u8]) -> NewNode {
        NewNode { kind: Kind::Symlink, mode: 0o777, target: target.to_vec(), ..NewNode::file() }
    }
}

/// How to set an extended attribute (setxattr).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Make it or replace it.
    #[default]
    Set,
    /// Fail if it exists (XATTR_CREATE).
    Create,
    /// Fail if it does not (XATTR_REPLACE).
    Replace,
}

/// What to do with the blocks of a range (fallocate).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Fill holes, and make the file long enough.
    Extend,
    /// Fill holes up to the end of the file (FALLOC_FL_KEEP_SIZE).
    KeepSize,
    /// Make holes (FALLOC_FL_PUNCH_HOLE).
    Punch,
    /// Zeros, and blocks for them, and make the file long enough (FALLOC_FL_ZERO_RANGE).
    Zero,
    /// Zeros, and blocks for them, up to the end of the file.
    ZeroKeepSize,
}

/// What to look for (SEEK_DATA, SEEK_HOLE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The first byte that is not in a hole.
    Data,
    /// The first byte that is in a hole; there is one at the end of each file.
    Hole,
}

/// When reading changes the time of the last access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTime {
    /// If it is not after the last change, or a day old (`relatime`).
    #[default]
    Relative,
    /// Always (`strictatime`).
    Always,
    /// Never (`noatime`).
    Never,
}

/// How to rename (renameat2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace the inode that has the new name.
    #[default]
    Replace,
    /// Fail if the new name exists (RENAME_NOREPLACE).
    NoReplace,
    /// Swap the two (RENAME_EXCHANGE).
    Exchange,
    /// Replace, and leave a whiteout of this owner under the old name (RENAME_WHITEOUT): a
    /// character device 0:0, by which an overlay file system hides a name of its lower layers.
    /// No crash shows one without the other.
    Whiteout {
        /// Owner of the whiteout.
        uid: u32,
        /// Group of the whiteout.
        gid: u32,
    },
}

/// One entry of a directory listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Inode.
    pub ino: Ino,
    /// Kind of the inode.
    pub kind: Kind,
    /// Name.
    pub name: Vec<u8>,
    /// Place at which the listing continues after this entry. Stays valid while other entries come
    /// and go.
    pub cookie: u64,
}

/// Space and inodes (statfs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes per block: 4096.
    pub block_size: u32,
    /// Blocks for data and nodes.
    pub blocks: u64,
    /// Blocks without valid content: free once everything is cleaned.
    pub blocks_free: u64,
    /// Those of them for users: without the blocks kept for cleaning.
    pub blocks_available: u64,
    /// Those of them that can be written at once, before anything is cleaned.
    pub blocks_now: u64,
    /// Blocks with content that is no longer valid, in zones that are not reset: garbage.
    pub blocks_stale: u64,
    /// Blocks set aside for checkpoint ring, delta log, tables and sync log.
    pub blocks_logs: u64,
    /// Those of them with content that a mount would need now.
    pub blocks_logs_used: u64,
    /// Blocks of segment summaries, one in each segment.
    pub blocks_summaries: u64,
    /// Inodes in use and those that can be made. Where space ends before ids do, it decides.
    pub inodes: u64,
    /// Inodes not in use.
    pub inodes_free: u64,
    /// Longest name.
    pub name_max: u32,
}

/// Bytes to be written at an offset, already in pages: made by the caller's thread, so that the
/// engine copies nothing for a whole block.
#[derive(Clone, Debug)]
pub struct WriteData {
    pub(crate) offset: u64,
    pub(crate) len: usize,
    /// Pages aligned to the file's blocks: the first starts at block `offset / 4096`; bytes
    /// outside `offset..offset + len` are unspecified.
    pub(crate) pages: Pages,
    /// CRC32C of each whole page, where the write covers all of it.
    pub(crate) crcs: smallvec::SmallVec<[Option<u32>; 4]>,
    /// The caller sets the times of this change.
    pub(crate) keeps_times: bool,
}

impl WriteData {
    /// Copies `bytes`, to be written at `offset`, into pages of `pool` and checksums whole ones.
    pub fn copy(pool: &Pool, offset: u64, bytes: &[u8]) -> WriteData {
        let mut data = WriteData {
            offset,
            len: bytes.len(),
            pages: Pages::new(),
            crcs: Default::default(),
            keeps_times: false,
        };
        let mut rest = bytes;
        let mut skip = (offset % PAGE_SIZE as u64) as usize;
        while !rest.is_empty() {
            let take = rest.len().min(PAGE_SIZE - skip);
            let mut page = pool.take_dirty();
            page.make_mut()[skip..skip + take].copy_from_slice(&rest[..take]);
            data.crcs.push((take == PAGE_SIZE).then(|| furrow_log::record::crc32c(page.bytes())));
            data.pages.push(page);
            rest = &rest[take..];
            skip = 0;
        }
        data
    }

    /// The same, to be written without a new mtime and ctime: who made the change earlier sets them
    /// by a [`SetAttr`].
    #[must_use]
    pub fn keeping_times(self, keep: bool) -> WriteData {
        WriteData { keeps_times: keep, ..self }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Result of a read: shared pages, not yet copied.
#[derive(Clone, Debug, Default)]
pub struct ReadData {
    pub(crate) pages: Pages,
    pub(crate) skip: usize,
    pub(crate) len: usize,
}

impl ReadData {
    /// Bytes read; short only at the end of the file.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True at the end of the file.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, piece by piece.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        let (mut skip, mut left) = (self.skip, self.len);
        self.pages.iter().map(move |page: &Page| {
            let take = left.min(PAGE_SIZE - skip);
            let piece = &page.bytes()[skip..skip + take];
            left -= take;
            skip = 0;
            piece
        })
    }

    /// Copies the bytes to the front of `out`, which must be at least as long.
    pub fn copy_to(&self, out: &mut [u8]) {
        let mut at = 0;
        for piece in self.chunks() {
            out[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
    }

    /// The bytes, copied.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.len];
        self.copy_to(&mut out);
        out
    }
}

/// How to make a file system.
#[derive(Clone, Debug, Default)]
pub struct MkfsOptions {
    /// Volume label, at most 63 bytes.
    pub label: String,
    /// UUID; drawn at random if absent.
    pub uuid: Option<furrow_log::record::Uuid>,
    /// Key of the hash of names; drawn at random if absent.
    pub hash_seed: Option<u64>,
    /// Zones per superzone; chosen from the drive's channels and permits if absent.
    pub width: Option<u32>,
    /// Blocks per segment; 512, or less on a drive of tiny zones, if absent.
    pub segment_blocks: Option<u32>,
    /// Blocks that lie side by side in one zone of a superzone; 32, or less on a drive of tiny
    /// zones, if absent.
    pub subsegment_blocks: Option<u32>,
    /// Blocks per table page, the piece in which tables are written, up to a zone; 1 to 64 by the
    /// drive's size if absent. 1 with [`furrow_policy::Metadata::Pair`], or a zone.
    pub unit_blocks: Option<u32>,
    /// Least blocks of half a delta log, whose zones are whole; by the drive's size if absent.
    pub delta_blocks: Option<u32>,
    /// Delta logs, and zones of tables written at a time: 1, which NAT and SIT share, or 2. As the
    /// drive's active zones allow if absent.
    pub logs: Option<u32>,
    /// Nodes that the tables have space for before they take zones from the main area; a share of
    /// the drive's most if absent.
    pub first_nodes: Option<u32>,
    /// Zones the sync log is striped over; by the drive's active zones if absent.
    pub sync_zones: Option<u32>,
    /// Use the layout for large zones, or the one for small zones; by the zones' capacity if
    /// absent.
    pub large_zones: Option<bool>,
    /// Overwrite a drive that holds a file system or other data.
    pub force: bool,
}

/// Properties of the file system that mkfs made.
#[derive(Clone, Debug, Default)]
pub struct MkfsReport {
    /// UUID in its usual form.
    pub uuid: String,
    /// Label.
    pub label: String,
    /// Zones per superzone.
    pub width: u32,
    /// Superzones of the main area.
    pub superzones: u32,
    /// Bytes for data and nodes.
    pub main_bytes: u64,
    /// The permit budget, line by line: purpose, and the number of active zones it needs.
    pub budget: Vec<(String, u32)>,
    /// Active zones the drive offers, `None` = no limit.
    pub max_active: Option<u32>,
    /// The profile chosen for the drive's geometry, in words.
    pub profile: String,
    /// Zones set aside for checkpoints, logs and tables.
    pub log_zones: u32,
}

/// Most blocks of one write: it is applied whole, so it must fit the limit of dirty pages.
pub(crate) const WRITE_BLOCKS_MAX: usize = 1024;
/// Most bytes of one [`crate::Fs::write`].
pub const WRITE_MAX: usize = (WRITE_BLOCKS_MAX - 1) * PAGE_SIZE;

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Refuse every change; nothing is written, not even a recovery.
    pub read_only: bool,
    /// No change stays unwritten for longer than this, in nanoseconds. Default 5 s.
    pub commit_interval: u64,
    /// Pages (4 KiB) of cache. Default 65,536 (256 MiB).
    pub cache_pages: usize,
    /// Dirty pages (4 KiB) at which writers are throttled. Half of `cache_pages` if absent.
    pub dirty_pages: Option<usize>,
    /// Dirty pages (4 KiB) at which writing back begins while writers continue. Half of those at
    /// which writers are throttled if absent, and never more.
    pub background_pages: Option<usize>,
    /// Reaction to a block that cannot be read, or is damaged.
    pub on_damage: OnDamage,
    /// Number of writes of a zone that may be in flight.
    pub order: Order,
    /// The expected lifetimes of new files' data, by the ends of their names.
    pub extensions: crate::tree::lifetime::Extensions,
    /// Cleaning.
    pub gc: crate::clean::options::GcOptions,
    /// When reading changes the time of the last access. Default [`AccessTime::Relative`].
    pub access_time: AccessTime,
    /// Directories keep the time of their last access (`diratime`). Default true.
    pub directory_access_time: bool,
    /// A new time of access stays in memory until the inode is written anyway, synced, or the
    /// file system unmounted (`lazytime`). Default false.
    pub lazy_time: bool,
    /// Gets a line for each zone that failed while it was written, of which no operation tells.
    /// Default: nobody gets it.
    pub notice: fn(&str),
    /// Other rules than the product's, for experiments and tests of tests.
    pub variant: FsVariant,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            read_only: false,
            commit_interval: 5 * furrow_rt::Nanos::SECOND,
            cache_pages: 65_536,
            dirty_pages: None,
            background_pages: None,
            on_damage: OnDamage::Continue,
            order: Order::Queued,
            extensions: crate::tree::lifetime::Extensions::default(),
            gc: crate::clean::options::GcOptions::default(),
            access_time: AccessTime::Relative,
            directory_access_time: true,
            lazy_time: false,
            notice: |_| {},
            variant: FsVariant::default(),
        }
    }
}

/// Reaction to a block that cannot be read, or differs from what was written. After a failed write
/// that cannot be made elsewhere either, the engine is read-only in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDamage {
    /// That operation fails; other operations continue.
    #[default]
    Continue,
    /// No change is accepted any more, and nothing is written once those accepted before are
    /// durable; reading continues.
    ReadOnly,
}

/// A log stream: blocks that are expected to die together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// Content of the stream.
    pub name: &'static str,
    /// Superzones it may write to at once.
    pub quota: u32,
    /// Superzones it writes to, in turn.
    pub open: u32,
    /// Those of them that other streams lend it.
    pub lent: u32,
    /// Superzones left partly written; still active on the drive.
    pub parked: u32,
    /// Blocks (4 KiB) written since the mount.
    pub blocks: u64,
}

/// Counts since the mount: bytes written to the drive by content, requests and events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes callers wrote.
    pub user_bytes: u64,
    /// Bytes callers read.
    pub read_bytes: u64,
    /// File data.
    pub data_bytes: u64,
    /// Nodes (inodes and pointer blocks).
    pub node_bytes: u64,
    /// Segment summaries.
    pub summary_bytes: u64,
    /// Checkpoints and superblocks.
    pub checkpoint_bytes: u64,
    /// Delta log.
    pub delta_bytes: u64,
    /// Tables.
    pub table_bytes: u64,
    /// Sync log.
    pub sync_bytes: u64,
    /// Padding.
    pub padding_bytes: u64,
    /// Zone resets.
    pub zone_resets: u64,
    /// Merges of the delta log into the tables begun.
    pub merges: u64,
    /// Bytes of table pages that merges wrote.
    pub merge_bytes: u64,
    /// Bytes of them that had not changed, and were written so that zones could be reset.
    pub merge_moved_bytes: u64,
    /// Checkpoints that had to write units themselves, because the delta log was full before a
    /// merge had ended.
    pub merge_throttles: u64,
    /// Superzones the tables took from the main area.
    pub table_superzones_taken: u64,
    /// Superzones the tables gave back to the main area.
    pub table_superzones_returned: u64,
    /// The longest time by which writing table pages delayed a checkpoint, in nanoseconds.
    pub longest_merge_stall_ns: u64,
    /// Zones that failed while they were written, and whose blocks have been elsewhere since.
    pub zone_failures: u64,
    /// Superzones emptied because the drive has closed some of their zones, or one failed.
    pub superzones_evacuated: u64,
    /// Superzones left before they were full, because their permits were needed.
    pub superzones_closed: u64,
    /// Parked superzones finished in the background, because it paid.
    pub superzones_finished: u64,
    /// Write commands sent.
    pub write_commands: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// fsyncs acknowledged.
    pub fsyncs: u64,
    /// Cache hits and misses, in pages.
    pub cache_hits: u64,
    /// See `cache_hits`.
    pub cache_misses: u64,
    /// Superzones cleaned.
    pub clean_victims: u64,
    /// Blocks of file data that cleaning moved.
    pub clean_data_blocks: u64,
    /// Nodes that cleaning moved.
    pub clean_node_blocks: u64,
    /// Blocks that cleaning could not read, or whose content was not what was written.
    pub clean_failed_blocks: u64,
    /// Requests that failed because a block could not be read, or was not what was written.
    pub damaged_reads: u64,
    /// Times an operation had to wait for space.
    pub space_waits: u64,
    /// The most blocks, nodes and names that were looked at before other tasks had a turn;
    /// stretches of fewer than 512 are not noted.
    pub longest_stretch_units: u64,
    /// Nanoseconds that the longest such stretch took.
    pub longest_stretch_ns: u64,
}

impl Counters {
    /// Bytes written to the drive.
    pub fn host_bytes(&self) -> u64 {
        self.data_bytes
            + self.node_bytes
            + self.summary_bytes
            + self.checkpoint_bytes
            + self.delta_bytes
            + self.table_bytes
            + self.sync_bytes
            + self.padding_bytes
    }
}

/// Use of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneUse {
    /// Superblock copies and checkpoints.
    Checkpoint,
    /// Delta log.
    DeltaLog,
    /// Tables (NAT and SIT).
    Tables,
    /// Sync log.
    SyncLog,
    /// Main area, nothing in it.
    Free,
    /// Main area: hot, warm, cold (0, 1, 2) data.
    Data(u8),
    /// Main area: hot, warm, cold (0, 1, 2) nodes.
    Node(u8),
    /// Not used (spare or conventional).
    Unused,
    /// Retired: read-only or offline.
    Retired,
}

/// One zone of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneInfo {
    /// Its use.
    pub usage: ZoneUse,
    /// True if a stream or log writes to it now.
    pub open: bool,
    /// Blocks written.
    pub written: u32,
    /// Valid blocks.
    pub valid: u32,
}
