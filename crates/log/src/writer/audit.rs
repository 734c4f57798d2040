//! The audit of the writer: its zones' queues, and the sequence numbers of writes in flight.

use super::Writer;
use crate::audit::equal;
use furrow_zone::{Result, ZoneId};

impl Writer {
    /// Compares each zone's counters with its commands, and the writes in flight with the writes of
    /// all zones. The cost is proportional to the number of open zones.
    ///
    /// # Errors
    /// `Internal`: names the account, the expected value and the value found.
    pub fn audit(&self) -> Result<()> {
        let (mut open, mut pages, mut unsent) = (Vec::new(), 0, 0);
        for zone_queue in self.0.zone_queues.borrow().iter().flatten() {
            let (its_pages, its_unsent) = zone_queue.audit(&mut open)?;
            (pages, unsent) = (pages + its_pages, unsent + its_unsent);
        }
        open.sort_unstable();
        let in_flight = self.0.shared.in_flight.borrow();
        equal("writes in flight, their numbers", open, in_flight.numbers().collect())?;
        equal("writes in flight, their pages", pages, in_flight.pages())?;
        equal("writes that are not wholly sent", unsent, in_flight.unsent())
    }

    /// Number of blocks set aside in `zone` since it was empty; 0 if the zone is not open in
    /// this writer.
    pub fn written(&self, zone: ZoneId) -> u32 {
        self.zone_queue(zone).map_or(0, |zone_queue| zone_queue.holdings().0)
    }

    /// Number of permits that the open zones hold.
    pub fn permits(&self) -> u32 {
        let zone_queues = self.0.zone_queues.borrow();
        zone_queues.iter().flatten().map(|zone_queue| zone_queue.holdings().1).sum()
    }

    /// Number of permits that `zone` holds.
    pub fn permits_of(&self, zone: ZoneId) -> u32 {
        self.zone_queue(zone).map_or(0, |zone_queue| zone_queue.holdings().1)
    }
}
