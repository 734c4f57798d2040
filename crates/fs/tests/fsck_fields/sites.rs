//! The fields of every structure on the drives of this test, with their positions.

use super::drive::{At, Chain, Drive, Map};
use furrow_fs::format::{
    BLOCK, CheckpointBody, HOLE, INODE_CHILDREN, INODE_POINTERS, InodeHead, LEAF_POINTERS,
    LEVEL_XATTR, NODE_HEAD, NatEntry, NodeHeader, Pointer, SUMMARY_MAGIC, SitEntry, StreamState,
    SummaryEntry, SummaryHeader, SuperblockBody, TimeStamp, UnitRef, XattrHead, item, kind, table,
};
use furrow_log::format::{DeltaGroup, Descriptor, ExtentEntry, RecordHeader};
use furrow_log::layout::Layout;
use furrow_log::record::peek;

/// A field of a structure, and its position on the drive.
pub struct Site {
    pub structure: String,
    pub field: &'static str,
    pub at: At,
    pub size: usize,
    pub chain: Chain,
}

/// Whether the structure that contains an entry is the wanted one, a table page or a delta block.
type Where = fn(&Chain) -> bool;
/// Whether an inode is of the wanted kind.
type Which = dyn Fn(&InodeHead) -> bool;

#[derive(Default)]
struct Sites(Vec<Site>);

impl Sites {
    fn field(&mut self, what: &str, field: &'static str, at: At, size: usize, chain: Chain) {
        assert!(size > 0, "{what}.{field}");
        self.0.push(Site { structure: what.into(), field, at, size, chain });
    }

    /// Adds every field of `layout`, except those in `but`.
    fn layout(&mut self, what: &str, layout: Layout, at: At, chain: Chain, but: &[&str]) {
        for field in layout.fields.iter().filter(|f| !but.contains(&f.name)) {
            let what = format!("{}{}{what}", layout.name, if what.is_empty() { "" } else { ", " });
            self.field(&what, field.name, (at.0, at.1 + field.offset), field.size, chain);
        }
    }

    /// Adds the zeros after a record.
    fn padding(&mut self, drive: &Drive, what: &str, addr: u32, chain: Chain) {
        let header: RecordHeader = drive.load((addr, 0));
        let length = header.length.get() as usize;
        let size = length.next_multiple_of(BLOCK) - length;
        if size > 0 {
            self.field(what, "padding", (addr, length), size, chain);
        }
    }
}

fn shift(at: At, by: usize) -> At {
    (at.0, at.1 + by)
}

/// The fields on a drive that was unmounted cleanly.
pub fn of_clean(drive: &Drive, map: &Map) -> Vec<Site> {
    let mut sites = Sites::default();
    superblock(&mut sites, drive, map);
    checkpoint(&mut sites, drive, map);
    tables(&mut sites, drive, map);
    inodes(&mut sites, drive, map);
    summaries(&mut sites, drive, map);
    sites.0
}

fn superblock(sites: &mut Sites, drive: &Drive, map: &Map) {
    let (addr, chain) = (map.superblocks[0], Chain::Superblock);
    sites.layout("of the superblock", RecordHeader::LAYOUT, (addr, 0), chain, &[]);
    sites.layout("", SuperblockBody::LAYOUT, (addr, RecordHeader::SIZE), chain, &[]);
    sites.padding(drive, "superblock", addr, chain);
}

fn checkpoint(sites: &mut Sites, drive: &Drive, map: &Map) {
    let (addr, chain) = (map.checkpoint.0, Chain::Checkpoint);
    sites.layout("of the checkpoint", RecordHeader::LAYOUT, (addr, 0), chain, &[]);
    sites.layout("", CheckpointBody::LAYOUT, (addr, RecordHeader::SIZE), chain, &[]);
    let copy = (addr, RecordHeader::SIZE + CheckpointBody::SIZE);
    sites.layout("in a checkpoint", SuperblockBody::LAYOUT, copy, chain, &[]);
    sites.padding(drive, "checkpoint", addr, chain);
    let streams = 0..map.body.streams.get() as usize;
    let stream = |i: usize| map.in_checkpoint(0, StreamState::SIZE, i);
    let state = |i: usize| drive.load::<StreamState>(stream(i));
    let open = streams.clone().find(|i| state(*i).summary.get() > 0).unwrap();
    sites.layout("open", StreamState::LAYOUT, stream(open), chain, &[]);
    let none = streams.clone().find(|i| state(*i).superzone == u32::MAX).unwrap();
    sites.layout("without a superzone", StreamState::LAYOUT, stream(none), chain, &[]);
    sites.layout("first", ExtentEntry::LAYOUT, map.in_checkpoint(1, 16, 0), chain, &[]);
    let units = 0..map.body.units.get() as usize;
    let unit = |i: usize| map.in_checkpoint(2, UnitRef::SIZE, i);
    let written = units.clone().find(|i| drive.load::<UnitRef>(unit(*i)).addr != HOLE).unwrap();
    sites.layout("written", UnitRef::LAYOUT, unit(written), chain, &[]);
    // Never-written pages are listed only in front of a written one, so there may be none.
    if let Some(never) = units.clone().find(|i| drive.load::<UnitRef>(unit(*i)).addr == HOLE) {
        sites.layout("never written", UnitRef::LAYOUT, unit(never), chain, &[]);
    }
    for (what, state) in [("free", 0), ("active", 1), ("full", 3)] {
        let superzones = 0..map.body.superzones.get() as usize;
        let place = |i: usize| map.in_checkpoint(3, Descriptor::SIZE, i);
        // A full superzone must have valid blocks: an empty one may be reset at any time.
        let found = superzones.clone().find(|i| {
            let descriptor: Descriptor = drive.load(place(*i));
            descriptor.state == state && (state != 3 || valid_blocks(drive, map, *i) > 0)
        });
        sites.layout(what, Descriptor::LAYOUT, place(found.unwrap()), chain, &[]);
    }
    assert!(map.body.orphans.get() > 0);
    sites.field("checkpoint", "orphan", map.in_checkpoint(4, 4, 0), 4, chain);
    // Find an entry for a valid block.
    let (at, count) = map.stream_summary(drive, open);
    let superzone = state(open).superzone.get();
    let segments = segments(map, drive);
    let segment = superzone * segments + state(open).next.get() / map.plan.segment_blocks.get();
    let entry = sit(drive, map, segment);
    let block = (0..count as usize).find(|i| entry.map[i / 8] >> (i % 8) & 1 == 1).unwrap();
    let at = shift(at, block * SummaryEntry::SIZE);
    sites.layout("in the checkpoint", SummaryEntry::LAYOUT, at, chain, &[]);
}

fn segments(map: &Map, drive: &Drive) -> u32 {
    let blocks = map.plan.width.get() * drive.capacity();
    let (whole, rest) =
        (blocks / map.plan.segment_blocks.get(), blocks % map.plan.segment_blocks.get());
    whole + u32::from(rest >= 2)
}

fn sit(drive: &Drive, map: &Map, segment: u32) -> SitEntry {
    drive.load(map.entries[&(table::SIT, segment)].0)
}

fn valid_blocks(drive: &Drive, map: &Map, superzone: usize) -> u32 {
    let segments = segments(map, drive);
    let all = superzone as u32 * segments..(superzone as u32 + 1) * segments;
    all.filter(|s| map.entries.contains_key(&(table::SIT, *s)))
        .map(|s| u32::from(sit(drive, map, s).valid.get()))
        .sum()
}

/// Node ids in use whose NAT entry is in a structure that `wanted` accepts.
fn nids(drive: &Drive, map: &Map, wanted: Where) -> Vec<u32> {
    let entries = map.entries.iter();
    entries
        .filter(|((which, nid), (_, chain))| {
            *which == table::NAT && wanted(chain) && map.nat(drive, *nid).ino.get() != 0
        })
        .map(|((_, nid), _)| *nid)
        .collect()
}

fn tables(sites: &mut Sites, drive: &Drive, map: &Map) {
    let (extent, _) = map.extent(drive, 0);
    let chain = Chain::Delta(0, extent);
    sites.layout("of a delta block", RecordHeader::LAYOUT, (extent, 0), chain, &[]);
    let group = (extent, RecordHeader::SIZE);
    sites.layout("", DeltaGroup::LAYOUT, group, chain, &[]);
    sites.field("delta block", "index of an entry", shift(group, DeltaGroup::SIZE), 4, chain);
    sites.padding(drive, "delta block", extent, chain);
    let units = 0..map.body.units.get() as usize;
    let unit = |i: usize| drive.load::<UnitRef>(map.in_checkpoint(2, UnitRef::SIZE, i));
    let unit = units.clone().find(|i| unit(*i).addr != HOLE).unwrap();
    let at: UnitRef = drive.load(map.in_checkpoint(2, UnitRef::SIZE, unit));
    let chain = Chain::Unit(unit);
    sites.layout("of a table page", RecordHeader::LAYOUT, (at.addr.get(), 0), chain, &[]);
    sites.padding(drive, "table page", at.addr.get(), chain);
    let wanted: [(&str, Where); 2] = [
        ("in the delta log", |chain| matches!(chain, Chain::Delta(..))),
        ("in a unit", |chain| matches!(chain, Chain::Unit(..))),
    ];
    for (what, wanted) in wanted {
        let nid = *nids(drive, map, wanted).last().unwrap();
        let (at, chain) = map.entries[&(table::NAT, nid)];
        sites.layout(what, NatEntry::LAYOUT, at, chain, &[]);
        let valid = map.entries.iter().find(|((which, segment), (_, chain))| {
            *which == table::SIT && wanted(chain) && sit(drive, map, *segment).valid.get() > 0
        });
        let (_, (at, chain)) = valid.unwrap();
        sites.layout(what, SitEntry::LAYOUT, *at, *chain, &[]);
    }
    // An entry that is not in use.
    let free = map.entries.iter().find(|((which, nid), _)| {
        *which == table::NAT && *nid > 1 && map.nat(drive, *nid).ino.get() == 0
    });
    let (_, (at, chain)) = free.unwrap();
    sites.layout("not in use", NatEntry::LAYOUT, *at, *chain, &[]);
}

fn inodes(sites: &mut Sites, drive: &Drive, map: &Map) {
    let all = nids(drive, map, |_| true);
    let block = |nid: u32| map.nat(drive, nid).addr.get();
    let head = |nid: u32| drive.load::<InodeHead>((block(nid), 0));
    let inode = |what: &str, wanted: &Which| {
        let found = all.iter().find(|nid| head(**nid).node.level == 255 && wanted(&head(**nid)));
        *found.unwrap_or_else(|| panic!("no {what}"))
    };
    let kinds: [(&str, &Which); 7] = [
        ("root", &|h| h.node.nid == 1),
        ("directory", &|h| h.kind == 2 && h.node.nid != 1 && h.entries.get() > 0),
        ("file", &|h| h.kind == 1 && h.height == 0 && h.links == 2),
        ("file with a tree", &|h| h.kind == 1 && h.height == 1),
        ("symbolic link", &|h| h.kind == 3),
        ("device", &|h| h.kind == 4),
        ("orphan", &|h| h.links == 0),
    ];
    let times = ["atime", "mtime", "ctime", "btime"];
    for (what, wanted) in kinds {
        let nid = inode(what, wanted);
        let (at, chain) = ((block(nid), 0), Chain::Node(nid));
        let what = format!("of a {what}");
        sites.layout(&what, NodeHeader::LAYOUT, at, chain, &[]);
        let but = ["node", times[0], times[1], times[2], times[3]];
        sites.layout(&what, InodeHead::LAYOUT, at, chain, &but);
    }
    let file = inode("file", kinds[2].1);
    for field in InodeHead::FIELDS.iter().filter(|f| times.contains(&f.name)) {
        let at = (block(file), field.offset);
        sites.layout(field.name, TimeStamp::LAYOUT, at, Chain::Node(file), &[]);
    }
    let slots = (block(file), InodeHead::SIZE);
    pointers(sites, drive, "in an inode", slots, INODE_POINTERS, Chain::Node(file));
    let tall = inode("file with a tree", kinds[3].1);
    children(sites, drive, "inode", (block(tall), InodeHead::SIZE), INODE_CHILDREN, tall);
    for (what, level) in [("leaf", 0), ("index node", 1)] {
        let found = all.iter().find(|nid| head(**nid).node.level == level);
        let nid = *found.unwrap_or_else(|| panic!("no {what}"));
        let (at, chain) = ((block(nid), 0), Chain::Node(nid));
        sites.layout(&format!("of a {what}"), NodeHeader::LAYOUT, at, chain, &[]);
        sites.field(what, "reserved", shift(at, NodeHeader::SIZE), 32, chain);
        let slots = shift(at, NODE_HEAD);
        match level {
            0 => pointers(sites, drive, "in a leaf", slots, LEAF_POINTERS, chain),
            _ => children(sites, drive, what, slots, LEAF_POINTERS * 2, nid),
        }
    }
    let nid = inode("file with long attributes", &|h| h.xattr_bytes.get() > 372);
    let (at, chain) = ((block(nid), 0), Chain::Node(nid));
    let but = ["node", times[0], times[1], times[2], times[3]];
    sites.layout("with long attributes", InodeHead::LAYOUT, at, chain, &but);
    let node = *all.iter().find(|nid| head(**nid).node.level == LEVEL_XATTR).unwrap();
    let (at, chain) = ((block(node), 0), Chain::Node(node));
    sites.layout("of attributes", NodeHeader::LAYOUT, at, chain, &[]);
    let front = shift(at, NodeHeader::SIZE);
    sites.layout("", XattrHead::LAYOUT, front, chain, &[]);
    sites.field("XattrHead", "the name's bytes", shift(front, XattrHead::SIZE), 9, chain);
    for (what, wanted) in [("file content", kinds[2].1), ("symbolic link target", kinds[4].1)] {
        let nid = inode(what, wanted);
        let pointer: Pointer = drive.load((block(nid), InodeHead::SIZE));
        let chain = Chain::Content(nid, InodeHead::SIZE);
        sites.field(what, "bytes", (pointer.addr.get(), 0), 4, chain);
    }
    let nid = inode("directory", kinds[1].1);
    let pointer: Pointer = drive.load((block(nid), InodeHead::SIZE));
    let chain = Chain::Content(nid, InodeHead::SIZE);
    // The first record, whose layout is in the document.
    let at = (pointer.addr.get(), 0);
    let record = drive.bytes(at, 12);
    let (name, length) = (usize::from(record[10]), usize::from(record[8]));
    for (field, offset, size) in [
        ("ino", 0, 4),
        ("hash", 4, 4),
        ("length", 8, 2),
        ("name length", 10, 1),
        ("kind", 11, 1),
        ("name", 12, name),
        ("slack", 12 + name, length - 12 - name),
    ] {
        sites.field("directory record", field, shift(at, offset), size, chain);
    }
}

/// Adds a pointer in use, and a pointer that is a hole.
fn pointers(sites: &mut Sites, drive: &Drive, what: &str, at: At, count: usize, chain: Chain) {
    let pointer = |i: usize| drive.load::<Pointer>(shift(at, i * Pointer::SIZE));
    let used = (0..count).find(|i| pointer(*i) != Pointer::HOLE).unwrap();
    sites.layout(what, Pointer::LAYOUT, shift(at, used * Pointer::SIZE), chain, &[]);
    let hole = (0..count).find(|i| pointer(*i) == Pointer::HOLE).unwrap();
    let what = format!("hole {what}");
    sites.layout(&what, Pointer::LAYOUT, shift(at, hole * Pointer::SIZE), chain, &[]);
}

/// Adds a node id in use, and an unused slot.
fn children(sites: &mut Sites, drive: &Drive, what: &str, at: At, count: usize, nid: u32) {
    let child = |i: usize| drive.bytes(shift(at, i * 4), 4) != [0; 4];
    let used = (0..count).find(|i| child(*i)).unwrap();
    sites.field(what, "child", shift(at, used * 4), 4, Chain::Node(nid));
    let none = (0..count).find(|i| !child(*i)).unwrap();
    sites.field(what, "child, none", shift(at, none * 4), 4, Chain::Node(nid));
}

/// Adds a summary of a closed segment, with an entry for a valid block and an entry for a
/// stale one.
fn summaries(sites: &mut Sites, drive: &Drive, map: &Map) {
    let start = map.plan.main_start.get() * drive.capacity();
    let end = (map.plan.main_start.get() + map.plan.superzones.get()) * drive.capacity();
    assert_eq!(map.plan.width.get(), 1, "a superzone is a zone here");
    let (addr, head, entry) = (start..end)
        .filter(|addr| drive.load::<SummaryHeader>((*addr, 0)).magic == SUMMARY_MAGIC)
        .filter_map(|addr| {
            let head: SummaryHeader = drive.load((addr, 0));
            let segment = head.superzone.get() * segments(map, drive) + head.segment.get();
            let known = map.entries.contains_key(&(table::SIT, segment));
            known.then(|| (addr, head, sit(drive, map, segment)))
        })
        .find(|(_, head, entry)| (1..head.count.get()).contains(&entry.valid.get()))
        .unwrap();
    let chain = Chain::Summary(addr);
    sites.layout("", SummaryHeader::LAYOUT, (addr, 0), chain, &[]);
    for (what, bit) in [("valid", 1), ("stale", 0)] {
        let found = (0..usize::from(head.count.get()))
            .find(|i| entry.map[i / 8] >> (i % 8) & 1 == bit)
            .unwrap();
        let at = (addr, SummaryHeader::SIZE + found * SummaryEntry::SIZE);
        sites.layout(what, SummaryEntry::LAYOUT, at, chain, &[]);
    }
    let used = SummaryHeader::SIZE + usize::from(head.count.get()) * SummaryEntry::SIZE;
    sites.field("summary", "padding", (addr, used), BLOCK - used, chain);
}

/// Stands for as many bytes as the preceding u32 states.
const XATTRS: usize = usize::MAX;

/// Fields of a create item; the last one exists only with extended attributes.
static CREATED: [(&str, usize); 14] = [
    ("number", 8),
    ("parent", 4),
    ("inode", 4),
    ("generation", 4),
    ("kind", 1),
    ("mode", 2),
    ("uid", 4),
    ("gid", 4),
    ("rdev", 4),
    ("seconds", 8),
    ("nanoseconds", 4),
    ("name", 0),
    ("target", 0),
    ("attributes", 0),
];

/// Stands for as many pieces of a change as the preceding field states.
const PIECES: usize = usize::MAX - 1;

/// Fields of the items of sync records, by tag; `0` stands for a u16 length and that many bytes.
fn item_fields(tag: u8) -> (&'static str, &'static [(&'static str, usize)]) {
    match tag {
        item::CREATE => ("create", &CREATED[..CREATED.len() - 1]),
        item::LINK => (
            "link",
            &[
                ("number", 8),
                ("inode", 4),
                ("parent", 4),
                ("seconds", 8),
                ("nanoseconds", 4),
                ("name", 0),
            ],
        ),
        item::REMOVE => (
            "remove",
            &[("number", 8), ("parent", 4), ("seconds", 8), ("nanoseconds", 4), ("name", 0)],
        ),
        item::RENAME => (
            "rename",
            &[
                ("number", 8),
                ("from", 4),
                ("to", 4),
                ("mode", 1),
                ("seconds", 8),
                ("nanoseconds", 4),
                ("old name", 0),
                ("new name", 0),
            ],
        ),
        item::NODE => ("node", &[("node", 4), ("inode", 4), ("address", 4), ("crc", 4)]),
        item::FREED => ("freed", &[("node", 4), ("inode", 4)]),
        item::ALLOCATED => ("allocated", &[("stream", 1), ("superzone", 4), ("generation", 4)]),
        item::DEPENDS => ("depends", &[("zone", 4), ("generation", 4), ("write pointer", 4)]),
        item::ATTRIBUTES => (
            "attributes",
            &[
                ("inode", 4),
                ("mode", 2),
                ("uid", 4),
                ("gid", 4),
                ("seconds", 8),
                ("nanoseconds", 4),
                ("seconds", 8),
                ("nanoseconds", 4),
                ("seconds", 8),
                ("nanoseconds", 4),
            ],
        ),
        item::CREATE_WITH => ("create with", &CREATED),
        // The length is a u32, whose upper half is zero for these attributes.
        item::XATTRS => ("xattrs", &[("inode", 4), ("length", 4), ("attributes", XATTRS)]),
        item::CHANGE | item::NEW => {
            let fields = &[
                ("node", 4),
                ("inode", 4),
                ("crc", 4),
                ("pointers", 2),
                ("count", 2),
                ("", PIECES),
            ];
            (if tag == item::NEW { "new" } else { "change" }, fields)
        }
        item::RANGE => ("range", &[("inode", 4), ("first", 4), ("blocks", 4)]),
        _ => panic!("item {tag}"),
    }
}

/// The fields in the sync log of a drive that was not unmounted.
pub fn of_crashed(drive: &Drive, map: &Map) -> Vec<Site> {
    let mut sites = Sites::default();
    let mut seen = Vec::new();
    let half = map.plan.sync_start.get() + map.body.sync_half.get();
    let first = half * drive.capacity() + map.body.sync_next.get();
    let mut addr = first;
    while let Some(header) = peek(&drive.block(addr)).filter(|h| h.kind == kind::SYNC) {
        let chain = Chain::Sync(addr);
        let last = peek(&drive.block(addr + header.blocks())).is_none();
        if addr == first || last {
            let what = if last { "of the last sync record" } else { "of a sync record" };
            sites.layout(what, RecordHeader::LAYOUT, (addr, 0), chain, &[]);
            sites.padding(drive, "sync record", addr, chain);
        }
        let mut at = RecordHeader::SIZE;
        while at < header.length.get() as usize {
            let tag = drive.bytes((addr, at), 1)[0];
            let (name, fields) = item_fields(tag);
            let new = !seen.contains(&tag);
            seen.push(tag);
            let what = format!("sync item {name}");
            if new {
                sites.field(&what, "tag", (addr, at), 1, chain);
            }
            at += 1;
            for (field, size) in fields {
                let mut size = *size;
                if size == PIECES {
                    let count = drive.bytes((addr, at - 2), 2);
                    for _ in 0..u16::from_le_bytes([count[0], count[1]]) {
                        let length = drive.bytes((addr, at + 2), 2);
                        let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
                        if new {
                            sites.field(&what, "place of bytes", (addr, at), 2, chain);
                            sites.field(&what, "length of bytes", (addr, at + 2), 2, chain);
                            sites.field(&what, "bytes", (addr, at + 4), length, chain);
                        }
                        at += 4 + length;
                    }
                    continue;
                }
                if size == XATTRS {
                    let length = drive.bytes((addr, at - 4), 4);
                    size = length.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
                } else if size == 0 {
                    let length = drive.bytes((addr, at), 2);
                    size = usize::from(u16::from_le_bytes([length[0], length[1]]));
                    if new {
                        sites.field(&what, "length of a text", (addr, at), 2, chain);
                    }
                    at += 2;
                }
                if new && size > 0 {
                    sites.field(&what, field, (addr, at), size, chain);
                }
                at += size;
            }
        }
        addr += header.blocks();
    }
    for tag in item::CREATE..=item::NEW {
        assert!(seen.contains(&tag), "no item {tag} in the sync log");
    }
    sites.0
}
