//! The check that a rename does not move a directory below itself.
//!
//! When a directory moves to another parent, the check climbs from the new parent to the root, and
//! must not find the directory on the way. The climb takes as many steps as the tree is deep, and
//! users decide the depth. So a climb is done in stretches, and remembers its place. Its findings
//! hold as long as no directory moves to another parent; after such a move, the climb starts again
//! from the bottom. A climb longer than one stretch therefore runs *alone*: all other renames that
//! need a climb wait, so that it can finish.

use crate::blocked::NotApplied;
use crate::core::{Core, Inner};
use crate::format::ROOT_NODE;
use crate::tree::open_files::LastName;
use crate::types::{Ino, RenameMode, Time};
use furrow_rt::Semaphore;
use furrow_zone::Result;
use std::rc::Rc;

/// Number of directories climbed in one stretch.
const STEPS: u32 = 256;

/// Counts the moves of directories to another parent, and queues the long climbs.
pub(crate) struct DirectoryMoves {
    /// Number of moves of a directory to another parent since the mount.
    done: u64,
    /// A single permit, whose holder climbs alone.
    line: Semaphore,
}

impl Default for DirectoryMoves {
    fn default() -> DirectoryMoves {
        DirectoryMoves { done: 0, line: Semaphore::new(1) }
    }
}

impl DirectoryMoves {
    /// Counts a move if the directory changed its parent (`elsewhere`).
    pub(super) fn count(&mut self, elsewhere: bool) {
        self.done += u64::from(elsewhere);
    }
}

/// The progress of the climbs that a rename needs.
#[derive(Default)]
pub(crate) struct CycleCheck {
    /// The climb under way: the directory where it began, the directory to look for, and the
    /// directory that it has reached.
    under_way: Option<(Ino, Ino, Ino)>,
    /// Number of directories climbed so far in the climb under way.
    steps: u64,
    /// Climbs that reached the root: for each, the directory where it began, and the directory that
    /// it did not find on the way.
    clear: Vec<(Ino, Ino)>,
    /// The value of [`DirectoryMoves::done`] for which the findings hold.
    moves: u64,
    /// True if this rename holds the permit to climb alone.
    alone: bool,
}

/// The result of a climb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Below {
    Yes,
    No,
    /// The climb has not finished.
    NotYet,
}

/// The outcome of one attempt of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renamed {
    /// The rename is done. Contains the inode that lost its last name, if one did.
    Done(Option<Ino>),
    /// The rename has changed nothing, because a climb has not finished.
    NotYet,
}

impl Core {
    /// Finds out whether `ino` is `ancestor` or below it.
    pub(crate) fn is_below(
        &mut self,
        check: &mut CycleCheck,
        ino: Ino,
        ancestor: Ino,
    ) -> std::result::Result<Below, NotApplied> {
        if check.moves != self.tree.moves.done {
            let (moves, alone) = (self.tree.moves.done, check.alone);
            *check = CycleCheck { moves, alone, ..CycleCheck::default() };
        }
        if check.clear.contains(&(ino, ancestor)) {
            return Ok(Below::No);
        }
        if !check.alone && self.tree.moves.line.available() == 0 {
            return Ok(Below::NotYet);
        }
        let mut at = match check.under_way {
            Some((from, wanted, at)) if (from, wanted) == (ino, ancestor) => at,
            _ => {
                check.steps = 0;
                ino
            }
        };
        for _ in 0..STEPS {
            if at == ancestor {
                return Ok(Below::Yes);
            }
            if at.0 == ROOT_NODE || at.0 == 0 {
                check.clear.push((ino, ancestor));
                return Ok(Below::No);
            }
            // No tree is deeper than the number of inodes. The limit ends the climb if the medium
            // contains a cycle.
            if check.steps > self.tree.inodes {
                return Err(self.corrupt(format!("directory {ino} is in a cycle")));
            }
            check.under_way = Some((ino, ancestor, at));
            at = Ino(self.inode(at)?.head.parent.get());
            check.steps += 1;
        }
        check.under_way = Some((ino, ancestor, at));
        Ok(Below::NotYet)
    }
}

impl Inner {
    /// Renames an inode. Returns the inode that lost its last name, if one did.
    /// See [`crate::Fs::rename`].
    pub(crate) async fn rename(
        self: &Rc<Self>,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        last: (Time, LastName),
    ) -> Result<Option<Ino>> {
        let mut check = CycleCheck::default();
        let mut alone = None;
        loop {
            let renamed = self.run(|core| core.rename(from, to, mode, last, &mut check)).await?;
            if let Renamed::Done(gone) = renamed {
                return Ok(gone);
            }
            if alone.is_none() {
                let line = self.core.borrow().tree.moves.line.clone();
                alone = Some(line.acquire(1).await);
                check.alone = true;
            }
        }
    }
}
