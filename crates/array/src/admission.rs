//! Decides which of an array's state records count, and so the *standing* of each drive. All code
//! that assembles an array uses this decision.
//!
//! A state record lists the drives with which its array continues. A record that leaves drives out
//! *counts*, that is, its list is in force, once all listed drives have the record. Before that, no
//! write is acknowledged without the drives left out; afterwards, these drives are *stale*. But if
//! the drives left out also continued without the listed ones, the array is *split*, and the user
//! has to say which history counts.

use crate::examine::Examined;
use crate::level::Level;
use crate::member::MemberState;
use furrow_log::Uuid;
use std::collections::BTreeSet;

/// The role of a drive in the newest state of its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The member with this number.
    Member(u32),
    /// A spare, which waits for a member to fail.
    Spare,
    /// A former member, with its number: the array continued without it.
    TakenOut(u32),
    /// A former member, with its number: another drive has its place.
    Replaced(u32),
    /// An older image of a member's drive: the drive recorded newer state records later.
    Behind {
        /// Number of the member.
        member: u32,
        /// Number of the newest record in this image.
        record: u64,
        /// Number of a newer state record that the drive certainly had.
        least: u64,
    },
    /// A second image of the member with this number, equal to one given before.
    Copy(u32),
}

/// The verdict on an array's drives, from all of their state records together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// Index of the drive with the newest state; in a split array, the drive with the newest state
    /// of one part.
    pub newest: usize,
    /// The standing of each drive in the newest state.
    pub standings: Vec<Standing>,
    /// The parts of a split, as indices of drives: each part continued without the others. Empty
    /// without a split.
    pub split: Vec<Vec<usize>>,
}

/// Judges the drives of one array; `None` if no drive has a whole state record.
pub fn judge(drives: &[Examined]) -> Option<Judgement> {
    let all = All { drives };
    let newest = all.newest()?;
    let mut ways = [all.split(), all.forked(newest), all.outrun(newest)].into_iter();
    let split = ways.find(|parts| !parts.is_empty()).unwrap_or_default();
    let standings = (0..drives.len()).map(|index| all.standing(newest, index)).collect();
    Some(Judgement { newest, standings, split })
}

/// The member with the newest state among drives of one array.
pub fn newest(drives: &[Examined]) -> Option<&Examined> {
    All { drives }.newest().map(|index| &drives[index])
}

struct All<'a> {
    drives: &'a [Examined],
}

/// The state of a drive according to another drive's record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum View {
    InService,
    Failed,
    /// The record does not name the drive: another drive had its place when the record was written.
    Unknown,
}

impl All<'_> {
    fn view(&self, of: usize, on: usize) -> View {
        let device = self.drives[on].device;
        match self.drives[of].members.iter().find(|(uuid, _)| *uuid == device) {
            None => View::Unknown,
            Some((_, MemberState::Failed)) => View::Failed,
            Some(_) => View::InService,
        }
    }

    /// The event count at which `on` was last in service, if the record of `of` says that `on`
    /// has failed.
    fn left(&self, of: usize, on: usize) -> Option<u64> {
        let (of, device) = (&self.drives[of], self.drives[on].device);
        let seat = of
            .members
            .iter()
            .position(|(uuid, state)| *uuid == device && *state == MemberState::Failed)?;
        of.served.get(seat).copied()
    }

    /// Whether `at` has recorded all failures that `one` has recorded: no drive that has failed in
    /// the record of `one` is in service in the record of `at`.
    fn was_told(&self, at: usize, one: usize) -> bool {
        let in_service = |device: &Uuid| {
            let mut of = self.drives[at].members.iter();
            of.any(|(uuid, state)| uuid == device && *state != MemberState::Failed)
        };
        let failed = |(_, state): &&(Uuid, MemberState)| *state == MemberState::Failed;
        let mut failed = self.drives[one].members.iter().filter(failed);
        !failed.any(|(uuid, _)| in_service(uuid))
    }

    /// Whether this image has a whole state record and is the newest given image of its drive.
    fn speaks(&self, index: usize) -> bool {
        let drive = &self.drives[index];
        drive.member.is_some() && !drive.is_stand_in() && self.twin(index).is_none()
    }

    /// Another image of the same drive that is newer, or equal and given before this one.
    fn twin(&self, index: usize) -> Option<&Examined> {
        let key = |at: usize| (self.drives[at].record, std::cmp::Reverse(at));
        let device = self.drives[index].device;
        let twin = (0..self.drives.len())
            .find(|at| *at != index && self.drives[*at].device == device && key(*at) > key(index));
        twin.map(|at| &self.drives[at])
    }

    /// The drive with the newest state: the one with the most events, then with the newest record.
    /// Failures come first: whatever the numbers, drive A ranks below drive B if B has recorded A
    /// as failed and one of two conditions holds. Either A has B in service, or B continued without
    /// A, but not A without B.
    fn newest(&self) -> Option<usize> {
        let speaking = (0..self.drives.len()).filter(|index| self.speaks(*index));
        let is_behind = |one: usize| {
            let ahead = |other: usize| match self.view(one, other) {
                View::InService => self.view(other, one) == View::Failed,
                _ => {
                    self.view(other, one) == View::Failed
                        && self.went_on_without(other, one)
                        && !self.went_on_without(one, other)
                }
            };
            (0..self.drives.len()).any(|other| self.speaks(other) && ahead(other))
        };
        let rank = |index: usize| (self.drives[index].events, self.drives[index].record);
        // Tie-break between records of equal rank: a record wins if every present drive that it has
        // in service agrees with it.
        let agreed = |index: usize| {
            let of = &self.drives[index].members;
            let in_service = |at: &usize| {
                let device = self.drives[*at].device;
                of.iter().any(|(uuid, state)| *uuid == device && *state != MemberState::Failed)
            };
            let mut with = (0..self.drives.len()).filter(|at| self.speaks(*at) && in_service(at));
            with.all(|at| self.was_told(at, index) && self.view(at, index) == View::InService)
        };
        speaking.max_by_key(|index| (!is_behind(*index), rank(*index), agreed(*index)))
    }

    /// Whether `one` continued without `other`: the record of `one` says so, and so do the records
    /// of all present drives that are in service in the record of `one`. If one of these drives
    /// lacks the record of `one`, no write was acknowledged with that record; then that drive's
    /// own, older record decides.
    fn went_on_without(&self, one: usize, other: usize) -> bool {
        let view = self.view(one, other);
        if view == View::InService {
            return false;
        }
        let in_service = |(_, state): &&(_, MemberState)| *state != MemberState::Failed;
        let with = self.drives[one].members.iter().filter(in_service);
        let mut there = with.map(|(uuid, _)| {
            (0..self.drives.len()).find(|at| self.speaks(*at) && self.drives[*at].device == *uuid)
        });
        // If the record of `one` does not name `other`, `other` may be newer than that record.
        // `other` is older if all drives in service in that record are present and agree with the
        // record, or if `other` recorded that `one` failed and `one` continued since.
        let left = self.left(other, one).is_some_and(|served| served < self.drives[one].events);
        there.all(|at| match at {
            None => view == View::Failed || left,
            Some(at) => {
                let with = self.view(at, one) == View::InService;
                let told = match view {
                    // Each nested call is about fewer failed drives, so the recursion ends.
                    View::Failed if !self.was_told(at, one) && self.was_told(one, at) => {
                        self.went_on_without(at, other)
                    }
                    View::Failed => true,
                    _ => self.was_told(at, one),
                };
                with && told && self.view(at, other) != View::InService
            }
        })
    }

    /// Whether some drive is in service in both records, that of `one` and that of `other`. Such a
    /// drive continued with at most one of `one` and `other`. If one of these two has replaced the
    /// other, the common drive continued with the replacement, because all drives in the
    /// replacement's record had to record the change.
    fn share(&self, one: usize, other: usize) -> bool {
        let in_service = |index: usize| {
            let all = self.drives[index].members.iter();
            all.filter(|(_, state)| *state != MemberState::Failed).map(|(uuid, _)| *uuid)
        };
        in_service(one).any(|uuid| in_service(other).any(|common| common == uuid))
    }

    /// The parts of the array that each continued without the others; empty without a split.
    fn split(&self) -> Vec<Vec<usize>> {
        if !self.drives.first().is_some_and(|drive| can_split(drive.level, drive.drives)) {
            return Vec::new();
        }
        let apart = |one: usize, other: usize| {
            let both = self.went_on_without(one, other) && self.went_on_without(other, one);
            // An older image lacks records that its drive had, so it does not make a split.
            let older = self.least(one, other).or(self.least(other, one)).is_some();
            let replaced = |of: usize, on: usize| self.view(of, on) == View::Unknown;
            both && !older
                && !(self.share(one, other) && replaced(one, other) != replaced(other, one))
        };
        let speaking: Vec<usize> =
            (0..self.drives.len()).filter(|index| self.speaks(*index)).collect();
        let torn: Vec<usize> = speaking
            .iter()
            .copied()
            .filter(|one| speaking.iter().any(|other| one != other && apart(*one, *other)))
            .collect();
        let mut parts: Vec<Vec<usize>> = Vec::new();
        for index in torn {
            let goes_with = |other: &usize| {
                !apart(index, *other)
                    && (self.view(index, *other) == View::InService
                        || self.view(*other, index) == View::InService)
            };
            let (with, mut rest): (Vec<_>, Vec<_>) =
                parts.into_iter().partition(|part: &Vec<usize>| part.iter().any(goes_with));
            let mut part: Vec<usize> = with.into_iter().flatten().collect();
            part.push(index);
            part.sort_unstable();
            rest.push(part);
            parts = rest;
        }
        parts.sort();
        parts
    }

    /// The parts of a fork: drives in service in the newest state whose records have the number of
    /// the newest record but different content. One of the histories began with older images of
    /// drives. Empty without a fork.
    fn forked(&self, newest: usize) -> Vec<Vec<usize>> {
        let content = |index: usize| {
            let drive = &self.drives[index];
            (drive.epoch, drive.checkpoint, drive.events, drive.written_blocks, drive.segments)
        };
        let same = |index: &usize| {
            self.speaks(*index)
                && self.drives[*index].record == self.drives[newest].record
                && self.view(newest, *index) == View::InService
        };
        let all: Vec<usize> = (0..self.drives.len()).filter(same).collect();
        let different: BTreeSet<_> = all.iter().map(|index| content(*index)).collect();
        if different.len() < 2 {
            return Vec::new();
        }
        let part = |what| all.iter().copied().filter(|index| content(*index) == what).collect();
        let mut parts: Vec<Vec<usize>> = different.into_iter().map(part).collect();
        parts.sort();
        parts
    }

    /// The parts of a split: the drive with the newest state, and a drive with more events, if
    /// neither drive's record names the other drive. The drive with more events belongs to another
    /// history, whose members may have recorded each other as failed since. Empty if there is no
    /// such drive.
    fn outrun(&self, newest: usize) -> Vec<Vec<usize>> {
        let ahead = |index: &usize| {
            self.speaks(*index)
                && self.drives[*index].events > self.drives[newest].events
                && self.view(newest, *index) == View::Unknown
                && self.view(*index, newest) == View::Unknown
        };
        let splits = can_split(self.drives[newest].level, self.drives[newest].drives);
        match (0..self.drives.len()).filter(|_| splits).find(ahead) {
            Some(index) => vec![vec![newest.min(index)], vec![newest.max(index)]],
            None => Vec::new(),
        }
    }

    fn standing(&self, newest: usize, index: usize) -> Standing {
        let (drive, of) = (&self.drives[index], &self.drives[newest]);
        let Some(member) = drive.member else { return Standing::Spare };
        let seat = of.members.iter().position(|(uuid, _)| *uuid == drive.device);
        let Some(seat) = seat else { return Standing::Replaced(member) };
        if of.members[seat].1 == MemberState::Failed {
            return Standing::TakenOut(member);
        }
        let record = drive.record;
        match (self.twin(index), self.least(newest, index)) {
            (Some(twin), _) if twin.record == record => Standing::Copy(member),
            (Some(twin), _) => Standing::Behind { member, record, least: twin.record },
            (None, Some(least)) => Standing::Behind { member, record, least },
            (None, None) => Standing::Member(seat as u32),
        }
    }

    /// The number of a record that drive `on` must have had, if the record of drive `of` shows that
    /// `on` is only an older image.
    fn least(&self, of: usize, on: usize) -> Option<u64> {
        let (of, on) = (&self.drives[of], &self.drives[on]);
        let seat = of.members.iter().position(|(uuid, _)| *uuid == on.device)?;
        let least = of.known.get(seat).copied().unwrap_or(0);
        // The missing record may be the damaged one, whose number a flipped bit may have changed.
        let flipped = |number: u64| {
            let mut near = (0..u64::BITS).map(|bit| number ^ 1 << bit);
            near.any(|number| (least..=of.record).contains(&number))
        };
        let had = on.damaged.is_some_and(|n| n == 0 || n >= least || flipped(n));
        (on.record < least && !had).then_some(least)
    }
}

/// Whether two parts of an array can each have all data. In all other arrays, a part that can
/// continue has more than half of the drives, so only one part can.
fn can_split(level: Level, drives: u32) -> bool {
    match level {
        Level::Raid0 => false,
        Level::Raid01 => true,
        Level::Raid4 | Level::Raid5 => drives == 2,
        Level::Raid6 => drives <= 4,
    }
}

/// The error message for a split array: the state of each part, and what the user can do. `names`
/// are the names of the drives; `utc` formats a time in seconds since 1970.
pub fn split_refusal(
    drives: &[Examined],
    names: &[String],
    split: &[Vec<usize>],
    utc: impl Fn(u64) -> String,
) -> String {
    let list = |part: &Vec<usize>| {
        let all: Vec<&str> = part.iter().map(|index| &*names[*index]).collect();
        all.join(", ")
    };
    let says = |part: &Vec<usize>| {
        let newest = part.iter().max_by_key(|at| (drives[**at].events, drives[**at].record));
        let Some(drive) = newest.map(|index| &drives[*index]) else { return String::new() };
        let written = match u64::try_from(drive.recorded) {
            Ok(seconds) if seconds > 0 => format!(" of {}", utc(seconds)),
            _ => String::new(),
        };
        format!(
            "{}: state record {}{written}, event {}, {} blocks written",
            list(part),
            drive.record,
            drive.events,
            drive.written_blocks
        )
    };
    let parts: Vec<String> = split.iter().map(says).collect();
    format!(
        "the array is split, its parts have each gone on without the other: {}: each may have \
         acknowledged writes that the other lacks; nothing was changed; name the drives of one \
         part alone, or choose it by one of its drives with --choose DEV; save what the other part \
         has before its drives are used again",
        parts.join("; ")
    )
}

#[cfg(test)]
mod tests;
