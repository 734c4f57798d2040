//! Directory files: a multi-level hash of packed records in 4 KiB blocks.
//!
//! **Placement.** Level l has 4^min(l, 8) buckets of 2 blocks. The levels lie one after the other
//! in the directory file, so the block of a (level, bucket) is computed. A block never written is a
//! hole of the file and means "empty". On level l, a name of hash h belongs to bucket `h mod
//! buckets(l)`. A name is stored on the first level whose bucket has space. If the name's buckets
//! on all levels in use are full, another level comes into use. A lookup probes two blocks per
//! level in use, except blocks whose content is known already (`directory_index`).
//!
//! **Block.** Records tile the block exactly. A record is 4-byte aligned, little-endian:
//!
//! ```text
//! 0  ino u32         0: free (only the first record of a block can be)
//! 4  hash u32        of the name
//! 8  record_len u16  to the next record: 12 + name + slack
//! 10 name_len u8     1 to 255
//! 11 kind u8         see `Kind`
//! 12 name, then zeroes up to record_len
//! ```
//!
//! Removing a record gives its bytes to the record before it; no record ever moves, so a `readdir`
//! cookie (block, offset) stays valid as long as its directory exists.
//!
//! **Hash.** With 64-bit `fold(a, b)` = low half xor high half of the 128-bit product a × b and K =
//! 0x9E37_79B9_7F4A_7C15: start with `seed ^ (len × K)`; for each 8 bytes of the name, the last
//! ones zero-padded and read little-endian, `state = fold(state ^ bytes, K) ^ K rotated left by
//! 23`; the hash is the upper half of `fold(state ^ (state >> 32), 0xD6E8_FEB8_6659_FD93)`. The
//! seed is drawn at mkfs, so nobody can prepare names that collide on every file system. Anyone who
//! knows the seed of a file system can prepare colliding names for it. The seed can be read from
//! the drive, or guessed from cookies, which reveal the last bits of hashes. Such names make a
//! look-up probe [`MAX_LEVELS`] buckets, and have no other effect.
//!
//! All functions are pure and take the block's bytes. Every function is safe on any bytes (no
//! panic, no endless loop). [`check`] decides whether the bytes are a directory block; only then
//! are the results of the other functions meaningful.
//!
//! Not here: `.` and `..` (not stored; the inode has the parent), the search for a free inode,
//! reading blocks.

use furrow_rt::buf::is_zero;
use std::iter::FusedIterator;

/// Size of a directory block in bytes.
pub const BLOCK: usize = 4096;
/// Bytes of a record before its name.
pub const HEADER: usize = 12;
/// Longest name, in bytes.
pub const MAX_NAME: usize = 255;
/// Number of blocks in a bucket.
pub const BUCKET_BLOCKS: u32 = 2;
/// Level from which the number of buckets no longer grows.
pub const MAX_GROWTH_LEVEL: u8 = 8;
/// Largest number of levels that a directory can have in use.
pub const MAX_LEVELS: u8 = 32;
/// First cookie of a stored record. Smaller cookies stand for the start, `.` and `..`.
pub const FIRST_COOKIE: u64 = 4;

const K: u64 = 0x9E37_79B9_7F4A_7C15;
const FINAL: u64 = 0xD6E8_FEB8_6659_FD93;

pub use crate::types::Kind;

/// One name of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Inode number, not 0.
    pub ino: u32,
    /// [`hash`] of the name.
    pub hash: u32,
    /// Kind of the inode.
    pub kind: Kind,
    /// The bytes of the name.
    pub name: &'a [u8],
    /// Offset of the record in its block, in bytes; ignored by [`insert`].
    pub offset: u16,
}

/// The reason why a name is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is empty.
    #[error("the name is empty")]
    Empty,
    /// The name has more than [`MAX_NAME`] bytes.
    #[error("the name has {0} bytes, at most 255 are possible")]
    TooLong(usize),
    /// The name contains a slash or a NUL byte.
    #[error("the name has the byte {byte:#04x} at {at}")]
    Forbidden {
        /// The invalid byte.
        byte: u8,
        /// Offset of the byte in the name.
        at: usize,
    },
    /// The name is `.` or `..`.
    #[error("the name is \".\" or \"..\"")]
    Reserved,
}

/// The reason why bytes are not a directory block. Offsets are in bytes within the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A record ends outside the block, overlaps its own name, or is unaligned.
    #[error("record at {offset}: length {found}, expected a multiple of 4, {least} to {most}")]
    Length {
        /// Offset of the record.
        offset: u16,
        /// The stored length.
        found: u16,
        /// Shortest possible length.
        least: u16,
        /// Longest possible length, up to the end of the block.
        most: u16,
    },
    /// A free record that is not the block's first, or has a hash, name or kind.
    #[error("record at {offset} is free but not the empty first one")]
    Free {
        /// Offset of the record.
        offset: u16,
    },
    /// A record has a kind that does not exist.
    #[error("record at {offset}: kind {found}, expected 1 to 7")]
    Kind {
        /// Offset of the record.
        offset: u16,
        /// The stored kind.
        found: u8,
    },
    /// A record has an invalid name.
    #[error("record at {offset}: {error}")]
    Name {
        /// Offset of the record.
        offset: u16,
        /// The reason why the name is invalid.
        error: NameError,
    },
    /// Bytes after the name are not zero.
    #[error("record at {offset}: bytes after the name are not zero")]
    Slack {
        /// Offset of the record.
        offset: u16,
    },
    /// The stored hash is not the hash of the name.
    #[error("record at {offset}: hash {found:#010x}, expected {expected:#010x}")]
    Hash {
        /// Offset of the record.
        offset: u16,
        /// The stored hash.
        found: u32,
        /// The hash of the name.
        expected: u32,
    },
    /// The name belongs to another bucket.
    #[error("record at {offset}: hash {hash:#010x} does not belong into block {block}")]
    Bucket {
        /// Offset of the record.
        offset: u16,
        /// The stored hash.
        hash: u32,
        /// Block of the directory file that contains the record.
        block: u32,
    },
    /// A block contains the same name twice.
    #[error("records at {first} and {second} have the same name")]
    Duplicate {
        /// Offset of one record.
        first: u16,
        /// Offset of the other record.
        second: u16,
    },
}

/// Checks that `name` can be stored.
pub fn validate_name(name: &[u8]) -> Result<(), NameError> {
    match name {
        [] => Err(NameError::Empty),
        b"." | b".." => Err(NameError::Reserved),
        _ if name.len() > MAX_NAME => Err(NameError::TooLong(name.len())),
        _ => match name.iter().position(|&b| b == b'/' || b == 0) {
            Some(at) => Err(NameError::Forbidden { byte: name[at], at }),
            None => Ok(()),
        },
    }
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

/// Computes the hash of a name (see the module's header) in a file system with `seed`.
pub fn hash(seed: u64, name: &[u8]) -> u32 {
    let mut state = seed ^ (name.len() as u64).wrapping_mul(K);
    let mut take = |bytes| {
        state = fold(state ^ u64::from_le_bytes(bytes), K) ^ K.rotate_left(23);
    };
    let (whole, rest) = name.as_chunks::<8>();
    whole.iter().for_each(|bytes| take(*bytes));
    if !rest.is_empty() {
        let mut bytes = [0; 8];
        bytes[..rest.len()].copy_from_slice(rest);
        take(bytes);
    }
    (fold(state ^ (state >> 32), FINAL) >> 32) as u32
}

// ---- placement ----------------------------------------------------------------------------

/// Number of buckets of `level`.
pub const fn buckets(level: u8) -> u32 {
    1 << (2 * if level < MAX_GROWTH_LEVEL { level } else { MAX_GROWTH_LEVEL })
}

/// Number of blocks of the first `levels` levels (at most [`MAX_LEVELS`]): the size of a directory
/// with that many levels in use, and the first block of level `levels`.
pub const fn blocks(levels: u8) -> u32 {
    let levels = if levels < MAX_LEVELS { levels } else { MAX_LEVELS };
    let growing = if levels < MAX_GROWTH_LEVEL { levels } else { MAX_GROWTH_LEVEL };
    let grown = (4u32.pow(growing as u32) - 1) / 3;
    BUCKET_BLOCKS * (grown + (levels - growing) as u32 * buckets(MAX_GROWTH_LEVEL))
}

/// Number of levels in use in a directory of `size` blocks: the smallest number of levels with at
/// least as many blocks.
pub fn levels_of(size: u32) -> u8 {
    (0..MAX_LEVELS).find(|&levels| blocks(levels) >= size).unwrap_or(MAX_LEVELS)
}

/// First block of the bucket of `hash` on `level`.
pub fn bucket_block(level: u8, hash: u32) -> u32 {
    blocks(level) + BUCKET_BLOCKS * (hash % buckets(level))
}

/// True if a name with `hash` may be stored in `block` of the directory file.
pub fn belongs(block: u32, hash: u32) -> bool {
    let level = levels_of(block.saturating_add(1)).saturating_sub(1);
    let start = bucket_block(level, hash);
    (start..start + BUCKET_BLOCKS).contains(&block)
}

/// Blocks to probe for a name with `hash` in a directory with `levels` levels in use, in order.
/// An insertion uses the first of these blocks that has space, otherwise the first block of
/// level `levels`.
pub fn candidates(levels: u8, hash: u32) -> impl DoubleEndedIterator<Item = u32> + Clone {
    (0..levels.min(MAX_LEVELS)).flat_map(move |level| {
        let start = bucket_block(level, hash);
        start..start + BUCKET_BLOCKS
    })
}

// ---- cookies ------------------------------------------------------------------------------

/// The `readdir` cookie from which a listing continues with the record at `offset` of `block`.
pub fn cookie(block: u32, offset: u16) -> u64 {
    FIRST_COOKIE + u64::from(block) * (BLOCK as u64 / 4) + u64::from(offset / 4)
}

/// The cookie to return with the record at `offset` of `block`: a listing from this cookie
/// continues after the record.
pub fn cookie_after(block: u32, offset: u16) -> u64 {
    cookie(block, offset) + 1
}

/// The block, and the offset in the block, from which a listing with `cookie` continues. `None`
/// below [`FIRST_COOKIE`], and for cookies that no directory can have.
pub fn decode_cookie(cookie: u64) -> Option<(u32, u16)> {
    let rest = cookie.checked_sub(FIRST_COOKIE)?;
    let block = u32::try_from(rest / (BLOCK as u64 / 4)).ok()?;
    Some((block, (rest % (BLOCK as u64 / 4)) as u16 * 4))
}

// ---- records ------------------------------------------------------------------------------

/// The stored header of a record.
#[derive(Clone, Copy)]
struct Record {
    offset: usize,
    ino: u32,
    hash: u32,
    len: usize,
    name_len: usize,
    kind: u8,
}

impl Record {
    /// Reads the header at `offset`. `None` at the end of the block, and if the stored length is
    /// too short for the record or leads outside the block: every walk ends there.
    fn read(block: &[u8; BLOCK], offset: usize) -> Option<Record> {
        let h = block.get(offset..offset + HEADER)?;
        let record = Record {
            offset,
            ino: u32::from_le_bytes([h[0], h[1], h[2], h[3]]),
            hash: u32::from_le_bytes([h[4], h[5], h[6], h[7]]),
            len: usize::from(u16::from_le_bytes([h[8], h[9]])),
            name_len: usize::from(h[10]),
            kind: h[11],
        };
        (record.len >= record.used() && offset + record.len <= BLOCK).then_some(record)
    }

    /// Number of bytes of the header and of the name with its padding to a multiple of 4.
    fn used(&self) -> usize {
        if self.ino == 0 { HEADER } else { space(self.name_len) }
    }

    fn name<'a>(&self, block: &'a [u8; BLOCK]) -> &'a [u8] {
        &block[self.offset + HEADER..self.offset + HEADER + self.name_len]
    }

    fn entry<'a>(&self, block: &'a [u8; BLOCK]) -> Option<Entry<'a>> {
        if self.ino == 0 {
            return None;
        }
        Some(Entry {
            ino: self.ino,
            hash: self.hash,
            kind: Kind::from_code(self.kind)?,
            name: self.name(block),
            offset: self.offset as u16,
        })
    }
}

/// Number of bytes of a record with a name of `len` bytes, without slack.
pub(crate) fn space(len: usize) -> usize {
    HEADER + len.next_multiple_of(4)
}

fn set_len(block: &mut [u8; BLOCK], offset: usize, len: usize) {
    block[offset + 8..offset + 10].copy_from_slice(&(len as u16).to_le_bytes());
}

/// Makes `block` an empty directory block.
pub fn init(block: &mut [u8; BLOCK]) {
    block.fill(0);
    set_len(block, 0, BLOCK);
}

/// An iterator over records; see [`iter`].
#[derive(Clone)]
struct Records<'a> {
    block: &'a [u8; BLOCK],
    next: usize,
}

impl Iterator for Records<'_> {
    type Item = Record;
    fn next(&mut self) -> Option<Record> {
        let record = Record::read(self.block, self.next)?;
        self.next += record.len;
        Some(record)
    }
}

impl FusedIterator for Records<'_> {}

fn records(block: &[u8; BLOCK]) -> Records<'_> {
    Records { block, next: 0 }
}

/// The entries of a block, in ascending order of their offsets.
pub fn iter(block: &[u8; BLOCK]) -> impl Iterator<Item = Entry<'_>> + Clone {
    records(block).filter_map(|record| record.entry(block))
}

/// The entries at `offset` or later: a `readdir` continues there, even if the record at which it
/// stopped was removed.
pub fn iter_from(block: &[u8; BLOCK], offset: u16) -> impl Iterator<Item = Entry<'_>> + Clone {
    iter(block).filter(move |entry| entry.offset >= offset)
}

/// True if the block has no entry.
pub fn is_empty(block: &[u8; BLOCK]) -> bool {
    iter(block).next().is_none()
}

/// Finds the record of `name`, and the offset of the record before it. The search is the inner loop
/// of every look-up: it reads only lengths and hashes until a hash matches.
fn find_record(block: &[u8; BLOCK], hash: u32, name: &[u8]) -> Option<(Option<usize>, Record)> {
    let hash = hash.to_le_bytes();
    let (mut previous, mut offset) = (None, 0);
    loop {
        let header = block.get(offset..offset + HEADER)?;
        if header[4..8] == hash
            && let Some(record) = Record::read(block, offset)
            && record.ino != 0
            && record.name(block) == name
        {
            return Some((previous, record));
        }
        let len = usize::from(u16::from_le_bytes([header[8], header[9]]));
        if len < HEADER {
            return None;
        }
        previous = Some(offset);
        offset += len;
    }
}

/// The entry of `name`, whose hash is `hash`.
pub fn find<'a>(block: &'a [u8; BLOCK], hash: u32, name: &[u8]) -> Option<Entry<'a>> {
    find_record(block, hash, name)?.1.entry(block)
}

/// The result of a search for a name that is to be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe<'a> {
    /// The name is in the block.
    Found(Entry<'a>),
    /// The name is not in the block, and the block has space for it.
    Fits,
    /// The name is not in the block, and the block has no space for it.
    Full,
}

/// Searches in one walk for `name`, whose hash is `hash`, and for space to add it.
pub fn probe<'a>(block: &'a [u8; BLOCK], hash: u32, name: &[u8]) -> Probe<'a> {
    let (hash, need) = (hash.to_le_bytes(), space(name.len()));
    let (mut offset, mut room) = (0, block[..HEADER] == [0; HEADER]);
    while let Some(header) = block.get(offset..offset + HEADER) {
        if header[4..8] == hash
            && let Some(record) = Record::read(block, offset)
            && record.ino != 0
            && record.name(block) == name
            && let Some(entry) = record.entry(block)
        {
            return Probe::Found(entry);
        }
        let len = usize::from(u16::from_le_bytes([header[8], header[9]]));
        if len < HEADER {
            break;
        }
        let taken = if header[..4] == [0; 4] { 0 } else { space(usize::from(header[10])) };
        room |= len >= taken + need;
        offset += len;
    }
    if room { Probe::Fits } else { Probe::Full }
}

/// Adds an entry and returns its offset; without space, returns `None` and changes nothing. A block
/// of zeros (a hole just read) is initialised first. The caller has made sure that the name is
/// valid and not in the directory.
pub fn insert(block: &mut [u8; BLOCK], entry: &Entry<'_>) -> Option<u16> {
    debug_assert!(entry.ino != 0 && validate_name(entry.name).is_ok());
    let need = space(entry.name.len());
    if block[..HEADER] == [0; HEADER] {
        init(block);
    }
    let host = records(block).find(|r| {
        let taken = if r.ino == 0 { 0 } else { r.used() };
        r.len - taken >= need
    })?;
    let (offset, len) = if host.ino == 0 {
        (host.offset, host.len)
    } else {
        set_len(block, host.offset, host.used());
        (host.offset + host.used(), host.len - host.used())
    };
    let record = &mut block[offset..offset + need];
    record.fill(0);
    record[0..4].copy_from_slice(&entry.ino.to_le_bytes());
    record[4..8].copy_from_slice(&entry.hash.to_le_bytes());
    record[8..10].copy_from_slice(&(len as u16).to_le_bytes());
    record[10] = entry.name.len() as u8;
    record[11] = entry.kind.code();
    record[HEADER..HEADER + entry.name.len()].copy_from_slice(entry.name);
    Some(offset as u16)
}

/// The size in bytes of the largest record that [`insert`] would find space for.
pub fn largest_gap(block: &[u8; BLOCK]) -> u16 {
    if block[..HEADER] == [0; HEADER] {
        return BLOCK as u16;
    }
    let gap = |r: Record| r.len - if r.ino == 0 { 0 } else { r.used() };
    records(block).map(gap).max().unwrap_or(0) as u16
}

/// True if [`insert`] of a name of `name_len` bytes would find space.
#[cfg(test)]
fn has_space(block: &[u8; BLOCK], name_len: usize) -> bool {
    let need = space(name_len);
    block[..HEADER] == [0; HEADER]
        || records(block).any(|r| r.len - if r.ino == 0 { 0 } else { r.used() } >= need)
}

/// Removes `name`, whose hash is `hash`; returns its inode number and kind. The bytes of the
/// record become zeros and slack of the record before it; the first record of a block becomes a
/// free record.
pub fn remove(block: &mut [u8; BLOCK], hash: u32, name: &[u8]) -> Option<(u32, Kind)> {
    let (previous, record) = find_record(block, hash, name)?;
    let kind = Kind::from_code(record.kind)?;
    block[record.offset..record.offset + record.used()].fill(0);
    match previous {
        Some(previous) => set_len(block, previous, record.offset + record.len - previous),
        None => set_len(block, record.offset, record.len),
    }
    Some((record.ino, kind))
}

/// Points `name`, whose hash is `hash`, to another inode, without moving the record. Returns the
/// previous inode.
pub fn replace(
    block: &mut [u8; BLOCK],
    hash: u32,
    name: &[u8],
    ino: u32,
    kind: Kind,
) -> Option<(u32, Kind)> {
    debug_assert!(ino != 0);
    let (_, record) = find_record(block, hash, name)?;
    let old = Kind::from_code(record.kind)?;
    block[record.offset..record.offset + 4].copy_from_slice(&ino.to_le_bytes());
    block[record.offset + 11] = kind.code();
    Some((record.ino, old))
}

// ---- checks -------------------------------------------------------------------------------

fn check_record(block: &[u8; BLOCK], offset: usize) -> Result<usize, Error> {
    let at = offset as u16;
    let bytes = &block[offset..];
    let most = bytes.len() as u16;
    if bytes.len() < HEADER {
        return Err(Error::Length { offset: at, found: 0, least: HEADER as u16, most });
    }
    let ino = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let len = u16::from_le_bytes([bytes[8], bytes[9]]);
    let name_len = usize::from(bytes[10]);
    let least = if ino == 0 { HEADER as u16 } else { space(name_len) as u16 };
    if len < least || len > most || !len.is_multiple_of(4) {
        return Err(Error::Length { offset: at, found: len, least, most });
    }
    let slack = if ino == 0 {
        if offset != 0 || bytes[4..8] != [0; 4] || bytes[10..12] != [0; 2] {
            return Err(Error::Free { offset: at });
        }
        HEADER
    } else {
        if Kind::from_code(bytes[11]).is_none() {
            return Err(Error::Kind { offset: at, found: bytes[11] });
        }
        validate_name(&bytes[HEADER..HEADER + name_len])
            .map_err(|error| Error::Name { offset: at, error })?;
        HEADER + name_len
    };
    if !is_zero(&bytes[slack..usize::from(len)]) {
        return Err(Error::Slack { offset: at });
    }
    Ok(usize::from(len))
}

/// Checks that the bytes are a directory block: the engine calls it once on each block it reads,
/// before any other function.
pub fn check(block: &[u8; BLOCK]) -> Result<(), Error> {
    let mut offset = 0;
    while offset < BLOCK {
        offset += check_record(block, offset)?;
    }
    Ok(())
}

/// In addition to [`check`], checks the names: each stored hash must be right in a file system with
/// `seed`, each name must belong to block `index` of its directory, and no name may occur twice.
pub fn check_names(block: &[u8; BLOCK], seed: u64, index: u32) -> Result<(), Error> {
    let mut seen: Vec<(u32, &[u8], u16)> = Vec::new();
    for Entry { hash: found, name, offset, .. } in iter(block) {
        let expected = hash(seed, name);
        if found != expected {
            return Err(Error::Hash { offset, found, expected });
        }
        if !belongs(index, found) {
            return Err(Error::Bucket { offset, hash: found, block: index });
        }
        seen.push((found, name, offset));
    }
    seen.sort_unstable();
    match seen.windows(2).find(|pair| pair[0].1 == pair[1].1) {
        Some(pair) => Err(Error::Duplicate { first: pair[0].2, second: pair[1].2 }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
