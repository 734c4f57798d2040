//! Load: what has lately been written to each interference group of dies.
//!
//! A group of dies programs at its own rate, no matter how many streams write to it, and the
//! drive's buffer fills with the writes for the slowest group. Two busy superzones may lie on one
//! group: when streams have more superzones than there are groups, or when the load changes while
//! the superzones are open. Each of the two must then get less than a superzone that has its group
//! to itself. So a stream continues with the head whose group has received the fewest blocks
//! lately, counting the writes of all streams (`heads`). Where all groups are equally loaded, the
//! heads take turns.
//!
//! Counts fade: whenever four segments per group have been written, all counts are halved, so that
//! they reflect only writes the drive may still be busy with. For the same reason, a head that
//! joins others starts with the count of the least loaded of them: dies that have rested are no
//! faster. Nothing is stored.

/// All counts are halved whenever this many segments per group have been written.
const FADE: u64 = 4;

/// Blocks written lately, by group.
pub(crate) struct Load {
    blocks: Vec<u64>,
    /// Number of blocks that still have to be written before counts are halved.
    left: u64,
    /// Number of blocks between two halvings.
    every: u64,
}

impl Load {
    /// An empty account of `groups` groups; a segment has `segment` blocks.
    pub(crate) fn new(groups: u32, segment: u32) -> Load {
        let groups = groups.max(1);
        let every = FADE * u64::from(groups) * u64::from(segment.max(1));
        Load { blocks: vec![0; groups as usize], left: every, every }
    }

    /// Counts a block written to `group`.
    pub(crate) fn count(&mut self, group: u32) {
        self.blocks[group as usize] += 1;
        self.left -= 1;
        if self.left == 0 {
            self.left = self.every;
            self.blocks.iter_mut().for_each(|blocks| *blocks /= 2);
        }
    }

    /// Raises the count of `group`, which joins `others`, to the least count of `others`.
    pub(crate) fn level(&mut self, group: u32, others: impl Iterator<Item = u32>) {
        let least = others.map(|other| self.of(other)).min();
        let blocks = &mut self.blocks[group as usize];
        *blocks = (*blocks).max(least.unwrap_or(0));
    }

    /// Number of blocks written to `group` lately.
    pub(crate) fn of(&self, group: u32) -> u64 {
        self.blocks[group as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of seven heads shares its group with another stream, which writes an eighth
    /// of the blocks.
    #[test]
    fn groups_get_the_same_though_one_is_shared() {
        let (mut load, mut sums) = (Load::new(8, 512), [0u64; 8]);
        for segment in 0..4_000_u32 {
            let least = (0..7).min_by_key(|group| load.of(*group)).unwrap();
            let group = if segment % 8 == 0 { 3 } else { least };
            sums[group as usize] += 1;
            (0..512).for_each(|_| load.count(group));
        }
        let (least, most) = (sums[..7].iter().min().unwrap(), sums[..7].iter().max().unwrap());
        assert!(most - least < least / 20, "{sums:?}");
    }

    /// After a stream has long written to half of the groups, other streams soon use
    /// these groups too.
    #[test]
    fn what_was_long_ago_does_not_count() {
        let mut load = Load::new(4, 512);
        (0..512 * 10_000).for_each(|block| load.count(block % 2));
        let mut segments = 0;
        while load.of(2) < load.of(0) {
            (0..512).for_each(|_| load.count(2));
            segments += 1;
        }
        assert!((2..16).contains(&segments), "{segments}");
        load.level(3, [0, 1, 2].into_iter());
        assert!(load.of(3) > 0 && (0..3).all(|group| load.of(3) <= load.of(group)));
    }
}
