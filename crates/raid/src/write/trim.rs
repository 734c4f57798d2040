//! Trims: a client discards blocks, and a record of the trim makes that durable.

use crate::format::{TrimEntry, block, kind};
use crate::meta::identity::Identity;
use crate::paging::state::Pinner;
use crate::volume::Volume;
use crate::write::item::{Call, Item, Use};
use furrow_log::record::{self, crc32c};
use furrow_policy::RaidDefect;
use furrow_zone::Result;
use zerocopy::IntoBytes;

impl Volume {
    /// Discards the content of the blocks: they read as zeros, and their space can be reused. The
    /// call returns when a record of the trim is as durable as a write would be.
    ///
    /// # Errors
    /// The errors of [`Volume::write`].
    pub async fn trim(&self, block: u64, count: u64, fua: bool) -> Result<()> {
        self.check_alive()?;
        self.check_range(block, count)?;
        if count == 0 {
            return Ok(());
        }
        let _held = self.0.ranges.hold(block..block + count).await;
        let mut at = block;
        while at < block + count {
            let piece = self.piece(at, block + count - at);
            self.trim_piece(at, piece).await?;
            at += piece;
        }
        if fua {
            self.flush_drives().await?;
        }
        Ok(())
    }

    async fn trim_piece(&self, block: u64, count: u64) -> Result<()> {
        let pins = self.pin(Pinner::User, (block, count), false).await?;
        self.check_alive()?;
        // The trim's sequence number decides which blocks it discards: writes after it have
        // higher numbers.
        let entry = TrimEntry { lba: block.into(), blocks: count.into() };
        let sequence = self.next_sequence();
        let id = self.record_id(kind::TRIM, 0, sequence);
        let id = record::RecordId { device: furrow_log::Uuid::NIL, ..id };
        let page = record::seal(&id, entry.as_bytes(), &self.0.pages).remove(0);
        if self.has(RaidDefect::TrimWithoutRecord) {
            self.unmap(block, count);
            return Ok(());
        }
        let call = Call::pinning(pins);
        // If users' writes are refused for lack of space, a trim helps: its record may go to the
        // space kept for cleaning.
        let out = self.out_of_space().is_some();
        let stream = self.route(if out { Use::Internal } else { Use::Small });
        let crc = crc32c(page.bytes());
        let identity = Identity { lba: block, sequence, crc, kind: block::TRIM };
        self.put(&stream, Item { identity, page, from: None, trimmed: count }, &call);
        call.wait().await?;
        if out {
            // Fewer blocks are valid now, so cleaning may find space.
            self.0.wanted.notify_all();
        }
        Ok(())
    }

    /// Writes zeros, by a [`Volume::trim`]: unmapped blocks read as zeros.
    ///
    /// # Errors
    /// The errors of [`Volume::write`].
    pub async fn write_zeroes(&self, block: u64, count: u64, fua: bool) -> Result<()> {
        self.trim(block, count, fua).await
    }
}
