//! Decides the next action for a volume's space: a pure function of a few facts.
//!
//! - `Ok`: enough segments are free. The only work is upkeep: checkpoints, and moving blocks out of
//!   segments without full redundancy.
//! - `Cleaning`: few segments are free. Segments are cleaned before a writer needs them.
//! - `Starved`: a segment writer waits, and no segment is free for it. Segments are cleaned; if
//!   nothing is under way that frees one, the plan uses other means.
//! - `Out`: no segment can be freed. Writes are refused until blocks are trimmed or a drive
//!   is added.

/// The state of a volume's space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ok,
    Cleaning,
    Starved,
    Out,
}

/// A loop that asks for next actions. Cleaning may wait for space, and only the reset of empty
/// segments makes space, so each of the two has its own lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Resets empty segments, and hands stripes in line from one segment writer to another. It
    /// never waits for space.
    Release,
    /// Moves blocks and writes checkpoints.
    Clean,
}

/// The progress of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// No recovery was needed, or it is finished.
    Finished,
    /// The map is being changed; until it is complete, it is unknown which segments are empty.
    Applying,
    /// Recovery has to be finished before segments are reset.
    Unfinished,
    /// Recovery lacks space, so segments are reset before it is finished.
    Starved,
}

/// The facts on which the state of space and the next action depend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Number of segments that can be begun.
    pub(crate) free: u32,
    /// Number of free segments that users leave to cleaning.
    pub(crate) kept: u32,
    /// Cleaning is due while at most this number of segments is free.
    pub(crate) low: u32,
    /// Whether a segment writer of users waits for a segment.
    pub(crate) users_wait: bool,
    /// Whether the internal segment writer waits for a segment.
    pub(crate) internal_waits: bool,
    /// Whether the volume is out of space: it found that no segment can be freed.
    pub(crate) out: bool,
    /// Whether fewer blocks are valid than when `out` was set.
    pub(crate) eased: bool,
    pub(crate) recovery: Recovery,
    /// Whether nothing under way can free a segment; matters only while a writer waits.
    pub(crate) still: bool,
    /// Whether a segment is empty and not being reset.
    pub(crate) empty: bool,
    /// Whether a segment is being reset.
    pub(crate) resetting: bool,
    /// Whether zones hold data but belong to no segment.
    pub(crate) strays: bool,
    /// Whether the internal writer has a segment that takes more stripes.
    pub(crate) internal_takes: bool,
    /// Whether a writer of users has a segment that takes more stripes.
    pub(crate) users_take: bool,
    /// Whether stripes are in line for the internal writer.
    pub(crate) internal_line: bool,
    /// Whether stripes are in line for a writer of users that has no segment.
    pub(crate) users_line: bool,
    /// Whether internal stripes are in line for a writer of users that has no segment.
    pub(crate) stranded: bool,
    /// Whether enough was written since the last checkpoint that the next is due.
    pub(crate) checkpoint_due: bool,
    /// Whether a checkpoint would make a segment empty.
    pub(crate) checkpoint_frees: bool,
    /// Whether the volume cleans in the background.
    pub(crate) cleans: bool,
    /// A segment that has ended and has less redundancy than it should have.
    pub(crate) unprotected: Option<u32>,
    /// The segment that cleaning would take next.
    pub(crate) victim: Option<u32>,
    /// Whether cleaning gains nothing; see `Volume::cleans_in_vain`.
    pub(crate) in_vain: bool,
}

/// The next action of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Waits for the next event.
    Rest,
    /// Tells waiting writers that there is space; then rests.
    Tell,
    /// Resets empty segments.
    Release,
    /// Resets zones that belong to no segment, before recovery is finished.
    ReleaseStrays,
    /// Gives internal stripes that are in line for writers of users back to the internal writer.
    TakeBack,
    /// Hands stripes in line for writers without a segment to a writer of users that has one.
    HandOver,
    /// Lets segments be reset before recovery is finished.
    AllowResets,
    /// No action makes more than this number of segments free: takes worn-out members out of
    /// service, or declares the volume out of space.
    GiveUp(u32),
    /// Declares that the volume is no longer out of space.
    Reconsider,
    /// Finishes the recovery.
    FinishRecovery,
    Checkpoint,
    /// Cleans a segment.
    Clean(u32),
}

impl Facts {
    pub(crate) fn state(&self) -> State {
        let starved =
            self.internal_waits && self.free == 0 || self.users_wait && self.free <= self.kept;
        match self.out {
            true => State::Out,
            false if starved => State::Starved,
            false if self.free <= self.low => State::Cleaning,
            false => State::Ok,
        }
    }

    /// Whether to help the internal writer before the writers of users. If its stripes were handed
    /// over, the internal writer may wait without a stripe to write; then users' stripes in line
    /// come first.
    fn internal_first(&self) -> bool {
        let helped = self.free > 0 || self.users_take || self.internal_line || self.stranded;
        self.internal_waits && (helped || !self.users_line)
    }

    /// Whether segments may be reset: once recovery is finished, or while it lacks space.
    fn may_reset(&self) -> bool {
        matches!(self.recovery, Recovery::Finished | Recovery::Starved)
    }
}

/// The next action of a lane.
pub(crate) fn next(lane: Lane, facts: &Facts) -> Action {
    match lane {
        Lane::Release => release(facts),
        Lane::Clean => clean(facts),
    }
}

fn release(facts: &Facts) -> Action {
    if facts.may_reset() && facts.empty {
        return Action::Release;
    }
    let starved = facts.internal_waits && facts.free == 0;
    if facts.recovery == Recovery::Starved && starved && facts.strays {
        return Action::ReleaseStrays;
    }
    if facts.stranded && facts.internal_takes {
        return Action::TakeBack;
    }
    if !facts.internal_waits || !facts.still || facts.state() == State::Out {
        return Action::Rest;
    }
    if facts.free > 0 {
        return Action::Tell;
    }
    if facts.users_take {
        let lined = facts.internal_line || facts.users_line;
        return if lined { Action::HandOver } else { Action::Rest };
    }
    match facts.recovery {
        _ if !facts.internal_line && facts.stranded => Action::TakeBack,
        // The internal writer waits for a segment but has no stripe to write yet.
        _ if !facts.internal_line => Action::Rest,
        Recovery::Unfinished => Action::AllowResets,
        _ => Action::GiveUp(0),
    }
}

fn clean(facts: &Facts) -> Action {
    let state = facts.state();
    if state == State::Out {
        return if facts.eased { Action::Reconsider } else { Action::Rest };
    }
    if facts.recovery != Recovery::Finished {
        return Action::FinishRecovery;
    }
    if facts.checkpoint_due {
        return Action::Checkpoint;
    }
    // Waiting writers are told of free segments even if the volume does not clean.
    let told = facts.users_wait && facts.still && facts.free > facts.kept;
    let rest = if told { Action::Tell } else { Action::Rest };
    if !facts.cleans {
        return rest;
    }
    if let Some(slot) = facts.unprotected {
        return Action::Clean(slot);
    }
    if state == State::Ok {
        return rest;
    }
    if facts.checkpoint_frees {
        return Action::Checkpoint;
    }
    if facts.empty || facts.resetting {
        return Action::Rest;
    }
    if let Some(slot) = facts.victim.filter(|_| !facts.in_vain) {
        return Action::Clean(slot);
    }
    match facts.users_wait && facts.still && !facts.internal_first() {
        true if facts.free <= facts.kept => Action::GiveUp(facts.kept),
        _ => rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: u32 = 1;
    const LOW: u32 = 3;

    /// Calls `check` with every possible combination of facts: 5 counts of free segments, 4 stages
    /// of a recovery, and both values of each other fact.
    fn all(mut check: impl FnMut(&Facts)) {
        let stages =
            [Recovery::Finished, Recovery::Applying, Recovery::Unfinished, Recovery::Starved];
        for free in 0..=LOW + 1 {
            for recovery in stages {
                for bits in 0u32..1 << 19 {
                    let bit = |n: u32| bits >> n & 1 == 1;
                    let (users_line, stranded) = (bit(10), bit(11));
                    let (out, eased) = (bit(2), bit(3));
                    // Skips impossible combinations: stranded stripes always count as in line, and
                    // only a volume that is out of space can be eased.
                    if stranded && !users_line || eased && !out {
                        continue;
                    }
                    check(&Facts {
                        free,
                        kept: KEPT,
                        low: LOW,
                        users_wait: bit(0),
                        internal_waits: bit(1),
                        out,
                        eased,
                        recovery,
                        still: bit(4),
                        empty: bit(5),
                        resetting: bit(6),
                        strays: bit(7),
                        internal_takes: bit(8),
                        users_take: bit(9),
                        users_line,
                        stranded,
                        internal_line: bit(12),
                        checkpoint_due: bit(13),
                        checkpoint_frees: bit(14),
                        cleans: bit(15),
                        unprotected: bit(18).then_some(7),
                        victim: bit(16).then_some(9),
                        in_vain: bit(17),
                    });
                }
            }
        }
    }

    #[test]
    fn nothing_is_reset_before_recovery_allows_it() {
        all(|facts| {
            let action = next(Lane::Release, facts);
            let early = matches!(facts.recovery, Recovery::Applying | Recovery::Unfinished);
            if early {
                assert!(!matches!(action, Action::Release | Action::ReleaseStrays), "{facts:?}");
            }
            if action == Action::ReleaseStrays {
                let starved = facts.recovery == Recovery::Starved && !facts.empty;
                assert!(starved && facts.free == 0 && facts.strays, "{facts:?}");
            }
            if action == Action::AllowResets {
                assert_eq!(facts.recovery, Recovery::Unfinished, "{facts:?}");
            }
        });
    }

    #[test]
    fn without_space_nothing_is_written() {
        all(|facts| {
            if facts.state() == State::Out {
                let expected = if facts.eased { Action::Reconsider } else { Action::Rest };
                assert_eq!(next(Lane::Clean, facts), expected, "{facts:?}");
                let action = next(Lane::Release, facts);
                let harmless = [Action::Rest, Action::Release, Action::ReleaseStrays];
                assert!(harmless.contains(&action) || action == Action::TakeBack, "{facts:?}");
            }
        });
    }

    /// A volume gives up only while it is starved, nothing under way can free a segment, and no
    /// other means is left.
    #[test]
    fn giving_up_comes_last() {
        all(|facts| {
            for lane in [Lane::Release, Lane::Clean] {
                let Action::GiveUp(floor) = next(lane, facts) else { continue };
                let starved = facts.state() == State::Starved && facts.free <= floor;
                assert!(starved && facts.still, "{lane:?} {facts:?}");
                assert!(!facts.empty || !facts.may_reset(), "{lane:?} {facts:?}");
                if lane == Lane::Clean {
                    let cleaned = facts.victim.is_none() || facts.in_vain;
                    assert!(cleaned && !facts.checkpoint_frees && !facts.resetting, "{facts:?}");
                    assert!(facts.users_wait && facts.recovery == Recovery::Finished, "{facts:?}");
                    // The release lane helps the internal writer first, if that writer has stripes.
                    let idle = !facts.internal_line && !facts.stranded && facts.users_line;
                    assert!(!facts.internal_waits || idle, "{facts:?}");
                } else {
                    assert!(!facts.users_take && facts.internal_line, "{facts:?}");
                    assert_ne!(facts.recovery, Recovery::Unfinished, "{facts:?}");
                }
            }
        });
    }

    /// Cleaning moves blocks only when few segments are free or redundancy is missing.
    #[test]
    fn segments_are_cleaned_when_few_are_free_or_redundancy_lacks() {
        all(|facts| {
            let action = next(Lane::Clean, facts);
            let Action::Clean(slot) = action else { return };
            let due = matches!(facts.state(), State::Cleaning | State::Starved);
            assert!(facts.cleans && facts.recovery == Recovery::Finished, "{facts:?}");
            assert!(facts.unprotected == Some(slot) || due && !facts.in_vain, "{facts:?}");
            // Ways to free segments without moving blocks come first.
            let free_first = facts.empty || facts.resetting || facts.checkpoint_frees;
            assert!(facts.unprotected.is_some() || !free_first, "{facts:?}");
        });
    }

    /// A stripe in line for a waiting writer is helped once no other action is under way. If both
    /// lanes rest, no stripe is in line, and the next stripe wakes them.
    #[test]
    fn no_stripe_waits_for_ever() {
        let mut rested = 0;
        all(|facts| {
            if !facts.still || facts.resetting || facts.out {
                return;
            }
            let internal = facts.internal_waits && (facts.internal_line || facts.stranded);
            let users = facts.users_wait && facts.users_line;
            let (released, cleaned) = (next(Lane::Release, facts), next(Lane::Clean, facts));
            if (released, cleaned) != (Action::Rest, Action::Rest) {
                return;
            }
            // A volume that does not clean leaves users waiting until cleaning is switched on.
            let users = users && (facts.cleans || facts.free > facts.kept);
            assert!(!internal && !users, "{facts:?}");
            rested += u32::from(facts.internal_waits || facts.users_wait);
        });
        assert!(rested > 0);
    }

    /// A waiting writer of users is helped, with stripes in line or without, if the internal writer
    /// does not wait. A waiting internal writer is helped if it has stripes in line, whether the
    /// volume cleans or not.
    #[test]
    fn no_writer_starves_for_ever() {
        all(|facts| {
            if facts.state() != State::Starved || !facts.still || facts.resetting {
                return;
            }
            let lined = facts.internal_line || facts.stranded;
            let (released, cleaned) = (next(Lane::Release, facts), next(Lane::Clean, facts));
            if facts.internal_waits && facts.free == 0 && lined {
                assert_ne!(released, Action::Rest, "{facts:?}");
            }
            if !facts.internal_waits && facts.cleans && !(facts.empty && facts.may_reset()) {
                let idle = matches!(cleaned, Action::Rest | Action::Tell);
                // An empty segment that may not be reset yet waits for recovery, which is
                // finished first.
                assert!(!idle || facts.empty, "{facts:?}");
            }
        });
    }

    /// A due checkpoint is written unless the volume is out of space. Stripes in line for the wrong
    /// writer are moved in every state of space.
    #[test]
    fn checkpoints_and_stranded_stripes_come_in_every_state() {
        all(|facts| {
            let finished = facts.recovery == Recovery::Finished && !facts.out;
            if facts.checkpoint_due && finished {
                assert_eq!(next(Lane::Clean, facts), Action::Checkpoint, "{facts:?}");
            }
            if facts.stranded && facts.internal_takes {
                let action = next(Lane::Release, facts);
                let first = [Action::Release, Action::ReleaseStrays, Action::TakeBack];
                assert!(first.contains(&action), "{facts:?}");
            }
        });
    }

    /// With enough free segments, there is only upkeep. Writers that still wait are told that there
    /// is space.
    #[test]
    fn in_order_it_rests() {
        all(|facts| {
            let due = facts.checkpoint_due || facts.unprotected.is_some();
            let upkeep = facts.recovery != Recovery::Finished || due;
            if facts.state() == State::Ok && !upkeep {
                let told = facts.users_wait && facts.still;
                let expected = if told { Action::Tell } else { Action::Rest };
                assert_eq!(next(Lane::Clean, facts), expected, "{facts:?}");
            }
        });
    }

    #[test]
    fn each_state_is_met() {
        let (mut states, mut actions) = (Vec::new(), Vec::new());
        all(|facts| {
            if !states.contains(&facts.state()) {
                states.push(facts.state());
            }
            for lane in [Lane::Release, Lane::Clean] {
                let action = next(lane, facts);
                if !actions.contains(&action) {
                    actions.push(action);
                }
            }
        });
        // `GiveUp` counts twice, for its two floors, and `Clean` twice, for its two slots.
        assert_eq!((states.len(), actions.len()), (4, 14), "{states:?} {actions:?}");
    }
}
