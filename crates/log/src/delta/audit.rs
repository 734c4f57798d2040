//! The audit of a delta log: compares the log's accounts with the blocks that were written.

use super::{DeltaLog, Extent};
use crate::audit::{broken, holds};
use furrow_zone::Result;

impl DeltaLog {
    /// Compares the halves with the blocks that the writer placed in their zones, and with
    /// `extents`: those of the durable checkpoint, and of later appends if there are any.
    ///
    /// # Errors
    /// `Internal`: names the account, the expected value and the value found.
    pub fn audit(&self, extents: &[Extent]) -> Result<()> {
        let blocks = self.layout.half_blocks(self.half);
        holds("delta log position", self.block <= blocks, || {
            format!("expected at most block {blocks}, found {}", self.block)
        })?;
        for half in 0..2 {
            let account = format!("delta log half {half}");
            if self.is_clean(half) {
                let zones = self.layout.half_zones(half).iter();
                let mut written = zones.map(|zone| (*zone, self.writer.written(*zone)));
                if let Some((zone, blocks)) = written.find(|(_, blocks)| *blocks > 0) {
                    let what =
                        format!("expected nothing of it, found {blocks} blocks in zone {zone}");
                    return Err(broken(&account, what));
                }
            }
            let of_half = extents.iter().filter(|extent| extent.half == half);
            for Extent { first, blocks, .. } in of_half {
                let end = u64::from(*first) + u64::from(*blocks);
                let most = match (self.is_clean(half), half == self.half) {
                    (true, _) => 0,
                    (false, true) => self.block,
                    (false, false) => self.layout.half_blocks(half),
                };
                holds(&account, end <= u64::from(most), || {
                    format!("expected extents up to block {most}, found one that ends at {end}")
                })?;
            }
        }
        Ok(())
    }
}
