//! Drives that were members of an array and do not have its present state: taken out of service,
//! replaced, an older image, a copy. Commands that skip or refuse such a drive say which it is.

use furrow_raid::{Examined, MemberState, is_stale, newest};

/// The kind of an old drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Old {
    /// The array continued without it.
    TakenOut(u32),
    /// Another drive has its place.
    Replaced(u32),
    /// The array continued with it, and this image is from before that.
    Behind(u32),
    /// The same drive is present twice, with the same state.
    Copy(u32),
}

/// Which of an array's `drives` are old by the state of the newest of them; `None` for the others.
pub fn of(drives: &[&Examined]) -> Vec<Option<Old>> {
    let all: Vec<Examined> = drives.iter().map(|drive| (*drive).clone()).collect();
    let Some(newest) = newest(&all) else { return vec![None; drives.len()] };
    let judge = |(index, drive): (usize, &&Examined)| {
        let member = drive.member?;
        let place = newest.members.iter().position(|(uuid, _)| *uuid == drive.device);
        let Some(place) = place else { return Some(Old::Replaced(member)) };
        if newest.members[place].1 == MemberState::Failed {
            return Some(Old::TakenOut(member));
        }
        let mut others = drives.iter().enumerate().filter(|(other, _)| *other != index);
        let twin = others.find(|(at, other)| {
            let later = (other.record, std::cmp::Reverse(*at));
            other.device == drive.device && later > (drive.record, std::cmp::Reverse(index))
        });
        match twin {
            Some((_, twin)) if twin.record == drive.record => Some(Old::Copy(member)),
            Some(_) => Some(Old::Behind(member)),
            None => is_stale(newest, drive).then_some(Old::Behind(member)),
        }
    };
    drives.iter().enumerate().map(judge).collect()
}

impl Old {
    /// One word.
    pub fn word(self) -> &'static str {
        match self {
            Old::TakenOut(_) => "stale",
            Old::Replaced(_) => "replaced",
            Old::Behind(_) => "old",
            Old::Copy(_) => "copy",
        }
    }

    /// Why the array does not take it, and what can be done about it.
    pub fn why(self) -> String {
        match self {
            Old::TakenOut(member) => format!(
                "it was member {member}, and the array went on without it: furrow raid replace \
                 takes it back as a new drive"
            ),
            Old::Replaced(member) => format!(
                "it was member {member} until another drive took its place: the array does not \
                 need it any more"
            ),
            Old::Behind(member) => format!(
                "an older image of member {member}, or the drive lost writes that it had \
                 acknowledged"
            ),
            Old::Copy(member) => format!("a second copy of member {member}"),
        }
    }
}
