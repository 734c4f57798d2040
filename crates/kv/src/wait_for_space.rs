//! Waiting for space: a writer gets a zone, waits until cleaning frees one, or is told that there
//! is no space left.

use crate::store::Store;
use crate::zone_allocator::{Choice, SpaceTicket, Want};
use furrow_rt::{Nanos, either};
use furrow_zone::{ErrorKind, Result, ZoneId};

impl Store {
    /// Returns a zone with space; cleaning makes some if necessary. Waiting writers are served in
    /// the order of their arrival.
    ///
    /// # Errors
    /// `NoSpace` if cleaning can free nothing.
    pub(crate) async fn zone_for(&self, want: Want) -> Result<ZoneId> {
        let mut place = None;
        let found = self.zone_in_turn(want, &mut place).await;
        self.count(|counters| {
            if let Some((_, since)) = &place {
                counters.waits += 1;
                counters.waited += self.0.rt.now().since(*since);
            }
            let refused = found.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace);
            counters.refused += u64::from(refused);
        });
        found
    }

    async fn zone_in_turn<'a>(
        &'a self,
        want: Want,
        place: &mut Option<(SpaceTicket<'a>, Nanos)>,
    ) -> Result<ZoneId> {
        let zones = &self.0.zones;
        let queue = || (zones.queue(want.claim), self.0.rt.now());
        loop {
            self.check_alive()?;
            let freed = zones.freed.wait();
            if zones.must_wait(want, place.as_ref().map(|(place, _)| place)) {
                place.get_or_insert_with(queue);
                freed.await;
                continue;
            }
            let full = want.content && self.space_for(want.claim) == 0;
            match if full { Choice::Nothing } else { zones.choose(want) } {
                Choice::Zone(zone) => {
                    self.clean_if_low();
                    return Ok(zone);
                }
                Choice::End(zone) => {
                    self.end_zone(zone).await?;
                    continue;
                }
                Choice::Nothing => {}
            }
            if let Some(permit) = zones.next_permit(want).filter(|_| !full) {
                if let Ok(permit) = either(permit, freed).await
                    && zones.find(want, true).is_none()
                {
                    zones.open(want, permit);
                }
                continue;
            }
            if want.usage.is_moved() || !self.may_clean() {
                return Err(self.no_space_left());
            }
            place.get_or_insert_with(queue);
            zones.wanted.notify_all();
            freed.await;
        }
    }
}
