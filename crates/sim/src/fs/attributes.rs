//! Attributes in the model: permission bits, owners, extended attributes, access lists, and times.
//!
//! The interaction of access lists and permission bits is implemented here a second time, from
//! acl(5) and not from the engine's code.

use crate::fs::op::{Make, Object, Value};
use furrow_rt::Nanos;
use furrow_zone::ErrorKind;
use std::collections::BTreeMap;

/// Extended attributes of an object by slot.
pub type Xattrs = BTreeMap<u8, Value>;

/// Slot of the attribute with the expected lifetime of data.
pub const LIFETIME: u8 = 4;
/// Slot of the access list.
pub const ACCESS: u8 = 5;
/// Slot of a directory's default access list.
pub const DEFAULT: u8 = 6;
/// Number of slots.
pub const SLOTS: u8 = 7;

const LIFETIMES: [&str; 4] = ["short", "medium", "long", "extreme"];

/// An access list as a number: three bits each for the owner, a user, the group, the mask and
/// others; without [`List::NAMED`] user and mask are absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct List(u32);

impl List {
    const OTHER: u32 = 0;
    const MASK: u32 = 3;
    const GROUP: u32 = 6;
    const USER: u32 = 9;
    const OWNER: u32 = 12;
    const NAMED: u32 = 1 << 15;

    fn get(self, entry: u32) -> u16 {
        (self.0 >> entry & 7) as u16
    }

    fn set(&mut self, entry: u32, bits: u16) {
        self.0 = self.0 & !(7 << entry) | u32::from(bits & 7) << entry;
    }

    fn is_named(self) -> bool {
        self.0 & List::NAMED != 0
    }

    /// The entry that the group's permission bits show: the mask if the list has one, else
    /// the group.
    fn middle(self) -> u32 {
        if self.is_named() { List::MASK } else { List::GROUP }
    }

    fn mode(self) -> u16 {
        self.get(List::OWNER) << 6 | self.get(self.middle()) << 3 | self.get(List::OTHER)
    }

    fn chmod(mut self, mode: u16) -> List {
        self.set(List::OWNER, mode >> 6);
        self.set(self.middle(), mode >> 3);
        self.set(List::OTHER, mode);
        self
    }

    fn bytes(self) -> Vec<u8> {
        let mut out = 2u32.to_le_bytes().to_vec();
        let mut entry = |tag: u16, at: u32, id: u32| {
            out.extend(tag.to_le_bytes());
            out.extend(self.get(at).to_le_bytes());
            out.extend(id.to_le_bytes());
        };
        entry(0x01, List::OWNER, u32::MAX);
        if self.is_named() {
            entry(0x02, List::USER, 1000);
        }
        entry(0x04, List::GROUP, u32::MAX);
        if self.is_named() {
            entry(0x10, List::MASK, u32::MAX);
        }
        entry(0x20, List::OTHER, u32::MAX);
        out
    }
}

/// The name of attribute `slot`, if it has a special meaning.
pub(crate) fn special_name(slot: u8) -> Option<&'static str> {
    match slot {
        LIFETIME => Some("user.furrow.lifetime"),
        ACCESS => Some("system.posix_acl_access"),
        DEFAULT => Some("system.posix_acl_default"),
        _ => None,
    }
}

/// The value of attribute `slot`, if it has a special meaning.
pub(crate) fn special_value(slot: u8, value: Value) -> Option<Vec<u8>> {
    match slot {
        LIFETIME => Some(LIFETIMES[value.version as usize % 4].into()),
        ACCESS | DEFAULT => Some(List(value.version).bytes()),
        _ => None,
    }
}

/// The attributes of an inode other than content, names and times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits.
    pub mode: u16,
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the group.
    pub gid: u32,
    /// Extended attributes, access lists included.
    pub xattrs: Xattrs,
}

/// Owner and group of a client's new objects.
pub fn owners(object: Object) -> (u32, u32) {
    let client = u32::from(object.client().unwrap_or(0));
    (1000 + client, 2000 + client)
}

impl Attributes {
    /// Attributes of a new object, made with `mode` in a directory with the attributes `parent`.
    pub fn made(object: Object, make: Make, mode: u16, parent: Option<&Attributes>) -> Attributes {
        let (uid, gid) = owners(object);
        let mut made = Attributes { mode, uid, gid, xattrs: Xattrs::new() };
        // New objects inherit the group of a directory with the set-group-id bit, and new
        // directories also the bit, as inode(7) says.
        if let Some(parent) = parent.filter(|parent| parent.mode & 0o2000 != 0) {
            made.gid = parent.gid;
            made.mode |= if make == Make::Directory { 0o2000 } else { 0 };
        }
        let of = |slot| parent.and_then(|parent| parent.xattrs.get(&slot).copied());
        if matches!(make, Make::Symlink(_)) {
            return made;
        }
        if let (Make::File | Make::Directory, Some(said)) = (make, of(LIFETIME)) {
            made.xattrs.insert(LIFETIME, said);
        }
        let Some(default) = of(DEFAULT) else { return made };
        let list = List(default.version);
        made.mode &= list.mode() | !0o777;
        if list.is_named() {
            let access = Value { version: list.chmod(made.mode).0, size: 0 };
            made.xattrs.insert(ACCESS, access);
        }
        if make == Make::Directory {
            made.xattrs.insert(DEFAULT, default);
        }
        made
    }

    /// Sets permission bits, including those of an access list.
    pub fn chmod(&mut self, mode: u16) {
        self.mode = mode;
        if let Some(access) = self.xattrs.get_mut(&ACCESS) {
            access.version = List(access.version).chmod(mode).0;
        }
    }

    /// Sets or removes an extended attribute.
    ///
    /// # Errors
    /// The error that a file system must return; then nothing has changed.
    pub fn set(&mut self, slot: u8, value: Option<Value>, make: Make) -> Result<(), ErrorKind> {
        let Some(value) = value else {
            return self.xattrs.remove(&slot).map(drop).ok_or(ErrorKind::NoAttribute);
        };
        let list = List(value.version);
        match slot {
            ACCESS | DEFAULT if matches!(make, Make::Symlink(_)) => Err(ErrorKind::Unsupported),
            DEFAULT if make != Make::Directory => Err(ErrorKind::Denied),
            ACCESS => {
                self.mode = self.mode & !0o777 | list.mode();
                match list.is_named() {
                    true => drop(self.xattrs.insert(slot, value)),
                    // The permission bits say all that the list says, so the list is not stored.
                    false => drop(self.xattrs.remove(&slot)),
                }
                Ok(())
            }
            _ => {
                self.xattrs.insert(slot, value);
                Ok(())
            }
        }
    }
}

/// A time of an inode: seconds since 1970 and nanoseconds.
pub type Moment = (i64, u32);

/// The wall clock at the start of a simulation: 2020-01-01.
const BEGINNING: i64 = 1_577_836_800;

/// Times of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Time of the last access.
    pub atime: Moment,
    /// Time of the last change of the content.
    pub mtime: Moment,
    /// Time of the last change of the inode.
    pub ctime: Moment,
}

/// The wall-clock time at `now` of the simulation's clock.
pub fn moment(now: Nanos) -> Moment {
    (BEGINNING + (now.0 / Nanos::SECOND) as i64, (now.0 % Nanos::SECOND) as u32)
}

/// A range of times, both ends included, in which a found time may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    from: Moment,
    to: Moment,
    /// Whether the operation may also have left the time unchanged.
    maybe: bool,
}

/// The times of one kind (access, content or inode) that may be found, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Allowed(Vec<Span>);

impl Allowed {
    /// Notes that the time was set between `from` and `to`. If `durable`, no earlier time may
    /// be found.
    pub fn set(&mut self, (from, to): (Moment, Moment), durable: bool) {
        if durable {
            self.0.clear();
        }
        self.0.push(Span { from, to, maybe: false });
    }

    /// Notes that the time was perhaps set between `from` and `to`.
    pub fn may_be(&mut self, (from, to): (Moment, Moment)) {
        self.0.push(Span { from, to, maybe: true });
    }

    /// Keeps only the times that may be found when nothing is lost.
    pub fn all_durable(&mut self) {
        let last = self.0.iter().rposition(|span| !span.maybe).unwrap_or(0);
        self.0.drain(..last);
    }

    /// Whether the time `found` is allowed. Any time is, if none was ever set.
    pub fn allows(&self, found: Moment) -> bool {
        self.0.is_empty() || self.0.iter().any(|span| (span.from..=span.to).contains(&found))
    }

    /// Like [`Allowed::allows`], for an access time, which any read may set.
    pub fn allows_access(&self, found: Moment) -> bool {
        let clock = BEGINNING..BEGINNING + 24 * 60 * 60;
        self.allows(found) || clock.contains(&found.0)
    }
}

impl std::fmt::Display for Allowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, span) in self.0.iter().enumerate() {
            let or = if at == 0 { "" } else { " or " };
            write!(f, "{or}{:?}", span.from)?;
            if span.to != span.from {
                write!(f, " to {:?}", span.to)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(owner: u16, user: u16, group: u16, mask: u16, other: u16) -> Value {
        let mut list = List(List::NAMED);
        let entries = [List::OWNER, List::USER, List::GROUP, List::MASK, List::OTHER];
        for (entry, bits) in entries.into_iter().zip([owner, user, group, mask, other]) {
            list.set(entry, bits);
        }
        Value { version: list.0, size: 0 }
    }

    #[test]
    fn lists_and_permission_bits_follow_each_other() {
        let object = Object::made_by(0, 0);
        let mut file = Attributes::made(object, Make::File, 0o4644, None);
        file.set(ACCESS, Some(list(7, 6, 5, 4, 1)), Make::File).unwrap();
        assert_eq!(file.mode, 0o4741, "the group's bits are the mask");
        file.chmod(0o520);
        assert_eq!(file.xattrs[&ACCESS], list(5, 6, 5, 2, 0), "the group's own entry stays");
        file.set(ACCESS, Some(Value { version: 0o62041, size: 0 }), Make::File).unwrap();
        assert_eq!((file.mode, file.xattrs.len()), (0o601, 0), "three entries are the bits");
        assert_eq!(
            file.set(DEFAULT, Some(list(7, 7, 7, 7, 7)), Make::File),
            Err(ErrorKind::Denied)
        );
        assert_eq!(file.set(ACCESS, None, Make::File), Err(ErrorKind::NoAttribute));
    }

    #[test]
    fn what_is_made_inherits() {
        let object = Object::made_by(0, 0);
        let mut dir = Attributes::made(object, Make::Directory, 0o755, None);
        dir.set(DEFAULT, Some(list(7, 6, 5, 6, 1)), Make::Directory).unwrap();
        dir.set(LIFETIME, Some(Value { version: 3, size: 0 }), Make::Directory).unwrap();
        let made = |make| Attributes::made(object, make, 0o757, Some(&dir));
        assert_eq!(made(Make::File).mode, 0o741);
        assert_eq!(made(Make::File).xattrs[&ACCESS], list(7, 6, 5, 4, 1));
        assert_eq!(made(Make::File).xattrs.len(), 2);
        assert_eq!(made(Make::Directory).xattrs.len(), 3);
        assert!(!made(Make::Fifo).xattrs.contains_key(&LIFETIME));
        assert_eq!((made(Make::Symlink(1)).mode, made(Make::Symlink(1)).xattrs.len()), (0o757, 0));
        (dir.mode, dir.gid) = (0o2755, 9);
        let made = |make| Attributes::made(object, make, 0o757, Some(&dir));
        assert_eq!((made(Make::File).mode, made(Make::File).gid), (0o741, 9));
        assert_eq!((made(Make::Directory).mode, made(Make::Symlink(1)).gid), (0o2741, 9));
    }

    #[test]
    fn the_clock_is_the_executors() {
        let rt = furrow_rt::Rt::new(furrow_rt::Config::simulated(1));
        rt.block_on({
            let rt = rt.clone();
            async move { rt.sleep(3_000_000_007).await }
        });
        assert_eq!(moment(rt.now()), rt.wall());
        assert!(moment(rt.now()) > (BEGINNING + 2, 999_999_999));
    }

    #[test]
    fn times_are_those_set_last_or_before_if_that_was_not_durable() {
        let at = |seconds| ((seconds, 0), (seconds, 0));
        let mut allowed = Allowed::default();
        assert!(allowed.allows((7, 0)));
        allowed.set(at(1), true);
        allowed.set(at(2), false);
        allowed.may_be(at(3));
        assert_eq!(
            [0, 1, 2, 3, 4].map(|s| allowed.allows((s, 0))),
            [false, true, true, true, false]
        );
        allowed.all_durable();
        assert_eq!([1, 2, 3].map(|s| allowed.allows((s, 0))), [false, true, true]);
        allowed.set(at(5), true);
        assert!(!allowed.allows((3, 0)) && allowed.allows((5, 0)));
    }
}
