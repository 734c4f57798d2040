//! POSIX access control lists: the permissions that they grant, and how a change of permissions
//! changes them.
//!
//! A list is the value of one of two extended attributes, in the form that Linux passes (version 2,
//! little-endian): a u32 version, then 8 bytes for each entry: tag u16, permissions u16, id u32.
//! The permission bits of an inode with an access list are part of the list. They are the entries
//! of the owner, of the mask (of the group, if there is no mask) and of others.
//!
//! The kernel decides from a list which access is allowed. The functions here read and change
//! nothing except their arguments.

use crate::types::Kind;
use furrow_zone::ErrorKind;

/// The attribute whose list controls access.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of a directory whose list is inherited by new inodes in the directory.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Largest number of entries in a list.
const ENTRIES_MAX: usize = 1024;
const VERSION: u32 = 2;
const NO_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// True if the attribute `name` is an access control list.
pub(crate) fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// A valid access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

/// The result of setting an access control list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Set {
    /// The value to keep; `None` if permission bits express the whole list.
    pub(crate) stored: Option<Vec<u8>>,
    /// The new permission bits (0777); `None` if they stay as they are.
    pub(crate) mode: Option<u16>,
}

/// Checks whether an inode of `kind` can have the list `value` as attribute `name`.
pub(crate) fn check_set(
    name: &[u8],
    value: &[u8],
    kind: Option<Kind>,
) -> Result<Set, (ErrorKind, String)> {
    if kind == Some(Kind::Symlink) {
        return Err((ErrorKind::Unsupported, "a symbolic link has no access list".into()));
    }
    // A list without entries removes the attribute.
    let empty = value.len() == 4;
    if name == DEFAULT && kind != Some(Kind::Directory) {
        return match empty {
            true => Ok(Set { stored: None, mode: None }),
            false => Err((ErrorKind::Denied, "only a directory has a default list".into())),
        };
    }
    let version = value.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes));
    if empty && version == Some(VERSION) {
        return Ok(Set { stored: None, mode: None });
    }
    let acl = Acl::parse(value).map_err(|why| (ErrorKind::Invalid, format!("list: {why}")))?;
    if name == DEFAULT {
        return Ok(Set { stored: Some(acl.pack()), mode: None });
    }
    let stored = (!acl.is_minimal()).then(|| acl.pack());
    Ok(Set { stored, mode: Some(acl.mode()) })
}

impl Acl {
    /// Parses a list and checks it as Linux does. Entries must be in order. There must be exactly
    /// one entry for each of owner, group and others, and a mask if there are entries for other
    /// users or groups.
    pub(crate) fn parse(value: &[u8]) -> Result<Acl, &'static str> {
        let (version, rest) = value.split_first_chunk::<4>().ok_or("shorter than its version")?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err("not version 2");
        }
        if !rest.len().is_multiple_of(8) || rest.len() / 8 > ENTRIES_MAX {
            return Err(
                "its length is not a multiple of 8 bytes, or it has more than 1,024 entries",
            );
        }
        let entries: Vec<Entry> = rest
            .chunks_exact(8)
            .map(|bytes| Entry {
                tag: u16::from_le_bytes([bytes[0], bytes[1]]),
                permissions: u16::from_le_bytes([bytes[2], bytes[3]]),
                id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            })
            .collect();
        let acl = Acl(entries);
        acl.check()?;
        Ok(acl)
    }

    fn check(&self) -> Result<(), &'static str> {
        let count = |tag| self.0.iter().filter(|e| e.tag == tag).count();
        if [USER_OBJ, GROUP_OBJ, OTHER].into_iter().any(|tag| count(tag) != 1) {
            return Err("not one entry for the owner, one for the group, one for others");
        }
        let named = count(USER) + count(GROUP) > 0;
        if count(MASK) > 1 || named && count(MASK) == 0 {
            return Err("a mask is missing, or there are two");
        }
        for entry in &self.0 {
            let known = [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER].contains(&entry.tag);
            if !known || entry.permissions > 7 {
                return Err("an unknown entry or permission");
            }
            if matches!(entry.tag, USER | GROUP) && entry.id == NO_ID {
                return Err("an entry without a user or group");
            }
        }
        match self.0.is_sorted_by_key(|entry| entry.tag) {
            true => Ok(()),
            false => Err("entries out of order"),
        }
    }

    /// Encodes the list in the form that Linux passes.
    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            let named = matches!(entry.tag, USER | GROUP);
            out.extend(entry.tag.to_le_bytes());
            out.extend(entry.permissions.to_le_bytes());
            out.extend(if named { entry.id } else { NO_ID }.to_le_bytes());
        }
        out
    }

    fn of(&mut self, tag: u16) -> Option<&mut u16> {
        self.0.iter_mut().find(|e| e.tag == tag).map(|e| &mut e.permissions)
    }

    fn get(&self, tag: u16) -> Option<u16> {
        self.0.iter().find(|e| e.tag == tag).map(|e| e.permissions)
    }

    /// The tag of the entry that corresponds to the group's permission bits.
    fn group_class(&self) -> u16 {
        if self.get(MASK).is_some() { MASK } else { GROUP_OBJ }
    }

    /// True if permission bits express the whole list.
    fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// The permission bits (0777) that correspond to the list.
    pub(crate) fn mode(&self) -> u16 {
        let of = |tag| self.get(tag).unwrap_or(0);
        of(USER_OBJ) << 6 | of(self.group_class()) << 3 | of(OTHER)
    }

    /// Applies permission bits to the list, as chmod(2) does.
    pub(crate) fn chmod(&mut self, mode: u16) {
        for (tag, bits) in [(USER_OBJ, mode >> 6), (self.group_class(), mode >> 3), (OTHER, mode)] {
            if let Some(permissions) = self.of(tag) {
                *permissions = bits & 7;
            }
        }
    }

    /// Turns a default list into the access list of an inode made with `mode`. Returns the mode of
    /// the inode, and true if the mode does not express the whole list.
    pub(crate) fn masked(&mut self, mode: u16) -> (u16, bool) {
        let narrowed = mode & (self.mode() | !0o777);
        self.chmod(narrowed);
        (narrowed, !self.is_minimal())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl(entries.iter().map(|&(tag, permissions, id)| Entry { tag, permissions, id }).collect())
    }

    fn full() -> Acl {
        acl(&[
            (USER_OBJ, 7, NO_ID),
            (USER, 6, 1000),
            (GROUP_OBJ, 5, NO_ID),
            (GROUP, 4, 2000),
            (MASK, 6, NO_ID),
            (OTHER, 1, NO_ID),
        ])
    }

    #[test]
    fn lists_are_checked_as_linux_checks_them() {
        assert_eq!(Acl::parse(&full().pack()), Ok(full()));
        let minimal = acl(&[(USER_OBJ, 6, NO_ID), (GROUP_OBJ, 4, NO_ID), (OTHER, 0, NO_ID)]);
        assert_eq!(Acl::parse(&minimal.pack()), Ok(minimal));
        for at in 0..6 {
            let mut without = full();
            without.0.remove(at);
            let fine = matches!(full().0[at].tag, USER | GROUP);
            assert_eq!(Acl::parse(&without.pack()).is_ok(), fine, "without entry {at}");
        }
        let mut swapped = full();
        swapped.0.swap(0, 1);
        assert!(Acl::parse(&swapped.pack()).is_err());
        let mut odd = full().pack();
        odd.push(0);
        assert!(Acl::parse(&odd).is_err());
        odd[0] = 3;
        assert!(Acl::parse(&odd[..odd.len() - 1]).is_err());
        assert!(Acl::parse(&[]).is_err());
    }

    #[test]
    fn permission_bits_are_the_owners_the_mask_and_the_others() {
        let mut list = full();
        assert_eq!(list.mode(), 0o761);
        list.chmod(0o2540);
        assert_eq!(list.mode(), 0o540);
        assert_eq!(list.get(GROUP_OBJ), Some(5), "the group's own entry stays");
        let mut minimal = acl(&[(USER_OBJ, 6, NO_ID), (GROUP_OBJ, 4, NO_ID), (OTHER, 0, NO_ID)]);
        minimal.chmod(0o751);
        assert_eq!(minimal.mode(), 0o751);
    }

    #[test]
    fn what_is_made_gets_no_more_than_both_allow() {
        let mut list = full();
        assert_eq!(list.masked(0o4757), (0o4741, true));
        assert_eq!(list.get(MASK), Some(4));
        assert_eq!(list.get(USER), Some(6));
        let mut minimal = acl(&[(USER_OBJ, 7, NO_ID), (GROUP_OBJ, 5, NO_ID), (OTHER, 5, NO_ID)]);
        assert_eq!(minimal.masked(0o666), (0o644, false));
    }

    #[test]
    fn a_list_that_says_no_more_than_the_bits_is_not_kept() {
        let minimal = acl(&[(USER_OBJ, 6, NO_ID), (GROUP_OBJ, 4, NO_ID), (OTHER, 0, NO_ID)]);
        let set = check_set(ACCESS, &minimal.pack(), Some(Kind::File)).unwrap();
        assert_eq!(set, Set { stored: None, mode: Some(0o640) });
        let set = check_set(ACCESS, &full().pack(), Some(Kind::File)).unwrap();
        assert_eq!(set, Set { stored: Some(full().pack()), mode: Some(0o761) });
        let none = VERSION.to_le_bytes();
        let gone = Set { stored: None, mode: None };
        assert_eq!(check_set(DEFAULT, &none, Some(Kind::Directory)), Ok(gone));
        let denied = check_set(DEFAULT, &full().pack(), Some(Kind::File)).unwrap_err();
        assert_eq!(denied.0, ErrorKind::Denied);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(mut list) = Acl::parse(&bytes) {
                list.masked(0o750);
                prop_assert_eq!(list.mode() & !0o750, 0);
            }
        }
    }
}
