//! The log of namespace operations since the last checkpoint, in order.
//!
//! Every change of a name is noted here, encoded as an item of a later sync record. An fsync logs
//! all operations that are not in a record yet, so the names on the drive are always the names
//! after some prefix of the operations. Operations are numbered. A checkpoint states the number
//! below which it contains all operations, and replay skips these operations.
//!
//! A file that replaces another file in a rename is *carried*: the record with the rename includes
//! the file's content too. So after a crash the name never leads to an empty file in place of the
//! old one.

use crate::format::item;
use crate::types::{Ino, Kind, RenameMode, Time};
use furrow_log::audit::{Broken, at_most, equal, expect};
use furrow_zone::Result;
use std::collections::VecDeque;
use std::fmt;

/// One namespace operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NameOp {
    Create {
        parent: u32,
        ino: u32,
        generation: u32,
        kind: Kind,
        mode: u16,
        uid: u32,
        gid: u32,
        rdev: u32,
        time: Time,
        name: Vec<u8>,
        target: Vec<u8>,
        /// The extended attributes that the inode has from the start, packed.
        xattrs: Vec<u8>,
    },
    Link {
        ino: u32,
        parent: u32,
        time: Time,
        name: Vec<u8>,
    },
    Remove {
        parent: u32,
        time: Time,
        name: Vec<u8>,
    },
    Rename {
        from: u32,
        to: u32,
        mode: RenameMode,
        time: Time,
        old: Vec<u8>,
        new: Vec<u8>,
    },
}

impl fmt::Display for NameOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        match self {
            NameOp::Create { parent, ino, name, .. } => {
                write!(f, "create of {:?} in inode {parent}, as inode {ino}", text(name))
            }
            NameOp::Link { ino, parent, name, .. } => {
                write!(f, "link of inode {ino} as {:?} in inode {parent}", text(name))
            }
            NameOp::Remove { parent, name, .. } => {
                write!(f, "removal of {:?} from inode {parent}", text(name))
            }
            NameOp::Rename { from, to, old, new, .. } => {
                let (old, new) = (text(old), text(new));
                write!(f, "rename of {old:?} in inode {from} to {new:?} in inode {to}")
            }
        }
    }
}

/// Encodes the fields of items.
#[derive(Default)]
pub(crate) struct Encoder(pub(crate) Vec<u8>);

impl Encoder {
    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }
    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub(crate) fn time(&mut self, time: Time) -> &mut Self {
        self.u64(time.seconds as u64).u32(time.nanoseconds)
    }
    pub(crate) fn long_bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(bytes.len() as u32);
        self.0.extend(bytes);
        self
    }
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.u16(bytes.len() as u16);
        self.0.extend(bytes);
        self
    }
}

/// Decodes the fields of items; returns `None` past the end.
pub(crate) struct Decoder<'a>(pub(crate) &'a [u8]);

impl<'a> Decoder<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (now, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(now)
    }
    pub(crate) fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }
    pub(crate) fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }
    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }
    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
    pub(crate) fn time(&mut self) -> Option<Time> {
        let (seconds, nanoseconds) = (self.u64()? as i64, self.u32()?);
        (nanoseconds < 1_000_000_000).then_some(Time { seconds, nanoseconds })
    }
    pub(crate) fn long_bytes(&mut self) -> Option<Vec<u8>> {
        let count = self.u32()?;
        Some(self.take(count as usize)?.to_vec())
    }
    pub(crate) fn bytes(&mut self) -> Option<Vec<u8>> {
        let count = self.u16()?;
        Some(self.take(usize::from(count))?.to_vec())
    }
}

impl NameOp {
    /// Appends the operation as an item: tag, number, fields.
    pub(crate) fn encode(&self, number: u64, out: &mut Encoder) {
        match self {
            NameOp::Create {
                parent,
                ino,
                generation,
                kind,
                mode,
                uid,
                gid,
                rdev,
                time,
                name,
                target,
                xattrs,
            } => {
                let tag = if xattrs.is_empty() { item::CREATE } else { item::CREATE_WITH };
                out.u8(tag).u64(number).u32(*parent).u32(*ino).u32(*generation);
                out.u8(kind.code()).u16(*mode).u32(*uid).u32(*gid).u32(*rdev).time(*time);
                out.bytes(name).bytes(target);
                if !xattrs.is_empty() {
                    out.bytes(xattrs);
                }
            }
            NameOp::Link { ino, parent, time, name } => {
                out.u8(item::LINK).u64(number).u32(*ino).u32(*parent).time(*time).bytes(name);
            }
            NameOp::Remove { parent, time, name } => {
                out.u8(item::REMOVE).u64(number).u32(*parent).time(*time).bytes(name);
            }
            NameOp::Rename { from, to, mode, time, old, new } => {
                let mode = match mode {
                    // A whiteout is a separate operation, which follows immediately.
                    RenameMode::Replace | RenameMode::Whiteout { .. } => 0,
                    RenameMode::NoReplace => 1,
                    RenameMode::Exchange => 2,
                };
                out.u8(item::RENAME).u64(number).u32(*from).u32(*to).u8(mode).time(*time);
                out.bytes(old).bytes(new);
            }
        }
    }

    /// Decodes the rest of an item, after its `tag`: number and operation.
    pub(crate) fn decode(tag: u8, input: &mut Decoder<'_>) -> Option<(u64, NameOp)> {
        let number = input.u64()?;
        let operation = match tag {
            item::CREATE | item::CREATE_WITH => NameOp::Create {
                parent: input.u32()?,
                ino: input.u32()?,
                generation: input.u32()?,
                kind: Kind::from_code(input.u8()?)?,
                mode: input.u16()?,
                uid: input.u32()?,
                gid: input.u32()?,
                rdev: input.u32()?,
                time: input.time()?,
                name: input.bytes()?,
                target: input.bytes()?,
                xattrs: if tag == item::CREATE { Vec::new() } else { input.bytes()? },
            },
            item::LINK => NameOp::Link {
                ino: input.u32()?,
                parent: input.u32()?,
                time: input.time()?,
                name: input.bytes()?,
            },
            item::REMOVE => {
                NameOp::Remove { parent: input.u32()?, time: input.time()?, name: input.bytes()? }
            }
            item::RENAME => NameOp::Rename {
                from: input.u32()?,
                to: input.u32()?,
                mode: match input.u8()? {
                    0 => RenameMode::Replace,
                    1 => RenameMode::NoReplace,
                    2 => RenameMode::Exchange,
                    _ => return None,
                },
                time: input.time()?,
                old: input.bytes()?,
                new: input.bytes()?,
            },
            _ => return None,
        };
        Some((number, operation))
    }
}

/// The operations since the last durable checkpoint.
///
/// Invariants:
/// - `first ≤ logged ≤ next`.
/// - `bytes` is the length of all items, `unlogged` the length of the items from `logged` on.
/// - A carried file belongs to an operation that is not in a record.
#[derive(Default)]
pub(crate) struct NamespaceLog {
    /// Encoded items; the first has number `first`.
    items: VecDeque<Vec<u8>>,
    first: u64,
    /// Number of the first operation that is not in a sync record.
    logged: u64,
    bytes: usize,
    /// Bytes of operations that are not in a record.
    unlogged: usize,
    /// Files that replaced other files, each with the number of the rename.
    carried: VecDeque<(u64, Ino)>,
    broken: Broken,
}

impl NamespaceLog {
    /// An empty log whose next operation has `number`.
    pub(crate) fn starting_at(number: u64) -> NamespaceLog {
        NamespaceLog { first: number, logged: number, ..NamespaceLog::default() }
    }

    /// From now on, the log tells `broken` when one of its counts would go below zero.
    pub(super) fn note_broken_in(&mut self, broken: &Broken) {
        self.broken = broken.clone();
    }

    /// Number of the next operation.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.items.len() as u64
    }

    /// Appends an operation to the log.
    pub(crate) fn push(&mut self, operation: &NameOp) {
        let mut item = Encoder::default();
        operation.encode(self.next(), &mut item);
        self.bytes += item.0.len();
        self.unlogged += item.0.len();
        self.items.push_back(item.0);
    }

    /// Notes that the last operation replaced another file with `ino`: the record with this
    /// operation must include the content of `ino`.
    pub(crate) fn carry(&mut self, ino: Ino) {
        let last = self.next().checked_sub(1);
        debug_assert!(!self.items.is_empty(), "a file is carried by an operation");
        self.carried.extend(last.map(|last| (last, ino)));
    }

    /// Files whose content the next record must contain.
    pub(crate) fn carried(&self) -> impl Iterator<Item = Ino> + '_ {
        self.carried.iter().map(|(_, ino)| *ino)
    }

    /// Memory in use, in bytes: items and their containers.
    pub(crate) fn bytes(&self) -> u64 {
        let carried = self.carried.capacity() * size_of::<(u64, Ino)>();
        (self.bytes + self.items.len() * size_of::<Vec<u8>>() + carried) as u64
    }

    /// Skips the number of an operation that cannot be replayed; no operation may be
    /// logged afterwards.
    pub(crate) fn skip(&mut self) {
        self.items.push_back(Vec::new());
    }

    /// Bytes of operations that are not in a record.
    pub(crate) fn unlogged_bytes(&self) -> usize {
        self.unlogged
    }

    /// Appends every item that is not in a record to `out`; these items count as logged from
    /// now on.
    pub(crate) fn take_unlogged(&mut self, out: &mut Encoder) {
        let skip = (self.logged - self.first) as usize;
        for item in self.items.iter().skip(skip) {
            out.0.extend(item);
        }
        self.logged = self.next();
        self.unlogged = 0;
        self.carried.clear();
    }

    /// Drops the operations below `number`, which are in a durable checkpoint.
    pub(crate) fn durable(&mut self, number: u64) {
        while self.first < number {
            let Some(item) = self.items.pop_front() else { break };
            self.bytes = self.broken.less("NamespaceLog::bytes", self.bytes, item.len());
            if self.first >= self.logged {
                let unlogged = self.unlogged;
                self.unlogged = self.broken.less("NamespaceLog::unlogged", unlogged, item.len());
            }
            self.first += 1;
        }
        self.first = self.first.max(number);
        self.logged = self.logged.max(self.first);
        while self.carried.front().is_some_and(|(at, _)| *at < self.logged) {
            self.carried.pop_front();
        }
    }

    /// Compares the log's counts with its items.
    ///
    /// # Errors
    /// `Internal`, with the account.
    pub(crate) fn audit(&self) -> Result<()> {
        let bytes: usize = self.items.iter().map(Vec::len).sum();
        equal("NamespaceLog::bytes", bytes, self.bytes)?;
        at_most("NamespaceLog::first", self.logged, self.first)?;
        at_most("NamespaceLog::logged", self.next(), self.logged)?;
        let skip = (self.logged - self.first) as usize;
        let unlogged: usize = self.items.iter().skip(skip).map(Vec::len).sum();
        equal("NamespaceLog::unlogged, from NamespaceLog::logged on", unlogged, self.unlogged)?;
        for (number, ino) in &self.carried {
            let due = (self.logged..self.next()).contains(number);
            let account = format_args!("NamespaceLog::carried, inode {ino} by operation {number}");
            expect(account, due, "an operation that is in no record")?;
        }
        Ok(())
    }

    /// Number of operations kept.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }
}

#[cfg(test)]
impl NamespaceLog {
    /// Counts all operations as logged without updating `unlogged`.
    pub(crate) fn corrupt_logged(&mut self) {
        self.logged = self.next();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn samples() -> Vec<NameOp> {
        let time = Time { seconds: -5, nanoseconds: 7 };
        let name = b"name".to_vec();
        vec![
            NameOp::Create {
                parent: 1,
                ino: 2,
                generation: 3,
                kind: Kind::Symlink,
                mode: 0o777,
                uid: 4,
                gid: 5,
                rdev: 6,
                time,
                name: name.clone(),
                target: b"target".to_vec(),
                xattrs: Vec::new(),
            },
            NameOp::Create {
                parent: 1,
                ino: 2,
                generation: 3,
                kind: Kind::File,
                mode: 0o640,
                uid: 4,
                gid: 5,
                rdev: 0,
                time,
                name: name.clone(),
                target: Vec::new(),
                xattrs: b"packed".to_vec(),
            },
            NameOp::Link { ino: 2, parent: 1, time, name: name.clone() },
            NameOp::Remove { parent: 1, time, name: name.clone() },
            NameOp::Rename {
                from: 1,
                to: 2,
                mode: RenameMode::Exchange,
                time,
                old: name.clone(),
                new: name,
            },
        ]
    }

    #[test]
    fn operations_survive_encoding_and_short_input_is_refused() {
        for (number, operation) in samples().into_iter().enumerate() {
            let mut out = Encoder::default();
            operation.encode(number as u64, &mut out);
            let mut input = Decoder(&out.0[1..]);
            let decoded = NameOp::decode(out.0[0], &mut input);
            assert_eq!(decoded, Some((number as u64, operation)));
            assert!(input.0.is_empty());
            for cut in 1..out.0.len() {
                assert_eq!(NameOp::decode(out.0[0], &mut Decoder(&out.0[1..cut])), None);
            }
        }
    }

    #[test]
    fn a_log_keeps_what_no_checkpoint_has_and_logs_each_once() {
        let mut log = NamespaceLog::starting_at(10);
        let operations = samples();
        log.push(&operations[0]);
        log.push(&operations[1]);
        let mut out = Encoder::default();
        log.take_unlogged(&mut out);
        let both = out.0.len();
        assert!(both > 0 && log.unlogged_bytes() == 0);
        log.push(&operations[2]);
        log.durable(11);
        assert_eq!((log.len(), log.next()), (2, 13));
        let mut out = Encoder::default();
        log.take_unlogged(&mut out);
        assert!(out.0.len() < both);
        log.durable(13);
        assert_eq!((log.len(), log.next()), (0, 13));
    }

    #[test]
    fn a_file_is_carried_until_a_record_or_a_checkpoint_has_its_rename() {
        let mut log = NamespaceLog::starting_at(10);
        let operations = samples();
        log.push(&operations[4]);
        log.carry(Ino(2));
        log.push(&operations[4]);
        log.carry(Ino(3));
        // A checkpoint's snapshot was taken between the two operations.
        log.durable(11);
        assert_eq!(log.carried().collect::<Vec<_>>(), [Ino(3)]);
        let unlogged = log.unlogged_bytes();
        let mut out = Encoder::default();
        log.take_unlogged(&mut out);
        assert_eq!((out.0.len(), log.unlogged_bytes()), (unlogged, 0));
        assert_eq!(log.carried().count(), 0);
        log.push(&operations[4]);
        log.carry(Ino(2));
        log.durable(13);
        assert_eq!((log.carried().count(), log.unlogged_bytes()), (0, 0));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(tag in 0u8..13, bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = NameOp::decode(tag, &mut Decoder(&bytes));
        }
    }
}
