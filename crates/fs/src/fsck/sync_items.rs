//! The items of a sync record, as `docs/inside/format.md` lists them.

use crate::format::{
    BLOCK, InodeHead, LEVEL_INODE, NODE_HEAD, NODE_MAGIC, NatEntry, NodeHeader, Pointer, item,
};
use furrow_log::record::crc32c;
use furrow_rt::Page;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// One item of a record.
pub(super) enum Item {
    /// Namespace operation: its number, the inodes that it names, and names. If the operation
    /// creates an inode, also the inode's kind and packed extended attributes.
    Name {
        number: u64,
        inodes: Vec<u32>,
        kind: Option<u8>,
        names: Vec<Vec<u8>>,
        xattrs: Vec<u8>,
    },
    Node(u32, NatEntry),
    Change(Change),
    Freed(u32),
    Allocated {
        stream: u8,
        superzone: u32,
        generation: u32,
    },
    Depends {
        zone: u32,
        generation: u32,
        end: u32,
    },
    Attributes {
        ino: u32,
        nanoseconds: [u32; 3],
    },
    Xattrs {
        ino: u32,
        packed: Vec<u8>,
    },
    Range {
        ino: u32,
        first: u32,
        count: u32,
    },
}

fn named(number: u64, inodes: Vec<u32>, names: Vec<Vec<u8>>) -> Item {
    Item::Name { number, inodes, kind: None, names, xattrs: Vec::new() }
}

/// Reads packed fields; `None` past the end.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (now, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*now)
    }
    fn u8(&mut self) -> Option<u8> {
        Some(self.take::<1>()?[0])
    }
    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
    /// Reads a time and returns its nanoseconds.
    fn time(&mut self) -> Option<u32> {
        self.u64()?;
        self.u32()
    }
    fn text(&mut self) -> Option<Vec<u8>> {
        let len = usize::from(self.u16()?);
        self.bytes(len)
    }
    fn bytes(&mut self, len: usize) -> Option<Vec<u8>> {
        let (now, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(now.to_vec())
    }

    /// Reads the next item: tag and fields as `docs/inside/format.md` lists them.
    pub(super) fn item(&mut self) -> Option<Item> {
        let before = self.0;
        let item = self.read_item();
        if item.is_none() {
            self.0 = before;
        }
        item
    }

    fn read_item(&mut self) -> Option<Item> {
        Some(match self.u8()? {
            tag @ (item::CREATE | item::CREATE_WITH) => {
                let (number, parent, ino) = (self.u64()?, self.u32()?, self.u32()?);
                let _generation = self.u32()?;
                let kind = Some(self.u8()?);
                let _mode_uid_gid_rdev = (self.u16()?, self.u32()?, self.u32()?, self.u32()?);
                self.time()?;
                let name = self.text()?;
                let _target = self.text()?;
                let xattrs = if tag == item::CREATE { Vec::new() } else { self.text()? };
                Item::Name { number, inodes: vec![parent, ino], kind, names: vec![name], xattrs }
            }
            item::LINK => {
                let (number, ino, parent) = (self.u64()?, self.u32()?, self.u32()?);
                self.time()?;
                let names = vec![self.text()?];
                named(number, vec![ino, parent], names)
            }
            item::REMOVE => {
                let (number, parent) = (self.u64()?, self.u32()?);
                self.time()?;
                let names = vec![self.text()?];
                named(number, vec![parent], names)
            }
            item::RENAME => {
                let (number, from, to) = (self.u64()?, self.u32()?, self.u32()?);
                if self.u8()? > 2 {
                    return None;
                }
                self.time()?;
                let names = vec![self.text()?, self.text()?];
                named(number, vec![from, to], names)
            }
            item::NODE => {
                let nid = self.u32()?;
                let mut entry = NatEntry::new_zeroed();
                entry.ino = self.u32()?.into();
                entry.addr = self.u32()?.into();
                entry.crc = self.u32()?.into();
                Item::Node(nid, entry)
            }
            tag @ (item::CHANGE | item::NEW) => {
                let new = tag == item::NEW;
                let (nid, ino, crc, pointers) =
                    (self.u32()?, self.u32()?, self.u32()?, self.u16()?);
                let count = self.u16()?;
                let pieces =
                    (0..count).map(|_| Some((self.u16()?, self.text()?))).collect::<Option<_>>()?;
                Item::Change(Change { nid, ino, new, crc, pointers, pieces })
            }
            item::FREED => {
                let (nid, _ino) = (self.u32()?, self.u32()?);
                Item::Freed(nid)
            }
            item::ALLOCATED => Item::Allocated {
                stream: self.u8()?,
                superzone: self.u32()?,
                generation: self.u32()?,
            },
            item::DEPENDS => {
                Item::Depends { zone: self.u32()?, generation: self.u32()?, end: self.u32()? }
            }
            item::ATTRIBUTES => {
                let ino = self.u32()?;
                let _mode_uid_gid = (self.u16()?, self.u32()?, self.u32()?);
                Item::Attributes { ino, nanoseconds: [self.time()?, self.time()?, self.time()?] }
            }
            item::XATTRS => {
                let (ino, len) = (self.u32()?, self.u32()?);
                Item::Xattrs { ino, packed: self.bytes(len as usize)? }
            }
            item::RANGE => Item::Range { ino: self.u32()?, first: self.u32()?, count: self.u32()? },
            _ => return None,
        })
    }
}

/// A change of a node that stays in its place.
pub(super) struct Change {
    pub(super) nid: u32,
    pub(super) ino: u32,
    /// True if the node is new: the change is made to an empty node.
    pub(super) new: bool,
    pub(super) crc: u32,
    /// Offset at which the node's block pointers begin.
    pub(super) pointers: u16,
    pub(super) pieces: Vec<(u16, Vec<u8>)>,
}

impl Change {
    /// The fault of the change that can be found without reading the node; `None` if there is no
    /// such fault.
    pub(super) fn fault(&self) -> Option<String> {
        let mut end = 0;
        for (at, bytes) in &self.pieces {
            let (at, len) = (usize::from(*at), bytes.len());
            if at % 8 != 0 || len % 8 != 0 || len == 0 || at < end || at + len > BLOCK {
                return Some(format!("{len} bytes at {at}, after byte {end}"));
            }
            end = at + len;
        }
        let known = [size_of::<InodeHead>(), NODE_HEAD, BLOCK].contains(&self.pointers.into());
        (!known).then(|| format!("pointers from byte {}", self.pointers))
    }

    /// The empty node that the change of a new node is made to.
    pub(super) fn empty(&self) -> Page {
        let mut page = Page::zeroed();
        for slot in page.make_mut()[usize::from(self.pointers)..].chunks_exact_mut(8) {
            slot.copy_from_slice(Pointer::HOLE.as_bytes());
        }
        page
    }

    /// The block pointers that the change sets.
    pub(super) fn set(&self) -> Vec<Pointer> {
        let mut set = Vec::new();
        for (at, bytes) in &self.pieces {
            for (word, at) in bytes.chunks_exact(8).zip((usize::from(*at)..).step_by(8)) {
                if at >= usize::from(self.pointers) {
                    set.extend(Pointer::read_from_bytes(word));
                }
            }
        }
        set
    }

    /// Applies the change to the node `page` of inode `ino`.
    ///
    /// # Errors
    /// The expected and the found content.
    pub(super) fn make(&self, page: &mut Page, ino: u32) -> Result<(), (String, String)> {
        let bytes = page.make_mut();
        for (at, piece) in &self.pieces {
            let at = usize::from(*at);
            bytes[at..at + piece.len()].copy_from_slice(piece);
        }
        let crc = crc32c(page.bytes());
        if crc != self.crc {
            let expected = format!("checksum {:08x} of the node after it", self.crc);
            return Err((expected, format!("{crc:08x}")));
        }
        let Some((head, first)) = front(page) else {
            return Err(("a node".to_owned(), "none".to_owned()));
        };
        let found = (head.magic.get(), head.nid.get(), head.ino.get());
        if found != (NODE_MAGIC, self.nid, ino) {
            let what = |(magic, nid, ino)| format!("magic {magic:08x}, node {nid}, inode {ino}");
            return Err((what((NODE_MAGIC, self.nid, ino)), what(found)));
        }
        if (ino, first) != (self.ino, self.pointers.into()) {
            let what = |ino, first| format!("inode {ino}, pointers from byte {first}");
            return Err((what(ino, first), what(self.ino, self.pointers.into())));
        }
        Ok(())
    }
}

/// The header of a node, and the offset at which its pointers to data begin.
fn front(page: &Page) -> Option<(NodeHeader, usize)> {
    let (head, _) = NodeHeader::read_from_prefix(page.bytes()).ok()?;
    let (inode, _) = InodeHead::read_from_prefix(page.bytes()).ok()?;
    let first = match head.level {
        LEVEL_INODE if inode.height == 0 => size_of::<InodeHead>(),
        0 => NODE_HEAD,
        _ => BLOCK,
    };
    Some((head, first))
}

/// Pointers to data in a node.
pub(super) fn pointers(page: &Page) -> Vec<Pointer> {
    let first = front(page).map_or(BLOCK, |(_, first)| first);
    let words = page.bytes()[first..].chunks_exact(size_of::<Pointer>());
    words.filter_map(|word| Pointer::read_from_bytes(word).ok()).collect()
}
