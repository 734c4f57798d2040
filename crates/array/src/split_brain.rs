//! Split brain: whether the given drives can know that they have the newest state.
//!
//! Missing drives may have continued without the given ones, if the missing drives alone were
//! enough. The given drives cannot know whether that happened. This concerns mirrors (arrays of two
//! drives, the halves of RAID-01) and RAID-6 on three or four drives. In all other arrays, a part
//! that can start has more than half of the drives, so the other drives cannot start.

use crate::admission::newest;
use crate::examine::Examined;
use crate::member::MemberState;
use crate::placement::Placement;

/// The reason why an array should not be started from these drives without a confirmation. `None`
/// if they certainly have the newest state, or are too few to start. The module
/// [`assemble`](crate::assemble) checks everything else.
pub fn split_brain(drives: &[Examined]) -> Option<String> {
    let newest = newest(drives)?;
    let placement = Placement::new(newest.level, newest.drives).ok()?;
    let here = |index: u32| drives.iter().any(|drive| drive.member == Some(index));
    // Members that are failed in the newest state are older: they took no part in later writes.
    let may_be_ahead = |index: u32| {
        let state = newest.members.get(index as usize).map(|(_, state)| *state);
        !here(index) && state == Some(MemberState::Active)
    };
    let missing: Vec<String> = (0..placement.n)
        .filter(|index| may_be_ahead(*index))
        .map(|index| index.to_string())
        .collect();
    let alone = placement.recoverable(|chunk| may_be_ahead(placement.drive(0, chunk)));
    let enough = placement.recoverable(|chunk| here(placement.drive(0, chunk)));
    (!missing.is_empty() && alone && enough).then(|| {
        let who = match &missing[..] {
            [one] => format!("member {one} is"),
            several => format!("members {} are", several.join(", ")),
        };
        format!(
            "{who} missing and could have gone on alone, with newer data: give all drives, or \
             --degraded if you know that this did not happen"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::Level;
    use furrow_log::Uuid;

    /// State records for tests: those that the members `here` of an array have after the members
    /// `failed` have failed.
    fn say(level: Level, drives: u32, here: &[u32], failed: &[u32]) -> Vec<Examined> {
        let state = |member| match failed.contains(&member) {
            true => MemberState::Failed,
            false => MemberState::Active,
        };
        let members: Vec<_> = (0..drives).map(|m| (Uuid([m as u8; 16]), state(m))).collect();
        let one = |member: &u32| Examined {
            events: 4,
            record: 9,
            known: vec![8; drives as usize],
            served: vec![4; drives as usize],
            ..Examined::sample(Uuid([9; 16]), level, members.clone(), *member)
        };
        here.iter().map(one).collect()
    }

    #[test]
    fn only_who_could_have_gone_on_alone_makes_doubt() {
        let doubted = |level, drives, here: &[u32], failed: &[u32]| {
            split_brain(&say(level, drives, here, failed)).is_some()
        };
        use Level::{Raid0, Raid01, Raid4, Raid5, Raid6};
        for level in [Raid4, Raid5] {
            assert!(doubted(level, 2, &[0], &[]) && doubted(level, 2, &[1], &[]));
            assert!(!doubted(level, 2, &[0], &[1]), "it knows that the other is stale");
            assert!(!doubted(level, 2, &[0, 1], &[]));
            assert!(!doubted(level, 3, &[0, 2], &[]) && !doubted(level, 4, &[1, 2, 3], &[]));
        }
        assert!(!doubted(Raid5, 3, &[0], &[]), "too few to start at all");
        assert!(doubted(Raid6, 3, &[1], &[]), "two of three hold everything");
        assert!(doubted(Raid6, 4, &[1, 3], &[]) && !doubted(Raid6, 5, &[0, 1, 2], &[]));
        assert!(!doubted(Raid6, 4, &[1, 3], &[0]));
        assert!(doubted(Raid01, 4, &[0, 2], &[]) && !doubted(Raid01, 4, &[0, 2, 3], &[]));
        assert!(!doubted(Raid0, 2, &[0, 1], &[]));
        let text = split_brain(&say(Raid5, 2, &[1], &[])).unwrap();
        assert!(text.starts_with("member 0 is missing") && text.contains("--degraded"), "{text}");
        assert_eq!(split_brain(&[]), None);
    }
}
