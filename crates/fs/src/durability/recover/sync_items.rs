//! The items of a sync record, as recovery reads them.

use crate::durability::namespace_log::{Decoder, NameOp};
use crate::durability::node_change::NodeChange;
use crate::format::{NatEntry, item};
use crate::layout::Layout;
use crate::tree::xattr::Xattrs;
use crate::types::{Ino, SetAttr};
use zerocopy::FromZeros;

/// One item of a record.
pub(super) enum Item {
    Name(u64, NameOp),
    Xattrs(Ino, Vec<u8>),
    Node(u32, NatEntry),
    Change(NodeChange),
    Freed(u32),
    /// A head took a superzone: head, superzone, and the generation of the superzone from then on.
    Allocated(usize, u32, u32),
    /// A condition for the record to count: zone, generation of its superzone, and the block up to
    /// which the zone must be written.
    Depends(u32, u32, u32),
    Attributes(Ino, SetAttr),
    /// Blocks of a file that were written: inode, first block, number of blocks. Used only
    /// in messages.
    Range(u32, u32, u32),
}

/// Takes the next item from the front; `None` if the bytes are not an item.
pub(super) fn parse_item(input: &mut Decoder<'_>, layout: &Layout) -> Option<Item> {
    Some(match input.u8()? {
        tag @ (item::CREATE | item::CREATE_WITH | item::LINK | item::REMOVE | item::RENAME) => {
            let (number, op) = NameOp::decode(tag, input)?;
            Item::Name(number, op)
        }
        item::XATTRS => {
            let (ino, packed) = (Ino(input.u32()?), input.long_bytes()?);
            Xattrs::parse(&packed)?;
            Item::Xattrs(ino, packed)
        }
        item::NODE => {
            let (nid, ino) = (input.u32()?, input.u32()?);
            let mut entry = NatEntry::new_zeroed();
            entry.ino = ino.into();
            entry.addr = input.u32()?.into();
            entry.crc = input.u32()?.into();
            if nid == 0 || nid >= layout.nodes || ino == 0 || ino >= layout.nodes {
                return None;
            }
            Item::Node(nid, entry)
        }
        tag @ (item::CHANGE | item::NEW) => {
            let change = NodeChange::decode(tag, input)?;
            let known = |id| id != 0 && id < layout.nodes;
            if !known(change.nid) || !known(change.ino) {
                return None;
            }
            Item::Change(change)
        }
        item::FREED => {
            let (nid, _) = (input.u32()?, input.u32()?);
            Item::Freed(nid)
        }
        item::ALLOCATED => Item::Allocated(usize::from(input.u8()?), input.u32()?, input.u32()?),
        item::DEPENDS => Item::Depends(input.u32()?, input.u32()?, input.u32()?),
        item::ATTRIBUTES => {
            let ino = Ino(input.u32()?);
            let changes = SetAttr {
                mode: Some(input.u16()?),
                uid: Some(input.u32()?),
                gid: Some(input.u32()?),
                size: None,
                atime: Some(input.time()?),
                mtime: Some(input.time()?),
                ctime: Some(input.time()?),
            };
            Item::Attributes(ino, changes)
        }
        item::RANGE => Item::Range(input.u32()?, input.u32()?, input.u32()?),
        _ => return None,
    })
}
