//! Drives that were members of an array and do not have its present state: taken out of service,
//! replaced, an older image, a copy. Commands that skip or refuse such a drive say which it is.

use furrow_raid::{Judgement, Standing};

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
    /// It has gone on without other drives, and these without it.
    Split(u32),
}

/// Which of an array's drives are old, by what they count for. Of a split array nobody knows which
/// are.
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
    /// One word.
    pub fn word(self) -> &'static str {
        match self {
            Old::TakenOut(_) => "stale",
            Old::Replaced(_) => "replaced",
            Old::Behind(_) => "old",
            Old::Copy(_) => "copy",
            Old::Split(_) => "split",
        }
    }

    /// Why the array does not take it, and what can be done about it.
    pub fn why(self) -> String {
        match self {
            Old::TakenOut(member) => format!(
                "it was member {member}, and the array went on without it: furrow raid replace \
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
                "it is member {member} of a part of the array that has gone on without the others: \
                 it may have writes that they lack"
            ),
        }
    }
}
