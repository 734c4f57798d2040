//! Types for callers of the file system: inode numbers, attributes, requests and results.

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
    /// The number that stands for the kind on the medium.
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
    /// Distinguishes successive inodes with the same number (generation in NFS and FUSE).
    pub generation: u32,
    /// Kind of the inode.
    pub kind: Kind,
    /// Permission bits, set-id bits and sticky bit (07777).
    pub mode: u16,
    /// Number of hard links; 1 for a directory with more than 65,533 subdirectories.
    pub links: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Device number of a special file.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Number of 4 KiB blocks in use.
    pub blocks: u64,
    /// Time of the last access.
    pub atime: Time,
    /// Time of the last change of the content.
    pub mtime: Time,
    /// Time of the last change of the inode.
    pub ctime: Time,
    /// Time of the creation.
    pub btime: Time,
}

/// Changes to attributes; `None` leaves an attribute as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub mode: Option<u16>,
    /// User id of the owner.
    pub uid: Option<u32>,
    /// Group id.
    pub gid: Option<u32>,
    /// New size in bytes, which truncates or extends the file.
    pub size: Option<u64>,
    /// Time of the last access.
    pub atime: Option<Time>,
    /// Time of the last change of the content.
    pub mtime: Option<Time>,
    /// Time of the last change of the inode; if `None`, the present time is used.
    pub ctime: Option<Time>,
}

/// Properties of a new inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Kind of the inode.
    pub kind: Kind,
    /// Permission bits (07777).
    pub mode: u16,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Device number, for a character or block device.
    pub rdev: u32,
    /// Target of a symbolic link (1 to 4095 bytes).
    pub target: Vec<u8>,
    /// Permission bits to remove, unless the directory has a default access list.
    pub umask: u16,
}

impl NewNode {
    /// A regular file with mode 0644, owned by root.
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

    /// A directory with mode 0755, owned by root.
    pub fn directory() -> NewNode {
        NewNode { kind: Kind::Directory, mode: 0o755, ..NewNode::file() }
    }

    /// A symbolic link to `target`, owned by root.
    pub fn symlink(target: &[u8]) -> NewNode {
        NewNode { kind: Kind::Symlink, mode: 0o777, target: target.to_vec(), ..NewNode::file() }
    }
}

/// Mode of setting an extended attribute (setxattr).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace the attribute.
    #[default]
    Set,
    /// Fail if the attribute exists (XATTR_CREATE).
    Create,
    /// Fail if the attribute does not exist (XATTR_REPLACE).
    Replace,
}

/// How the blocks of a range are allocated or freed (fallocate).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Fill holes, and extend the file if the range ends after it.
    Extend,
    /// Fill holes up to the end of the file (FALLOC_FL_KEEP_SIZE).
    KeepSize,
    /// Punch holes (FALLOC_FL_PUNCH_HOLE).
    Punch,
    /// Write zeros, allocate blocks for them, and extend the file if the range ends after
    /// it (FALLOC_FL_ZERO_RANGE).
    Zero,
    /// Write zeros and allocate blocks for them, up to the end of the file.
    ZeroKeepSize,
}

/// What a search looks for (SEEK_DATA, SEEK_HOLE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The first byte that is not in a hole.
    Data,
    /// The first byte that is in a hole; there is a hole at the end of each file.
    Hole,
}

/// When reading updates the time of the last access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTime {
    /// If the time of the last access is not after the last change, or is a day old (`relatime`).
    #[default]
    Relative,
    /// On every access (`strictatime`).
    Always,
    /// Never (`noatime`).
    Never,
}

/// Mode of a rename (renameat2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace the inode that has the new name.
    #[default]
    Replace,
    /// Fail if the new name exists (RENAME_NOREPLACE).
    NoReplace,
    /// Exchange the two names (RENAME_EXCHANGE).
    Exchange,
    /// Replace, and leave a whiteout with this owner under the old name (RENAME_WHITEOUT). A
    /// whiteout is a character device 0:0, with which an overlay file system hides a name of its
    /// lower layers. After a crash, both the rename and the whiteout are visible, or neither.
    Whiteout {
        /// User id of the whiteout's owner.
        uid: u32,
        /// Group id of the whiteout.
        gid: u32,
    },
}

/// One entry of a directory listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The inode that the name leads to.
    pub ino: Ino,
    /// Kind of the inode.
    pub kind: Kind,
    /// The name of the entry.
    pub name: Vec<u8>,
    /// The place at which a listing continues after this entry. The cookie stays valid while other
    /// entries are added or removed.
    pub cookie: u64,
}

/// Numbers of blocks and inodes (statfs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Number of bytes per block: 4096.
    pub block_size: u32,
    /// Number of blocks for data and nodes.
    pub blocks: u64,
    /// Number of blocks without valid content, which are free once everything is cleaned.
    pub blocks_free: u64,
    /// Number of blocks of `blocks_free` that users can have: without the blocks kept for cleaning.
    pub blocks_available: u64,
    /// Number of blocks of `blocks_available` that can be written at once, before anything
    /// is cleaned.
    pub blocks_now: u64,
    /// Garbage: blocks whose content is stale, in zones that still have to be reset.
    pub blocks_stale: u64,
    /// Number of blocks set aside for the checkpoint ring, delta logs, tables and sync log.
    pub blocks_logs: u64,
    /// Number of blocks of `blocks_logs` whose content a mount would need now.
    pub blocks_logs_used: u64,
    /// Number of blocks for segment summaries, one in each segment.
    pub blocks_summaries: u64,
    /// Number of inodes in use plus `inodes_free`.
    pub inodes: u64,
    /// Number of inodes that can still be made. If space ends before ids do, space limits
    /// the number.
    pub inodes_free: u64,
    /// Longest name, in bytes.
    pub name_max: u32,
}

/// Bytes to be written at an offset, already in pages. The caller's thread fills the pages, so that
/// the engine need not copy whole blocks.
#[derive(Clone, Debug)]
pub struct WriteData {
    pub(crate) offset: u64,
    pub(crate) len: usize,
    /// Pages aligned to the file's blocks: the first starts at block `offset / 4096`; bytes
    /// outside `offset..offset + len` are unspecified.
    pub(crate) pages: Pages,
    /// CRC32C of each page that the write covers completely.
    pub(crate) crcs: smallvec::SmallVec<[Option<u32>; 4]>,
    /// True if the write must leave mtime and ctime unchanged, because the caller sets them.
    pub(crate) keeps_times: bool,
}

impl WriteData {
    /// Copies `bytes`, to be written at `offset`, into pages of `pool`, and computes checksums of
    /// whole pages.
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

    /// With `keep`, the write leaves mtime and ctime unchanged: a program made the change earlier,
    /// and the caller sets the times with a [`SetAttr`].
    #[must_use]
    pub fn keeping_times(self, keep: bool) -> WriteData {
        WriteData { keeps_times: keep, ..self }
    }

    /// Number of bytes to write.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The result of a read: pages shared with the cache, not yet copied.
#[derive(Clone, Debug, Default)]
pub struct ReadData {
    pub(crate) pages: Pages,
    pub(crate) skip: usize,
    pub(crate) len: usize,
}

impl ReadData {
    /// Number of bytes read; less than requested only at the end of the file.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the read returned no bytes, at the end of the file.
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

    /// Copies the bytes to the front of `out`, which must be long enough.
    pub fn copy_to(&self, out: &mut [u8]) {
        let mut at = 0;
        for piece in self.chunks() {
            out[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
    }

    /// Copies the bytes into a vector.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.len];
        self.copy_to(&mut out);
        out
    }
}

/// Options for making a file system.
#[derive(Clone, Debug, Default)]
pub struct MkfsOptions {
    /// Volume label, at most 63 bytes.
    pub label: String,
    /// UUID; random if absent.
    pub uuid: Option<furrow_log::record::Uuid>,
    /// Key for hashing names; random if absent.
    pub hash_seed: Option<u64>,
    /// Zones per superzone. If absent, chosen from the drive's channels and permits.
    pub width: Option<u32>,
    /// Blocks per segment. If absent, 512, or fewer on a drive with tiny zones.
    pub segment_blocks: Option<u32>,
    /// Adjacent blocks of a segment in one zone of a superzone. If absent, 32, or fewer on a drive
    /// with tiny zones.
    pub subsegment_blocks: Option<u32>,
    /// Blocks per table page, at most a zone. If absent, 1 to 64 depending on the size of the
    /// drive. With [`furrow_policy::Metadata::Pair`], 1 or a whole zone.
    pub unit_blocks: Option<u32>,
    /// Minimum number of blocks in each half of a delta log; the number is rounded up to whole
    /// zones. If absent, chosen from the size of the drive.
    pub delta_blocks: Option<u32>,
    /// Number of delta logs, and of table zones written at the same time: 1, which NAT and SIT
    /// share, or 2. If absent, chosen from the drive's active zones.
    pub logs: Option<u32>,
    /// Number of nodes that the tables have space for before they take zones from the main area. If
    /// absent, a fraction of the largest number for the drive.
    pub first_nodes: Option<u32>,
    /// Number of zones that the sync log is striped over. If absent, chosen from the drive's
    /// active zones.
    pub sync_zones: Option<u32>,
    /// Whether to use the layout for large zones or the one for small zones. If absent, chosen from
    /// the capacity of the zones.
    pub large_zones: Option<bool>,
    /// Overwrite a drive that holds a file system or other data.
    pub force: bool,
}

/// Properties of the file system that mkfs made.
#[derive(Clone, Debug, Default)]
pub struct MkfsReport {
    /// UUID in its usual form.
    pub uuid: String,
    /// Label of the volume.
    pub label: String,
    /// Number of zones per superzone.
    pub width: u32,
    /// Number of superzones in the main area.
    pub superzones: u32,
    /// Number of bytes of the main area, for data and nodes.
    pub main_bytes: u64,
    /// The permit budget as lines: purpose, and the number of active zones it needs.
    pub budget: Vec<(String, u32)>,
    /// Number of active zones that the drive offers; `None` means no limit.
    pub max_active: Option<u32>,
    /// The profile chosen for the drive's geometry, in words.
    pub profile: String,
    /// Number of zones set aside for checkpoints, logs and tables.
    pub log_zones: u32,
}

/// Largest number of blocks in one write. A write is applied as a whole, so it must fit within the
/// limit of dirty pages.
pub(crate) const WRITE_BLOCKS_MAX: usize = 1024;
/// Largest number of bytes in one [`crate::Fs::write`].
pub const WRITE_MAX: usize = (WRITE_BLOCKS_MAX - 1) * PAGE_SIZE;

/// Mount options.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Refuse every change, and write nothing to the drive, not even a recovery.
    pub read_only: bool,
    /// Longest time for which a change may stay unwritten, in nanoseconds. Default 5 s.
    pub commit_interval: u64,
    /// Size of the cache, in pages of 4 KiB. Default 65,536 (256 MiB).
    pub cache_pages: usize,
    /// Number of dirty pages (4 KiB) at which writers are throttled. If absent, half
    /// of `cache_pages`.
    pub dirty_pages: Option<usize>,
    /// Number of dirty pages (4 KiB) at which write-back begins while writers continue. If absent,
    /// half of the number at which writers are throttled; never more than that number.
    pub background_pages: Option<usize>,
    /// Reaction to a block that is damaged or cannot be read.
    pub on_damage: OnDamage,
    /// Rule for how many writes to a zone may be in flight.
    pub order: Order,
    /// File name extensions that tell the expected lifetime of a new file's data.
    pub extensions: crate::tree::lifetime::Extensions,
    /// When and how the file system cleans.
    pub gc: crate::clean::options::GcOptions,
    /// When reading updates the time of the last access. Default [`AccessTime::Relative`].
    pub access_time: AccessTime,
    /// Whether directories keep the time of their last access (`diratime`). Default true.
    pub directory_access_time: bool,
    /// Keep a new access time in memory until the inode is written anyway or synced, or the file
    /// system is unmounted (`lazytime`). Default false.
    pub lazy_time: bool,
    /// Receives a line for each event that no operation reports, such as a zone that failed
    /// while it was written, or a drive that does not answer or answers again. By default the
    /// lines are dropped.
    pub notice: fn(&str),
    /// Rules that differ from the product's, for experiments and for tests of the tests.
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

/// Reaction to a block that cannot be read, or differs from what was written. Whatever the choice,
/// the engine becomes read-only if a write fails and its blocks cannot be written elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDamage {
    /// The operation that needs the block fails; other operations continue.
    #[default]
    Continue,
    /// Once damage is found, every change is refused. Changes accepted earlier are made durable,
    /// and then nothing more is written; reading continues.
    ReadOnly,
}

/// A log stream: blocks that are expected to die together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// Name of the stream, which says what it contains.
    pub name: &'static str,
    /// Number of superzones that the stream may write to at the same time.
    pub quota: u32,
    /// Number of superzones that the stream writes to alternately.
    pub open: u32,
    /// Number of the `open` superzones that other streams lend to the stream.
    pub lent: u32,
    /// Number of superzones that the stream has left partly written and that are still active on
    /// the drive.
    pub parked: u32,
    /// Number of blocks (4 KiB) written since the mount.
    pub blocks: u64,
}

/// Counts since the mount: bytes written to the drive by content, requests and events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes that callers wrote.
    pub user_bytes: u64,
    /// Bytes that callers read.
    pub read_bytes: u64,
    /// Bytes written as file data.
    pub data_bytes: u64,
    /// Bytes written as nodes (inodes and pointer blocks).
    pub node_bytes: u64,
    /// Bytes written as segment summaries.
    pub summary_bytes: u64,
    /// Bytes written as checkpoints and superblocks.
    pub checkpoint_bytes: u64,
    /// Bytes written to the delta logs.
    pub delta_bytes: u64,
    /// Bytes written as table pages.
    pub table_bytes: u64,
    /// Bytes written to the sync log.
    pub sync_bytes: u64,
    /// Bytes written as padding.
    pub padding_bytes: u64,
    /// Number of zone resets.
    pub zone_resets: u64,
    /// Number of merges of the delta log into the tables that have begun.
    pub merges: u64,
    /// Bytes of table pages that merges wrote.
    pub merge_bytes: u64,
    /// Bytes of table pages that merges wrote although the pages had not changed, so that zones
    /// could be reset.
    pub merge_moved_bytes: u64,
    /// Number of checkpoints that had to write table pages themselves, because the delta log was
    /// full before a merge had ended.
    pub merge_throttles: u64,
    /// Number of superzones that the tables took from the main area.
    pub table_superzones_taken: u64,
    /// Number of superzones that the tables gave back to the main area.
    pub table_superzones_returned: u64,
    /// The longest time by which writing table pages delayed a checkpoint, in nanoseconds.
    pub longest_merge_stall_ns: u64,
    /// Number of zones that failed while they were written, and whose blocks were then
    /// written elsewhere.
    pub zone_failures: u64,
    /// Number of superzones emptied because the drive has closed some of their zones, or
    /// one failed.
    pub superzones_evacuated: u64,
    /// Number of superzones left before they were full, because their permits were needed.
    pub superzones_closed: u64,
    /// Number of parked superzones finished in the background, because permits were short and
    /// little of the superzone was unwritten.
    pub superzones_finished: u64,
    /// Number of write commands sent.
    pub write_commands: u64,
    /// Number of checkpoints written.
    pub checkpoints: u64,
    /// Number of fsyncs acknowledged.
    pub fsyncs: u64,
    /// Number of look-ups by operations that found their page in the cache.
    pub cache_hits: u64,
    /// Number of look-ups by operations whose page had to be read from the drive.
    pub cache_misses: u64,
    /// Number of superzones cleaned.
    pub clean_victims: u64,
    /// Number of blocks of file data that cleaning moved.
    pub clean_data_blocks: u64,
    /// Number of nodes that cleaning moved.
    pub clean_node_blocks: u64,
    /// Number of blocks that cleaning could not read, or whose content differed from what
    /// was written.
    pub clean_failed_blocks: u64,
    /// Number of requests that failed because a block could not be read, or differed from what
    /// was written.
    pub damaged_reads: u64,
    /// Number of times that an operation had to wait for space.
    pub space_waits: u64,
    /// Largest number of blocks, nodes and names looked at in one stretch before other tasks could
    /// run; stretches with 512 or fewer are not recorded.
    pub longest_stretch_units: u64,
    /// Duration of the longest stretch of more than 512 units, in nanoseconds.
    pub longest_stretch_ns: u64,
}

impl Counters {
    /// Bytes written to the drive, in all.
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
    /// Main area: empty.
    Free,
    /// Main area: data of this stream (of three: 0 hot, 1 warm, 2 cold).
    Data(u8),
    /// Main area: nodes of this stream (of three: 0 hot, 1 warm, 2 cold).
    Node(u8),
    /// Unused: a spare or a conventional zone.
    Unused,
    /// Retired because it is read-only or offline.
    Retired,
}

/// One zone of the zone map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneInfo {
    /// The use of the zone.
    pub usage: ZoneUse,
    /// True if a stream or a log is writing to the zone.
    pub open: bool,
    /// Number of blocks written.
    pub written: u32,
    /// Number of valid blocks.
    pub valid: u32,
}
