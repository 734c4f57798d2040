//! Drives that refuse their writes for a while.

use super::{Action, Plan, World};
use furrow_rt::Rng;

impl Plan {
    /// Lets one, some or all drives refuse every write for a while. The array may fail then, but
    /// must have everything it acknowledged when it is assembled again.
    pub(super) fn draw_refusals(&mut self, world: &World, rng: &mut Rng) {
        // Members that refuse writes fail, as many as the level tolerates. So no other member may
        // have a fault. Nor may one have lost a zone, since a refused stripe would look as if it
        // had been in that zone.
        if !rng.one_in(4) || !self.struck.is_empty() || !world.spoiled.is_empty() {
            return;
        }
        let seats: Vec<u32> = world.seats.iter().flatten().copied().collect();
        let all = rng.one_in(2);
        let refuse = seats.iter().filter(|_| all || rng.one_in(2));
        let refuse = refuse.fold(0, |set, seat| set | 1 << seat);
        let times = [4, 20, 100, 1000][rng.below(4) as usize];
        self.actions.push((rng.below(self.operations), Action::Refuse(refuse, times)));
        self.actions.sort_by_key(|(at, _)| *at);
    }

    /// Whether drives refuse all writes for a while, so that the array may fail.
    pub(super) fn refuses(&self) -> bool {
        self.actions.iter().any(|(_, action)| matches!(action, Action::Refuse(..)))
    }
}
