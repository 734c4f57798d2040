//! Extended attributes: their packed form, and its place in an inode or in separate nodes.
//!
//! All attributes of an inode form one string of bytes: each name is followed by its value, and
//! names are in ascending order ([`XattrHead`]). A short string is stored in the inode. A
//! longer one is stored in nodes of level 254, and the inode has their ids instead. So
//! attributes move, are checksummed and become durable like the inode's other nodes, and only
//! the inode refers to them.
//!
//! `system.posix_acl_access` and `system.posix_acl_default` are stored like any other attribute,
//! but the engine interprets them: see [`crate::tree::acl`].
//!
//! Not here: the permission to see or change an attribute with a certain prefix, which the kernel
//! checks because it knows the caller.

use crate::alloc::space::Claim;
use crate::blocked::{Blocked, NotApplied};
use crate::core::Core;
use crate::format::{
    BLOCK, INCOMPAT_XATTRS, LEVEL_XATTR, NAME_MAX, NODE_MAGIC, XATTR_LIST_MAX, XATTR_NODE,
    XATTR_VALUE_MAX, XATTRS_INLINE, XATTRS_MAX, XattrBlock, XattrHead,
};
use crate::tree::acl::{self, Acl};
use crate::tree::cache::Key;
use crate::tree::lifetime;
use crate::tree::node::{as_inode, header, new_node, stamp};
use crate::types::{Ino, Kind, XattrMode};
use furrow_rt::Page;
use furrow_zone::{Error, ErrorKind};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use zerocopy::{FromBytes, IntoBytes};

/// Prefixes of attribute names. Names of access control lists are allowed in addition.
const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Ids of the nodes that hold an inode's attributes.
pub(crate) type Nids = SmallVec<[u32; 4]>;

fn fail<T>(kind: ErrorKind, message: impl Into<String>) -> Result<T, NotApplied> {
    Err(NotApplied::Failed(Error::new(kind, message)))
}

fn as_xattrs(page: &Page) -> &XattrBlock {
    XattrBlock::ref_from_bytes(page.bytes()).expect("invariant: a page is a node's size")
}

/// Number of nodes for `bytes` bytes of attributes; 0 if they fit into the inode.
pub(crate) fn nodes_for(bytes: usize) -> usize {
    if bytes <= XATTRS_INLINE { 0 } else { bytes.div_ceil(XATTR_NODE) }
}

/// The attributes of an inode, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Xattrs(pub(crate) BTreeMap<Vec<u8>, Vec<u8>>);

impl Xattrs {
    /// Parses the packed form; `None` if the bytes are not a packed form.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Xattrs> {
        let mut found = BTreeMap::new();
        let mut last: &[u8] = b"";
        for item in Items(bytes) {
            let (name, value) = item?;
            if name <= last {
                return None;
            }
            last = name;
            found.insert(name.to_vec(), value.to_vec());
        }
        Some(Xattrs(found))
    }

    /// Encodes the attributes in the packed form.
    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, value) in &self.0 {
            let head = XattrHead { value: (value.len() as u32).into(), name: name.len() as u8 };
            out.extend(head.as_bytes());
            out.extend(name);
            out.extend(value);
        }
        out
    }

    /// Checks that these attributes, `packed` in bytes, are within the limits for one inode.
    fn check(&self, packed: &[u8]) -> Result<(), NotApplied> {
        let names: usize = self.0.keys().map(|name| name.len() + 1).sum();
        if packed.len() > XATTRS_MAX || names > XATTR_LIST_MAX {
            let message = format!(
                "{} bytes of extended attributes with {names} bytes of names: at most {XATTRS_MAX} \
                 and {XATTR_LIST_MAX}",
                packed.len()
            );
            return fail(ErrorKind::NoSpace, message);
        }
        Ok(())
    }
}

/// Iterates over the names and values in a packed string. At damage, the iterator yields one `None`
/// item and then ends.
pub(crate) struct Items<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Items<'a> {
    type Item = Option<(&'a [u8], &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let item = (|| {
            let (head, rest) = XattrHead::ref_from_prefix(self.0).ok()?;
            let (name, rest) = rest.split_at_checked(usize::from(head.name))?;
            let (value, rest) = rest.split_at_checked(head.value.get() as usize)?;
            let good = !name.is_empty() && value.len() <= XATTR_VALUE_MAX && !name.contains(&0);
            good.then_some((name, value, rest))
        })();
        let rest = item.map(|(_, _, rest)| rest);
        self.0 = rest.unwrap_or_default();
        Some(item.map(|(name, value, _)| (name, value)))
    }
}

/// Checks that an attribute can have this name.
fn check_name(name: &[u8]) -> Result<(), NotApplied> {
    if name.len() > NAME_MAX {
        return fail(ErrorKind::NameTooLong, format!("attribute name of {} bytes", name.len()));
    }
    let prefixed = PREFIXES.iter().any(|p| name.starts_with(p) && name.len() > p.len());
    if name.contains(&0) || !(prefixed || acl::is_acl(name)) {
        let show = String::from_utf8_lossy(name);
        return fail(
            ErrorKind::Unsupported,
            format!("no extended attribute can be named `{show}`"),
        );
    }
    Ok(())
}

impl Core {
    /// If the lifetime attribute differs between `before` and `now`, gives inode `ino` the class
    /// for the new lifetime, or the ordinary file class if there is no lifetime. A directory keeps
    /// its class. The inode must be in the cache.
    pub(crate) fn apply_lifetime(&mut self, ino: Ino, before: &Xattrs, now: &Xattrs) {
        let said = |xattrs: &Xattrs| {
            xattrs.0.get(lifetime::ATTRIBUTE).and_then(|value| lifetime::Lifetime::parse(value))
        };
        let head = &mut self.inode_mut(ino).head;
        if said(before) != said(now) && head.node.class != crate::format::class::DIRECTORY {
            head.node.class =
                said(now).map_or(crate::format::class::FILE, lifetime::Lifetime::class);
        }
    }
}

impl Core {
    fn has_xattrs(&self) -> bool {
        self.env.layout.incompat & INCOMPAT_XATTRS != 0
    }

    /// Ids of the nodes that hold the attributes of `ino`, checked to belong to it, and the number
    /// of bytes of all attributes.
    pub(crate) fn xattr_nids(&mut self, ino: Ino) -> Result<(Nids, usize), NotApplied> {
        let head = &self.inode(ino)?.head;
        let bytes = head.xattr_bytes.get() as usize;
        let nids: Nids = head.xattrs.chunks_exact(4).take(nodes_for(bytes)).map(le).collect();
        for (at, nid) in nids.iter().enumerate() {
            let owner = self.tables.nat().get(*nid).ino.get();
            if *nid == ino.0 || owner != ino.0 || nids[..at].contains(nid) {
                let what = format!("node {nid} of inode {owner} for extended attributes");
                return Err(self.corrupt(format!("inode {ino}: {what}: run furrow fsck")));
            }
        }
        Ok((nids, bytes))
    }

    /// The packed attributes of `ino`.
    pub(crate) fn packed_xattrs(&mut self, ino: Ino) -> Result<Vec<u8>, NotApplied> {
        let (nids, bytes) = self.xattr_nids(ino)?;
        if nids.is_empty() {
            return Ok(self.inode(ino)?.head.xattrs[..bytes.min(XATTRS_INLINE)].to_vec());
        }
        let mut missing = SmallVec::new();
        let mut packed = Vec::with_capacity(nids.len() * XATTR_NODE);
        for (at, nid) in nids.iter().enumerate() {
            match self.node(*nid) {
                Ok(page) => {
                    let head = header(page);
                    if head.level != LEVEL_XATTR || head.base.get() as usize != at {
                        let what = format!("node {nid}: level {} base {}", head.level, head.base);
                        return Err(self.corrupt(format!("{what}, expected attributes {at}")));
                    }
                    packed.extend(&as_xattrs(page).bytes);
                }
                Err(NotApplied::Blocked(Blocked::Load(fetch))) => missing.extend(fetch),
                Err(stop) => return Err(stop),
            }
        }
        if !missing.is_empty() {
            return Err(Blocked::Load(missing).into());
        }
        packed.truncate(bytes);
        Ok(packed)
    }

    /// Returns the attributes of `ino`.
    pub(crate) fn xattrs(&mut self, ino: Ino) -> Result<Xattrs, NotApplied> {
        let packed = self.packed_xattrs(ino)?;
        match Xattrs::parse(&packed) {
            Some(xattrs) => Ok(xattrs),
            None => Err(self.corrupt(format!("inode {ino}: damaged extended attributes"))),
        }
    }

    /// Returns one attribute of `ino`.
    pub(crate) fn xattr(&mut self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>, NotApplied> {
        if self.inode(ino)?.head.xattr_bytes.get() == 0 {
            return Ok(None);
        }
        Ok(self.xattrs(ino)?.0.remove(name))
    }

    /// See [`crate::Fs::getxattr`].
    pub(crate) fn getxattr(&mut self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, NotApplied> {
        match self.xattr(ino, name)? {
            Some(value) => Ok(value),
            None => fail(ErrorKind::NoAttribute, format!("inode {ino} has no such attribute")),
        }
    }

    /// See [`crate::Fs::listxattr`].
    pub(crate) fn listxattr(&mut self, ino: Ino) -> Result<Vec<Vec<u8>>, NotApplied> {
        Ok(self.xattrs(ino)?.0.into_keys().collect())
    }

    /// See [`crate::Fs::setxattr`] and [`crate::Fs::removexattr`]: sets `name` to `value`, or
    /// removes it.
    pub(crate) fn change_xattr(
        &mut self,
        ino: Ino,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<(), NotApplied> {
        self.writable()?;
        check_name(name)?;
        if !self.has_xattrs() {
            let message = "the file system was made without extended attributes: make a new \
                           one with furrow mkfs";
            return fail(ErrorKind::Unsupported, message);
        }
        if value.is_some_and(|value| value.len() > XATTR_VALUE_MAX) {
            return fail(
                ErrorKind::NoSpace,
                format!("a value has at most {XATTR_VALUE_MAX} bytes"),
            );
        }
        self.throttle()?;
        let kind = Kind::from_code(self.inode(ino)?.head.kind);
        if let (true, Some(value)) = (name == lifetime::ATTRIBUTE, value) {
            lifetime::check(value)?;
        }
        let mut xattrs = self.xattrs(ino)?;
        let exists = xattrs.0.contains_key(name);
        match (mode, exists) {
            (XattrMode::Create, true) => {
                return fail(ErrorKind::Exists, format!("inode {ino} has the attribute"));
            }
            (XattrMode::Replace, false) => {
                return fail(ErrorKind::NoAttribute, format!("inode {ino} has no such attribute"));
            }
            _ => {}
        }
        let mut permissions = None;
        let removal = value.is_none();
        let mut value = value.map(<[u8]>::to_vec);
        if let (true, Some(bytes)) = (acl::is_acl(name), &value) {
            let checked = acl::check_set(name, bytes, kind);
            let set = checked.map_err(|(kind, why)| NotApplied::Failed(Error::new(kind, why)))?;
            (permissions, value) = (set.mode, set.stored);
        }
        let before = (name == lifetime::ATTRIBUTE).then(|| xattrs.clone());
        match value {
            Some(value) => drop(xattrs.0.insert(name.to_vec(), value)),
            None => drop(xattrs.0.remove(name)),
        }
        let packed = xattrs.pack();
        xattrs.check(&packed)?;
        let nodes = nodes_for(packed.len());
        let added = nodes.saturating_sub(self.xattr_nids(ino)?.0.len()) as u64;
        let claim = if removal { Claim::Removal } else { Claim::User(added) };
        self.reserve(0, nodes as u32 + 1, claim)?;
        // Apply the change.
        if let Some(before) = before {
            self.apply_lifetime(ino, &before, &xattrs);
        }
        self.store_xattrs(ino, &packed)?;
        let now = stamp(self.now());
        let head = &mut self.inode_mut(ino).head;
        head.ctime = now;
        if let Some(mode) = permissions {
            head.mode = (head.mode.get() & !0o777 | mode).into();
        }
        Ok(())
    }

    /// Loads the attributes of a directory, because its sync record will contain them.
    pub(crate) fn prepare_xattrs(&mut self, ino: Ino) -> Result<(), NotApplied> {
        if self.inode(ino)?.head.kind == Kind::Directory.code() {
            self.packed_xattrs(ino)?;
        }
        Ok(())
    }

    /// Replaces all attributes of `ino` by those in a sync record. Loads the present
    /// attributes first.
    pub(crate) fn replay_xattrs(&mut self, ino: Ino, packed: &[u8]) -> Result<(), NotApplied> {
        if self.packed_xattrs(ino)? != packed {
            self.store_xattrs(ino, packed)?;
        }
        Ok(())
    }

    /// The packed attributes of `ino` after its permissions are changed to `mode`; `None` if the
    /// attributes do not change.
    pub(crate) fn chmod_xattrs(
        &mut self,
        ino: Ino,
        mode: u16,
    ) -> Result<Option<Vec<u8>>, NotApplied> {
        let Some(value) = self.xattr(ino, acl::ACCESS)? else { return Ok(None) };
        let Ok(mut acl) = Acl::parse(&value) else { return Ok(None) };
        acl.chmod(mode);
        let mut xattrs = self.xattrs(ino)?;
        xattrs.0.insert(acl::ACCESS.to_vec(), acl.pack());
        Ok(Some(xattrs.pack()))
    }

    /// The permissions and attributes of a new inode of `kind` in directory `parent`. `umask`
    /// applies only if the directory has no default ACL.
    pub(crate) fn inherit(
        &mut self,
        parent: Ino,
        kind: Kind,
        mode: u16,
        umask: u16,
    ) -> Result<(u16, Vec<u8>), NotApplied> {
        if kind == Kind::Symlink {
            return Ok((mode, Vec::new()));
        }
        if self.inode(parent)?.head.xattr_bytes.get() == 0 {
            return Ok((mode & !umask, Vec::new()));
        }
        let mut of_parent = self.xattrs(parent)?.0;
        let mut xattrs = Xattrs::default();
        if let (Kind::File | Kind::Directory, Some(said)) =
            (kind, of_parent.remove(lifetime::ATTRIBUTE))
        {
            xattrs.0.insert(lifetime::ATTRIBUTE.to_vec(), said);
        }
        let default = of_parent.remove(acl::DEFAULT);
        let Some(mut acl) = default.as_deref().and_then(|value| Acl::parse(value).ok()) else {
            return Ok((mode & !umask, xattrs.pack()));
        };
        let (mode, needed) = acl.masked(mode);
        if needed {
            xattrs.0.insert(acl::ACCESS.to_vec(), acl.pack());
        }
        if let (Kind::Directory, Some(default)) = (kind, default) {
            xattrs.0.insert(acl::DEFAULT.to_vec(), default);
        }
        Ok((mode, xattrs.pack()))
    }

    /// Stores the attributes that a new inode has from the start.
    pub(crate) fn store_first_xattrs(&mut self, ino: Ino, packed: &[u8]) -> Result<(), NotApplied> {
        if packed.is_empty() {
            return Ok(());
        }
        if let Some(xattrs) = Xattrs::parse(packed) {
            self.apply_lifetime(ino, &Xattrs::default(), &xattrs);
        }
        self.store_xattrs(ino, packed)
    }

    /// Stores `packed` as the attributes of `ino`. The inode must be in the cache, and enough
    /// ids reserved.
    pub(crate) fn store_xattrs(&mut self, ino: Ino, packed: &[u8]) -> Result<(), NotApplied> {
        let (old, _) = self.xattr_nids(ino)?;
        let count = nodes_for(packed.len());
        let class = self.inode_mut(ino).head.node.class;
        let mut area = [0; XATTRS_INLINE];
        if count == 0 {
            area[..packed.len()].copy_from_slice(packed);
        }
        for (at, part) in packed.chunks(XATTR_NODE).enumerate().take(count) {
            let mut bytes = [0; XATTR_NODE];
            bytes[..part.len()].copy_from_slice(part);
            let nid = match old.get(at) {
                Some(nid) => *nid,
                None => self.tables.take_id().expect("invariant: ids were reserved"),
            };
            area[at * 4..at * 4 + 4].copy_from_slice(&nid.to_le_bytes());
            let known = self.cache.peek(&Key::Node(nid)).map(|entry| as_xattrs(entry.page()));
            if at < old.len() && known.is_some_and(|known| known.bytes == bytes) {
                continue;
            }
            if at >= old.len() {
                let page = new_node(&self.env.pages, (nid, ino.0), at as u32, LEVEL_XATTR, class);
                self.insert_node(nid, ino.0, page);
            }
            self.node_mut(nid)[BLOCK - XATTR_NODE..].copy_from_slice(&bytes);
        }
        for nid in old.iter().skip(count) {
            self.drop_node(*nid);
        }
        let head = &mut self.inode_mut(ino).head;
        head.xattr_bytes = (packed.len() as u32).into();
        head.xattrs = area;
        Ok(())
    }
}

fn le(bytes: &[u8]) -> u32 {
    bytes.try_into().map(u32::from_le_bytes).expect("invariant: four bytes each")
}

/// Checks the attributes of an inode as far as that is possible without its other nodes.
pub(crate) fn check_inode(page: &Page) -> Result<(), String> {
    let head = &as_inode(page).head;
    let bytes = head.xattr_bytes.get() as usize;
    if bytes > XATTRS_MAX {
        return Err(format!("inode {}: {bytes} bytes of extended attributes", head.node.nid));
    }
    debug_assert_eq!(head.node.magic.get(), NODE_MAGIC);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn damaged_bytes_are_no_attributes() {
        let mut xattrs = Xattrs::default();
        xattrs.0.insert(b"user.a".to_vec(), b"one".to_vec());
        xattrs.0.insert(b"user.b".to_vec(), vec![]);
        let packed = xattrs.pack();
        assert_eq!(Xattrs::parse(&packed), Some(xattrs));
        for cut in 1..packed.len() {
            // The only shorter packed form is the first attribute alone.
            assert_eq!(Xattrs::parse(&packed[..cut]).is_some(), cut == 5 + 6 + 3, "{cut}");
        }
        let twice = [&packed[..14], &packed[..14]].concat();
        assert_eq!(Xattrs::parse(&twice), None, "names ascend");
    }

    #[test]
    fn what_fits_the_inode_takes_no_node() {
        assert_eq!([0, 372, 373, 4064, 4065].map(nodes_for), [0, 0, 1, 1, 2]);
        assert!(nodes_for(XATTRS_MAX) * 4 <= XATTRS_INLINE);
    }

    proptest! {
        #[test]
        fn packing_loses_nothing_and_no_bytes_panic(
            pairs in prop::collection::btree_map(
                prop::collection::vec(1u8.., 1..20), prop::collection::vec(any::<u8>(), 0..50),
                0..8),
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let xattrs = Xattrs(pairs);
            prop_assert_eq!(Xattrs::parse(&xattrs.pack()), Some(xattrs));
            let _ = Xattrs::parse(&bytes);
        }
    }
}
