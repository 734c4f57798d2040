//! The commands of one zone: which the kernel has, and which wait, in order. Pure.
//!
//! Neither the kernel nor NVMe promises an order among commands that are sent together, and a drive
//! refuses a write that is not at the write pointer. So the kernel gets one write of a zone at a
//! time; adjacent writes are joined up to a limit, since otherwise the zone would have one small
//! command per round trip. Appends need no order: the kernel gets any number of them. If the user
//! states that the drive keeps the order, the lane sends writes without waiting, too; a write that
//! was refused because another overtook it is retried once, alone.

use std::collections::VecDeque;

/// The kind of a command, which decides its order among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A write of `blocks` at block `at`; `fua` if it must be durable when answered.
    Write { at: u64, blocks: u64, fua: bool },
    /// An append, never joined, because the drive chooses a place for each.
    Append,
    /// A change of the zone's state, never joined and never overtaken.
    Manage,
}

/// Commands that a lane gives to the kernel as a single command.
#[derive(Debug)]
pub(crate) struct Sent<T> {
    /// One command, or several joined writes.
    pub parts: Vec<(Step, T)>,
    /// Whether the kernel may have other writes of the zone at the same time.
    pub queued: bool,
}

/// Which kind of commands of a zone the kernel has at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Flying {
    /// No command, or a command that does not allow another at the same time.
    #[default]
    Alone,
    Appends,
    Writes,
}

/// The commands of one zone.
#[derive(Debug)]
pub(crate) struct Lane<T> {
    waiting: VecDeque<(Step, T)>,
    /// Number of commands that the kernel has.
    with_kernel: u32,
    /// Kind of the commands that the kernel has.
    flying: Flying,
    /// How many of the next commands must be sent alone, without being joined.
    singly: usize,
    /// Queued writes that the drive refused because they were not at the write pointer.
    refused: Vec<(Step, T)>,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Lane {
            waiting: VecDeque::new(),
            with_kernel: 0,
            flying: Flying::Alone,
            singly: 0,
            refused: Vec::new(),
        }
    }
}

impl<T> Lane<T> {
    /// Adds a command at the end of the lane.
    pub(crate) fn push(&mut self, step: Step, what: T) {
        self.waiting.push_back((step, what));
    }

    /// Puts joined writes that the drive refused back at the front, to be sent one by one.
    pub(crate) fn put_back(&mut self, parts: Vec<(Step, T)>) {
        self.singly += parts.len();
        for part in parts.into_iter().rev() {
            self.waiting.push_front(part);
        }
    }

    /// Keeps refused queued writes until all other writes are answered; then they are sent one by
    /// one, in the order of their addresses.
    pub(crate) fn keep_refused(&mut self, parts: Vec<(Step, T)>) {
        self.refused.extend(parts);
    }

    /// Takes what is to be sent now as one command: a single command, or adjacent writes of at most
    /// `most` blocks in total. `None` if no command waits, or if the kernel must not have the next
    /// one together with those that it has. `queued`: the drive keeps the order of writes.
    pub(crate) fn start(&mut self, most: u64, queued: bool) -> Option<Sent<T>> {
        let queued = queued && self.singly == 0 && self.refused.is_empty();
        let kind = match self.waiting.front()?.0 {
            Step::Append => Flying::Appends,
            Step::Write { .. } if queued => Flying::Writes,
            _ => Flying::Alone,
        };
        if self.with_kernel > 0 && (kind == Flying::Alone || kind != self.flying) {
            return None;
        }
        let first = self.waiting.pop_front()?;
        self.with_kernel += 1;
        self.flying = kind;
        let mut sent = Sent { parts: vec![first], queued: kind == Flying::Writes };
        let alone = self.singly > 0;
        self.singly = self.singly.saturating_sub(1);
        let Step::Write { at, blocks, fua } = sent.parts[0].0 else { return Some(sent) };
        let mut end = at + blocks;
        while !alone
            && let Some((Step::Write { at: next, blocks, fua: durable }, _)) = self.waiting.front()
            && *next == end
            && *durable == fua
            && end + blocks - at <= most
        {
            end += blocks;
            sent.parts.extend(self.waiting.pop_front());
        }
        Some(sent)
    }

    /// Notes that the kernel has answered one of the lane's commands.
    pub(crate) fn answered(&mut self) {
        self.with_kernel -= 1;
        if self.with_kernel == 0 && !self.refused.is_empty() {
            let mut refused = std::mem::take(&mut self.refused);
            refused.sort_by_key(|(step, _)| match step {
                Step::Write { at, .. } => *at,
                _ => u64::MAX,
            });
            self.put_back(refused);
        }
    }

    /// Number of commands that the kernel has.
    pub(crate) fn with_kernel(&self) -> u32 {
        self.with_kernel
    }

    /// Whether no command waits and the kernel has none.
    pub(crate) fn is_idle(&self) -> bool {
        self.with_kernel == 0 && self.waiting.is_empty()
    }

    /// Takes all commands that the kernel does not have, refused ones first.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.refused.drain(..).chain(self.waiting.drain(..)).map(|(_, what)| what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(at: u64, blocks: u64) -> Step {
        Step::Write { at, blocks, fua: false }
    }

    fn next(lane: &mut Lane<u32>, most: u64, queued: bool) -> Vec<u32> {
        let sent = lane.start(most, queued);
        sent.into_iter().flat_map(|sent| sent.parts).map(|(_, number)| number).collect()
    }

    #[test]
    fn neighbours_are_joined_up_to_the_limit_and_one_command_is_sent() {
        let mut lane = Lane::default();
        for number in 0..5 {
            lane.push(write(u64::from(number) * 4, 4), number);
        }
        assert_eq!(next(&mut lane, 8, false), [0, 1]);
        assert!(lane.start(8, false).is_none(), "one is with the kernel");
        lane.answered();
        lane.push(Step::Manage, 5);
        assert_eq!(next(&mut lane, 100, false), [2, 3, 4], "nothing joins a change of state");
        lane.answered();
        assert_eq!(next(&mut lane, 100, false), [5]);
        lane.answered();
        assert!(lane.is_idle());
    }

    #[test]
    fn gaps_and_durability_part_writes_and_refused_ones_go_singly() {
        let mut lane = Lane::default();
        lane.push(write(0, 1), 0);
        lane.push(write(2, 1), 1);
        lane.push(Step::Write { at: 3, blocks: 1, fua: true }, 2);
        for expected in [[0], [1], [2]] {
            assert_eq!(next(&mut lane, 9, false), expected);
            lane.answered();
        }
        lane.push(write(4, 1), 3);
        lane.push(write(5, 1), 4);
        lane.push(write(6, 1), 5);
        lane.push(write(7, 1), 6);
        let sent = lane.start(2, false).expect("they wait");
        assert_eq!(sent.parts.len(), 2);
        lane.put_back(sent.parts);
        lane.answered();
        for expected in [vec![3], vec![4], vec![5, 6]] {
            assert_eq!(next(&mut lane, 2, false), expected);
            lane.answered();
        }
    }

    #[test]
    fn appends_are_together_and_nothing_else_beside_them() {
        let mut lane = Lane::default();
        for number in 0..3 {
            lane.push(Step::Append, number);
        }
        lane.push(Step::Manage, 3);
        lane.push(Step::Append, 4);
        assert_eq!(next(&mut lane, 8, false), [0]);
        assert_eq!(next(&mut lane, 8, false), [1]);
        assert_eq!(next(&mut lane, 8, false), [2]);
        assert_eq!(lane.with_kernel(), 3);
        for _ in 0..3 {
            assert!(lane.start(8, false).is_none(), "the change of state waits for appends");
            lane.answered();
        }
        assert_eq!(next(&mut lane, 8, false), [3]);
        assert!(lane.start(8, false).is_none(), "an append waits for the change of state");
        lane.answered();
        assert_eq!(next(&mut lane, 8, false), [4]);
    }

    #[test]
    fn queued_writes_are_together_and_what_was_overtaken_is_sent_again_in_order() {
        let mut lane = Lane::default();
        for number in 0..4 {
            lane.push(write(u64::from(number), 1), number);
        }
        // The drive got the second and third write before the first.
        let first = lane.start(1, true).expect("it waits");
        assert!(first.queued);
        let second = lane.start(1, true).expect("the order is the drive's");
        let third = lane.start(1, true).expect("the order is the drive's");
        lane.keep_refused(third.parts);
        lane.answered();
        lane.keep_refused(second.parts);
        lane.answered();
        assert!(lane.start(1, true).is_none(), "the refused ones come before what waits");
        drop(first);
        lane.answered();
        for expected in [1, 2] {
            let sent = lane.start(1, true).expect("it was put back");
            assert!(!sent.queued, "alone");
            assert_eq!(sent.parts[0].1, expected);
            assert!(lane.start(1, true).is_none());
            lane.answered();
        }
        assert_eq!(next(&mut lane, 1, true), [3]);
    }

    proptest! {
        /// In whatever order commands are pushed and answered, they leave in the order in which
        /// they came. The commands that the kernel has together are of one kind that allows this,
        /// and joined writes are one range within the limit.
        #[test]
        fn the_order_is_kept(
            moves in proptest::collection::vec((0u8..5, 0u64..3, 1u64..4, any::<bool>()), 1..200),
            most in 1u64..12,
            queued in any::<bool>(),
        ) {
            let mut lane = Lane::default();
            let (mut pushed, mut left, mut end) = (0u32, 0u32, 0u64);
            let mut flying: Vec<Step> = Vec::new();
            for (what, gap, blocks, fua) in moves {
                match what {
                    0 => {
                        let at = end + gap / 2;
                        end = at + blocks;
                        lane.push(Step::Write { at, blocks, fua }, pushed);
                        pushed += 1;
                    }
                    1 if gap == 0 => {
                        lane.push(if fua { Step::Manage } else { Step::Append }, pushed);
                        pushed += 1;
                    }
                    2 if !flying.is_empty() => {
                        lane.answered();
                        flying.swap_remove(blocks as usize % flying.len());
                    }
                    _ => {
                        let Some(sent) = lane.start(most, queued) else {
                            prop_assert!(left == pushed || !flying.is_empty());
                            continue;
                        };
                        for (_, number) in &sent.parts {
                            prop_assert_eq!(*number, left);
                            left += 1;
                        }
                        let first = sent.parts[0].0;
                        let same = |other: &Step| match (first, other) {
                            (Step::Append, Step::Append) => true,
                            (Step::Write { .. }, Step::Write { .. }) => queued,
                            _ => false,
                        };
                        prop_assert!(flying.iter().all(same), "{:?} beside {:?}", first, flying);
                        flying.push(first);
                        prop_assert_eq!(lane.with_kernel() as usize, flying.len());
                        let mut expected = None;
                        let mut total = 0;
                        for (step, _) in &sent.parts {
                            let Step::Write { at, blocks, .. } = *step else {
                                prop_assert_eq!(sent.parts.len(), 1);
                                continue;
                            };
                            prop_assert!(expected.is_none_or(|expected| expected == at));
                            expected = Some(at + blocks);
                            total += blocks;
                        }
                        prop_assert!(sent.parts.len() <= 1 || total <= most);
                    }
                }
            }
        }
    }
}
