//! Old drives: they were members of an array and do not have its present state, because they were
//! taken out of service or replaced, or are an older image or a copy. Commands that skip or refuse
//! such a drive say which kind it is.

use furrow_raid::{Judgement, Standing};

/// The kind of an old drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Old {
    /// The array continued without this drive of the member with this number.
    TakenOut(u32),
    /// Another drive has taken the place of this drive, which was the member with this number.
    Replaced(u32),
    /// The array continued with this drive, and this image of it is from an earlier time.
    Behind(u32),
    /// The same drive is present twice, with the same state.
    Copy(u32),
    /// This drive continued without other drives of the array, and they continued without it.
    Split(u32),
}

/// Returns for each drive of an array the kind of old drive that `judged` says it is; `None` if the
/// drive is not old. If the array is split, it is not known which part is old: the drives of each
/// part are [`Old::Split`].
pub fn of(judged: Option<&Judgement>) -> Vec<Option<Old>> {
    let (standings, split) = judged.map_or((&[][..], &[][..]), |j| (&j.standings, &j.split));
    let old = |(index, standing): (usize, &Standing)| match *standing {
        Standing::Member(member)
        | Standing::TakenOut(member)
        | Standing::Replaced(member)
        | Standing::Behind { member, .. }
            if split.iter().flatten().any(|other| *other == index) =>
        {
            Some(Old::Split(member))
        }
        Standing::Member(_) | Standing::Spare => None,
        Standing::TakenOut(member) => Some(Old::TakenOut(member)),
        Standing::Replaced(member) => Some(Old::Replaced(member)),
        Standing::Behind { member, .. } => Some(Old::Behind(member)),
        Standing::Copy(member) => Some(Old::Copy(member)),
    };
    standings.iter().enumerate().map(old).collect()
}

impl Old {
    /// The kind of old drive as one word.
    pub fn word(self) -> &'static str {
        match self {
            Old::TakenOut(_) => "stale",
            Old::Replaced(_) => "replaced",
            Old::Behind(_) => "old",
            Old::Copy(_) => "copy",
            Old::Split(_) => "split",
        }
    }

    /// The reason why the array does not take the drive, and what the user can do about it.
    pub fn why(self) -> String {
        match self {
            Old::TakenOut(member) => format!(
                "it was member {member}, and the array continued without it: furrow raid replace \
                 with --force takes it back as a new drive"
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
            Old::Split(member) => format!(
                "it is member {member} of a part of the array that has continued without the \
                 others: it may have writes that they lack"
            ),
        }
    }
}
