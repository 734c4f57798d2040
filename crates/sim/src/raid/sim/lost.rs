//! Lost drives, and which combinations of them were tried.
//!
//! After each life, copies of the array lose as many more drives as their redundancy allows, while
//! running or before assembly, and everything is read back.

use super::World;
use crate::raid::part::Part;
use crate::simulation::{Summary, on_executor};
use furrow_raid::{Level, MemberState, Placement, Volume};
use furrow_rt::Rng;
use furrow_zone::ZonedDevice;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Number of drives of the largest shape.
const DRIVES: u32 = 8;

/// Draws a random selection of `count`, in order.
pub(super) fn pick(of: &[u32], count: usize, rng: &mut Rng) -> Vec<u32> {
    let mut drawn = of.to_vec();
    while drawn.len() > count {
        drawn.remove(rng.below(drawn.len() as u64) as usize);
    }
    drawn
}

impl World {
    /// Number of members that may be lost in addition to those that are not whole. One whole member
    /// stays: otherwise no drive might know the state of the others.
    pub(super) fn budget(&self) -> usize {
        let gone = (self.array.drives - self.whole.len() as u32) as usize;
        let budget = (self.array.tolerates() as usize).saturating_sub(gone);
        budget.min(self.whole.len().saturating_sub(1))
    }

    /// Reads everything back from a copy that loses drives.
    pub(super) fn lose(&self, rng: &mut Rng, summary: &mut Summary) -> Result<(), String> {
        let whole = self.whole.iter().copied().filter(|member| self.speaker != Some(*member));
        let whole: Vec<u32> = whole.collect();
        let most = self.budget().min(whole.len());
        let count = if rng.one_in(4) { rng.below(most as u64 + 1) as usize } else { most };
        let lost = pick(&whole, count, rng);
        let running = rng.one_in(2);
        let seats = lost.iter().filter_map(|member| self.seats[*member as usize]);
        let without: Vec<u32> = seats.collect();
        let told = format!("without {lost:?}, gone while it runs: {running}");
        let gone = on_executor(rng.next(), summary, |rt| {
            let emulator = self.emulator(rt)?;
            let device: Rc<dyn ZonedDevice> = Rc::new(emulator);
            let parts = Part::split(rt, &device, self.array.parts());
            let (rt2, array, blocks) = (rt.clone(), self.array.clone(), self.blocks.clone());
            let mut lacks = if running { Vec::new() } else { without.clone() };
            rt.block_on(async move {
                let opened = array.open(&rt2, &parts, &mut lacks).await;
                let volume = opened.map_err(|error| error.to_string())?;
                let mut gone = absent(&volume);
                if running {
                    without.iter().for_each(|part| parts[*part as usize].set_gone(true));
                    gone |= lost.iter().fold(0, |set, member| set | 1 << member);
                }
                blocks.compare(&volume).await?;
                Ok::<_, String>(gone)
            })
            .map_err(|why| format!("{told}: {why}"))
        })?;
        if gone.count_ones() > self.array.tolerates() {
            return Ok(());
        }
        let shape = (self.array.level as u8, self.array.drives, self.array.config.group);
        *summary.lost.entry(shape).or_default().entry(gone).or_default() += 1;
        Ok(())
    }
}

/// The set of members that are not in service, as bits.
fn absent(volume: &Volume) -> u32 {
    let members = volume.members();
    let absent = members.iter().enumerate().filter(|(_, m)| m.1 != MemberState::Active);
    absent.fold(0, |set, (member, _)| set | 1 << member)
}

/// The number of ways to choose 1 to `most` of `drives` drives.
fn combinations(drives: u32, most: u32) -> u64 {
    (1u32..1 << drives).filter(|set| set.count_ones() <= most).count() as u64
}

/// A line for each level and number of drives. It says for each number of stripes per group how
/// many of the tolerated combinations of drives were lost when everything was read back.
pub fn lines(lost: &BTreeMap<(u8, u32, u32), BTreeMap<u32, u64>>) -> Vec<String> {
    let (mut lines, mut reached, mut all) = (Vec::new(), 0, 0);
    for level in Level::ALL {
        for drives in 2..=DRIVES {
            let Ok(placement) = Placement::new(level, drives) else { continue };
            let total = combinations(drives, placement.tolerates());
            if total == 0 {
                continue;
            }
            let of = |group: u32| {
                let sets = lost.get(&(level as u8, drives, group));
                let sets = sets.into_iter().flatten().filter(|(set, _)| **set != 0);
                (sets.clone().count() as u64, sets.map(|(_, count)| count).sum::<u64>())
            };
            let groups = [1, 4, 8].map(|group| (group, of(group)));
            reached += groups.iter().map(|(_, (sets, _))| sets).sum::<u64>();
            all += total * groups.len() as u64;
            let told = groups.map(|(group, (sets, times))| {
                format!("{sets:>2} of {total:>2} ({times} times) in groups of {group}")
            });
            lines.push(format!("{level} of {drives}: {}", told.join(", ")));
        }
    }
    lines.push(format!("{reached} of {all} combinations of lost drives read back"));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_counted_by_shape() {
        assert_eq!((combinations(8, 2), combinations(8, 1), combinations(8, 0)), (36, 8, 0));
        let shape = (Level::Raid6 as u8, 4, 8);
        let sets = BTreeMap::from([(0, 9), (0b1, 2), (0b1001, 3)]);
        let lines = lines(&BTreeMap::from([(shape, sets)]));
        let line = lines.iter().find(|line| line.starts_with("RAID-6 of 4")).unwrap();
        assert!(line.ends_with(" 2 of 10 (5 times) in groups of 8"), "{line}");
        assert!(!lines.iter().any(|line| line.starts_with("RAID-0 ")), "it can do without none");
        // RAID-4 and RAID-5 have 35 combinations each, RAID-6 has 33 of one drive and 83 of two,
        // RAID-01 has 18: 204 in all, for each of three sizes of groups.
        assert_eq!(lines.last().unwrap(), "2 of 612 combinations of lost drives read back");
    }
}
