//! Shows the content of a drive, structure by structure, as the format declares it.
//!
//! The dump uses the readers of [`crate::fsck`], and so finds faults in the structures that it
//! shows: each [`Dump`] carries these findings. Damage is reported but does not stop the dump:
//! everything readable is shown, even a block with a wrong checksum.
//!
//! The state shown is that of the newest whole checkpoint, without the sync records after it: a
//! mount would begin with this state.
//!
//! Not here: the content of files, the items of the sync log, and the wording of messages, which is
//! the command's task.

mod value;

use super::tables::Tables;
use super::tree::{NODE_SLOT, head_of, inode_of, leaf_of};
use super::{Finding, Fsck, FsckOptions, Volume, ring, space, tables, tree};
use crate::format::{
    CheckpointBody, HOLE, InodeHead, LEVEL_INODE, LEVEL_XATTR, NO_NODE, NatEntry, NodeHeader,
    Pointer, ROOT_NODE, SitEntry, StreamState, SummaryEntry, SummaryHeader, SuperblockBody,
    UnitRef, kind, stream_names,
};
use crate::layout::{Layout, RING_ZONES};
use crate::tree::dirent;
use crate::tree::shape::{NodePos, Shape};
use crate::types::Kind;
use furrow_log::format::ExtentEntry;
use furrow_log::record::{self, RecordHeader};
use furrow_rt::{Boxed, Page};
use furrow_zone::{Error, ErrorKind, Result, ZoneId, ZonedDevice};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::rc::Rc;
pub use value::{Fields, Value};
use value::{fields, runs};
use zerocopy::IntoBytes;

/// Names of the states of a superzone in its descriptor.
const STATES: [&str; 6] = ["free", "active", "inactive", "full", "retired", "tables"];
/// The structure to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Each copy of the superblock.
    Superblock,
    /// The newest whole checkpoint.
    Checkpoint,
    /// The used entries of the node address table.
    Nat(RangeInclusive<u32>),
    /// Entries of the segment information table for segments with valid blocks.
    Sit(RangeInclusive<u32>),
    /// A node: an inode, a leaf or an index node of a file.
    Node(Which),
    /// The names of a directory.
    Directory(Which),
    /// A segment: the owners in its summary, and its valid blocks.
    Segment(u32),
}

/// The node to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The node with this number; an inode's number is that of its node.
    Number(u32),
    /// The inode at this path from the root directory; symbolic links are not followed.
    Path(Vec<u8>),
}

/// The requested structure, and the faults found on the way.
#[derive(Clone, Debug)]
pub struct Dump {
    /// The structure, as far as it can be read.
    pub value: Value,
    /// Faults of the structure, and of the structures that lead to it.
    pub findings: Vec<Finding>,
    /// Remarks that do not concern damage.
    pub notes: Vec<String>,
}

/// Shows `part` of the file system on `device`, which must not be mounted. Nothing is written.
///
/// # Errors
/// `WrongFormat` if there is no file system, `NotFound` or `NotDirectory` if there is no such
/// part, `Unsupported` or `Io` if the drive cannot be used.
#[inline(never)]
pub fn dump(device: Rc<dyn ZonedDevice>, part: &Part) -> Boxed<'_, Result<Dump>> {
    Box::pin(async move {
        let mut fsck = Fsck::new(device, FsckOptions::default()).await?;
        let value = show(&mut fsck, part).await?;
        let report = fsck.report;
        Ok(Dump { value, findings: report.findings, notes: report.notes })
    })
}

async fn show(fsck: &mut Fsck, part: &Part) -> Result<Value> {
    if *part == Part::Superblock {
        return superblocks(fsck).await;
    }
    let nothing = |fsck: &mut Fsck, why: &str| {
        fsck.report.notes.push(why.to_owned());
        Ok(Value::Fields(Fields::new()))
    };
    let Some(volume) = ring::read(fsck).await? else {
        return nothing(fsck, "without superblock and checkpoint nothing else can be found");
    };
    if *part == Part::Checkpoint {
        return Ok(checkpoint(fsck, &volume));
    }
    let (tables, damaged) = tables::read_all(fsck, &volume).await;
    if damaged {
        fsck.report.notes.push("the tables are damaged: entries may be missing or old".into());
    }
    let mut look = Look { fsck, volume: &volume, tables: &tables };
    match part {
        Part::Nat(range) => Ok(look.nat(range)),
        Part::Sit(range) => Ok(look.sit(range)),
        Part::Node(which) => {
            let nid = look.find(which).await?;
            look.node(nid).await
        }
        Part::Directory(which) => {
            let ino = look.find(which).await?;
            look.directory(ino).await
        }
        Part::Segment(segment) => look.segment(*segment).await,
        Part::Superblock | Part::Checkpoint => Ok(Value::Fields(Fields::new())),
    }
}

/// The record at the front of `bytes`: its header and the fixed part of its body.
fn record_fields(bytes: &[u8], body: &furrow_log::layout::Layout) -> Fields {
    let body = fields(body, bytes.get(RecordHeader::SIZE..).unwrap_or_default());
    vec![
        ("header", Value::Fields(fields(&RecordHeader::LAYOUT, bytes))),
        ("body", Value::Fields(body)),
    ]
}

async fn superblocks(fsck: &mut Fsck) -> Result<Value> {
    ring::superblocks(fsck).await?;
    let first = fsck.geometry.conventional_zones;
    let mut copies = Vec::new();
    for zone in (first..fsck.geometry.zones).take(RING_ZONES as usize).map(ZoneId) {
        let mut copy: Fields = vec![("zone", zone.0.into())];
        if fsck.written(zone) == 0 {
            copy.push(("state", "empty".into()));
        } else if let Ok(block) = fsck.read_one(fsck.addr(zone, 0)).await {
            let expect = record::Expect { kind: kind::SUPERBLOCK, ..record::Expect::default() };
            let state = match record::open(block.bytes(), &expect) {
                Ok(_) => "whole".to_owned(),
                Err(error) => error.to_string(),
            };
            copy.push(("state", state.into()));
            copy.extend(record_fields(block.bytes(), &SuperblockBody::LAYOUT));
        } else {
            copy.push(("state", "cannot be read".into()));
        }
        copies.push(Value::Fields(copy));
    }
    Ok(Value::Fields(vec![("copies", Value::List(copies))]))
}

/// The name of stream `number`, or of the stream that head `number` serves.
fn stream_name(plan: &Layout, number: usize) -> Value {
    let names = stream_names(plan.streams);
    let name = number.checked_rem(plan.streams as usize).and_then(|stream| names.get(stream));
    name.copied().unwrap_or("unknown").into()
}

fn checkpoint(fsck: &Fsck, volume: &Volume) -> Value {
    let with = |mut front: Fields, rest: Fields| {
        front.extend(rest);
        Value::Fields(front)
    };
    let used = |(_, head): &(usize, &StreamState)| head.superzone.get() != u32::MAX;
    let heads = volume.streams.iter().enumerate().filter(used).map(|(index, stream)| {
        let front = vec![
            ("head", Value::Number(index as u64)),
            ("stream", stream_name(&volume.plan, index)),
        ];
        with(front, fields(&StreamState::LAYOUT, stream.as_bytes()))
    });
    let extents =
        volume.extents.iter().map(|e| Value::Fields(fields(&ExtentEntry::LAYOUT, e.as_bytes())));
    let nat_units = volume.body.nat_units.get() as usize;
    let units = volume.units.iter().enumerate().filter(|(_, unit)| unit.addr.get() != HOLE);
    let units = units.map(|(index, unit)| {
        let (table, number) = match index.checked_sub(nat_units) {
            None => ("NAT", index),
            Some(number) => ("SIT", number),
        };
        let front = vec![
            ("table", table.into()),
            ("unit", Value::Number(number as u64)),
            ("at", fsck.at(unit.addr.get()).into()),
        ];
        with(front, fields(&UnitRef::LAYOUT, unit.as_bytes()))
    });
    let superzones = volume.superzones.iter().enumerate().map(|(index, superzone)| {
        let state = STATES.get(usize::from(superzone.state)).copied().unwrap_or("unknown");
        let zones: Vec<String> = superzone.zones.iter().map(|zone| zone.0.to_string()).collect();
        Value::Fields(vec![
            ("superzone", Value::Number(index as u64)),
            ("state", state.into()),
            ("generation", superzone.generation.into()),
            ("zones", zones.join(" ").into()),
        ])
    });
    let orphans = volume.orphans.iter().map(|orphan| (*orphan).into());
    Value::Fields(vec![
        ("header", Value::Fields(fields(&RecordHeader::LAYOUT, volume.header.as_bytes()))),
        ("body", Value::Fields(fields(&CheckpointBody::LAYOUT, volume.body.as_bytes()))),
        ("heads", Value::List(heads.collect())),
        ("extents", Value::List(extents.collect())),
        ("units", Value::List(units.collect())),
        ("superzones", Value::List(superzones.collect())),
        ("orphans", Value::List(orphans.collect())),
    ])
}

fn kind_name(kind: Option<Kind>) -> &'static str {
    match kind {
        Some(Kind::File) => "file",
        Some(Kind::Directory) => "directory",
        Some(Kind::Symlink) => "symbolic link",
        Some(Kind::CharDevice) => "character device",
        Some(Kind::BlockDevice) => "block device",
        Some(Kind::Fifo) => "FIFO",
        Some(Kind::Socket) => "socket",
        None => "unknown",
    }
}

/// Name of the kind of node for a header's level.
fn node_name(level: u8) -> String {
    match level {
        LEVEL_INODE => "inode".to_owned(),
        LEVEL_XATTR => "extended attributes".to_owned(),
        0 => "leaf".to_owned(),
        level => format!("index node of level {level}"),
    }
}

/// A file system whose tables were read.
struct Look<'a> {
    fsck: &'a mut Fsck,
    volume: &'a Volume,
    tables: &'a Tables,
}

impl Look<'_> {
    fn nat(&self, range: &RangeInclusive<u32>) -> Value {
        let used = self.tables.nat.iter().filter(|(nid, entry)| {
            range.contains(nid) && (entry.ino.get() != 0 || entry.addr.get() != 0)
        });
        let entry = |(nid, entry): (u32, NatEntry)| {
            let mut all: Fields = vec![("node", nid.into())];
            all.extend(fields(&NatEntry::LAYOUT, entry.as_bytes()));
            all.push(("at", self.fsck.at(entry.addr.get()).into()));
            Value::Fields(all)
        };
        Value::Fields(vec![("nat", Value::List(used.map(entry).collect()))])
    }

    fn sit(&self, range: &RangeInclusive<u32>) -> Value {
        let used = self.tables.sit.iter().filter(|(segment, entry)| {
            range.contains(segment) && (entry.valid.get() != 0 || entry.map != [0; 64])
        });
        let entries = used.map(|(segment, entry)| {
            let mut all = self.segment_place(segment);
            all.extend(sit_fields(&self.volume.plan, &entry));
            Value::Fields(all)
        });
        Value::Fields(vec![("sit", Value::List(entries.collect()))])
    }

    fn segment_place(&self, segment: u32) -> Fields {
        let per = self.volume.plan.segments;
        vec![
            ("segment", segment.into()),
            ("superzone", (segment / per).into()),
            ("number", (segment % per).into()),
        ]
    }

    fn not_found(&self, what: String) -> Error {
        let name = self.fsck.device.name();
        Error::new(ErrorKind::NotFound, format!("{name}: {what}"))
    }

    /// The id of the node that `which` names.
    async fn find(&mut self, which: &Which) -> Result<u32> {
        let path = match which {
            Which::Number(nid) => return Ok(*nid),
            Which::Path(path) => path,
        };
        let mut at = ROOT_NODE;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let found = self.names(at).await?.into_iter().find(|entry| *entry.name == *name);
            at = found.map(|entry| entry.ino).ok_or_else(|| {
                let name = String::from_utf8_lossy(name).into_owned();
                self.not_found(format!("no name `{name}` in directory {at}"))
            })?;
        }
        Ok(at)
    }

    fn entry(&self, nid: u32) -> Result<NatEntry> {
        let entry = self.tables.nat.get(nid);
        if nid == NO_NODE || nid >= self.volume.plan.nodes {
            let most = self.volume.plan.nodes.saturating_sub(1);
            return Err(self.not_found(format!("no node {nid}: nodes are 1 to {most}")));
        }
        if entry.ino.get() == 0 && entry.addr.get() == 0 {
            return Err(self.not_found(format!("node {nid} is not in use")));
        }
        Ok(entry)
    }

    /// Reads the block of a node. A damaged block is returned too, and the damage is noted.
    async fn read(&mut self, nid: u32, entry: NatEntry) -> Option<Page> {
        let ino = entry.ino.get();
        match tree::read_node(self.fsck, self.volume, entry, nid, ino).await {
            Some(page) => Some(page),
            None => self.fsck.read_one(entry.addr.get()).await.ok(),
        }
    }

    async fn node(&mut self, nid: u32) -> Result<Value> {
        let entry = self.entry(nid)?;
        let mut all: Fields = vec![
            ("node", nid.into()),
            ("nat", Value::Fields(fields(&NatEntry::LAYOUT, entry.as_bytes()))),
            ("at", self.fsck.at(entry.addr.get()).into()),
        ];
        let Some(page) = self.read(nid, entry).await else { return Ok(Value::Fields(all)) };
        let head = *head_of(&page);
        all.push(("is", node_name(head.level).into()));
        all.push(("header", Value::Fields(fields(&NodeHeader::LAYOUT, page.bytes()))));
        let base = u64::from(head.base.get());
        match head.level {
            LEVEL_INODE => {
                let inode = &inode_of(&page).head;
                all.push(("kind", kind_name(Kind::from_code(inode.kind)).into()));
                let mut rest = fields(&InodeHead::LAYOUT, page.bytes());
                rest.retain(|(name, _)| *name != "node");
                all.push(("inode", Value::Fields(rest)));
                match inode.height {
                    0 => all.push(("blocks", self.extents(0, &inode_of(&page).slots))),
                    _ => all.push(("children", children(tree::children_of(inode_of(&page))))),
                }
            }
            0 => all.push(("blocks", self.extents(base, &leaf_of(&page).slots))),
            // The header says which part of the attributes is in this node. Only all parts together
            // can be decoded.
            LEVEL_XATTR => {}
            _ => all.push(("children", children(&tree::index_of(&page).slots))),
        }
        Ok(Value::Fields(all))
    }

    /// Pointers as runs of adjacent blocks.
    fn extents(&self, base: u64, slots: &[Pointer]) -> Value {
        let used = slots.iter().enumerate().filter(|(_, pointer)| pointer.addr.get() != HOLE);
        let mut runs: Vec<(u64, u32, u64)> = Vec::new();
        for (slot, pointer) in used {
            let (block, addr) = (base + slot as u64, pointer.addr.get());
            match runs.last_mut() {
                Some((first, start, count))
                    if *first + *count == block && u64::from(*start) + *count == addr.into() =>
                {
                    *count += 1;
                }
                _ => runs.push((block, addr, 1)),
            }
        }
        let run = |(first, start, count): (u64, u32, u64)| {
            Value::Fields(vec![
                ("block", Value::Number(first)),
                ("count", Value::Number(count)),
                ("addr", start.into()),
                ("at", self.fsck.at(start).into()),
            ])
        };
        Value::List(runs.into_iter().map(run).collect())
    }

    /// The pointers of inode `ino` that are not holes, each with its block number in the file, as
    /// far as the inode's tree can be read.
    async fn pointers(&mut self, ino: u32) -> Result<Vec<(u64, Pointer)>> {
        let entry = self.entry(ino)?;
        let mut found = Vec::new();
        let Some(page) = self.read(ino, entry).await else { return Ok(found) };
        let inode = inode_of(&page);
        if Kind::from_code(inode.head.kind) != Some(Kind::Directory) || entry.ino.get() != ino {
            let message = format!("{}: node {ino} is not a directory", self.fsck.device.name());
            return Err(Error::new(ErrorKind::NotDirectory, message));
        }
        let mut take = |base: u64, slots: &[Pointer]| {
            let used = slots.iter().enumerate().filter(|(_, p)| p.addr.get() != HOLE);
            found.extend(used.map(|(slot, pointer)| (base + slot as u64, *pointer)));
        };
        if inode.head.height == 0 {
            take(0, &inode.slots);
            return Ok(found);
        }
        let slots = tree::children_of(inode).iter().enumerate();
        let below = |(slot, nid): (usize, &zerocopy::little_endian::U32)| {
            let at = Shape::REAL.inode_child(inode.head.height, slot as u32)?;
            (nid.get() != NO_NODE).then_some((nid.get(), at))
        };
        let mut todo: Vec<(u32, NodePos)> = slots.filter_map(below).collect();
        todo.reverse();
        // A damaged tree may have a node with many parents: without this set the node would be read
        // once for each of them, and the walk might never end.
        let mut seen = BTreeSet::new();
        while let Some((nid, at)) = todo.pop() {
            if !seen.insert(nid) {
                let place = format!("{nid} of inode {ino}");
                self.fsck.add("node", place, "a node in one place", "one in two");
                continue;
            }
            let entry = self.tables.nat.get(nid);
            let read = tree::read_node(self.fsck, self.volume, entry, nid, ino).await;
            // The damage was noted already. A node of the wrong level could make the walk go
            // in circles.
            let Some(page) = read.filter(|page| head_of(page).level == at.level) else { continue };
            if at.level == 0 {
                take(at.base, &leaf_of(&page).slots);
                continue;
            }
            for (slot, child) in tree::index_of(&page).slots.iter().enumerate().rev() {
                if child.get() != NO_NODE
                    && let Some(below) = Shape::REAL.child(at, slot as u32)
                {
                    todo.push((child.get(), below));
                }
            }
        }
        Ok(found)
    }

    /// The names in directory `ino`, as far as its blocks can be read. Damage is noted.
    async fn names(&mut self, ino: u32) -> Result<Vec<Name>> {
        let mut names = Vec::new();
        for (block, pointer) in self.pointers(ino).await? {
            let addr = pointer.addr.get();
            let place = format!("{ino} block {block} at {}", self.fsck.at(addr));
            let page = match self.fsck.read_one(addr).await {
                Ok(page) => page,
                Err(error) => {
                    self.fsck.add("directory", place, "a block that can be read", error);
                    continue;
                }
            };
            let (expected, found) = (pointer.crc.get(), record::crc32c(page.bytes()));
            if expected != found {
                let expected = format!("checksum {expected:08x}");
                self.fsck.add("directory", place, expected, format!("{found:08x}"));
            } else if let Err(error) = dirent::check(page.bytes()) {
                self.fsck.add("directory", place, "records of names", error);
            }
            names.extend(dirent::iter(page.bytes()).map(|entry| Name {
                name: entry.name.into(),
                ino: entry.ino,
                kind: entry.kind,
                hash: entry.hash,
                block,
            }));
        }
        Ok(names)
    }

    async fn directory(&mut self, ino: u32) -> Result<Value> {
        let entries = self.names(ino).await?.into_iter().map(|entry| {
            let mut all: Fields = vec![
                ("name", String::from_utf8_lossy(&entry.name).into_owned().into()),
                ("ino", entry.ino.into()),
                ("kind", kind_name(Some(entry.kind)).into()),
                ("hash", format!("{:08x}", entry.hash).into()),
                ("block", Value::Number(entry.block)),
            ];
            if std::str::from_utf8(&entry.name).is_err() {
                all.push(("bytes", entry.name.escape_ascii().to_string().into()));
            }
            Value::Fields(all)
        });
        let entries = Value::List(entries.collect());
        Ok(Value::Fields(vec![("directory", ino.into()), ("entries", entries)]))
    }

    async fn segment(&mut self, segment: u32) -> Result<Value> {
        let count = self.volume.plan.segment_count();
        if segment >= count {
            let most = count.saturating_sub(1);
            return Err(self.not_found(format!("no segment {segment}: they are 0 to {most}")));
        }
        let mut all = self.segment_place(segment);
        let sit = self.tables.sit.get(segment);
        all.push(("sit", Value::Fields(sit_fields(&self.volume.plan, &sit))));
        let per = self.volume.plan.segments;
        let (index, k) = (segment / per, segment % per);
        let Some(superzone) = self.volume.superzones.get(index as usize) else {
            return Ok(Value::Fields(all));
        };
        let zones = superzone.zones.clone();
        let state = STATES.get(usize::from(superzone.state)).copied().unwrap_or("unknown");
        all.push(("state", state.into()));
        all.push(("generation", superzone.generation.into()));
        let stripe = self.volume.plan.stripe(zones.len() as u32);
        if zones.is_empty() || k >= stripe.segments() {
            return Ok(Value::Fields(all));
        }
        let place = |v: u32| {
            // A damaged summary may list more blocks than the superzone has.
            let (column, offset) = (v < stripe.blocks()).then(|| stripe.place(v))?;
            zones.get(column as usize).map(|zone| (*zone, offset))
        };
        let start = stripe.segment_range(k).start;
        let streams = self.volume.streams.iter();
        let stream = streams.enumerate().find(|(_, stream)| stream.superzone.get() == index);
        let open = stream.map(|(number, stream)| (number, stream.next.get() / stripe.segment));
        let entries = match open {
            Some((stream, at)) if at == k => {
                all.push(("summary", "in the checkpoint: a stream writes here".into()));
                self.volume.summaries.get(stream).cloned().unwrap_or_default()
            }
            Some((_, at)) if at < k => {
                all.push(("summary", "none: nothing is written here yet".into()));
                Vec::new()
            }
            _ => {
                let (shown, entries) = self.summary(place(stripe.summary_index(k))).await;
                all.push(("summary", shown));
                entries
            }
        };
        let valid = |block: usize| sit.map[block / 8] >> (block % 8) & 1 == 1;
        let blocks = entries.iter().enumerate().filter(|(block, entry)| {
            *block < 512 && (entry.node.get() != NO_NODE || valid(*block))
        });
        let blocks = blocks.map(|(block, entry)| {
            let at =
                place(start + block as u32).map(|(zone, at)| format!("zone {zone} offset {at}"));
            let mut shown: Fields = vec![
                ("block", Value::Number(block as u64)),
                ("at", at.unwrap_or_default().into()),
                ("state", if valid(block) { "valid" } else { "stale" }.into()),
                ("node", entry.node.get().into()),
            ];
            match entry.slot.get() {
                NODE_SLOT => shown.push(("slot", "the node itself".into())),
                slot => shown.push(("slot", u32::from(slot).into())),
            }
            Value::Fields(shown)
        });
        all.push(("blocks", Value::List(blocks.collect())));
        Ok(Value::Fields(all))
    }
}

impl Look<'_> {
    /// The summary in a block of a zone, and as many of its entries as the block has.
    async fn summary(&mut self, at: Option<(ZoneId, u32)>) -> (Value, Vec<SummaryEntry>) {
        let Some((zone, offset)) = at else { return ("no zone".into(), Vec::new()) };
        let place = format!("zone {zone} offset {offset}");
        let page = match self.fsck.read_one(self.fsck.addr(zone, offset)).await {
            Ok(page) => page,
            Err(error) => {
                self.fsck.add("summary", place, "a block that can be read", error);
                return ("cannot be read".into(), Vec::new());
            }
        };
        if let Some((expected, found)) = space::summary_checksum(&page)
            && expected != found
        {
            let expected = format!("checksum {expected:08x}");
            self.fsck.add("summary", place.clone(), expected, format!("{found:08x}"));
        }
        let mut all: Fields = vec![("at", place.into())];
        all.extend(fields(&SummaryHeader::LAYOUT, page.bytes()));
        (Value::Fields(all), space::summary_entries(&page))
    }
}

/// A name in a directory.
struct Name {
    name: Box<[u8]>,
    ino: u32,
    kind: Kind,
    hash: u32,
    block: u64,
}

/// The fields of a SIT entry, with its map as runs of valid blocks.
fn sit_fields(plan: &Layout, entry: &SitEntry) -> Fields {
    let mut all = fields(&SitEntry::LAYOUT, entry.as_bytes());
    for (name, value) in &mut all {
        match *name {
            "map" => *value = runs(&entry.map).into(),
            "stream" => *value = stream_name(plan, entry.stream.into()),
            _ => {}
        }
    }
    all
}

/// Node ids, each with its slot.
fn children(slots: &[zerocopy::little_endian::U32]) -> Value {
    let used = slots.iter().enumerate().filter(|(_, nid)| nid.get() != NO_NODE);
    let child = |(slot, nid): (usize, &zerocopy::little_endian::U32)| {
        Value::Fields(vec![("slot", Value::Number(slot as u64)), ("node", nid.get().into())])
    };
    Value::List(used.map(child).collect())
}
