//! Which superzone to clean next.
//!
//! Pure functions over an engine's facts about each superzone: how many of its blocks are valid,
//! how long ago these last changed, and its interference group. Nothing here knows the content.
//!
//! - [`Policy::Greedy`] takes the superzone whose cleaning copies the least. It suits cleaning that
//!   a user waits for.
//! - [`Policy::CostBenefit`] weighs the space gained against the cost, and prefers superzones that
//!   have not changed for long: a superzone that still changes becomes cheaper without cleaning.
//!   (Sprite LFS: free space generated × age / cost, where the cost is one read and one write of
//!   the valid blocks.)
//!
//! Victims come from the interference group with the fewest free superzones, so that streams find
//! space on every die. The preference has a limit: a victim of another group that is more than
//! [`GROUP_FACTOR`] times better is taken instead. Candidates that are *not worth it* (see
//! [`Worth`]) are never taken, so cleaning ends.
//!
//! The engine decides how fast to clean, how much to reserve for cleaning, and which superzones
//! are candidates.

use std::cmp::Ordering;
use std::fmt;

/// A victim of another interference group is preferred only if it is more than this many
/// times better.
pub const GROUP_FACTOR: u64 = 2;

/// How victims are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Prefers the victim with the fewest blocks to copy.
    Greedy,
    /// Prefers the victim with the most space gained for the cost, weighted by age.
    #[default]
    CostBenefit,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::Greedy => "greedy",
            Policy::CostBenefit => "cost-benefit",
        })
    }
}

/// A superzone that could be cleaned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// Number of the superzone.
    pub id: u32,
    /// Number of valid blocks, which cleaning would have to move.
    pub valid: u32,
    /// Number of blocks that the superzone can hold.
    pub capacity: u32,
    /// Time since the superzone's valid blocks last changed: in seconds, or in another unit that
    /// all candidates share.
    pub age: u64,
    /// Interference group of the superzone.
    pub group: u32,
}

impl Candidate {
    /// Number of blocks that hold nothing valid: the space that cleaning frees. `None` if more
    /// blocks are valid than fit: then the superzone's account is broken, and the superzone cannot
    /// be a victim. The engine's audit must notice such an account, because choosing a victim
    /// cannot report it.
    fn garbage(&self) -> Option<u32> {
        self.capacity.checked_sub(self.valid)
    }

    /// Score of the superzone as a victim: higher is better, 0 means that it must not be a victim.
    fn score(&self, policy: Policy) -> u64 {
        let Some(garbage) = self.garbage().map(u64::from) else { return 0 };
        let valid = u64::from(self.valid);
        match policy {
            Policy::Greedy => garbage,
            // (1 − u) · age ÷ (1 + u), in units of 2^-16. Ages above a year count as a year.
            Policy::CostBenefit => {
                let capacity = u64::from(self.capacity);
                let age = self.age.min(365 * 86_400) + 1;
                (garbage << 16) / (capacity + valid).max(1) * age
            }
        }
    }
}

/// Conditions under which a victim is worth cleaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worth {
    /// Minimum share of the superzone's blocks that must be garbage, in thousandths.
    pub garbage_permille: u32,
    /// Maximum number of blocks that may have to be moved.
    pub valid_max: u32,
}

impl Worth {
    /// Whether `candidate` is worth cleaning.
    pub fn allows(&self, candidate: &Candidate) -> bool {
        let least = u64::from(candidate.capacity) * u64::from(self.garbage_permille);
        let enough = |garbage| garbage > 0 && u64::from(garbage) * 1000 >= least;
        candidate.valid <= self.valid_max && candidate.garbage().is_some_and(enough)
    }
}

/// Returns the index of the best victim among `candidates`; `None` if no candidate is worth
/// cleaning. `free` is the number of free superzones of each interference group (0 for groups
/// not listed).
pub fn choose(
    candidates: &[Candidate],
    free: &[u32],
    policy: Policy,
    worth: Worth,
) -> Option<usize> {
    let free_in = |group: u32| free.get(group as usize).copied().unwrap_or(0);
    // The superzone with the lower number wins a tie, so the choice does not depend on the order of
    // the list.
    let better = |a: &(usize, &Candidate, u64), b: &(usize, &Candidate, u64)| -> Ordering {
        a.2.cmp(&b.2).then(b.1.id.cmp(&a.1.id))
    };
    let worthy = || {
        let worthy = candidates.iter().enumerate().filter(|(_, c)| worth.allows(c));
        worthy.map(|(index, c)| (index, c, c.score(policy)))
    };
    let best = worthy().max_by(better)?;
    let good_enough = worthy().filter(|c| c.2.saturating_mul(GROUP_FACTOR) >= best.2);
    let poorest = good_enough.map(|c| free_in(c.1.group)).min()?;
    let of_poorest = worthy()
        .filter(|c| c.2.saturating_mul(GROUP_FACTOR) >= best.2 && free_in(c.1.group) == poorest);
    of_poorest.max_by(better).map(|c| c.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ANY: Worth = Worth { garbage_permille: 0, valid_max: u32::MAX };

    fn one(id: u32, valid: u32, age: u64, group: u32) -> Candidate {
        Candidate { id, valid, capacity: 100, age, group }
    }

    #[test]
    fn greedy_copies_least_and_cost_benefit_leaves_the_young_alone() {
        let list = [one(0, 40, 1, 0), one(1, 30, 1, 0), one(2, 60, 1000, 0)];
        assert_eq!(choose(&list, &[], Policy::Greedy, ANY), Some(1));
        assert_eq!(choose(&list, &[], Policy::CostBenefit, ANY), Some(2));
        // Among candidates of the same age the cheapest is chosen.
        let list = [one(0, 40, 9, 0), one(1, 30, 9, 0)];
        assert_eq!(choose(&list, &[], Policy::CostBenefit, ANY), Some(1));
    }

    #[test]
    fn the_group_with_the_fewest_free_ones_comes_first_but_not_at_any_price() {
        let list = [one(0, 50, 0, 0), one(1, 60, 0, 1), one(2, 55, 0, 1)];
        assert_eq!(choose(&list, &[3, 1], Policy::Greedy, ANY), Some(2));
        assert_eq!(choose(&list, &[1, 3], Policy::Greedy, ANY), Some(0));
        // Group 1 has the fewest free superzones, but no victim that is half as good.
        let list = [one(0, 10, 0, 0), one(1, 60, 0, 1)];
        assert_eq!(choose(&list, &[3, 1], Policy::Greedy, ANY), Some(0));
        // Group 1 has no candidates: the next group is used.
        assert_eq!(choose(&list[..1], &[3, 1], Policy::Greedy, ANY), Some(0));
    }

    #[test]
    fn what_is_not_worth_it_is_left() {
        let full = [one(0, 100, 5, 0), one(1, 96, 5, 0)];
        assert_eq!(choose(&full, &[], Policy::Greedy, ANY), Some(1));
        let worth = Worth { garbage_permille: 50, ..ANY };
        assert_eq!(choose(&full, &[], Policy::Greedy, worth), None);
        let worth = Worth { valid_max: 95, ..ANY };
        assert_eq!(choose(&full, &[], Policy::CostBenefit, worth), None);
        assert_eq!(choose(&[], &[], Policy::Greedy, ANY), None);
    }

    #[test]
    fn a_superzone_with_more_valid_blocks_than_fit_is_no_victim() {
        let broken = one(0, 101, 5, 0);
        assert_eq!((broken.garbage(), one(0, 100, 5, 0).garbage()), (None, Some(0)));
        assert_eq!(choose(&[broken], &[], Policy::CostBenefit, ANY), None);
    }

    prop_compose! {
        fn candidate()(
            id in 0u32..1000, valid in 0u32..120, age in prop_oneof![0u64..100, any::<u64>()],
            group in 0u32..5,
        ) -> Candidate {
            // `valid` may exceed `capacity`: damaged tables must not cause a panic.
            Candidate { id, valid, capacity: 100, age, group }
        }
    }

    proptest! {
        #[test]
        fn a_choice_is_worth_it_good_enough_and_does_not_depend_on_the_order(
            mut list in proptest::collection::vec(candidate(), 0..20),
            free in proptest::collection::vec(0u32..6, 0..5),
            permille in 0u32..1000, valid_max in 0u32..120, greedy: bool,
        ) {
            list.sort_by_key(|c| c.id);
            list.dedup_by_key(|c| c.id);
            let policy = if greedy { Policy::Greedy } else { Policy::CostBenefit };
            let worth = Worth { garbage_permille: permille, valid_max };
            let chosen = choose(&list, &free, policy, worth).map(|i| list[i]);
            prop_assert_eq!(chosen.is_some(), list.iter().any(|c| worth.allows(c)));
            let mut reversed = list.clone();
            reversed.reverse();
            let again = choose(&reversed, &free, policy, worth).map(|i| reversed[i]);
            prop_assert_eq!(chosen, again);
            let Some(chosen) = chosen else { return Ok(()) };
            prop_assert!(worth.allows(&chosen));
            let of = |c: &Candidate| free.get(c.group as usize).copied().unwrap_or(0);
            for other in list.iter().filter(|c| worth.allows(c)) {
                prop_assert!(chosen.score(policy).saturating_mul(GROUP_FACTOR)
                    >= other.score(policy));
                if of(other) <= of(&chosen) {
                    prop_assert!(chosen.score(policy) >= other.score(policy)
                        || of(other) < of(&chosen)
                        && other.score(policy).saturating_mul(GROUP_FACTOR)
                            < list.iter().filter(|c| worth.allows(c))
                                .map(|c| c.score(policy)).max().unwrap_or(0));
                }
            }
        }

        #[test]
        fn less_to_copy_is_never_worse(valid in 0u32..99, age in any::<u64>(), greedy: bool) {
            let policy = if greedy { Policy::Greedy } else { Policy::CostBenefit };
            let score = |valid, age| one(0, valid, age, 0).score(policy);
            prop_assert!(score(valid, age) >= score(valid + 1, age));
            prop_assert!(score(valid, 1) <= score(valid, 2));
        }
    }
}
