//! Traces of block devices: what requests a volume got, and when.
//!
//! Two formats are read, distinguished by their first bytes:
//! - VMware's vscsi traces: records of 32 bytes, little-endian: serial number (32 bits), length
//!   in bytes (32), segments (32), command (16; 0x28 read, 0x2a write), version (16), first sector
//!   of 512 bytes (64), microseconds (64);
//! - the public Alibaba block traces: lines `device,opcode,offset,length,timestamp` with `R` or
//!   `W`, bytes, and microseconds; a first line of names is skipped. If there are several devices,
//!   only the busiest one is used.
//!
//! A record with impossible values is refused with its number: a trace that is only half understood
//! measures nothing.

use anyhow::{Context as _, Result, bail, ensure};
use furrow_rt::PAGE_SIZE;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Bytes of a vscsi record.
const RECORD: usize = 32;

/// Longest valid request: 1 GiB.
const LONGEST: u64 = 1 << 30;

/// Highest valid address: 16 TiB, the size of the largest volume.
const HIGHEST: u64 = 16 << 40;

/// A request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Microseconds since the first request.
    pub at_us: u64,
    /// Whether the request is a write.
    pub write: bool,
    /// First byte of the request.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Request {
    /// First block of 4 KiB that the request touches, and the number of blocks.
    pub fn blocks(&self) -> (u64, u64) {
        let page = PAGE_SIZE as u64;
        let first = self.offset / page;
        (first, (self.offset + self.bytes).div_ceil(page) - first)
    }
}

/// Identity of a trace. It is part of a scenario, so that a kept result belongs to one trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Name {
    /// Name of the trace's file.
    pub file: String,
    /// CRC32C of the file's bytes.
    pub crc: u32,
    /// Number of requests.
    pub requests: u64,
}

/// A trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The trace's identity.
    pub name: Name,
    /// The requests, in order.
    pub requests: Vec<Request>,
}

impl Trace {
    /// Reads a trace from a file.
    ///
    /// # Errors
    /// If the file cannot be read, or a record is wrong: which one, and why.
    pub fn read(path: &Path) -> Result<Trace> {
        let shown = path.display().to_string();
        let bytes = std::fs::read(path).with_context(|| format!("cannot read trace {shown}"))?;
        let file = path.file_name().map_or(shown.clone(), |name| name.to_string_lossy().into());
        Trace::parse(file, &bytes).with_context(|| format!("trace {shown}"))
    }

    /// Reads a trace from its bytes.
    ///
    /// # Errors
    /// The errors of [`Trace::read`].
    pub fn parse(file: String, bytes: &[u8]) -> Result<Trace> {
        ensure!(!bytes.is_empty(), "it is empty");
        let text = bytes.iter().take(256).all(|byte| matches!(byte, b' '..=b'~' | b'\n' | b'\r'));
        let mut requests = if text { lines(bytes)? } else { records(bytes)? };
        let first = requests.iter().map(|request| request.at_us).min().unwrap_or(0);
        requests.iter_mut().for_each(|request| request.at_us -= first);
        // Requests of several queues may have been recorded out of order.
        requests.sort_by_key(|request| request.at_us);
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32;
        Ok(Trace { name: Name { file, crc, requests: requests.len() as u64 }, requests })
    }

    /// Number of bytes up to the end of the last block that a request touches.
    pub fn span(&self) -> u64 {
        let end = |request: &Request| (request.blocks().0 + request.blocks().1) * PAGE_SIZE as u64;
        self.requests.iter().map(end).max().unwrap_or(0)
    }

    /// Blocks that are read before they are written: first block and count of each run, in order.
    pub fn read_first(&self) -> Vec<(u64, u64)> {
        let mut written = std::collections::BTreeSet::new();
        let mut wanted = std::collections::BTreeSet::new();
        for request in &self.requests {
            let (first, count) = request.blocks();
            for block in first..first + count {
                if request.write {
                    written.insert(block);
                } else if !written.contains(&block) {
                    wanted.insert(block);
                }
            }
        }
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for block in wanted {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == block => *count += 1,
                _ => runs.push((block, 1)),
            }
        }
        runs
    }
}

/// Refuses impossible requests.
fn check(number: usize, offset: u64, bytes: u64) -> Result<()> {
    ensure!(bytes > 0, "record {number}: a request of no bytes");
    ensure!(bytes <= LONGEST, "record {number}: a request of {bytes} bytes");
    let end = offset.checked_add(bytes);
    ensure!(
        end.is_some_and(|end| end <= HIGHEST),
        "record {number}: {bytes} bytes at {offset} are past the end of any volume"
    );
    Ok(())
}

fn records(bytes: &[u8]) -> Result<Vec<Request>> {
    let mut requests = Vec::with_capacity(bytes.len() / RECORD);
    for (number, record) in (1..).zip(bytes.chunks(RECORD)) {
        ensure!(
            record.len() == RECORD,
            "record {number}: cut short, {} bytes of {RECORD}",
            record.len()
        );
        let word = |at: usize, count: usize| {
            record[at..at + count]
                .iter()
                .rev()
                .fold(0u64, |word, byte| word << 8 | u64::from(*byte))
        };
        let (length, command, sector) = (word(4, 4), word(12, 2), word(16, 8));
        let write = match command {
            0x28 => false,
            0x2a => true,
            other => bail!("record {number}: command {other:#x}, expected 0x28 (read) or 0x2a"),
        };
        let offset = sector.saturating_mul(512);
        check(number, offset, length)?;
        requests.push(Request { at_us: word(24, 8), write, offset, bytes: length });
    }
    Ok(requests)
}

fn lines(bytes: &[u8]) -> Result<Vec<Request>> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(bytes);
    let mut devices: BTreeMap<String, Vec<Request>> = BTreeMap::new();
    for (number, line) in (1..).zip(reader.records()) {
        let line = line.with_context(|| format!("record {number}"))?;
        ensure!(
            line.len() == 5,
            "record {number}: {} columns, expected device, opcode, offset, length, timestamp",
            line.len()
        );
        if number == 1 && line.iter().skip(2).all(|cell| cell.parse::<u64>().is_err()) {
            continue;
        }
        let value = |at: usize, what: &str| {
            let cell = &line[at];
            cell.parse::<u64>().with_context(|| format!("record {number}: {what} `{cell}`"))
        };
        let write = match &line[1] {
            "R" | "r" => false,
            "W" | "w" => true,
            other => bail!("record {number}: opcode `{other}`, expected R or W"),
        };
        let (offset, bytes) = (value(2, "offset")?, value(3, "length")?);
        check(number, offset, bytes)?;
        let request = Request { at_us: value(4, "timestamp")?, write, offset, bytes };
        devices.entry(line[0].to_owned()).or_default().push(request);
    }
    let busiest = devices.into_values().max_by_key(Vec::len);
    busiest.context("it has a line of names, and no records")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(command: u16, sector: u64, length: u32, at: u64) -> Vec<u8> {
        let mut record = Vec::new();
        record.extend(7u32.to_le_bytes());
        record.extend(length.to_le_bytes());
        record.extend(1u32.to_le_bytes());
        record.extend(command.to_le_bytes());
        record.extend(256u16.to_le_bytes());
        record.extend(sector.to_le_bytes());
        record.extend(at.to_le_bytes());
        record
    }

    fn parse(bytes: &[u8]) -> Result<Trace, String> {
        Trace::parse("t".to_owned(), bytes).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn records_are_read_and_touch_whole_blocks() {
        let bytes = [
            record(0x2a, 63, 65_536, 1_000_250),
            record(0x28, 0, 512, 1_000_000),
            record(0x28, 16, 4096, 1_000_300),
        ];
        let trace = parse(&bytes.concat()).unwrap();
        let times: Vec<u64> = trace.requests.iter().map(|request| request.at_us).collect();
        assert_eq!(times, [0, 250, 300]);
        let write = trace.requests[1];
        assert!(write.write && write.offset == 63 * 512);
        assert_eq!(write.blocks(), (7, 17));
        assert_eq!(trace.requests[0].blocks(), (0, 1));
        assert_eq!(trace.span(), 24 * 4096);
        // Blocks 0 and 2 are read before they are written; blocks 7 to 23 are only written.
        assert_eq!(trace.read_first(), [(0, 1), (2, 1)]);
        let other = parse(&record(0x2a, 63, 65_536, 1)).unwrap();
        assert_ne!(trace.name.crc, other.name.crc);
    }

    #[test]
    fn lines_are_read_and_the_busiest_device_counts() {
        let text = "device_id,opcode,offset,length,timestamp\n3,W,8192,4096,500\n4,R,0,512,400\n\
                    3,R,8192,8192,700\n";
        let trace = parse(text.as_bytes()).unwrap();
        assert_eq!(trace.requests.len(), 2);
        assert_eq!(trace.requests[1].at_us, 200);
        assert_eq!(trace.read_first(), [(3, 1)]);
        let without = text.split_once('\n').unwrap().1;
        assert_eq!(parse(without.as_bytes()).unwrap().requests, trace.requests);
    }

    #[test]
    fn what_is_damaged_is_named_by_its_record() {
        let good = record(0x2a, 8, 4096, 5);
        let with = |bad: Vec<u8>| [good.clone(), good.clone(), bad].concat();
        for (bytes, words) in [
            (Vec::new(), ["empty", ""]),
            (with(good[..31].to_vec()), ["record 3", "31 bytes"]),
            (with(record(0x35, 8, 4096, 5)), ["record 3", "0x35"]),
            (with(record(0x2a, 8, 0, 5)), ["record 3", "no bytes"]),
            (with(record(0x2a, u64::MAX / 4, 512, 5)), ["record 3", "past the end"]),
            (with(record(0x2a, 8, u32::MAX, 5)), ["record 3", "4294967295"]),
            (b"1,W,0,512,9\n1,W,0,512\n".to_vec(), ["record 2", "4 columns"]),
            (b"1,W,0,512,9\n1,X,0,512,9\n".to_vec(), ["record 2", "`X`"]),
            (b"1,W,0,512,9\n1,W,-1,512,9\n".to_vec(), ["record 2", "`-1`"]),
            (b"1,W,0,512,9\n1,W,0,0,9\n".to_vec(), ["record 2", "no bytes"]),
            (b"device,opcode,offset,length,timestamp\n".to_vec(), ["no records", ""]),
            (b"plain text, nothing else\n".to_vec(), ["record 1", "columns"]),
        ] {
            let error = parse(&bytes).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
        }
        let missing = Trace::read(Path::new("/nowhere/t.vscsi")).unwrap_err();
        assert!(format!("{missing:#}").contains("/nowhere/t.vscsi"));
    }
}
