//! Making soft zones on a plain drive.

use crate::format::{BLOCK, Lasting, Layout, Superblock};
use crate::journal::{Journal, Placed};
use crate::streams;
use crate::superblock::copies;
use furrow_log::Uuid;
use furrow_rt::{Page, Pages, Pool};
use furrow_zone::{ByteLen, Error, Outcome, PlainDevice, Result};

/// Number of bytes at the start of the drive that are overwritten with zeros, because other
/// programs keep their signatures there.
const FRONT: u64 = 68 << 10;
/// Maximum number of bytes in one discard.
const DISCARD: u64 = 1 << 30;

/// Options for making soft zones.
#[derive(Clone, Copy, Debug)]
pub struct MakeOptions {
    /// Bytes of each zone, a multiple of 4 KiB.
    pub zone: ByteLen,
    /// Blocks of 4 KiB for the records of each half of the journal; `None` chooses as many as suit
    /// the drive.
    pub records: Option<u32>,
    /// UUID of the drive, which no other drive has.
    pub uuid: Uuid,
}

/// An error if the plain drive refused the command `what`.
pub(crate) fn checked(plain: &dyn PlainDevice, what: &str, outcome: &Outcome) -> Result<()> {
    match outcome.status.is_ok() {
        true => Ok(()),
        false => Err(Error::device(&plain.name(), what, outcome.status)),
    }
}

/// Writes a part of the journal, or a superblock, like [`write_in`], in the journal's write stream.
pub(crate) async fn write(plain: &dyn PlainDevice, what: &str, placed: Placed) -> Result<()> {
    write_in(plain, what, placed, streams::of_journal(plain.streams())).await
}

/// Writes `pages` from byte `at` on, in write stream `stream`; sends all commands at once.
pub(crate) async fn write_in(
    plain: &dyn PlainDevice,
    what: &str,
    Placed { at, pages }: Placed,
    stream: u8,
) -> Result<()> {
    let most = (plain.max_transfer().0 / BLOCK).max(1) as usize;
    let part = |(index, part): (usize, &[Page])| {
        plain.write(at + (index * most) as u64 * BLOCK, part.iter().cloned().collect(), stream)
    };
    let sent: Vec<_> = pages.chunks(most).enumerate().map(part).collect();
    let mut first = Ok(());
    for answer in sent {
        first = first.and(checked(plain, what, &answer.await));
    }
    first
}

/// Reads `blocks` blocks from byte `at` on.
pub(crate) async fn read(
    plain: &dyn PlainDevice,
    what: &str,
    at: u64,
    blocks: u32,
    pool: &Pool,
) -> Result<Pages> {
    let most = (plain.max_transfer().0 / BLOCK).max(1) as u32;
    let (mut pages, mut done) = (Pages::new(), 0);
    while done < blocks {
        let now = most.min(blocks - done);
        let data = (0..now).map(|_| pool.take_dirty()).collect();
        let outcome = plain.read(at + u64::from(done) * BLOCK, data).await;
        checked(plain, what, &outcome)?;
        pages.extend(outcome.data);
        done += now;
    }
    Ok(pages)
}

/// Makes empty soft zones on `plain`. The drive's content is lost.
///
/// # Errors
/// The errors of [`Layout::plan`]; `Io` if the drive refuses a command: its content is
/// then unusable.
pub async fn make(plain: &dyn PlainDevice, options: &MakeOptions) -> Result<Superblock> {
    let pool = Pool::new(64);
    let layout = Layout::plan(plain.size(), options.zone, options.records);
    let layout = layout.map_err(|error| error.at(plain.name()))?;
    let superblock = Superblock { uuid: options.uuid, layout, repeats: true };
    let zeros = |at: u64, blocks: u64| Placed {
        at: at * BLOCK,
        pages: (0..blocks).map(|_| pool.take()).collect(),
    };
    // While the journal is written, the drive shows neither its old content nor soft zones.
    for place in [zeros(0, (FRONT / BLOCK).min(layout.blocks)), zeros(layout.blocks - 1, 1)] {
        write(plain, "write of zeros", place).await?;
    }
    checked(plain, "flush", &plain.flush().await)?;
    let (mut at, end) = (layout.journal * BLOCK, (layout.blocks - 1) * BLOCK);
    while at < end {
        // The discard is an optimization, and some drives refuse it.
        let length = DISCARD.min(end - at);
        if !plain.discard(at, length).await.status.is_ok() {
            break;
        }
        at += length;
    }
    let zones = vec![Lasting::default(); layout.zones as usize];
    let mut journal = Journal {
        device: options.uuid,
        half: 1,
        turn: 0,
        nonce: Uuid::NIL,
        next: 0,
        sequence: 0,
        table: 0,
        complete: 0,
        anchored: true,
        before: None,
    };
    let table = journal.turn(options.uuid, &zones, &layout, &pool);
    write(plain, "write of the table of zones", table).await?;
    write(plain, "write of zeros", zeros(layout.half_at(1) / BLOCK, 1)).await?;
    checked(plain, "flush", &plain.flush().await)?;
    for copy in copies(&superblock, &pool) {
        write(plain, "write of the superblock", copy).await?;
    }
    checked(plain, "flush", &plain.flush().await)?;
    Ok(superblock)
}
