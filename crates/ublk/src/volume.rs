//! A RAID volume as an ordinary block device.

use crate::abi::SECTOR;
use crate::backend::{Backend, Done, Properties};
use crate::request::{Operation, Request};
use furrow_rt::{PAGE_SIZE, Page, Pages};
use furrow_zone::ErrorKind;
use rustix::io::Errno;

/// Largest transfer in bytes.
const TRANSFER: u32 = 1 << 20;

/// Maximum number of blocks in one write of zeroes.
const ZEROES: u64 = 256;

/// A RAID volume that is served as an ordinary block device.
pub struct Exported {
    volume: furrow_raid::Volume,
    read_only: bool,
    always_durable: bool,
}

impl Exported {
    /// Prepares `volume` for serving; with `read_only` it takes no writes.
    pub fn new(volume: furrow_raid::Volume, read_only: bool) -> Exported {
        Exported { volume, read_only, always_durable: false }
    }

    /// With `true`, makes every change durable before it is answered. A device that outlives its
    /// server ([`Options::kept_for`](crate::Options::kept_for)) needs this. If the server's process
    /// dies, drives that live in the process, such as soft zones, lose unflushed data, and the
    /// kernel does not notice.
    #[must_use]
    pub fn always_durable(mut self, always_durable: bool) -> Exported {
        self.always_durable = always_durable;
        self
    }
}

impl Backend for Exported {
    fn properties(&self) -> Properties {
        Properties {
            block_bytes: PAGE_SIZE as u32,
            sectors: self.volume.blocks() * (PAGE_SIZE as u64 / SECTOR),
            transfer_bytes: TRANSFER,
            read_only: self.read_only || self.volume.failed().is_some(),
            volatile_cache: true,
            discards: true,
            zones: None,
        }
    }

    async fn carry_out(&self, request: Request, data: Pages) -> Result<Done, Errno> {
        let per_block = PAGE_SIZE as u64 / SECTOR;
        let (block, count) = (request.sector / per_block, u64::from(request.sectors) / per_block);
        let (volume, fua) = (&self.volume, request.fua || self.always_durable);
        let done = match request.operation {
            Operation::Read => {
                return match volume.read(block, count as u32).await {
                    Ok(pages) => Ok(Done::Read(pages)),
                    Err(error) => Err(errno(error.kind())),
                };
            }
            Operation::Write => volume.write(block, data, fua).await,
            Operation::Flush => volume.flush().await,
            Operation::Discard => volume.trim(block, count, fua).await,
            Operation::WriteZeroes { may_free: true } => {
                volume.write_zeroes(block, count, fua).await
            }
            Operation::WriteZeroes { may_free: false } => {
                write_pages(volume, block, count, fua).await
            }
            Operation::Append | Operation::Manage(_) | Operation::ResetAll | Operation::Report => {
                return Err(Errno::OPNOTSUPP);
            }
        };
        done.map(|()| Done::Plain).map_err(|error| errno(error.kind()))
    }
}

/// Writes pages of zeroes, so that the blocks keep their space. For `write_zeroes`, a
/// log-structured volume would store nothing.
async fn write_pages(
    volume: &furrow_raid::Volume,
    block: u64,
    count: u64,
    fua: bool,
) -> furrow_zone::Result<()> {
    let zero = Page::zeroed();
    let end = block + count;
    for at in (block..end).step_by(ZEROES as usize) {
        let data = (at..end.min(at + ZEROES)).map(|_| zero.clone()).collect();
        volume.write(at, data, fua).await?;
    }
    Ok(())
}

/// The errno for an error, among the errnos that the kernel's block layer distinguishes.
fn errno(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::NoSpace => Errno::NOSPC,
        ErrorKind::Invalid | ErrorKind::TooLarge => Errno::INVAL,
        ErrorKind::Unsupported => Errno::OPNOTSUPP,
        // Lost data stays lost, so this is a medium error, which is not retried.
        ErrorKind::Corrupt => Errno::NODATA,
        _ => Errno::IO,
    }
}
