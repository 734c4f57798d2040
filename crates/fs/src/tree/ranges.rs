//! Operations on ranges of files: allocation, holes, copies, write-out.

use crate::Fs;
use crate::blocked::NotApplied;
use crate::core::Core;
use crate::tree::cache::Key;
use crate::tree::holes::Sought;
use crate::types::{Allocate, Ino, ReadData, Seek, SetAttr, WriteData};
use furrow_log::record::crc32c;
use furrow_rt::Boxed;
use furrow_rt::PAGE_SIZE;
use furrow_zone::{Error, ErrorKind, Result};

/// Number of bytes copied at a time.
const COPY_STEP: u64 = 1 << 20;
/// Largest number of bytes that one [`Fs::copy_range`] copies.
const COPY_MAX: u64 = 64 << 20;

/// The longest range, in blocks, that is searched for writes in flight.
const WATCHED_MAX: u32 = 1024;

fn invalid<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::new(ErrorKind::Invalid, message))
}

impl Core {
    /// True if blocks of the range may already be in flight. A long range is not searched, and
    /// counts as in flight.
    fn may_be_in_flight(&self, ino: Ino, from: u32, end: u32) -> bool {
        let in_flight = |block| {
            let entry = self.cache.peek(&Key::Data(ino.0, block));
            entry.is_some_and(|entry| entry.is_in_flight())
        };
        end - from > WATCHED_MAX || (from..end).any(in_flight)
    }

    /// Dispatches the first 256 dirty blocks of `ino` in `from..end`, or all if there are fewer.
    /// Returns the block at which the next step begins; `end` after the last step.
    pub(crate) fn write_range(
        &mut self,
        ino: Ino,
        from: u32,
        end: u32,
    ) -> std::result::Result<u32, NotApplied> {
        self.writable()?;
        let dirty = self.cache.dirty_in(ino.0, from..).take_while(|block| *block < end);
        let blocks: Vec<u32> = dirty.take(256).collect();
        for block in &blocks {
            self.holder(ino, *block)?;
        }
        for block in &blocks {
            self.write_data(ino, *block)?;
        }
        Ok(match blocks.last() {
            Some(last) if blocks.len() == 256 => last + 1,
            _ => end,
        })
    }
}

impl Fs {
    /// Allocates or frees the blocks of `len` bytes from `offset` on (fallocate). After a failure
    /// or a crash, only a part of the operation may be done.
    ///
    /// Filling a hole writes zeros, so that later writes there only replace blocks. No blocks are
    /// kept beyond the end of the file, so `KeepSize` does nothing there.
    ///
    /// # Errors
    /// `Invalid` for an empty range or an inode that is not a regular file, `IsDirectory`,
    /// `TooLarge`, `NoSpace`, `NotFound`, `ReadOnly`, `Corrupt`, `Io`.
    #[inline(never)]
    pub fn fallocate(
        &self,
        ino: Ino,
        what: Allocate,
        offset: u64,
        len: u64,
    ) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            let Some(end) = offset.checked_add(len).filter(|end| *end > offset) else {
                return invalid("a range of at least one byte is needed");
            };
            let extend = matches!(what, Allocate::Extend | Allocate::Zero);
            if what != Allocate::Punch {
                self.0
                    .run(|core| {
                        core.check_size(end)?;
                        let size = core.getattr(ino)?.size;
                        let keep = end.min(size).saturating_sub(offset);
                        core.check_fill(ino, if extend { len } else { keep })
                    })
                    .await?;
            }
            if matches!(what, Allocate::Punch | Allocate::Zero | Allocate::ZeroKeepSize) {
                let mut at = offset;
                while at < end {
                    at = self.0.run(|core| core.punch(ino, at..end)).await?;
                }
            }
            if what != Allocate::Punch {
                let mut at = offset;
                while at < end {
                    at = self.0.run(|core| core.fill(ino, at..end, extend)).await?;
                }
            }
            Ok(())
        })
    }

    /// Finds the first data, or the first hole, at or after `offset` (lseek with SEEK_DATA,
    /// SEEK_HOLE). `None` where Linux returns ENXIO: `offset` is past the end, or no data follows.
    ///
    /// # Errors
    /// `Invalid` if `ino` is not a regular file, `IsDirectory`, `NotFound`, `Corrupt`, `Io`.
    pub async fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<Option<u64>> {
        let mut from = 0;
        loop {
            match self.0.run(|core| core.seek(ino, offset, from, what)).await? {
                Sought::Found(at) => return Ok(Some(at)),
                Sought::None => return Ok(None),
                Sought::More(block) => from = block,
            }
        }
    }

    /// Copies up to `len` bytes from one file to another, or within one file if the ranges do not
    /// overlap (copy_file_range). Returns the number of bytes copied: fewer than `len` at the end
    /// of `from`, and at most 64 MiB. Holes stay holes.
    ///
    /// # Errors
    /// `Invalid` for ranges that overlap or an inode that is not a regular file, and the errors of
    /// [`Fs::read`] and [`Fs::write`]; bytes copied before an error stay copied.
    #[inline(never)]
    pub fn copy_range(
        &self,
        (from, mut source): (Ino, u64),
        (to, mut target): (Ino, u64),
        len: u64,
    ) -> Boxed<'_, Result<u64>> {
        Box::pin(async move {
            let size = self.regular_size(from).await?;
            self.regular_size(to).await?;
            let len = len.min(COPY_MAX).min(size.saturating_sub(source));
            if target.checked_add(len).is_none() {
                return Err(Error::new(ErrorKind::TooLarge, "past the largest file"));
            }
            if from == to && source < target + len && target < source + len {
                return invalid("the ranges overlap");
            }
            let end = source + len;
            while source < end {
                let data = self.seek(from, source, Seek::Data).await?;
                let hole = data.unwrap_or(end).min(end) - source;
                if hole >= PAGE_SIZE as u64 {
                    self.copy_hole(to, target, hole).await?;
                    (source, target) = (source + hole, target + hole);
                    continue;
                }
                let most = (end - source).min(COPY_STEP);
                let read = self.read(from, source, most as usize).await?;
                if read.is_empty() {
                    // The source file became shorter in the meantime.
                    break;
                }
                let count = read.len() as u64;
                self.write(to, self.rewritten(read, target)).await?;
                (source, target) = (source + count, target + count);
            }
            Ok(len - (end - source))
        })
    }

    async fn regular_size(&self, ino: Ino) -> Result<u64> {
        self.0
            .run(|core| {
                let attr = core.getattr(ino)?;
                crate::tree::file::check_regular(&attr)?;
                Ok(attr.size)
            })
            .await
    }

    async fn copy_hole(&self, to: Ino, target: u64, len: u64) -> Result<()> {
        self.fallocate(to, Allocate::Punch, target, len).await?;
        if self.regular_size(to).await? < target + len {
            let longer = SetAttr { size: Some(target + len), ..SetAttr::default() };
            self.setattr(to, longer).await?;
        }
        Ok(())
    }

    /// The data of `read` as a write at `offset`. The pages are shared if the offset within the
    /// first page is the same, and copied otherwise.
    fn rewritten(&self, read: ReadData, offset: u64) -> WriteData {
        if read.skip as u64 != offset % PAGE_SIZE as u64 {
            return WriteData::copy(self.pool(), offset, &read.to_vec());
        }
        let mut left = read.len;
        let mut skip = read.skip;
        let crcs = read.pages.iter().map(|page| {
            let take = left.min(PAGE_SIZE - skip);
            left -= take;
            skip = 0;
            (take == PAGE_SIZE).then(|| crc32c(page.bytes()))
        });
        let crcs = crcs.collect();
        WriteData { offset, len: read.len, pages: read.pages, crcs, keeps_times: false }
    }

    /// Writes the dirty blocks of `len` bytes from `offset` on to the drive and waits for the
    /// writes (sync_file_range with all three flags). The writes need not be durable afterwards:
    /// see [`Fs::fsync`].
    ///
    /// # Errors
    /// `NotFound`, `ReadOnly`, `NoSpace`, `Corrupt`, `Io`.
    #[inline(never)]
    pub fn sync_range(&self, ino: Ino, offset: u64, len: u64) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            self.0.run(|core| core.inode(ino).map(|_| ())).await?;
            let block = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
            let mut from = block(offset / PAGE_SIZE as u64);
            let end = block(offset.saturating_add(len).div_ceil(PAGE_SIZE as u64)).max(from);
            // If blocks of the range are already in flight, waiting for the writes made here is
            // not enough.
            let others = self.0.core.borrow().may_be_in_flight(ino, from, end);
            self.0.append_range(ino, from..end).await?;
            let mut own = Vec::new();
            while from < end {
                let done = self.0.run(|core| {
                    core.durability.watch();
                    let done = core.write_range(ino, from, end);
                    own.extend(core.durability.watched());
                    done
                });
                let done = done.await;
                self.0.after_dispatch();
                from = done?;
            }
            if !others {
                let mut lost = false;
                for written in own {
                    lost |= written.await.is_err();
                }
                if !lost {
                    return Ok(());
                }
            }
            let point = self.0.core.borrow().env.writer.sequence_point();
            self.0.wait_durable_or_relocated(point).await
        })
    }
}
