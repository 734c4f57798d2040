//! Format version 1: every structure of the file system on the medium, defined once, here.
//!
//! All integers are little-endian. Block addresses are *physical and dense*: zone × capacity +
//! offset, in 4 KiB blocks ([`BlockAddr`]); [`HOLE`] means "no block". Records (superblock,
//! checkpoint, delta-log block, table page, sync record) open with the header of `furrow-log`.
//! Nodes, summaries, directory blocks and file data have no header: the pointer to such a block
//! carries the block's CRC32C. `docs/inside/format.md` shows the same tables; a test compares the
//! two.

use furrow_log::layout;
use zerocopy::little_endian::{I64, U16, U32, U64};

/// Format version that this code writes. This code cannot read newer versions.
pub const VERSION: u16 = 1;
/// Bytes per block.
pub const BLOCK: usize = 4096;
/// The block address that means "no block".
pub const HOLE: u32 = 0xffff_ffff;
/// The node id that means "no node".
pub const NO_NODE: u32 = 0;
/// Node id of the root directory's inode.
pub const ROOT_NODE: u32 = 1;
/// Largest number of hard links of an inode that is not a directory. A directory's count includes
/// all of its subdirectories, without limit.
pub const LINKS_MAX: u32 = 65_535;
/// Longest name, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest symbolic link target, in bytes.
pub const TARGET_MAX: usize = 4095;
/// Largest file, in bytes: 2^32 - 1 blocks, because block numbers are 32 bits wide.
pub const FILE_MAX: u64 = (u32::MAX as u64) * BLOCK as u64;
/// Largest number of log streams in a file system.
pub const STREAMS: usize = 6;

/// Names of the log streams, by stream number, for a file system with `streams` of them.
pub const fn stream_names(streams: u32) -> &'static [&'static str] {
    match streams {
        6 => &["hot data", "warm data", "cold data", "hot nodes", "warm nodes", "cold nodes"],
        4 => &["hot data", "warm and cold data", "hot nodes", "warm and cold nodes"],
        _ => &["data", "nodes"],
    }
}

/// Largest number of heads of a stream: superzones that the stream writes to at the same time.
pub const HEADS_PER_STREAM: u32 = 8;
/// Largest number of zones in a superzone: 32 bits mark the bad ones.
pub const WIDTH_MAX: u32 = 32;
/// Incompatible feature: inodes may have extended attributes, and files may be made without a name.
pub const INCOMPAT_XATTRS: u64 = 1;
/// Incompatible feature: the zones of the tables are used one by one, and superzones of the main
/// area may join them. Every file system has this feature.
pub const INCOMPAT_THIN_TABLES: u64 = 2;
/// Incompatible feature: sync records hold changes of nodes.
pub const INCOMPAT_CHANGES: u64 = 4;
/// Incompatible features that this version knows; mkfs sets all of them.
pub const INCOMPAT_KNOWN: u64 = INCOMPAT_XATTRS | INCOMPAT_THIN_TABLES | INCOMPAT_CHANGES;
/// Compatible feature: each sync record names the sequence below which all records were
/// durable when it was written, and checkpoints are written twice if the zone of the ring has
/// space for that.
pub const COMPAT_PROOFS: u64 = 1;
/// Compatible features that this version knows; mkfs sets all of them.
pub const COMPAT_KNOWN: u64 = COMPAT_PROOFS;
/// Read-only compatible features that this version knows: none.
pub const RO_COMPAT_KNOWN: u64 = 0;

/// Record kinds (the `kind` of the record header).
pub mod kind {
    /// Superblock copy: the first block of each zone of the checkpoint ring.
    pub const SUPERBLOCK: u16 = 0x10;
    /// Checkpoint.
    pub const CHECKPOINT: u16 = 0x11;
    /// Delta-log block.
    pub const DELTA: u16 = 0x12;
    /// Table page.
    pub const UNIT: u16 = 0x13;
    /// Sync record.
    pub const SYNC: u16 = 0x14;
}

/// Numbers of the tables in the delta log and among the table pages.
pub mod table {
    /// Node address table: entry i is node id i.
    pub const NAT: u8 = 0;
    /// Segment information table: entry i is segment i (superzone × segments per superzone +
    /// segment within the superzone).
    pub const SIT: u8 = 1;
}

layout! {
    /// Body of a superblock copy. mkfs writes it, and it is written again at the front of a zone of
    /// the checkpoint ring each time the ring enters that zone. It never changes except for the
    /// label; the copy in the newest checkpoint has the current label.
    ///
    /// Invariants: all areas are disjoint and follow each other in the order of the fields;
    /// `main_start + superzones × width ≤ zones`; `segment_blocks ≤ 512`;
    /// `2 ≤ segment_blocks ≤ width × zone_capacity`; `1 ≤ width ≤ 32`; `streams` is 2, 4 or 6.
    pub struct SuperblockBody: 184 {
        /// Features an older version may ignore.
        pub compat: U64,
        /// Features an older version may mount read-only.
        pub ro_compat: U64,
        /// Features an older version must refuse.
        pub incompat: U64,
        /// Volume label, UTF-8, zero-padded.
        pub label: [u8; 64],
        /// Seed of the directory hash.
        pub hash_seed: U64,
        /// When the file system was made, seconds since 1970.
        pub created: I64,
        /// Blocks of address space per zone.
        pub zone_size: U64,
        /// Blocks that can be written per zone.
        pub zone_capacity: U32,
        /// Zones of the drive.
        pub zones: U32,
        /// First zone of the checkpoint ring (2 zones).
        pub ring_start: U32,
        /// First zone of the delta log.
        pub delta_start: U32,
        /// Zones in each half of the delta log: of two halves, or of four where NAT and SIT have a
        /// log each.
        pub delta_zones: U32,
        /// First zone of the tables.
        pub table_start: U32,
        /// Zones of the tables, outside the superzones of the main area.
        pub table_zones: U32,
        /// First zone of the sync log.
        pub sync_start: U32,
        /// Zones in each of the two halves of the sync log, which is striped over them.
        pub sync_zones: U32,
        /// First zone of the main area.
        pub main_start: U32,
        /// Superzones of the main area.
        pub superzones: U32,
        /// Zones in a superzone.
        pub width: U32,
        /// Blocks in a segment, its summary included.
        pub segment_blocks: U32,
        /// Blocks of a segment that lie side by side in one zone.
        pub subsegment_blocks: U32,
        /// Blocks in a table page.
        pub unit_blocks: U32,
        /// Node ids: 1..nodes.
        pub nodes: U32,
        /// Log streams in use.
        pub streams: U32,
        /// Delta logs, and zones of tables written at a time: 1, which NAT and SIT share, or 2.
        pub logs: U32,
    }
}

layout! {
    /// Start of a checkpoint's body. A copy of the superblock's body follows ([`SuperblockBody`]),
    /// which is used if both superblocks are lost. Then come these sections in this order, each
    /// packed: `streams` × [`StreamState`], `extents` × delta-log extent, `units` × [`UnitRef`]
    /// (NAT, then SIT), `superzones` × superzone descriptor (of `furrow-log`), `orphans` × node id
    /// (u32), then for each head its `summary` × [`SummaryEntry`].
    ///
    /// Invariants: the newest whole checkpoint (highest `checkpoint` in the record header) counts,
    /// and may be there twice; all blocks it reaches were durable before it; `sync_limit` is the
    /// first sync sequence that must not be replayed (all ones: no limit).
    pub struct CheckpointBody: 112 {
        /// Bit 0: clean (nothing in the sync log).
        pub flags: U32,
        /// Heads of streams: from as many as there are streams to eight times that.
        pub streams: U32,
        /// Delta-log extents that complete the tables.
        pub extents: U32,
        /// Table pages, NAT and then SIT, each up to the last that was written.
        pub units: U32,
        /// Superzones.
        pub superzones: U32,
        /// Unlinked inodes that were open.
        pub orphans: U32,
        /// Half of the delta log that is written next; of NAT's log if there are two.
        pub delta_half: U32,
        /// First unwritten block of that half.
        pub delta_next: U32,
        /// Half of SIT's delta log that is written next; 0 if there is one log.
        pub sit_half: U32,
        /// First unwritten block of that half; 0 if there is one log.
        pub sit_next: U32,
        /// Half of the sync log in which records after this checkpoint start.
        pub sync_half: U32,
        /// Block in that half.
        pub sync_next: U32,
        /// Sequence of the first record after this checkpoint.
        pub sync_sequence: U64,
        /// Records from this sequence on are void.
        pub sync_limit: U64,
        /// Epoch of those records.
        pub sync_epoch: U64,
        /// Namespace operations below this number are in this checkpoint.
        pub namespace_sequence: U64,
        /// When the checkpoint was written, seconds since 1970.
        pub written: I64,
        /// Inodes in use.
        pub inodes: U64,
        /// Next generation for a new inode.
        pub generation: U32,
        /// Number of entries of `extents` that are of the first delta log; they come first.
        pub log_extents: U32,
        /// Number of entries of `units` that are of the NAT.
        pub nat_units: U32,
        /// Zero.
        pub reserved: U32,
    }
}

layout! {
    /// The place at which a head of a stream writes next. Head h serves stream h mod streams.
    /// `superzone` all ones: the head has no superzone.
    pub struct StreamState: 16 {
        /// Superzone.
        pub superzone: U32,
        /// Next block in the superzone, in striping order.
        pub next: U32,
        /// Entries of the open segment's summary that follow in the last section.
        pub summary: U32,
        /// Zero.
        pub reserved: U32,
    }
}

layout! {
    /// Address of a table page. `addr` all ones: every entry of the page is zero.
    pub struct UnitRef: 8 {
        /// First block.
        pub addr: U32,
        /// CRC of the table page's record header: no other version of the page matches.
        pub crc: U32,
    }
}

layout! {
    /// Node address table entry. `addr` 0 and `crc` 0 and `ino` 0: the node id is free.
    pub struct NatEntry: 16 {
        /// Block address of the node.
        pub addr: U32,
        /// CRC32C of the node's block.
        pub crc: U32,
        /// Inode the node belongs to (its own id for an inode).
        pub ino: U32,
        /// Zero.
        pub reserved: U32,
    }
}

layout! {
    /// Segment information table entry.
    ///
    /// Invariant: `valid` is the number of bits set in `map`.
    pub struct SitEntry: 80 {
        /// Valid blocks.
        pub valid: U16,
        /// Stream that wrote the segment.
        pub stream: u8,
        /// Zero.
        pub reserved: u8,
        /// Seconds since 1970 of the last change, low 32 bits.
        pub changed: U32,
        /// Zero.
        pub reserved2: U64,
        /// Bit i: block i of the segment is valid.
        pub map: [u8; 64],
    }
}

layout! {
    /// Owner of a block, in a summary. `node` 0: the block holds nothing.
    pub struct SummaryEntry: 6 {
        /// Data: the node whose pointer names the block. Node: the node itself.
        pub node: U32,
        /// Data: slot of the pointer in that node. Node: all ones.
        pub slot: U16,
    }
}

layout! {
    /// Front of a summary block, which is the last block of a segment. One [`SummaryEntry`] follows
    /// for each block of the segment before the summary. Immutable once written.
    pub struct SummaryHeader: 32 {
        /// [`SUMMARY_MAGIC`].
        pub magic: U32,
        /// CRC32C of the block with this field zero.
        pub crc: U32,
        /// Superzone.
        pub superzone: U32,
        /// Segment in the superzone.
        pub segment: U32,
        /// Generation of the superzone.
        pub generation: U32,
        /// Entries.
        pub count: U16,
        /// Stream.
        pub stream: u8,
        /// Zero.
        pub reserved: u8,
        /// File system UUID, first 8 bytes.
        pub object: U64,
    }
}

const _: () = assert!(SummaryHeader::SIZE + 511 * SummaryEntry::SIZE <= BLOCK);

/// "FRWS".
pub const SUMMARY_MAGIC: u32 = 0x5357_5246;

layout! {
    /// Front of every node.
    pub struct NodeHeader: 32 {
        /// [`NODE_MAGIC`].
        pub magic: U32,
        /// Node id.
        pub nid: U32,
        /// Inode that the node belongs to.
        pub ino: U32,
        /// First block of the file that the node covers; of a node with extended attributes, its
        /// number among those of the inode; 0 for an inode.
        pub base: U32,
        /// 0: leaf (block pointers); n: index (node ids of level n − 1); 254: extended attributes;
        /// 255: inode.
        pub level: u8,
        /// 0: of a directory; of a file with 1: warm, 2: cold, 3: hot data. The class of a file's
        /// node may differ from that of its inode: it is the class at the last write of the node.
        pub class: u8,
        /// Zero.
        pub reserved: [u8; 6],
        /// Checkpoint that was the newest when the node was last written.
        pub checkpoint: U64,
    }
}

/// "FRWN".
pub const NODE_MAGIC: u32 = 0x4e57_5246;
/// `level` of an inode.
pub const LEVEL_INODE: u8 = 255;
/// `level` of a node that holds extended attributes.
pub const LEVEL_XATTR: u8 = 254;
/// Largest number of levels of index nodes and leaves below an inode.
pub const HEIGHT_MAX: u8 = 3;

layout! {
    /// A point in time.
    pub struct TimeStamp: 12 {
        /// Seconds since 1970.
        pub seconds: I64,
        /// Nanoseconds, below 10^9.
        pub nanoseconds: U32,
    }
}

layout! {
    /// An inode without its slots.
    ///
    /// Invariants: with `height` 0, the slots are [`Pointer`]s to the first 448 blocks; with a
    /// larger `height`, they are node ids of nodes of level `height` − 1. A directory has `links` =
    /// 2 + its subdirectories.
    pub struct InodeHead: 512 {
        /// Level 255.
        pub node: NodeHeader,
        /// Distinguishes inodes that had this number one after another.
        pub generation: U32,
        /// Kind: 1 file, 2 directory, 3 symbolic link, 4 and 5 character and block device,
        /// 6 FIFO, 7 socket.
        pub kind: u8,
        /// Height of the tree.
        pub height: u8,
        /// Levels of the directory hash in use.
        pub levels: u8,
        /// Zero.
        pub flags: u8,
        /// Permission bits.
        pub mode: U16,
        /// Zero.
        pub reserved: U16,
        /// Hard links.
        pub links: U32,
        /// Owner.
        pub uid: U32,
        /// Group.
        pub gid: U32,
        /// Device number.
        pub rdev: U32,
        /// The directory that holds this directory; 0 for other kinds.
        pub parent: U32,
        /// Size in bytes.
        pub size: U64,
        /// Blocks with data.
        pub blocks: U64,
        /// Directory: entries.
        pub entries: U64,
        /// Last access.
        pub atime: TimeStamp,
        /// Last change of the content.
        pub mtime: TimeStamp,
        /// Last change of the inode.
        pub ctime: TimeStamp,
        /// Creation.
        pub btime: TimeStamp,
        /// Bytes of all extended attributes, packed; at most 131,072.
        pub xattr_bytes: U32,
        /// The packed extended attributes, if they fit; else the ids (u32) of the nodes that hold
        /// them, in order.
        /// The rest is zero.
        pub xattrs: [u8; 372],
    }
}

layout! {
    /// A block pointer. `addr` all ones: a hole.
    pub struct Pointer: 8 {
        /// Block address.
        pub addr: U32,
        /// CRC32C of the block.
        pub crc: U32,
    }
}

impl Pointer {
    /// No block.
    pub const HOLE: Pointer = Pointer { addr: U32::new(HOLE), crc: U32::new(0) };

    /// A pointer to `addr`, whose block has checksum `crc`.
    pub fn new(addr: u32, crc: u32) -> Pointer {
        Pointer { addr: U32::new(addr), crc: U32::new(crc) }
    }
}

/// Number of direct pointers in an inode of height 0.
pub const INODE_POINTERS: usize = (BLOCK - 512) / 8;
/// Number of node ids in an inode of height 1 or more.
pub const INODE_CHILDREN: usize = (BLOCK - 512) / 4;
/// Number of bytes before the slots of a leaf or an index node.
pub const NODE_HEAD: usize = 64;
/// Number of pointers in a leaf.
pub const LEAF_POINTERS: usize = (BLOCK - NODE_HEAD) / 8;
/// Number of node ids in an index node.
pub const INDEX_CHILDREN: usize = (BLOCK - NODE_HEAD) / 4;

/// Values of `class` in a node.
pub mod class {
    /// A node of a directory.
    pub const DIRECTORY: u8 = 0;
    /// A node of a file with warm data, or of an inode that is neither a file nor a directory.
    pub const FILE: u8 = 1;
    /// A node of a file with cold data.
    pub const COLD: u8 = 2;
    /// A node of a file with hot data.
    pub const HOT: u8 = 3;

    /// True if a node of class `node` can belong to an inode of class `inode`.
    pub fn agree(inode: u8, node: u8) -> bool {
        inode == node || inode != DIRECTORY && (FILE..=HOT).contains(&node)
    }
}

layout! {
    /// A whole inode.
    pub struct InodeBlock: 4096 {
        /// Everything but the slots.
        pub head: InodeHead,
        /// Height 0: [`INODE_POINTERS`] pointers; else [`INODE_CHILDREN`] node ids.
        pub slots: [Pointer; INODE_POINTERS],
    }
}

layout! {
    /// A leaf of a file's tree.
    pub struct LeafBlock: 4096 {
        /// Level 0.
        pub head: NodeHeader,
        /// Zero.
        pub reserved: [u8; 32],
        /// Pointers.
        pub slots: [Pointer; LEAF_POINTERS],
    }
}

layout! {
    /// An index node of a file's tree.
    pub struct IndexBlock: 4096 {
        /// Level 1 and up.
        pub head: NodeHeader,
        /// Zero.
        pub reserved: [u8; 32],
        /// Node ids; 0: none.
        pub slots: [U32; INDEX_CHILDREN],
    }
}

layout! {
    /// A node that holds extended attributes.
    pub struct XattrBlock: 4096 {
        /// Level 254.
        pub head: NodeHeader,
        /// The part of the packed attributes in this node; zero after the end of the attributes.
        pub bytes: [u8; XATTR_NODE],
    }
}

layout! {
    /// Front of one extended attribute; its name and its value follow, then the next one.
    ///
    /// Invariant: names ascend.
    pub struct XattrHead: 5 {
        /// Bytes of the value, at most 65,536.
        pub value: U32,
        /// Bytes of the name with its prefix (`user.` and so on), 1 to 255.
        pub name: u8,
    }
}

/// Largest number of bytes of extended attributes that fit into an inode.
pub const XATTRS_INLINE: usize = 372;
/// Number of bytes of extended attributes in a separate node.
pub const XATTR_NODE: usize = BLOCK - 32;
/// Largest number of bytes of all extended attributes of an inode, packed.
pub const XATTRS_MAX: usize = 128 * 1024;
/// Longest value of an extended attribute, in bytes (Linux's XATTR_SIZE_MAX).
pub const XATTR_VALUE_MAX: usize = 65_536;
/// Largest number of bytes of all attribute names of an inode, each with a zero byte after it
/// (Linux's XATTR_LIST_MAX).
pub const XATTR_LIST_MAX: usize = 65_536;

const _: () = assert!(XATTRS_MAX.div_ceil(XATTR_NODE) * 4 <= XATTRS_INLINE);

/// Tags of the items of a sync record. An item is one tag byte and its packed fields. Names and
/// targets are a u16 length and the bytes.
pub mod item {
    /// Namespace operation: create (any kind).
    pub const CREATE: u8 = 1;
    /// Namespace operation: link.
    pub const LINK: u8 = 2;
    /// Namespace operation: unlink or rmdir.
    pub const REMOVE: u8 = 3;
    /// Namespace operation: rename.
    pub const RENAME: u8 = 4;
    /// The new place of a node.
    pub const NODE: u8 = 5;
    /// The id of a freed node.
    pub const FREED: u8 = 6;
    /// A head of a stream continued in another superzone.
    pub const ALLOCATED: u8 = 7;
    /// A condition for the record to count: zone, generation, write pointer that the zone has
    /// reached.
    pub const DEPENDS: u8 = 8;
    /// Attributes of a directory.
    pub const ATTRIBUTES: u8 = 9;
    /// Blocks of a file written since its last record.
    pub const RANGE: u8 = 10;
    /// Namespace operation: create, with extended attributes the inode has from the start.
    pub const CREATE_WITH: u8 = 11;
    /// All extended attributes of a directory.
    pub const XATTRS: u8 = 12;
    /// A change of a node that stays in its place.
    pub const CHANGE: u8 = 13;
    /// A new node that has no place yet, written as a change of an empty node.
    pub const NEW: u8 = 14;
}

/// Every structure of the file system on the medium.
pub const LAYOUTS: &[furrow_log::layout::Layout] = &[
    SuperblockBody::LAYOUT,
    CheckpointBody::LAYOUT,
    StreamState::LAYOUT,
    UnitRef::LAYOUT,
    NatEntry::LAYOUT,
    SitEntry::LAYOUT,
    SummaryHeader::LAYOUT,
    SummaryEntry::LAYOUT,
    NodeHeader::LAYOUT,
    TimeStamp::LAYOUT,
    InodeHead::LAYOUT,
    InodeBlock::LAYOUT,
    LeafBlock::LAYOUT,
    IndexBlock::LAYOUT,
    XattrBlock::LAYOUT,
    XattrHead::LAYOUT,
    Pointer::LAYOUT,
];
