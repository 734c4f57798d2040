//! The superblock of soft zones and its copy: finds them, and repairs one from the other.

use crate::format::{BLOCK, INCOMPAT_KNOWN, INCOMPAT_REPEATS, Layout, Superblock};
use crate::format::{SuperblockBody, TITLE, kind};
use crate::journal::Placed;
use crate::make::{read, write};
use furrow_log::record::{self, Expect, RecordId};
use furrow_log::{RecordHeader, crc32c};
use furrow_rt::buf::concat;
use furrow_rt::{Pages, Pool};
use furrow_zone::{Error, ErrorKind, PlainDevice, Result};
use zerocopy::{FromBytes, IntoBytes};

/// The blocks that hold the superblock: the copy in the last block, and the first block.
fn places(layout: &Layout) -> [u64; 2] {
    [layout.blocks - 1, 0]
}

/// Encodes the superblock as a block.
fn sealed(superblock: &Superblock, pool: &Pool) -> Pages {
    let id = RecordId { kind: kind::SUPERBLOCK, device: superblock.uuid, ..RecordId::default() };
    record::seal(&id, superblock.body().as_bytes(), pool)
}

/// Encodes both blocks of a superblock, the last block of the drive first.
pub(crate) fn copies(superblock: &Superblock, pool: &Pool) -> [Placed; 2] {
    let pages = sealed(superblock, pool);
    places(&superblock.layout).map(|block| Placed { at: block * BLOCK, pages: pages.clone() })
}

/// Whether `block`, the first 4 KiB of a drive, looks by its header or its title like the
/// superblock of soft zones, damaged or not.
pub fn is_superblock(block: &[u8]) -> bool {
    let title = block.get(RecordHeader::SIZE..).unwrap_or_default();
    record::peek(block).is_some_and(|header| header.kind.get() == kind::SUPERBLOCK)
        || title.starts_with(&TITLE)
}

/// Reads the superblock in `block`; `None` if the block holds something else, an error if the
/// superblock cannot be used.
fn parse(block: &[u8]) -> Result<Option<Superblock>> {
    if !is_superblock(block) {
        return Ok(None);
    }
    let expect = Expect { kind: kind::SUPERBLOCK, ..Expect::default() };
    let (header, body) = record::open(block, &expect)?;
    let corrupt = |what: &str| Error::new(ErrorKind::Corrupt, what);
    let body = SuperblockBody::read_from_bytes(body).map_err(|_| corrupt("of another length"))?;
    if body.title != TITLE {
        return Err(corrupt("without its title"));
    }
    let unknown = body.incompat.get() & !INCOMPAT_KNOWN;
    if unknown != 0 {
        let what = format!("features {unknown:#x} are not known here: use a newer furrow");
        return Err(Error::new(ErrorKind::WrongFormat, what));
    }
    let repeats = body.incompat.get() & INCOMPAT_REPEATS != 0;
    Ok(Some(Superblock { uuid: header.device, layout: Layout::of(&body)?, repeats }))
}

/// The superblock, and which of its two copies is damaged.
pub(crate) struct Copies {
    pub superblock: Superblock,
    /// The damaged copy, to be written again, with a warning.
    pub damaged: Option<(Placed, String)>,
}

/// Finds the superblock of `plain`; `None` if the drive has no soft zones.
pub(crate) async fn find(plain: &dyn PlainDevice, pool: &Pool) -> Result<Option<Copies>> {
    let blocks = plain.size().0 / BLOCK;
    if blocks < 2 {
        return Ok(None);
    }
    let name = plain.name();
    let front = concat(&read(plain, "read of the superblock", 0, 1, pool).await?);
    let what = match parse(&front) {
        Ok(None) => return Ok(None),
        Ok(Some(superblock)) if superblock.layout.blocks > blocks => {
            let what = format!(
                "{name}: it has {blocks} blocks of 4096 bytes, but its soft zones need {}; it was \
                 cut short: restore its size",
                superblock.layout.blocks
            );
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        Ok(Some(superblock)) => {
            let damaged = copy_of(plain, &superblock, pool).await;
            return Ok(Some(Copies { superblock, damaged }));
        }
        Err(error) if error.kind() == ErrorKind::WrongFormat => {
            return Err(error.at(format!("{name}: superblock")));
        }
        Err(error) => error,
    };
    // The first block looks like a damaged superblock, so no other program has written over it.
    let at = (blocks - 1) * BLOCK;
    let copy = concat(&read(plain, "read of the superblock's copy", at, 1, pool).await?);
    match parse(&copy) {
        Ok(Some(superblock)) if superblock.layout.blocks == blocks => {
            let warning = format!("{name}: the superblock is damaged ({what}); its copy is used");
            let [_, front] = copies(&superblock, pool);
            Ok(Some(Copies { superblock, damaged: Some((front, warning)) }))
        }
        _ => Err(Error::new(
            ErrorKind::Corrupt,
            format!("{name}: the superblock of its soft zones and the copy are damaged: {what}"),
        )),
    }
}

/// The copy for the last block, with a warning, if that block does not hold the same
/// as `superblock`.
async fn copy_of(
    plain: &dyn PlainDevice,
    superblock: &Superblock,
    pool: &Pool,
) -> Option<(Placed, String)> {
    let [copy, _] = copies(superblock, pool);
    let what = match read(plain, "read of the superblock's copy", copy.at, 1, pool).await {
        Ok(found) if concat(&found) == concat(&copy.pages) => return None,
        Ok(found) => format!("CRC32C {:08x}", crc32c(&concat(&found))),
        Err(error) => error.to_string(),
    };
    let name = plain.name();
    let at = copy.at;
    Some((copy, format!("{name}: the copy of the superblock at byte {at} is damaged ({what})")))
}

/// The superblock of `plain`; `None` if the drive has no soft zones.
///
/// # Errors
/// `Io` if the superblock cannot be read, `Corrupt` if it is damaged or the drive is too small,
/// `WrongFormat` if it is of a newer version.
pub async fn identify(plain: &dyn PlainDevice) -> Result<Option<Superblock>> {
    let found = find(plain, &Pool::new(4)).await?;
    Ok(found.map(|copies| copies.superblock))
}

/// Restores the first block of soft zones from its copy, the last block. This is for a first block
/// that no longer looks like a superblock. The caller must know that the drive has not been used
/// otherwise since.
///
/// # Errors
/// `NotFound` if the last block is not a whole copy; `Io` if the drive cannot be read or written.
pub async fn restore_front(plain: &dyn PlainDevice) -> Result<()> {
    let (pool, blocks) = (Pool::new(4), plain.size().0 / BLOCK);
    let name = plain.name();
    let at = blocks.saturating_sub(1) * BLOCK;
    let copy = concat(&read(plain, "read of the superblock's copy", at, 1, &pool).await?);
    let superblock = match parse(&copy) {
        Ok(Some(superblock)) if superblock.layout.blocks == blocks => superblock,
        _ => {
            let what = format!("{name}: the last block is not a whole copy of a superblock");
            return Err(Error::new(ErrorKind::NotFound, what));
        }
    };
    let [_, front] = copies(&superblock, &pool);
    write(plain, "write of the superblock", front).await?;
    let flushed = plain.flush().await.status;
    flushed.is_ok().then_some(()).ok_or_else(|| Error::device(&name, "flush", flushed))
}

/// Writes a damaged copy again. The write may fail: the other copy is whole.
pub(crate) async fn mend(plain: &dyn PlainDevice, damaged: Placed) {
    let _ = write(plain, "write of the superblock", damaged).await;
}
