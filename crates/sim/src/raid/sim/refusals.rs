//! Drives that refuse their writes for a while.

use super::{Action, Plan, World};
use furrow_rt::Rng;

impl Plan {
    /// Lets one, some or all drives refuse every write for a while. The array may fail with that,
    /// and has what it acknowledged when it is put together again.
    pub(super) fn draw_refusals(&mut self, world: &World, rng: &mut Rng) {
        // Members that refuse writes fail, as many as the level tolerates: no other may be struck,
        // nor have lost a zone, which looks as if it had had the stripes that were refused.
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

    /// Whether drives refuse writes that the array cannot do without.
    pub(super) fn refuses(&self) -> bool {
        self.actions.iter().any(|(_, action)| matches!(action, Action::Refuse(..)))
    }
}
