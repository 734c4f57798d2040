//! The audit of a record ring: compares the halves with the zones that were written.

use super::RecordRing;
use crate::audit::{equal, holds};
use furrow_zone::Result;
use std::collections::BTreeSet;

impl RecordRing {
    /// Compares the zones of the half with the zones of older halves, with the failed zones, and
    /// with the blocks that the writer placed in them. The cost is proportional to the number of
    /// zones of the ring.
    ///
    /// # Errors
    /// `Internal`: names the account, the expected value and the value found.
    pub fn audit(&self) -> Result<()> {
        let mut zones = BTreeSet::new();
        for zone in self.half.iter().chain(&self.old).chain(&self.kept).chain(&self.failed) {
            holds("zones of the record ring", self.zones.has(*zone), || {
                format!("expected one of {:?}, found zone {zone}", self.zones)
            })?;
            holds("zones of the record ring", zones.insert(*zone), || {
                format!(
                    "zone {zone} is there twice: half {:?}, older {:?}, kept {:?}, failed {:?}",
                    self.half, self.old, self.kept, self.failed
                )
            })?;
        }
        let current = self.current < self.half.len() || (self.half.is_empty() && self.current == 0);
        holds("current zone of the record ring", current, || {
            format!("{} of {} zones", self.current, self.half.len())
        })?;
        for (index, zone) in self.half.iter().enumerate() {
            let written = self.writer.written(*zone);
            if index < self.current {
                let what = format!("blocks of the full zone {zone} of the record ring");
                equal(&what, self.capacity(), written)?;
            }
            if index > self.current {
                let what = format!("blocks of zone {zone} of the record ring, not begun");
                equal(&what, 0, written)?;
            }
        }
        for zone in self.zones.zones().filter(|zone| !zones.contains(zone)) {
            let what = format!("blocks of the empty zone {zone} of the record ring");
            equal(&what, 0, self.writer.written(zone))?;
        }
        let held: u32 = self.half.iter().map(|zone| self.writer.permits_of(*zone)).sum();
        holds("permits of the record ring", self.half.is_empty() || held > 0, || {
            format!("expected one for the half {:?}, found none", self.half)
        })
    }

    /// Replaces the next zone of the half, which the half has not begun, with the first zone of the
    /// half; false if there is no next zone. For tests of audits only.
    #[cfg(any(test, feature = "corrupt"))]
    pub fn corrupt_next_zone(&mut self) -> bool {
        let first = self.half.first().copied();
        let next = self.half.get_mut(self.current + 1);
        next.zip(first).map(|(next, first)| *next = first).is_some()
    }
}
