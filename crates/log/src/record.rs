//! Records: sealing a header and a body into blocks, and opening them again.
//!
//! Invariants
//! - [`open`] accepts exactly the output of [`seal`]: a change of any bit of a record's blocks
//!   gives an error, and no bytes cause a panic.
//! - The checksum is checked before the version, so only a whole record is reported as a newer
//!   version.

use crate::format::{
    BLOCK_SIZE, RECORD_LENGTH_MAX, RECORD_MAGIC, RECORD_VERSION, RecordHeader as Header,
};
use furrow_rt::buf::is_zero;
use furrow_rt::{Pages, Pool, Rng};
use furrow_zone::{Error, ErrorKind, Result};
use std::fmt;
use std::str::FromStr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use crate::format::RecordHeader;

/// CRC32C (Castagnoli) of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Continues the CRC32C `crc` of earlier bytes with `bytes`. The CRC32C of no bytes is 0.
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    // The algorithm's state is the checksum before the final inversion.
    let state = u64::from(crc ^ u32::MAX);
    let mut digest =
        crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, state);
    digest.update(bytes);
    digest.finalize() as u32
}

/// Checks that a superblock can hold a label: of a file system or a store.
///
/// # Errors
/// `Invalid` if the label is too long or contains a zero byte.
pub fn check_label(label: &str) -> Result<()> {
    if label.len() > 63 || label.contains('\0') {
        let message = "a label has at most 63 bytes, none of them zero";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

/// A UUID: of a drive, or of an engine on it.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// All zeros: no UUID.
    pub const NIL: Uuid = Uuid([0; 16]);

    /// Draws a random UUID (version 4).
    pub fn random(rng: &mut Rng) -> Uuid {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&rng.next().to_le_bytes());
        bytes[8..].copy_from_slice(&rng.next().to_le_bytes());
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Uuid(bytes)
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = Error;

    /// Parses the 8-4-4-4-12 form, in upper or lower case.
    fn from_str(text: &str) -> Result<Uuid> {
        let bad = || {
            Error::new(
                ErrorKind::Invalid,
                format!("\"{text}\" is not a UUID: expected 8-4-4-4-12 hexadecimal digits"),
            )
        };
        let groups: Vec<&str> = text.split('-').collect();
        if groups.iter().map(|group| group.len()).ne([8, 4, 4, 4, 12]) {
            return Err(bad());
        }
        let digits = groups.concat();
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let digit = |c: u8| char::from(c).to_digit(16).ok_or_else(bad);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Ok(Uuid(bytes))
    }
}

/// Identity of a record: its kind, its engine and drive, and its place in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordId {
    /// Kind of the record.
    pub kind: u16,
    /// Mount epoch in which the record was written.
    pub epoch: u64,
    /// Checkpoint that the record belongs to.
    pub checkpoint: u64,
    /// Place of the record in the order of its log.
    pub sequence: u64,
    /// UUID of the drive.
    pub device: Uuid,
    /// UUID of the engine.
    pub object: Uuid,
}

impl Header {
    /// Returns the record's identity.
    pub fn id(&self) -> RecordId {
        RecordId {
            kind: self.kind.get(),
            epoch: self.epoch.get(),
            checkpoint: self.checkpoint.get(),
            sequence: self.sequence.get(),
            device: self.device,
            object: self.object,
        }
    }

    /// Number of blocks of the record.
    pub fn blocks(&self) -> u32 {
        self.length.get().div_ceil(BLOCK_SIZE as u32)
    }

    /// Number of bytes in the body.
    pub fn body_len(&self) -> usize {
        (self.length.get() as usize).saturating_sub(Header::SIZE)
    }
}

/// The identity that the reader of a record expects. `None` accepts any value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expect {
    /// The expected kind.
    pub kind: u16,
    /// The expected drive.
    pub device: Option<Uuid>,
    /// The expected engine.
    pub object: Option<Uuid>,
}

/// Number of blocks of a record with a body of `body` bytes.
pub fn blocks_for(body: usize) -> u32 {
    (Header::SIZE + body).div_ceil(BLOCK_SIZE) as u32
}

/// Builds a record of `body`, as whole blocks. The record does not state which earlier records
/// are durable.
///
/// # Panics
/// If header and body exceed [`RECORD_LENGTH_MAX`].
pub fn seal(id: &RecordId, body: &[u8], pool: &Pool) -> Pages {
    seal_after(id, 0, body, pool)
}

/// Builds a record of `body`, as whole blocks. The record states that all records of its log below
/// sequence `durable` were durable before the record was written. So a reader that does not find
/// one of these earlier records takes the earlier record for damaged, not for the torn end of the
/// log.
///
/// # Panics
/// If header and body exceed [`RECORD_LENGTH_MAX`].
pub fn seal_after(id: &RecordId, durable: u64, body: &[u8], pool: &Pool) -> Pages {
    let length = Header::SIZE + body.len();
    assert!(length <= RECORD_LENGTH_MAX as usize, "record of {length} bytes: split it");
    let mut header = Header {
        magic: RECORD_MAGIC.into(),
        kind: id.kind.into(),
        version: RECORD_VERSION.into(),
        length: (length as u32).into(),
        crc: 0.into(),
        epoch: id.epoch.into(),
        checkpoint: id.checkpoint.into(),
        sequence: id.sequence.into(),
        device: id.device,
        object: id.object,
        durable: durable.into(),
        reserved: [0; 16],
    };
    header.crc = crc32c_append(crc32c(header.as_bytes()), body).into();
    let mut pages = Pages::new();
    let (mut rest, mut start) = (body, Header::SIZE);
    while pages.len() * BLOCK_SIZE < length {
        let mut page = pool.take_dirty();
        let bytes = page.make_mut();
        if pages.is_empty() {
            bytes[..start].copy_from_slice(header.as_bytes());
        }
        let (now, later) = rest.split_at(rest.len().min(BLOCK_SIZE - start));
        bytes[start..start + now.len()].copy_from_slice(now);
        bytes[start + now.len()..].fill(0);
        pages.push(page);
        (rest, start) = (later, 0);
    }
    pages
}

/// Returns the header at the start of `first_block`, if its magic, version and length are
/// plausible. Nothing else in the header is verified yet.
pub fn peek(first_block: &[u8]) -> Option<Header> {
    let (header, _) = Header::read_from_prefix(first_block).ok()?;
    let length = header.length.get();
    (header.magic.get() == RECORD_MAGIC
        && header.version.get() != 0
        && (Header::SIZE as u32..=RECORD_LENGTH_MAX).contains(&length))
    .then_some(header)
}

/// Opens the record at the start of `bytes`, and returns its header and body. `bytes` hold at least
/// the whole blocks of the record.
///
/// # Errors
/// `Corrupt` if there is no whole record, `WrongFormat` if the record is whole but of a newer
/// version, of another kind, or of another drive or engine. The caller adds the record's place to
/// the error.
pub fn open<'a>(bytes: &'a [u8], expect: &Expect) -> Result<(Header, &'a [u8])> {
    let corrupt = |what: String| Error::new(ErrorKind::Corrupt, what);
    let Some(header) = peek(bytes) else {
        let found = bytes.get(..16).unwrap_or(bytes);
        return Err(corrupt(format!("no record header: found bytes {found:02x?}")));
    };
    let length = header.length.get() as usize;
    let padded = length.next_multiple_of(BLOCK_SIZE);
    let Some(blocks) = bytes.get(..padded) else {
        let held = bytes.len();
        return Err(corrupt(format!("record says {length} bytes, but only {held} are there")));
    };
    let (record, padding) = blocks.split_at(length);
    let body = &record[Header::SIZE..];
    let mut bare = header;
    bare.crc = 0.into();
    let (expected, found) = (header.crc.get(), crc32c_append(crc32c(bare.as_bytes()), body));
    if expected != found {
        return Err(corrupt(format!(
            "record checksum is {found:08x}, its header says {expected:08x}"
        )));
    }
    if !is_zero(padding) {
        return Err(corrupt(format!("bytes after the record's {length} are not zero")));
    }
    check(&header, expect)?;
    Ok((header, body))
}

/// True if `blocks` hold a record that may have been torn in the last block: the record's end is
/// zeros, and more than one bit is wrong. The caller knows that the record is not whole.
pub fn may_be_cut_off(blocks: &[u8], sector: usize) -> bool {
    let (Some(header), Some(last)) = (peek(blocks), blocks.rchunks(BLOCK_SIZE).next()) else {
        return false;
    };
    let length = header.length.get() as usize;
    is_torn(last, length.saturating_sub(blocks.len() - last.len()), sector)
        && !blocks.get(..length).is_some_and(|record| has_one_flipped_bit(&header, record))
}

fn has_one_flipped_bit(header: &Header, record: &[u8]) -> bool {
    let mut bare = *header;
    bare.crc = 0.into();
    let bare = [bare.as_bytes(), &record[Header::SIZE..]].concat();
    let of_the_checksum = (crc32c(&bare) ^ header.crc.get()).is_power_of_two();
    of_the_checksum || is_within_one_bit(&bare, header.crc.get())
}

/// True if `last`, the last block of a record or of other content, looks torn. The first `length`
/// bytes of the block should hold content. On a drive whose logical blocks, of `sector` bytes, are
/// smaller than a block, a power cut can leave part of a block. The missing part reads as zeros,
/// because it was not written or because recovery filled it with zeros.
pub fn is_torn(last: &[u8], length: usize, sector: usize) -> bool {
    let written = || last.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    sector < BLOCK_SIZE && written().div_ceil(sector) < length.min(BLOCK_SIZE).div_ceil(sector)
}

/// True if a block whose content should have the checksum `crc` may have been torn. Zeros at the
/// block's end alone do not show that the block was torn: tearing changes nothing in a content of
/// zeros, and a single flipped bit is damage.
pub fn may_be_torn(block: &[u8], crc: u32, sector: usize) -> bool {
    let zeros = || crc == crc32c(&vec![0; block.len()]);
    is_torn(block, block.len(), sector) && !zeros() && !is_within_one_bit(block, crc)
}

/// Whether `bytes` have the CRC32C `crc`, or would have it with one bit flipped. The effect of a
/// flip on a checksum depends only on the bit's distance from the end, so the search goes back from
/// the end, one step for each bit.
fn is_within_one_bit(bytes: &[u8], crc: u32) -> bool {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let change = crc32c(bytes) ^ crc;
    let earlier = |by: &u32| Some(by >> 1 ^ if by & 1 == 1 { POLYNOMIAL } else { 0 });
    let flips = std::iter::successors(Some(POLYNOMIAL), earlier);
    change == 0 || flips.take(bytes.len() * 8).any(|flip| flip == change)
}

fn check(header: &Header, expect: &Expect) -> Result<()> {
    let wrong = |what: String| Err(Error::new(ErrorKind::WrongFormat, what));
    let version = header.version.get();
    if version > RECORD_VERSION {
        return wrong(format!(
            "record of format version {version}, but this program knows up to {RECORD_VERSION}: \
             use a newer furrow"
        ));
    }
    let (kind, expected) = (header.kind.get(), expect.kind);
    if kind != expected {
        return wrong(format!("record of kind {kind} where kind {expected} belongs"));
    }
    for (name, found, expected) in
        [("device", header.device, expect.device), ("object", header.object, expect.object)]
    {
        if expected.is_some_and(|expected| expected != found) {
            let expected = expected.unwrap_or_default();
            return wrong(format!("record of {name} {found}, expected {expected}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::Rng;
    use furrow_rt::buf::concat;
    use proptest::prelude::*;

    fn id() -> RecordId {
        let mut rng = Rng::new(1);
        RecordId {
            kind: 7,
            epoch: 1,
            checkpoint: 2,
            sequence: 3,
            device: Uuid::random(&mut rng),
            object: Uuid::random(&mut rng),
        }
    }

    fn expect() -> Expect {
        Expect { kind: 7, device: Some(id().device), object: Some(id().object) }
    }

    #[test]
    fn crc_is_castagnoli_and_appends() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
        assert_eq!(crc32c_append(crc32c(b"1234"), b"56789"), 0xe306_9283);
        assert_eq!(crc32c_append(0, b"123456789"), 0xe306_9283);
    }

    #[test]
    fn uuid_prints_and_parses() {
        let uuid = Uuid::random(&mut Rng::new(9));
        assert_eq!(uuid.to_string().parse::<Uuid>().unwrap(), uuid);
        assert_eq!(uuid.to_string().to_uppercase().parse::<Uuid>().unwrap(), uuid);
        assert_eq!(uuid.to_string().as_bytes()[14], b'4');
        for bad in ["", "x", "0-0-0-0-0", "00000000-0000-0000-0000-00000000000g", "é"] {
            assert!(bad.parse::<Uuid>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_newer_version_is_said_to_be_one() {
        let mut bytes = concat(&seal(&id(), b"body", &Pool::new(1)));
        let (mut header, _) = Header::read_from_prefix(&bytes).unwrap();
        header.version = 2.into();
        header.crc = 0.into();
        header.crc = crc32c_append(crc32c(header.as_bytes()), b"body").into();
        bytes[..Header::SIZE].copy_from_slice(header.as_bytes());
        let error = open(&bytes, &expect()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongFormat);
        assert!(error.to_string().contains("version 2"), "{error}");
    }

    #[test]
    fn a_record_says_what_was_durable_before_it() {
        for durable in [0, 3, u64::MAX] {
            let bytes = concat(&seal_after(&id(), durable, b"body", &Pool::new(1)));
            assert_eq!(open(&bytes, &expect()).unwrap().0.durable.get(), durable);
        }
        let bytes = concat(&seal(&id(), b"body", &Pool::new(1)));
        assert_eq!(open(&bytes, &expect()).unwrap().0.durable.get(), 0);
    }

    #[test]
    fn records_of_others_are_refused_by_name() {
        let bytes = concat(&seal(&id(), b"body", &Pool::new(1)));
        let other = Some(Uuid([9; 16]));
        for (expect, word) in [
            (Expect { kind: 8, ..expect() }, "kind"),
            (Expect { device: other, ..expect() }, "device"),
            (Expect { object: other, ..expect() }, "object"),
        ] {
            let error = open(&bytes, &expect).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WrongFormat);
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    proptest! {
        /// Every sealed record opens again, and every changed bit is detected.
        #[test]
        fn seal_opens_and_every_flip_is_caught(
            body in proptest::collection::vec(any::<u8>(), 0..9000),
            flip in any::<prop::sample::Index>(),
            bit in 0..8u32,
        ) {
            let pages = seal(&id(), &body, &Pool::new(4));
            let mut bytes = concat(&pages);
            prop_assert_eq!(pages.len() as u32, blocks_for(body.len()));
            prop_assert_eq!(peek(&bytes).map(|h| h.blocks()), Some(pages.len() as u32));
            let (header, opened) = open(&bytes, &expect()).unwrap();
            prop_assert_eq!(header.id(), id());
            prop_assert_eq!(opened, &body[..]);
            let at = flip.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(open(&bytes, &expect()).is_err());
        }

        /// A torn block counts as possibly torn, unless it was all zeros; a block with a flipped
        /// bit does not.
        #[test]
        fn a_flipped_bit_does_not_look_torn(
            body in proptest::collection::vec((0..64u8).prop_map(|byte| byte << 2 | 3), 0..=4096),
            flip in any::<prop::sample::Index>(),
            bit in 0..8u32,
            sectors in 0..8usize,
        ) {
            let mut block = body.clone();
            block.resize(BLOCK_SIZE, 0);
            let crc = crc32c(&block);
            let mut torn = block.clone();
            torn[sectors * 512..].fill(0);
            prop_assert_eq!(may_be_torn(&torn, crc, 512), sectors * 512 < body.len());
            block[flip.index(BLOCK_SIZE)] ^= 1 << bit;
            prop_assert!(!may_be_torn(&block, crc, 512));
        }

        /// [`may_be_cut_off`] is true for a torn record and false for a record with one flipped
        /// bit, whatever the record's content ends with.
        #[test]
        fn a_flipped_bit_does_not_look_like_a_record_that_was_cut_off(
            body in proptest::collection::vec(1..=255u8, 0..5000),
            zeros in 0..3000usize,
            flip in any::<prop::sample::Index>(),
            bit in 0..8u32,
            sectors in 0..8usize,
        ) {
            let body = [&body[..], &vec![0; zeros]].concat();
            let whole = concat(&seal(&id(), &body, &Pool::new(4)));
            let mut torn = whole.clone();
            let last = whole.len() - BLOCK_SIZE;
            torn[last + sectors * 512..].fill(0);
            // A record that lost one bit would count as flipped. If two bytes differ, at least two
            // bits were lost.
            let lost = whole.iter().zip(&torn).filter(|(a, b)| a != b).count();
            if lost > 1 && peek(&torn).is_some() {
                prop_assert!(may_be_cut_off(&torn, 512));
            }
            let mut flipped = whole.clone();
            let at = 16 + flip.index(Header::SIZE + body.len() - 16);
            flipped[at] ^= 1 << bit;
            prop_assert!(!may_be_cut_off(&flipped, 512));
        }

        /// No bytes cause a panic, whether random or starting like a record.
        #[test]
        fn any_bytes_are_survived(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..9000),
            length in any::<u32>(),
            magic in any::<bool>(),
        ) {
            if magic && bytes.len() >= 12 {
                bytes[..4].copy_from_slice(&RECORD_MAGIC.to_le_bytes());
                bytes[8..12].copy_from_slice(&(length >> (length % 32)).to_le_bytes());
            }
            let _ = peek(&bytes);
            prop_assert!(open(&bytes, &expect()).is_err());
        }
    }
}
