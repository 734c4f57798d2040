//! Entries of the record ring, as values and as bytes.

use crate::extent::{Extent, FileId, Lifetime, Sums};
use crate::file_kind::Family;
use crate::format::{
    EXTENT_MAX, EntriesHead, EntryHead, ExtentEntry, FileEntry, NameEntry, PATH_MAX, RenameEntry,
    YoungestEntry, ZoneEntry, entry,
};
use furrow_log::BlockAddr;
use furrow_rt::PAGE_SIZE;
use furrow_zone::{Error, ErrorKind, Result, ZoneId};
use std::collections::BTreeMap;
use std::rc::Rc;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A file as an entry describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileState {
    pub(crate) size: u64,
    pub(crate) modified: i64,
    pub(crate) lifetime: Lifetime,
    pub(crate) extents: Vec<Extent>,
    pub(crate) tail: Vec<u8>,
}

/// One entry of a record: a change of names, of a file or of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A path names a directory (`None`) or a file.
    Name { path: String, file: Option<FileId> },
    /// A path no longer names a file or directory.
    Remove { path: String },
    /// A path, and everything below it, has a new name.
    Rename { from: String, to: String },
    /// The state of a file; the first `keep` blocks are as an earlier entry says.
    File { file: FileId, keep: u32, state: FileState },
    /// The youngest blob file of each family in a zone; none if the zone was reset.
    Zone { zone: ZoneId, youngest: BTreeMap<Family, u64> },
}

impl Entry {
    /// Adds the entry to the body of a record.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend(EntryHead::new_zeroed().as_bytes());
        let kind = match self {
            Entry::Name { path, file } => {
                let head = NameEntry {
                    file: file.map_or(0, |file| file.0).into(),
                    path: (path.len() as u16).into(),
                    reserved: [0; 6],
                };
                out.extend(head.as_bytes());
                out.extend(path.as_bytes());
                entry::NAME
            }
            Entry::Remove { path } => {
                let path_bytes = (path.len() as u16).into();
                let head = NameEntry { file: 0.into(), path: path_bytes, reserved: [0; 6] };
                out.extend(head.as_bytes());
                out.extend(path.as_bytes());
                entry::REMOVE
            }
            Entry::Rename { from, to } => {
                let (a, b) = (from.len() as u16, to.len() as u16);
                let head = RenameEntry { from: a.into(), to: b.into(), reserved: [0; 4] };
                out.extend(head.as_bytes());
                out.extend(from.as_bytes());
                out.extend(to.as_bytes());
                entry::RENAME
            }
            Entry::File { file, keep, state } => {
                let head = FileEntry {
                    file: file.0.into(),
                    size: state.size.into(),
                    modified: state.modified.into(),
                    keep: (*keep).into(),
                    extents: (state.extents.len() as u32).into(),
                    tail: (state.tail.len() as u32).into(),
                    lifetime: state.lifetime as u8,
                    reserved: [0; 11],
                };
                out.extend(head.as_bytes());
                state.extents.iter().for_each(|extent| encode_extent(extent, out));
                out.extend(&state.tail);
                entry::FILE
            }
            Entry::Zone { zone, youngest } => {
                let count = youngest.len() as u32;
                let head = ZoneEntry { zone: zone.0.into(), families: count.into() };
                out.extend(head.as_bytes());
                for (family, number) in youngest {
                    let (directory, name) = (family.directory.len(), family.name.len());
                    let each = YoungestEntry {
                        number: (*number).into(),
                        directory: (directory as u16).into(),
                        name: (name as u16).into(),
                        reserved: [0; 4],
                    };
                    out.extend(each.as_bytes());
                    out.extend(family.directory.as_bytes());
                    out.extend(family.name.as_bytes());
                }
                entry::ZONE
            }
        };
        let length = (out.len() - start - EntryHead::SIZE) as u32;
        let head = EntryHead { kind, reserved: [0; 3], length: length.into() };
        out[start..start + EntryHead::SIZE].copy_from_slice(head.as_bytes());
    }

    fn decode(kind: u8, body: &[u8]) -> Result<Entry> {
        let mut rest = Bytes(body);
        let entry = match kind {
            entry::NAME | entry::REMOVE => {
                let head: NameEntry = rest.head()?;
                let path = rest.path(head.path.get())?;
                let file = Some(FileId(head.file.get())).filter(|file| file.0 != 0);
                match kind {
                    entry::NAME => Entry::Name { path, file },
                    _ => Entry::Remove { path },
                }
            }
            entry::RENAME => {
                let head: RenameEntry = rest.head()?;
                let from = rest.path(head.from.get())?;
                Entry::Rename { from, to: rest.path(head.to.get())? }
            }
            entry::FILE => rest.file()?,
            entry::ZONE => rest.zone()?,
            _ => return Err(corrupt(format!("entry of kind {kind}"))),
        };
        match rest.0.len() {
            0 => Ok(entry),
            left => Err(corrupt(format!("{left} bytes behind an entry of kind {kind}"))),
        }
    }
}

fn encode_extent(extent: &Extent, out: &mut Vec<u8>) {
    let sums = match &extent.sums {
        _ if extent.is_hole() => 0,
        Sums::Here(_) => u32::MAX,
        Sums::At(at) => at.0,
    };
    let head = ExtentEntry {
        first: extent.first.into(),
        blocks: extent.blocks.into(),
        at: extent.at.0.into(),
        sums: sums.into(),
    };
    out.extend(head.as_bytes());
    if let Sums::Here(sums) = &extent.sums {
        sums.iter().for_each(|sum| out.extend(sum.to_le_bytes()));
    }
}

fn corrupt(what: String) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

/// The unread part of a record's body.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn head<T: FromBytes + KnownLayout + Immutable + Unaligned>(&mut self) -> Result<T> {
        let (head, rest) = T::read_from_prefix(self.0)
            .map_err(|_| corrupt(format!("{} bytes where a head is expected", self.0.len())))?;
        self.0 = rest;
        Ok(head)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (now, rest) = self
            .0
            .split_at_checked(count)
            .ok_or_else(|| corrupt(format!("{count} bytes of {}", self.0.len())))?;
        self.0 = rest;
        Ok(now)
    }

    fn path(&mut self, bytes: u16) -> Result<String> {
        let bytes = usize::from(bytes);
        if bytes == 0 || bytes > PATH_MAX {
            return Err(corrupt(format!("path of {bytes} bytes")));
        }
        self.text(bytes as u16)
    }

    fn text(&mut self, bytes: u16) -> Result<String> {
        let text = str::from_utf8(self.take(usize::from(bytes))?);
        Ok(text.map_err(|_| corrupt("a name is not UTF-8".into()))?.to_owned())
    }

    fn file(&mut self) -> Result<Entry> {
        let head: FileEntry = self.head()?;
        let Some(lifetime) = Lifetime::from_byte(head.lifetime) else {
            return Err(corrupt(format!("lifetime {}", head.lifetime)));
        };
        let (keep, count) = (head.keep.get(), head.extents.get() as usize);
        if count > self.0.len() / ExtentEntry::SIZE {
            return Err(corrupt(format!("{count} extents in {} bytes", self.0.len())));
        }
        let mut extents = Vec::with_capacity(count);
        let mut end = keep;
        for _ in 0..count {
            let extent = self.extent()?;
            if extent.first != end || extent.end() < extent.first {
                return Err(corrupt(format!("extent at block {}, expected {end}", extent.first)));
            }
            end = extent.end();
            extents.push(extent);
        }
        let tail = head.tail.get() as usize;
        let most = u64::from(end) * PAGE_SIZE as u64 + tail as u64;
        let least = if tail > 0 { most } else { most.saturating_sub(PAGE_SIZE as u64 - 1) };
        if tail >= PAGE_SIZE || !(least..=most).contains(&head.size.get()) {
            let size = head.size.get();
            return Err(corrupt(format!("{size} bytes in {end} blocks and {tail} bytes")));
        }
        let state = FileState {
            size: head.size.get(),
            modified: head.modified.get(),
            lifetime,
            extents,
            tail: self.take(tail)?.to_vec(),
        };
        Ok(Entry::File { file: FileId(head.file.get()), keep, state })
    }

    fn zone(&mut self) -> Result<Entry> {
        let head: ZoneEntry = self.head()?;
        let mut youngest = BTreeMap::new();
        for _ in 0..head.families.get() {
            let each: YoungestEntry = self.head()?;
            let family = Family {
                directory: self.text(each.directory.get())?,
                name: self.text(each.name.get())?,
            };
            if youngest.insert(family, each.number.get()).is_some() {
                return Err(corrupt("a family twice in a zone".into()));
            }
        }
        Ok(Entry::Zone { zone: ZoneId(head.zone.get()), youngest })
    }

    fn extent(&mut self) -> Result<Extent> {
        let head: ExtentEntry = self.head()?;
        let blocks = head.blocks.get();
        if blocks == 0 || blocks > EXTENT_MAX || head.first.get().checked_add(blocks).is_none() {
            return Err(corrupt(format!("extent of {blocks} blocks from {}", head.first.get())));
        }
        if head.at.get() == BlockAddr::HOLE.0 {
            return Ok(Extent::hole(head.first.get(), blocks));
        }
        let sums = match head.sums.get() {
            u32::MAX => {
                let bytes = self.take(4 * blocks as usize)?;
                let sums = <[U32]>::ref_from_bytes(bytes)
                    .map_err(|_| corrupt("checksums that cannot be read".into()))?;
                Sums::Here(Rc::new(sums.iter().map(|sum| sum.get()).collect()))
            }
            at => Sums::At(BlockAddr(at)),
        };
        let (first, at) = (head.first.get(), BlockAddr(head.at.get()));
        Ok(Extent { first, blocks, at, sums })
    }
}

/// Decodes the entries of a record.
///
/// # Errors
/// `Corrupt` if the body holds anything but valid entries.
pub(crate) fn decode(body: &[u8]) -> Result<(EntriesHead, Vec<Entry>)> {
    let mut rest = Bytes(body);
    let head: EntriesHead = rest.head()?;
    let mut entries = Vec::new();
    for _ in 0..head.entries.get() {
        let each: EntryHead = rest.head()?;
        let body = rest.take(each.length.get() as usize)?;
        entries.push(Entry::decode(each.kind, body)?);
    }
    match rest.0.len() {
        0 => Ok((head, entries)),
        left => Err(corrupt(format!("{left} bytes behind the last entry"))),
    }
}

/// Builds bodies of records from entries. A body has at most `most` bytes, or a single
/// longer entry.
pub(crate) struct Bodies {
    most: usize,
    bodies: Vec<(u32, Vec<u8>)>,
}

impl Bodies {
    pub(crate) fn new(most: usize) -> Bodies {
        Bodies { most, bodies: vec![(0, vec![0; EntriesHead::SIZE])] }
    }

    pub(crate) fn push(&mut self, entry: &Entry) {
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        let fits = |body: &Vec<u8>| body.len() + bytes.len() <= self.most;
        if !self.bodies.last().is_some_and(|(entries, body)| *entries == 0 || fits(body)) {
            self.bodies.push((0, vec![0; EntriesHead::SIZE]));
        }
        let Some((entries, body)) = self.bodies.last_mut() else { return };
        *entries += 1;
        body.extend(bytes);
    }

    /// Adds a whole file, for a snapshot. A file with many extents becomes several entries, each
    /// short enough for a record.
    pub(crate) fn push_pieces(&mut self, file: FileId, mut state: FileState) {
        let bytes = |extent: &Extent| match &extent.sums {
            Sums::Here(sums) => ExtentEntry::SIZE + 4 * sums.len(),
            Sums::At(_) => ExtentEntry::SIZE,
        };
        let (mut keep, mut piece, mut all) = (0, Vec::new(), 0);
        for extent in std::mem::take(&mut state.extents) {
            let more = bytes(&extent);
            if all + more > self.most / 4 && !piece.is_empty() {
                let (extents, end) = (std::mem::take(&mut piece), extent.first);
                let size = u64::from(end) * PAGE_SIZE as u64;
                let state = FileState { size, extents, tail: Vec::new(), ..state };
                self.push(&Entry::File { file, keep, state });
                (keep, all) = (end, 0);
            }
            all += more;
            piece.push(extent);
        }
        self.push(&Entry::File { file, keep, state: FileState { extents: piece, ..state } });
    }

    /// Returns each body with its head. The last body gets `last_flags`, all others get `flags`.
    pub(crate) fn finish(
        self,
        (flags, last_flags): (u32, u32),
        round: u64,
        next_file: u64,
    ) -> Vec<Vec<u8>> {
        let last = self.bodies.len() - 1;
        let each = self.bodies.into_iter().enumerate().map(|(index, (entries, mut body))| {
            let head = EntriesHead {
                flags: if index == last { last_flags } else { flags }.into(),
                entries: entries.into(),
                round: round.into(),
                next_file: next_file.into(),
            };
            body[..EntriesHead::SIZE].copy_from_slice(head.as_bytes());
            body
        });
        each.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Vec<Entry> {
        let extent = |first, blocks, sums| Extent { first, blocks, at: BlockAddr(77), sums };
        let hole = Extent::hole(13, 7);
        let here = Sums::Here(Rc::new(vec![1, u32::MAX, 3]));
        let state = FileState {
            size: 4096 * 20 + 5,
            modified: -4,
            lifetime: Lifetime::Long,
            extents: vec![extent(7, 3, here), extent(10, 3, Sums::At(BlockAddr(9))), hole],
            tail: vec![1, 2, 3, 4, 5],
        };
        vec![
            Entry::Name { path: "db".into(), file: None },
            Entry::Name { path: "db/CURRENT".into(), file: Some(FileId(3)) },
            Entry::Remove { path: "db/LOG".into() },
            Entry::Rename { from: "db/1.dbtmp".into(), to: "db/CURRENT".into() },
            Entry::File { file: FileId(3), keep: 7, state },
        ]
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let mut bodies = Bodies::new(100);
        some().iter().for_each(|entry| bodies.push(entry));
        let bodies = bodies.finish((1, 3), 5, 9);
        assert!(bodies.len() > 1);
        let mut all = Vec::new();
        for (index, body) in bodies.iter().enumerate() {
            let (head, entries) = decode(body).unwrap();
            let flags = if index + 1 == bodies.len() { 3 } else { 1 };
            assert_eq!((head.flags.get(), head.round.get(), head.next_file.get()), (flags, 5, 9));
            all.extend(entries);
        }
        assert_eq!(all, some());
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut bodies = Bodies::new(1 << 20);
        some().iter().for_each(|entry| bodies.push(entry));
        let body = bodies.finish((0, 0), 5, 9).remove(0);
        let mut rng = furrow_rt::Rng::new(5);
        for _ in 0..20_000 {
            let mut bytes = body.clone();
            for _ in 0..1 + rng.below(3) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next() as u8;
            }
            bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
            let _ = decode(&bytes);
        }
    }
}
