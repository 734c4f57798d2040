//! The commands of one zone: one with the kernel, the others waiting in order. Pure.
//!
//! The kernel promises no order among commands that it has at once, and a drive refuses a write
//! that is not at the write pointer. Writes that follow each other are joined up to a limit: the
//! zone would otherwise have one small command per round trip.

use std::collections::VecDeque;

/// A command as far as the order is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A write of `blocks` at block `at`; `fua` if it must be durable when answered.
    Write { at: u64, blocks: u64, fua: bool },
    /// A change of the zone's state: never joined, and nothing overtakes it.
    Manage,
}

/// The commands of one zone.
#[derive(Debug)]
pub(crate) struct Lane<T> {
    waiting: VecDeque<(Step, T)>,
    busy: bool,
    /// Send the next commands one by one.
    singly: usize,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Lane { waiting: VecDeque::new(), busy: false, singly: 0 }
    }
}

impl<T> Lane<T> {
    /// Adds a command behind all others.
    pub(crate) fn push(&mut self, step: Step, what: T) {
        self.waiting.push_back((step, what));
    }

    /// Puts joined writes back in front, to be sent one by one: the drive refused them together.
    pub(crate) fn put_back(&mut self, parts: Vec<(Step, T)>) {
        self.singly = parts.len();
        for part in parts.into_iter().rev() {
            self.waiting.push_front(part);
        }
    }

    /// The commands to send now, as one: a command, or writes of together at most `most` blocks
    /// that follow each other. Empty if a command is with the kernel, or none waits.
    pub(crate) fn start(&mut self, most: u64) -> Vec<(Step, T)> {
        if self.busy {
            return Vec::new();
        }
        let Some(first) = self.waiting.pop_front() else { return Vec::new() };
        self.busy = true;
        let mut sent = vec![first];
        let alone = self.singly > 0;
        self.singly = self.singly.saturating_sub(1);
        let Step::Write { at, blocks, fua } = sent[0].0 else { return sent };
        let mut end = at + blocks;
        while !alone
            && let Some((Step::Write { at: next, blocks, fua: durable }, _)) = self.waiting.front()
            && *next == end
            && *durable == fua
            && end + blocks - at <= most
        {
            end += blocks;
            sent.extend(self.waiting.pop_front());
        }
        sent
    }

    /// Notes that the kernel has answered the commands that were sent.
    pub(crate) fn answered(&mut self) {
        self.busy = false;
    }

    /// True if no command waits and none is with the kernel.
    pub(crate) fn is_idle(&self) -> bool {
        !self.busy && self.waiting.is_empty()
    }

    /// Takes all waiting commands.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.waiting.drain(..).map(|(_, what)| what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(at: u64, blocks: u64) -> Step {
        Step::Write { at, blocks, fua: false }
    }

    fn numbers(sent: &[(Step, u32)]) -> Vec<u32> {
        sent.iter().map(|(_, number)| *number).collect()
    }

    #[test]
    fn neighbours_are_joined_up_to_the_limit_and_one_command_is_sent() {
        let mut lane = Lane::default();
        for number in 0..5 {
            lane.push(write(u64::from(number) * 4, 4), number);
        }
        assert_eq!(numbers(&lane.start(8)), [0, 1]);
        assert!(lane.start(8).is_empty(), "one is with the kernel");
        lane.answered();
        lane.push(Step::Manage, 5);
        assert_eq!(numbers(&lane.start(100)), [2, 3, 4], "nothing joins a change of state");
        lane.answered();
        assert_eq!(numbers(&lane.start(100)), [5]);
        lane.answered();
        assert!(lane.is_idle());
    }

    #[test]
    fn gaps_and_durability_part_writes_and_refused_ones_go_singly() {
        let mut lane = Lane::default();
        lane.push(write(0, 1), 0);
        lane.push(write(2, 1), 1);
        lane.push(Step::Write { at: 3, blocks: 1, fua: true }, 2);
        assert_eq!(numbers(&lane.start(9)), [0]);
        lane.answered();
        assert_eq!(numbers(&lane.start(9)), [1]);
        lane.answered();
        assert_eq!(numbers(&lane.start(9)), [2]);
        lane.answered();
        lane.push(write(4, 1), 3);
        lane.push(write(5, 1), 4);
        lane.push(write(6, 1), 5);
        lane.push(write(7, 1), 6);
        let parts = lane.start(2);
        assert_eq!(numbers(&parts), [3, 4]);
        lane.put_back(parts);
        lane.answered();
        for expected in [vec![3], vec![4], vec![5, 6]] {
            assert_eq!(numbers(&lane.start(2)), expected);
            lane.answered();
        }
    }

    proptest! {
        /// Whatever is pushed and answered in whatever order: commands leave in the order in which
        /// they came, one at a time, and what is joined is one range within the limit.
        #[test]
        fn the_order_is_kept(
            moves in proptest::collection::vec((0u8..4, 0u64..3, 1u64..4, any::<bool>()), 1..200),
            most in 1u64..12,
        ) {
            let mut lane = Lane::default();
            let (mut pushed, mut left, mut end, mut busy) = (0u32, 0u32, 0u64, false);
            for (what, gap, blocks, fua) in moves {
                match what {
                    0 => {
                        let at = end + gap / 2;
                        end = at + blocks;
                        lane.push(Step::Write { at, blocks, fua }, pushed);
                        pushed += 1;
                    }
                    1 if gap == 0 => {
                        lane.push(Step::Manage, pushed);
                        pushed += 1;
                    }
                    2 if busy => {
                        lane.answered();
                        busy = false;
                    }
                    _ => {
                        let sent = lane.start(most);
                        prop_assert!(!busy || sent.is_empty());
                        prop_assert_eq!(sent.is_empty(), busy || left == pushed);
                        busy |= !sent.is_empty();
                        for (_, number) in &sent {
                            prop_assert_eq!(*number, left);
                            left += 1;
                        }
                        let mut expected = None;
                        let mut total = 0;
                        for (step, _) in &sent {
                            let Step::Write { at, blocks, .. } = *step else {
                                prop_assert_eq!(sent.len(), 1);
                                continue;
                            };
                            prop_assert!(expected.is_none_or(|expected| expected == at));
                            expected = Some(at + blocks);
                            total += blocks;
                        }
                        prop_assert!(sent.len() <= 1 || total <= most);
                    }
                }
            }
        }
    }
}
