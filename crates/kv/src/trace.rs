//! Recorded runs: the calls of a program to a store, their order, and how long they took.
//!
//! A recording is a head of 16 bytes ([`MAGIC`], version, zeros), then records, then an end with
//! the number and the checksum of the records. A record is its length, its kind, numbers (LEB128)
//! and strings (length and UTF-8). If the recording program was killed, the recording is valid up
//! to the last whole record ([`Recording::whole`]).
//!
//! - **Order.** `order` grows as the engine accepts calls, which is the order in which names
//!   changed. A call that entered the engine twice has the number of the second entry. A recording
//!   lists calls in the order in which they ended, since only then their results are known;
//!   [`Recording::decode`] sorts them.
//! - **Threads** are numbered in the order of their first calls. Calls of one thread
//!   do not overlap.
//! - **Time** is in nanoseconds of one clock for all threads, since the recording's start. A call
//!   that began after another had ended may depend on it; overlapping calls do not depend on each
//!   other ([`Recording::causes`]).
//! - **Content** is recorded as length and CRC32C. A replay writes other bytes of that length: a
//!   store does not interpret them.
//!
//! This module does no I/O and reads no clock: callers pass values and receive them.

use crate::extent::Lifetime;
use furrow_log::record::crc32c_append;
use furrow_zone::{Error, ErrorKind, Result};
use std::collections::BTreeMap;

/// The first bytes of a recording.
pub const MAGIC: [u8; 8] = *b"FURWTRCE";
/// Version of the format.
pub const VERSION: u16 = 1;
/// Bytes of a recording's head.
pub const HEAD_BYTES: usize = 16;
/// Maximum number of bytes of a record.
const RECORD_MAX: u64 = 64 << 10;
/// Kind of the record at the end.
const END: u8 = 0;

/// A call. Files have the numbers of the store ([`crate::FileId`]); a call that failed before it
/// had a file has 0. Offsets, lengths and sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The store had this file when the recording began. This record is not a call.
    Found {
        /// Number of the file.
        file: u64,
        /// Size of the file in bytes.
        size: u64,
        /// One of the file's names.
        path: String,
    },
    /// The store had this directory when the recording began. This record is not a call.
    FoundDirectory {
        /// Path of the directory.
        path: String,
    },
    /// A file was created and opened; a file that already had the name loses the name.
    Create {
        /// Number of the file.
        file: u64,
        /// How long the file is expected to live.
        lifetime: Lifetime,
        /// Name of the file.
        path: String,
    },
    /// A file was opened.
    Open {
        /// Number of the file.
        file: u64,
        /// The name by which the file was opened.
        path: String,
    },
    /// A handle, which an open or a create had made, was closed.
    Close {
        /// Number of the file.
        file: u64,
    },
    /// Bytes were appended.
    Append {
        /// Number of the file.
        file: u64,
        /// Size of the file before the call.
        offset: u64,
        /// Number of bytes appended.
        len: u64,
        /// CRC32C of the appended bytes.
        sum: u32,
    },
    /// The file was truncated to `offset`, and bytes were appended.
    AppendAt {
        /// Number of the file.
        file: u64,
        /// The size to which the file was truncated.
        offset: u64,
        /// Number of bytes appended.
        len: u64,
        /// CRC32C of the appended bytes.
        sum: u32,
    },
    /// The file was truncated.
    Truncate {
        /// Number of the file.
        file: u64,
        /// Size of the file after the call.
        size: u64,
    },
    /// A file and all names were made durable.
    Sync {
        /// Number of the file.
        file: u64,
    },
    /// The engine flushed its buffer (`Flush`); a store does nothing then.
    Flush {
        /// Number of the file.
        file: u64,
    },
    /// The engine asked for writeback to begin (`RangeSync`); a store does nothing then.
    RangeSync {
        /// Number of the file.
        file: u64,
        /// Offset at which the range begins.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
    },
    /// The expected lifetime of a file was stated.
    SetLifetime {
        /// Number of the file.
        file: u64,
        /// The stated lifetime.
        lifetime: Lifetime,
    },
    /// Bytes were read synchronously.
    Read {
        /// Number of the file.
        file: u64,
        /// Offset at which the read begins.
        offset: u64,
        /// Number of bytes requested.
        len: u64,
        /// Number of bytes returned.
        got: u64,
    },
    /// A read was started, without waiting for it.
    ReadBegin {
        /// Number of the read.
        read: u64,
        /// Number of the file.
        file: u64,
        /// Offset at which the read begins.
        offset: u64,
        /// Number of bytes requested.
        len: u64,
    },
    /// The caller waited for the result of a read started before.
    ReadWait {
        /// Number of the read.
        read: u64,
        /// Number of bytes returned.
        got: u64,
    },
    /// All names were made durable (a directory was synced).
    SyncNames,
    /// All names and files were made durable.
    SyncAll,
    /// A file or directory got another name; a file that already had the new name loses it.
    Rename {
        /// The old name.
        from: String,
        /// The new name.
        to: String,
    },
    /// A file got an additional name.
    Link {
        /// A name that the file already had.
        from: String,
        /// The new name.
        to: String,
    },
    /// A file's name was removed.
    Remove {
        /// The removed name.
        path: String,
    },
    /// A directory was made.
    MakeDirectory {
        /// Path of the directory.
        path: String,
    },
    /// An empty directory was removed.
    RemoveDirectory {
        /// Path of the directory.
        path: String,
    },
    /// A path was looked up.
    Stat {
        /// The path that was looked up.
        path: String,
    },
    /// A directory was listed.
    List {
        /// Path of the directory.
        path: String,
    },
    /// The column family of a blob file was stated.
    SetFamily {
        /// The file's path.
        path: String,
        /// The family's name.
        family: String,
    },
}

/// A record in the order of writing: its kind, its numbers and how many they are, its strings and
/// how many they are.
type Fields<'a> = (u8, [u64; 4], usize, [&'a str; 2], usize);

/// Builds the fields of a record of `kind`.
fn fields<'a, const N: usize, const T: usize>(
    kind: u8,
    numbers: [u64; N],
    texts: [&'a str; T],
) -> Fields<'a> {
    let (mut all, mut strings) = ([0; 4], [""; 2]);
    all[..N].copy_from_slice(&numbers);
    strings[..T].copy_from_slice(&texts);
    (kind, all, N, strings, T)
}

impl Op {
    /// Name of the call in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Found { .. } => "found",
            Op::FoundDirectory { .. } => "found-directory",
            Op::Create { .. } => "create",
            Op::Open { .. } => "open",
            Op::Close { .. } => "close",
            Op::Append { .. } => "append",
            Op::AppendAt { .. } => "append-at",
            Op::Truncate { .. } => "truncate",
            Op::Sync { .. } => "sync",
            Op::Flush { .. } => "flush",
            Op::RangeSync { .. } => "range-sync",
            Op::SetLifetime { .. } => "set-lifetime",
            Op::Read { .. } => "read",
            Op::ReadBegin { .. } => "read-begin",
            Op::ReadWait { .. } => "read-wait",
            Op::SyncNames => "sync-names",
            Op::SyncAll => "sync-all",
            Op::Rename { .. } => "rename",
            Op::Link { .. } => "link",
            Op::Remove { .. } => "remove",
            Op::MakeDirectory { .. } => "make-directory",
            Op::RemoveDirectory { .. } => "remove-directory",
            Op::Stat { .. } => "stat",
            Op::List { .. } => "list",
            Op::SetFamily { .. } => "set-family",
        }
    }

    /// Bytes that the call wrote or read.
    pub fn bytes(&self) -> u64 {
        match self {
            Op::Append { len, .. } | Op::AppendAt { len, .. } => *len,
            Op::Read { got, .. } | Op::ReadWait { got, .. } => *got,
            _ => 0,
        }
    }

    fn fields(&self) -> Fields<'_> {
        match self {
            Op::Found { file, size, path } => fields(1, [*file, *size], [path]),
            Op::FoundDirectory { path } => fields(2, [], [path]),
            Op::Create { file, lifetime, path } => fields(3, [*file, *lifetime as u64], [path]),
            Op::Open { file, path } => fields(4, [*file], [path]),
            Op::Close { file } => fields(5, [*file], []),
            Op::Append { file, offset, len, sum } => {
                fields(6, [*file, *offset, *len, u64::from(*sum)], [])
            }
            Op::AppendAt { file, offset, len, sum } => {
                fields(7, [*file, *offset, *len, u64::from(*sum)], [])
            }
            Op::Truncate { file, size } => fields(8, [*file, *size], []),
            Op::Sync { file } => fields(9, [*file], []),
            Op::Flush { file } => fields(10, [*file], []),
            Op::RangeSync { file, offset, len } => fields(11, [*file, *offset, *len], []),
            Op::SetLifetime { file, lifetime } => fields(12, [*file, *lifetime as u64], []),
            Op::Read { file, offset, len, got } => fields(13, [*file, *offset, *len, *got], []),
            Op::ReadBegin { read, file, offset, len } => {
                fields(14, [*read, *file, *offset, *len], [])
            }
            Op::ReadWait { read, got } => fields(15, [*read, *got], []),
            Op::SyncNames => fields(16, [], []),
            Op::SyncAll => fields(17, [], []),
            Op::Rename { from, to } => fields(18, [], [from, to]),
            Op::Link { from, to } => fields(19, [], [from, to]),
            Op::Remove { path } => fields(20, [], [path]),
            Op::MakeDirectory { path } => fields(21, [], [path]),
            Op::RemoveDirectory { path } => fields(22, [], [path]),
            Op::Stat { path } => fields(23, [], [path]),
            Op::List { path } => fields(24, [], [path]),
            Op::SetFamily { path, family } => fields(25, [], [path, family]),
        }
    }

    fn decode(kind: u8, from: &mut Reader<'_>) -> Result<Op> {
        let op = match kind {
            1 => Op::Found { file: from.number()?, size: from.number()?, path: from.text()? },
            2 => Op::FoundDirectory { path: from.text()? },
            3 => {
                Op::Create { file: from.number()?, lifetime: from.lifetime()?, path: from.text()? }
            }
            4 => Op::Open { file: from.number()?, path: from.text()? },
            5 => Op::Close { file: from.number()? },
            6 | 7 => {
                let (file, offset, len) = (from.number()?, from.offset()?, from.offset()?);
                let sum = from.small("a checksum")?;
                match kind {
                    6 => Op::Append { file, offset, len, sum },
                    _ => Op::AppendAt { file, offset, len, sum },
                }
            }
            8 => Op::Truncate { file: from.number()?, size: from.offset()? },
            9 => Op::Sync { file: from.number()? },
            10 => Op::Flush { file: from.number()? },
            11 => {
                Op::RangeSync { file: from.number()?, offset: from.offset()?, len: from.offset()? }
            }
            12 => Op::SetLifetime { file: from.number()?, lifetime: from.lifetime()? },
            13 => Op::Read {
                file: from.number()?,
                offset: from.number()?,
                len: from.number()?,
                got: from.offset()?,
            },
            14 => Op::ReadBegin {
                read: from.number()?,
                file: from.number()?,
                offset: from.number()?,
                len: from.number()?,
            },
            15 => Op::ReadWait { read: from.number()?, got: from.offset()? },
            16 => Op::SyncNames,
            17 => Op::SyncAll,
            18 => Op::Rename { from: from.text()?, to: from.text()? },
            19 => Op::Link { from: from.text()?, to: from.text()? },
            20 => Op::Remove { path: from.text()? },
            21 => Op::MakeDirectory { path: from.text()? },
            22 => Op::RemoveDirectory { path: from.text()? },
            23 => Op::Stat { path: from.text()? },
            24 => Op::List { path: from.text()? },
            25 => Op::SetFamily { path: from.text()?, family: from.text()? },
            _ => return Err(from.error(format!("kind {kind} of a record is not known"))),
        };
        Ok(op)
    }
}

/// A call of the recorded program to its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the call in the order in which the engine took the calls; some
    /// numbers are missing.
    pub order: u64,
    /// The calling thread, numbered from 0 in the order of first calls.
    pub thread: u32,
    /// When the call began, in nanoseconds since the recording's start.
    pub begin: u64,
    /// Duration of the call in nanoseconds, including copying and checksums on the calling thread.
    pub took: u64,
    /// Nanoseconds between the end of the thread's previous call and the start of this one; for the
    /// thread's first call, since the recording's start.
    pub gap: u64,
    /// 0 for success, otherwise the error's number as in `furrow_kind` of `include/furrow.h`.
    pub answer: u8,
    /// The call and its arguments.
    pub op: Op,
}

impl Record {
    /// When the call ended, in nanoseconds since the recording's start.
    pub fn end(&self) -> u64 {
        self.begin.saturating_add(self.took)
    }
}

/// Encodes calls as bytes.
#[derive(Clone, Debug, Default)]
pub struct Encoder {
    /// End of each thread's last call, in nanoseconds since the recording's start.
    ends: BTreeMap<u32, u64>,
    order: u64,
    records: u64,
    sum: u32,
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

impl Encoder {
    /// Begins a recording by writing its head.
    pub fn new(out: &mut Vec<u8>) -> Encoder {
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend([0; HEAD_BYTES - MAGIC.len() - 2]);
        Encoder::default()
    }

    fn finish(&mut self, out: &mut Vec<u8>, body: &[u8]) {
        put_number(out, body.len() as u64);
        out.extend(body);
        self.sum = crc32c_append(self.sum, body);
    }

    /// Adds a call that ended. Calls of one thread are added in order; `gap` follows from their
    /// times. A call whose strings are too long for a record is left out.
    pub fn push(&mut self, out: &mut Vec<u8>, record: &Record) {
        let (kind, numbers, n, texts, t) = record.op.fields();
        if texts.iter().map(|text| text.len() as u64).sum::<u64>() > RECORD_MAX / 2 {
            return;
        }
        let before = self.ends.insert(record.thread, record.end()).unwrap_or(0);
        let mut body = vec![kind];
        put_number(&mut body, u64::from(record.thread));
        // Calls end almost in the order in which they began, so the difference is small and signed.
        let ahead = record.order.wrapping_sub(self.order) as i64;
        put_number(&mut body, ((ahead << 1) ^ (ahead >> 63)) as u64);
        put_number(&mut body, record.begin.saturating_sub(before));
        put_number(&mut body, record.took);
        body.push(record.answer);
        numbers[..n].iter().for_each(|number| put_number(&mut body, *number));
        for text in &texts[..t] {
            put_number(&mut body, text.len() as u64);
            body.extend(text.as_bytes());
        }
        self.order = record.order;
        self.records += 1;
        self.finish(out, &body);
    }

    /// Ends the recording with its last record.
    pub fn end(mut self, out: &mut Vec<u8>) {
        let mut body = vec![END];
        put_number(&mut body, self.records);
        put_number(&mut body, u64::from(self.sum));
        self.finish(out, &body);
    }
}

/// Decodes the bytes of a recording.
struct Reader<'a> {
    bytes: &'a [u8],
    /// Offset of `bytes` in the recording.
    at: usize,
}

impl<'a> Reader<'a> {
    fn error(&self, why: impl std::fmt::Display) -> Error {
        let message = format!("byte {} of the recording: {why}", self.at);
        Error::new(ErrorKind::Corrupt, message)
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8]> {
        let count = usize::try_from(count).ok().filter(|count| *count <= self.bytes.len());
        let Some(count) = count else {
            return Err(self.error("a record ends in the middle of its content"));
        };
        let (taken, rest) = self.bytes.split_at(count);
        self.bytes = rest;
        self.at += count;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(self.error("a number of more than 64 bits"))
    }

    /// An offset in a file or a length: at most a signed 64-bit number.
    fn offset(&mut self) -> Result<u64> {
        let number = self.number()?;
        match i64::try_from(number) {
            Ok(_) => Ok(number),
            Err(_) => Err(self.error(format!("{number} bytes: more than a file can have"))),
        }
    }

    fn small(&mut self, what: &str) -> Result<u32> {
        let number = self.number()?;
        u32::try_from(number)
            .map_err(|_| self.error(format!("{what} of {number}: expected 32 bits")))
    }

    fn lifetime(&mut self) -> Result<Lifetime> {
        let number = self.number()?;
        let lifetime = u8::try_from(number).ok().and_then(Lifetime::from_byte);
        lifetime.ok_or_else(|| self.error(format!("lifetime {number}: expected 0 to 5")))
    }

    fn text(&mut self) -> Result<String> {
        let len = self.number()?;
        let bytes = self.take(len)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| self.error("a string that is not UTF-8"))
    }
}

/// A recorded run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// The calls, in the order of the engine.
    pub records: Vec<Record>,
    /// False if the recording stops before its end: later calls are not known.
    pub whole: bool,
}

/// The calls that a call may depend on, as a number of ended calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Number of calls that had ended when this call began.
    pub after: u32,
    /// Position of this call in the order of ends, counted from 0.
    pub ended: u32,
}

impl Recording {
    /// Decodes a recording.
    ///
    /// # Errors
    /// `WrongFormat` if the bytes are not a recording of this version; `Corrupt` with the offset if
    /// a part of them is invalid.
    pub fn decode(bytes: &[u8]) -> Result<Recording> {
        let wrong = |why: String| Error::new(ErrorKind::WrongFormat, why);
        if bytes.len() < HEAD_BYTES || bytes[..MAGIC.len()] != MAGIC {
            return Err(wrong("not a recorded run: it does not begin as one".to_owned()));
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version != VERSION {
            return Err(wrong(format!("a recorded run of version {version}: expected {VERSION}")));
        }
        let mut from = Reader { bytes: &bytes[HEAD_BYTES..], at: HEAD_BYTES };
        let mut found = Recording::default();
        let (mut ends, mut order, mut sum) = (BTreeMap::new(), 0u64, 0);
        while !from.bytes.is_empty() {
            let Some(len) = whole_record(&from) else { break };
            let len = len?;
            // Skips the number that states the length.
            from.number()?;
            let mut body = Reader { at: from.at, bytes: from.take(len)? };
            let raw = body.bytes;
            let kind = body.byte()?;
            if kind == END {
                let (count, expected) = (body.number()?, body.small("a checksum")?);
                if count != found.records.len() as u64 || expected != sum {
                    return Err(body.error(format!(
                        "the end states {count} records with checksum {expected:08x}, found {} \
                         with {sum:08x}",
                        found.records.len()
                    )));
                }
                if !from.bytes.is_empty() {
                    return Err(from.error("there are bytes after the end"));
                }
                found.whole = true;
                break;
            }
            sum = crc32c_append(sum, raw);
            let thread = body.small("a thread")?;
            let ahead = body.number()?;
            order = order.wrapping_add((ahead >> 1) ^ (ahead & 1).wrapping_neg());
            let (gap, took) = (body.number()?, body.number()?);
            let before: u64 = ends.get(&thread).copied().unwrap_or(0);
            let begin = before.checked_add(gap);
            let Some((begin, end)) = begin.and_then(|b| Some((b, b.checked_add(took)?))) else {
                return Err(body.error("times that are too long"));
            };
            ends.insert(thread, end);
            let answer = body.byte()?;
            let op = Op::decode(kind, &mut body)?;
            if !body.bytes.is_empty() {
                return Err(body.error("a record has bytes after its content"));
            }
            found.records.push(Record { order, thread, begin, took, gap, answer, op });
        }
        found.records.sort_by_key(|record| record.order);
        if let Some(two) = found.records.windows(2).find(|two| two[0].order == two[1].order) {
            let message = format!("two records are number {} of the recording", two[0].order);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        Ok(found)
    }

    /// Encodes the recording, calls in the order in which they ended.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = Encoder::new(&mut out);
        for index in self.by_end() {
            encoder.push(&mut out, &self.records[index]);
        }
        encoder.end(&mut out);
        out
    }

    /// Indices of the records, sorted by the time at which the call ended. Calls that ended
    /// together are sorted by when they began, and then by the order in which the engine took them.
    fn by_end(&self) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.records.len()).collect();
        // Calls of one thread that took no time stay in their order.
        all.sort_by_key(|index| {
            let record = &self.records[*index];
            (record.end(), record.begin, record.order)
        });
        all
    }

    /// Computes which calls each call may have waited for: all that had ended when it began,
    /// including those of its own thread. A replay may use several threads: it preserves every
    /// dependency between calls if each call waits until the first `after` calls, in the order of
    /// `ended`, have ended.
    pub fn causes(&self) -> Vec<Cause> {
        let by_end = self.by_end();
        let ends: Vec<u64> = by_end.iter().map(|index| self.records[*index].end()).collect();
        let mut causes = vec![Cause { after: 0, ended: 0 }; by_end.len()];
        for (ended, index) in by_end.iter().enumerate() {
            let record = &self.records[*index];
            // A call that took no time does not wait for itself.
            let after = ends.partition_point(|end| *end <= record.begin).min(ended);
            causes[*index] = Cause { after: after as u32, ended: ended as u32 };
        }
        causes
    }
}

/// Returns the length of the next record; `None` if the recording ends within it.
fn whole_record(from: &Reader<'_>) -> Option<Result<u64>> {
    let mut ahead = Reader { bytes: from.bytes, at: from.at };
    let has_end = from.bytes.iter().take(10).any(|byte| *byte < 0x80);
    if !has_end && from.bytes.len() < 10 {
        return None;
    }
    match ahead.number() {
        Ok(len) if len > RECORD_MAX => {
            Some(Err(from.error(format!("a record of {len} bytes: at most {RECORD_MAX}"))))
        }
        Ok(len) => (len <= ahead.bytes.len() as u64).then_some(Ok(len)),
        Err(error) => Some(Err(error)),
    }
}
