//! Changes of nodes: a sync record can hold the change of a node instead of the place of its
//! new block.
//!
//! An fsync of a few blocks changes a few words of a file's nodes. The record has space for such
//! words, so the fsync need not write whole nodes. The node stays dirty until the next checkpoint.
//! A new node with few words is handled in the same way: its change is made against an empty node.
//!
//! Invariants
//! - A change is made against the *logged* content of a node: the content that recovery would find
//!   for the node, from the newest checkpoint and the records so far. The cache keeps that content
//!   while the node is dirty. Replay applies the change to the same content, whatever the replay of
//!   names has done to the node.
//! - A change consists of whole words of 8 bytes, so it contains a block pointer completely or not
//!   at all.
//! - A change states the checksum of the node after the change. If the changed node has another
//!   checksum, the change is refused.

use crate::durability::namespace_log::{Decoder, Encoder};
use crate::format::{BLOCK, HOLE, InodeHead, NODE_HEAD, Pointer, item};
use furrow_log::record::crc32c;
use furrow_rt::Page;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// Number of bytes in a word, the unit of changes.
const WORD: usize = 8;
/// Number of bytes compared at once. Single words are compared only where such a stretch differs,
/// because in most nodes only a few words have changed.
const STRIDE: usize = 256;

/// Byte ranges of a node that a change replaces: whole words, ascending, no two ranges adjacent.
pub(crate) type Places = SmallVec<[Range<usize>; 4]>;

/// A change of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeChange {
    pub(crate) nid: u32,
    pub(crate) ino: u32,
    /// True if the node is new: the change is made against an empty node.
    pub(crate) new: bool,
    /// CRC32C of the node after the change.
    crc: u32,
    /// Offset in the node at which the block pointers begin; the node's length if it has none.
    pointers: u16,
    /// The replaced bytes: their offset in the node, and their new content.
    pieces: Vec<(usize, Vec<u8>)>,
}

/// Nodes whose changes are in sync records since the last durable checkpoint: after a crash,
/// recovery makes all of them dirty.
#[derive(Default)]
pub(crate) struct Recorded {
    now: BTreeSet<u32>,
    /// The nodes that the checkpoint under way covers.
    in_snapshot: BTreeSet<u32>,
}

impl Recorded {
    /// Number of nodes; a node that changed both before and after a snapshot counts twice.
    pub(crate) fn len(&self) -> usize {
        self.now.len() + self.in_snapshot.len()
    }

    /// True if `nid` is already recorded, or can be added without exceeding `most` nodes.
    pub(crate) fn takes(&self, nid: u32, most: usize) -> bool {
        self.len() < most || self.now.contains(&nid)
    }

    /// Notes that a record holds a change of `nid`.
    pub(crate) fn note(&mut self, nid: u32) {
        self.now.insert(nid);
    }

    /// Notes that a checkpoint takes its snapshot.
    pub(crate) fn snapshot(&mut self) {
        self.in_snapshot.append(&mut self.now);
    }

    /// Notes that the checkpoint of the last snapshot is durable.
    pub(crate) fn durable(&mut self) {
        self.in_snapshot.clear();
    }
}

/// The outcome of [`encode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Encoded {
    /// The change is in the record; the byte ranges are those where the contents differed.
    Added(Places),
    /// The contents are the same, so nothing was added.
    Nothing,
    /// The change would take more bytes than allowed.
    TooLong,
}

/// An empty node whose block pointers begin at byte `pointers` and lead nowhere.
fn empty(pointers: u16) -> Page {
    let mut page = Page::zeroed();
    for pointer in page.make_mut()[usize::from(pointers)..].as_chunks_mut::<WORD>().0 {
        pointer.copy_from_slice(Pointer::HOLE.as_bytes());
    }
    page
}

/// Encodes the change of node `nid` of `ino` from `logged` to `page` into a record, if the contents
/// differ and the change takes at most `most` bytes. The block pointers of the node begin at byte
/// `pointers`. A new node has no logged content.
pub(crate) fn encode(
    out: &mut Encoder,
    (nid, ino): (u32, u32),
    (logged, page): (Option<&Page>, &Page),
    pointers: u16,
    most: usize,
) -> Encoded {
    let tag = if logged.is_some() { item::CHANGE } else { item::NEW };
    let empty = logged.is_none().then(|| empty(pointers));
    let Some(logged) = logged.or(empty.as_ref()) else { return Encoded::TooLong };
    let places = differences(logged.bytes(), page.bytes());
    if places.is_empty() {
        return Encoded::Nothing;
    }
    let start = out.0.len();
    out.u8(tag).u32(nid).u32(ino).u32(crc32c(page.bytes())).u16(pointers).u16(places.len() as u16);
    for place in &places {
        out.u16(place.start as u16).bytes(&page.bytes()[place.clone()]);
        if out.0.len() - start > most {
            out.0.truncate(start);
            return Encoded::TooLong;
        }
    }
    Encoded::Added(places)
}

/// The byte ranges in which two nodes differ.
fn differences(before: &[u8; BLOCK], now: &[u8; BLOCK]) -> Places {
    let mut places = Places::new();
    let (befores, nows) = (before.as_chunks::<STRIDE>().0, now.as_chunks::<STRIDE>().0);
    for (stride, (before, now)) in befores.iter().zip(nows).enumerate() {
        if before == now {
            continue;
        }
        let words = before.as_chunks::<WORD>().0.iter().zip(now.as_chunks::<WORD>().0);
        for (word, _) in words.enumerate().filter(|(_, (before, now))| before != now) {
            let at = stride * STRIDE + word * WORD;
            match places.last_mut() {
                Some(last) if last.end == at => last.end += WORD,
                _ => places.push(at..at + WORD),
            }
        }
    }
    places
}

impl NodeChange {
    /// Decodes the fields of an item with `tag`; `None` if they are not a change.
    pub(crate) fn decode(tag: u8, input: &mut Decoder<'_>) -> Option<NodeChange> {
        let (nid, ino, crc, pointers) = (input.u32()?, input.u32()?, input.u32()?, input.u16()?);
        let first = [size_of::<InodeHead>(), NODE_HEAD, BLOCK];
        if !first.contains(&usize::from(pointers)) {
            return None;
        }
        let (mut pieces, mut end) = (Vec::new(), 0);
        for _ in 0..input.u16()? {
            let (at, bytes) = (usize::from(input.u16()?), input.bytes()?);
            let whole = at % WORD == 0 && bytes.len() % WORD == 0 && !bytes.is_empty();
            if !whole || at < end || at + bytes.len() > BLOCK {
                return None;
            }
            end = at + bytes.len();
            pieces.push((at, bytes));
        }
        Some(NodeChange { nid, ino, new: tag == item::NEW, crc, pointers, pieces })
    }

    /// Returns the node after the change. `logged` is the content that the change was made against,
    /// which a new node does not have.
    ///
    /// # Errors
    /// A reason if the change does not belong to the content `logged`.
    pub(crate) fn applied(&self, logged: Option<&Page>) -> Result<Page, String> {
        let mut page = match (self.new, logged) {
            (true, _) => empty(self.pointers),
            (false, Some(logged)) => logged.clone(),
            (false, None) => return Err("it is not on the drive".to_owned()),
        };
        let bytes = page.make_mut();
        for (at, piece) in &self.pieces {
            bytes[*at..*at + piece.len()].copy_from_slice(piece);
        }
        let (expected, found) = (self.crc, crc32c(page.bytes()));
        if expected != found {
            return Err(format!("expected CRC {expected:08x} after the change, found {found:08x}"));
        }
        Ok(page)
    }

    /// Checks that the block pointers of the changed node begin where the change says, which must
    /// be byte `first`.
    ///
    /// # Errors
    /// The expected and the found position.
    pub(crate) fn check_pointers(&self, first: u16) -> Result<(), String> {
        match self.pointers {
            pointers if pointers == first => Ok(()),
            pointers => Err(format!("expected pointers from byte {first}, found {pointers}")),
        }
    }

    /// The block pointers that the change sets.
    pub(crate) fn pointers(&self) -> impl Iterator<Item = Pointer> + '_ {
        let words = self.pieces.iter().flat_map(|(at, bytes)| {
            let words = bytes.as_chunks::<WORD>().0.iter();
            (*at..).step_by(WORD).zip(words)
        });
        let first = usize::from(self.pointers);
        words.filter(move |(at, _)| *at >= first).filter_map(|(_, word)| {
            let pointer = Pointer::read_from_bytes(word).ok()?;
            (pointer.addr.get() != HOLE).then_some(pointer)
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
mod tests {
    use super::*;
    use crate::format::LeafBlock;
    use crate::tree::cache::Key;
    use crate::types::{Ino, MkfsOptions, MountOptions, NewNode, WriteData, XattrMode};
    use crate::{Fs, Repair, RepairOptions};
    use furrow_emu::{Emulator, Fates, Medium, Options};
    use furrow_rt::{Config, Nanos, Rt};
    use furrow_zone::spec::parse_geometry;
    use std::rc::Rc;

    const FIRST: u16 = NODE_HEAD as u16;

    fn leaf() -> Page {
        let mut page = Page::zeroed();
        LeafBlock::mut_from_bytes(page.make_mut()).unwrap().slots.fill(Pointer::HOLE);
        page
    }

    fn with(page: &Page, slots: &[(usize, u32)]) -> Page {
        let mut page = page.clone();
        let leaf = LeafBlock::mut_from_bytes(page.make_mut()).unwrap();
        slots.iter().for_each(|(slot, addr)| leaf.slots[*slot] = Pointer::new(*addr, addr ^ 9));
        page
    }

    fn change(logged: &Page, page: &Page) -> Option<NodeChange> {
        let mut out = Encoder(vec![1]);
        match encode(&mut out, (7, 5), (Some(logged), page), FIRST, 1024) {
            Encoded::Added(_) => {}
            other => {
                assert_eq!(out.0, [1], "{other:?}");
                return None;
            }
        }
        let mut input = Decoder(&out.0[2..]);
        let change = NodeChange::decode(out.0[1], &mut input);
        assert!(input.0.is_empty() && out.0[1] == item::CHANGE);
        change
    }

    #[test]
    fn a_change_leads_from_the_logged_content_to_the_new_one() {
        let before = with(&leaf(), &[(0, 8), (3, 9)]);
        let after = with(&before, &[(3, 20), (4, 21), (503, 22)]);
        let change = change(&before, &after).expect("three words");
        assert_eq!(change.applied(Some(&before)).map(|page| *page.bytes()), Ok(*after.bytes()));
        let addrs: Vec<u32> = change.pointers().map(|pointer| pointer.addr.get()).collect();
        assert_eq!(addrs, [20, 21, 22]);
        assert!(change.check_pointers(FIRST).is_ok() && change.check_pointers(512).is_err());
    }

    #[test]
    fn a_change_of_other_content_is_refused() {
        let before = with(&leaf(), &[(0, 8)]);
        let change = change(&before, &with(&before, &[(1, 9)])).expect("one word");
        let error = change.applied(Some(&with(&before, &[(2, 7)]))).expect_err("another content");
        assert!(error.contains("after the change"), "{error}");
    }

    #[test]
    fn a_new_node_is_the_change_of_an_empty_one() {
        let after = with(&leaf(), &[(0, 8), (503, 9)]);
        let mut out = Encoder(Vec::new());
        let encoded = encode(&mut out, (7, 5), (None, &after), FIRST, 1024);
        assert!(matches!(encoded, Encoded::Added(_)), "{encoded:?}");
        let change = NodeChange::decode(out.0[0], &mut Decoder(&out.0[1..])).expect("a change");
        assert!(change.new && change.applied(None).unwrap().bytes() == after.bytes());
    }

    #[test]
    fn equal_contents_and_long_changes_add_nothing() {
        let before = leaf();
        assert_eq!(change(&before, &before.clone()), None);
        let all: Vec<(usize, u32)> = (0..200).map(|slot| (slot, 1 + slot as u32)).collect();
        assert_eq!(change(&before, &with(&before, &all)), None);
    }

    #[test]
    fn bytes_that_are_no_change_are_refused() {
        let before = leaf();
        let mut out = Encoder(Vec::new());
        let after = with(&before, &[(1, 9), (9, 10)]);
        let encoded = encode(&mut out, (7, 5), (Some(&before), &after), FIRST, 1024);
        assert!(matches!(encoded, Encoded::Added(_)), "{encoded:?}");
        assert!(
            (1..out.0.len()).all(|end| NodeChange::decode(
                item::CHANGE,
                &mut Decoder(&out.0[1..end])
            )
            .is_none())
        );
        // Pieces out of order, beyond the end of the node, or half a word long.
        for (at, value) in [(17, 144u16), (17, 4096), (17, 4), (19, 4)] {
            let mut bytes = out.0.clone();
            bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
            assert_eq!(
                NodeChange::decode(bytes[0], &mut Decoder(&bytes[1..])),
                None,
                "{at} {value}"
            );
        }
    }

    /// One record holds the new nodes of a file, and the next record holds only the new place of
    /// its inode. Replay of the second record keeps the nodes of the first.
    #[test]
    fn new_nodes_stay_when_a_later_record_places_their_inode() {
        let rt = Rt::new(Config::simulated(7));
        let on = rt.clone();
        let done = rt.block_on(async move {
            let spec = "zones=64,zone-size=1MiB,max-active=14,channels=1";
            let geometry = parse_geometry(spec).unwrap();
            let medium = Medium::memory(&geometry);
            let drive = Emulator::new(&on, geometry, medium, Options::simulated()).unwrap();
            Fs::format(&on, Rc::new(drive.clone()), &MkfsOptions::default()).await?;
            let commit_interval = 100_000 * Nanos::SECOND;
            let options = MountOptions { commit_interval, ..MountOptions::default() };
            let fs = Fs::mount(&on, Rc::new(drive.clone()), options.clone()).await?;
            let ino = fs.create(Ino::ROOT, b"tall", &NewNode::file()).await?.ino;
            let at = 2_000_001 * BLOCK as u64;
            for tag in [7, 8] {
                fs.write(ino, WriteData::copy(fs.pool(), at, &[tag; BLOCK])).await?;
                fs.fsync(ino, false).await?;
                // Write the node to a new place, as cleaning does.
                fs.0.run(|core| core.write_node(ino.0)).await?;
                fs.0.after_dispatch();
            }
            fs.setxattr(ino, b"user.x", b"y", XattrMode::Set).await?;
            fs.fsync(ino, false).await?;
            let left = drive.snapshot().power_cut(&Fates::seeded(1));
            drop(fs);
            let left = Rc::new(Emulator::from_snapshot(&on, &left, Options::simulated()));
            let fs = Fs::mount(&on, left, options).await?;
            assert_eq!(fs.read(ino, at, 9).await?.to_vec(), [8; 9]);
            fs.unmount().await
        });
        rt.clear();
        done.unwrap();
    }

    /// A record says that a node is new, but according to the checkpoint a file has that id.
    #[test]
    fn a_new_node_of_an_id_in_use_is_refused() {
        let rt = Rt::new(Config::simulated(8));
        let on = rt.clone();
        let done = rt.block_on(async move {
            let geometry = parse_geometry("zones=64,zone-size=1MiB,max-active=14").unwrap();
            let medium = Medium::memory(&geometry);
            let drive = Emulator::new(&on, geometry, medium, Options::simulated()).unwrap();
            Fs::format(&on, Rc::new(drive.clone()), &MkfsOptions::default()).await?;
            let options = MountOptions::default();
            let fs = Fs::mount(&on, Rc::new(drive.clone()), options.clone()).await?;
            let ino = fs.create(Ino::ROOT, b"file", &NewNode::file()).await?.ino;
            fs.write(ino, WriteData::copy(fs.pool(), 0, &[7; BLOCK])).await?;
            fs.sync().await?;
            let other = fs.create(Ino::ROOT, b"other", &NewNode::file()).await?.ino;
            fs.fsync(other, false).await?;
            let (stamp, point) = {
                let core = &mut *fs.0.core.borrow_mut();
                let page = core.cache.peek(&Key::Node(ino.0)).expect("an inode").page().clone();
                let mut out = Encoder(Vec::new());
                let first = crate::tree::node::first_pointer(&page);
                let what = encode(&mut out, (ino.0, ino.0), (None, &page), first, BLOCK);
                assert!(matches!(what, Encoded::Added(_)), "{what:?}");
                core.write_record(&out.0);
                (core.alloc.stamp(), core.env.writer.sequence_point())
            };
            fs.0.make_stable(stamp, point).await?;
            let left = drive.snapshot().power_cut(&Fates::seeded(1));
            drop(fs);
            let left = Rc::new(Emulator::from_snapshot(&on, &left, Options::simulated()));
            let report = crate::fsck(left.clone(), &crate::FsckOptions::default()).await?;
            let found: Vec<String> = report.findings.iter().map(|f| f.found.clone()).collect();
            assert!(found.iter().any(|found| found.contains("in the checkpoint")), "{found:?}");
            let error = Fs::mount(&on, left.clone(), options.clone()).await.map(drop).unwrap_err();
            assert!(error.to_string().contains("its id is in use"), "{error}");
            // A repair cannot tell whether the table or the record is damaged, and believes the
            // record because it is newer.
            let repair = Repair::plan(&on, left.clone(), &RepairOptions::default()).await?;
            repair.apply(|_, _| {}).await?;
            let fs = Fs::mount(&on, left, options).await?;
            let found = fs.lookup(Ino::ROOT, b"file").await?.ino;
            assert_eq!(fs.read(found, 0, 9).await?.to_vec(), [7; 9]);
            fs.unmount().await?;
            Ok::<(), furrow_zone::Error>(())
        });
        rt.clear();
        done.unwrap();
    }
}
