//! Checks extended attributes: the nodes that hold them, and their content.

use super::tables::Tables;
use super::tree::{INODE, NODE, NODE_SLOT, Owner, Walk, head_of, read_node};
use super::{Fsck, Volume};
use crate::format::{
    INCOMPAT_XATTRS, InodeHead, LEVEL_XATTR, NAME_MAX, XATTR_NODE, XATTR_VALUE_MAX, XATTRS_INLINE,
    XATTRS_MAX, XattrBlock, XattrHead,
};
use zerocopy::FromBytes;

const XATTR: &str = "extended attributes";

/// Checks the attributes of an inode and the nodes that hold them.
pub(super) async fn check(
    fsck: &mut Fsck,
    volume: &Volume,
    tables: &Tables,
    walk: &mut Walk,
    head: &InodeHead,
) {
    let (ino, bytes) = (head.node.nid.get(), head.xattr_bytes.get() as usize);
    if bytes > XATTRS_MAX {
        let expected = format!("at most {XATTRS_MAX}");
        fsck.add(INODE, format!("{ino}: xattr_bytes"), expected, bytes);
        walk.damaged.insert(ino);
        return;
    }
    if bytes > 0 && volume.plan.incompat & INCOMPAT_XATTRS == 0 {
        fsck.add(INODE, format!("{ino}: xattr_bytes"), "0 without the feature", bytes);
    }
    let count = if bytes <= XATTRS_INLINE { 0 } else { bytes.div_ceil(XATTR_NODE) };
    let used = if count == 0 { bytes } else { count * 4 };
    fsck.expect_zero(INODE, || format!("{ino}: xattrs behind their end"), &head.xattrs[used..]);
    if count == 0 {
        return check_packed(fsck, ino, &head.xattrs[..bytes]);
    }
    let mut packed = Vec::with_capacity(count * XATTR_NODE);
    for (at, id) in head.xattrs.chunks_exact(4).take(count).enumerate() {
        let nid = u32::from_le_bytes([id[0], id[1], id[2], id[3]]);
        match read(fsck, volume, tables, walk, (ino, nid, at), head.node.class).await {
            Some(part) => packed.extend(part),
            None => {
                walk.damaged.insert(ino);
                return;
            }
        }
    }
    fsck.expect_zero(XATTR, || format!("{ino}: behind their end"), &packed[bytes..]);
    check_packed(fsck, ino, &packed[..bytes]);
}

/// Reads node `nid`, which holds part `at` of the attributes of `ino`.
async fn read(
    fsck: &mut Fsck,
    volume: &Volume,
    tables: &Tables,
    walk: &mut Walk,
    (ino, nid, at): (u32, u32, usize),
    class: u8,
) -> Option<Vec<u8>> {
    let place = format!("{nid}, extended attributes {at} of inode {ino}");
    let known = nid != 0 && nid < volume.plan.nodes;
    if !known || tables.nat.get(nid).ino.get() != ino {
        fsck.add(NODE, place, format!("a node of inode {ino} in the NAT"), "none");
        return None;
    }
    if !walk.see(nid) {
        fsck.add(NODE, place, "a node in one place", "one in two");
        return None;
    }
    let entry = tables.nat.get(nid);
    let page = read_node(fsck, volume, entry, nid, ino).await?;
    walk.owners.push(Owner { addr: entry.addr.get(), node: nid, slot: NODE_SLOT });
    let head = head_of(&page);
    let good = fsck.expect(NODE, || format!("{place}: level"), LEVEL_XATTR, head.level);
    if !crate::format::class::agree(class, head.class) {
        fsck.expect(NODE, || format!("{place}: class"), class, head.class);
    }
    fsck.expect(NODE, || format!("{place}: base"), at as u64, u64::from(head.base.get()));
    let block = XattrBlock::ref_from_bytes(page.bytes()).ok()?;
    good.then(|| block.bytes.to_vec())
}

/// The fault in packed attributes, if there is one.
pub(super) fn fault(mut packed: &[u8]) -> Option<String> {
    let mut last: &[u8] = b"";
    while !packed.is_empty() {
        let Ok((head, rest)) = XattrHead::ref_from_prefix(packed) else {
            return Some("a cut name".into());
        };
        let (name, value) = (usize::from(head.name), head.value.get() as usize);
        if name == 0 || name > NAME_MAX || value > XATTR_VALUE_MAX || name + value > rest.len() {
            return Some(format!("a name of {name} and a value of {value} bytes"));
        }
        let (name, rest) = rest.split_at(name);
        if name.contains(&0) || name <= last {
            return Some(format!("the name {:?}", String::from_utf8_lossy(name)));
        }
        (last, packed) = (name, &rest[value..]);
    }
    None
}

fn check_packed(fsck: &mut Fsck, ino: u32, packed: &[u8]) {
    if let Some(found) = fault(packed) {
        fsck.add(XATTR, ino.to_string(), "names that ascend, with their values", found);
    }
}
