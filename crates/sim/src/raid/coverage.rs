//! The combinations of drives that were missing while a sweep read everything back.

use crate::crash::Tally;
use crate::raid::array::SHAPES;
use furrow_raid::{Level, Placement};

pub(crate) const WITH_POWER: &str = "lost with the power";
pub(crate) const AT_END: &str = "left out at the end";

pub(crate) fn told_lost(when: &str, (level, drives): (Level, u32), lost: &[u32]) -> String {
    format!("{when}: {level} of {drives} {lost:?}")
}

/// A line for each shape of the sweep. The line says how many combinations of lost drives were
/// tried, and which were missed. A combination has as many drives as the level tolerates; it was
/// tried if everything was read back without these drives.
pub fn coverage(reached: &Tally) -> Vec<String> {
    let of = |(level, drives): &(Level, u32)| {
        let placement = Placement::new(*level, *drives).ok()?;
        let lost = placement.tolerates();
        let all: Vec<Vec<u32>> = (0u32..1 << drives)
            .filter(|set| set.count_ones() == lost)
            .map(|set| (0..*drives).filter(|drive| set >> drive & 1 == 1).collect())
            .collect();
        let tried = |lost: &&Vec<u32>| {
            [WITH_POWER, AT_END]
                .iter()
                .any(|when| reached.contains_key(&told_lost(when, (*level, *drives), lost)))
        };
        let (tried, missed): (Vec<_>, Vec<_>) = all.iter().partition(tried);
        let mut line = format!(
            "{level} of {drives}: {} of {} combinations of {lost} lost drives read back",
            tried.len(),
            all.len()
        );
        if !missed.is_empty() {
            line += &format!("; MISSED {missed:?}");
        }
        (lost > 0).then_some(line)
    };
    SHAPES.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_combination_that_was_never_lost_is_named() {
        let mut reached = Tally::new();
        for lost in [[0], [2]] {
            reached.insert(told_lost(AT_END, (Level::Raid5, 3), &lost), 1);
        }
        reached.insert(told_lost(WITH_POWER, (Level::Raid5, 3), &[2]), 3);
        let lines = coverage(&reached);
        let line = lines.iter().find(|line| line.starts_with("RAID-5 of 3")).unwrap();
        assert_eq!(
            line,
            "RAID-5 of 3: 2 of 3 combinations of 1 lost drives read back; MISSED [[1]]"
        );
        reached.insert(told_lost(WITH_POWER, (Level::Raid5, 3), &[1]), 1);
        assert!(
            coverage(&reached)
                .iter()
                .any(|line| line.ends_with("3 of 3 combinations of 1 lost drives read back"))
        );
        assert!(lines.iter().any(|line| line.starts_with("RAID-6 of 5: 0 of 10")));
        assert!(!lines.iter().any(|line| line.starts_with("RAID-0 ")), "it can do without nobody");
    }
}
