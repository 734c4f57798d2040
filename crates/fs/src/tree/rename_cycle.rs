//! Whether a directory may move where it is to: not below itself.
//!
//! Who moves a directory to another one climbs from there to the root, and must not meet the
//! directory. That takes as many steps as the tree is deep, which only a user decides. So a climb
//! goes in stretches, and remembers where it is. What it has seen holds as long as no directory
//! moves to another one: if one did, the climb begins from below again; and who has far to climb
//! does so *alone*, with everybody else who would move a directory waiting in line, so that it
//! comes to an end.

use crate::blocked::NotApplied;
use crate::core::{Core, Inner};
use crate::format::ROOT_NODE;
use crate::types::{Ino, RenameMode, Time};
use furrow_rt::Semaphore;
use furrow_zone::Result;
use std::rc::Rc;

/// Directories of one stretch of a climb.
const STEPS: u32 = 256;

/// Moves of directories to another one.
pub(crate) struct DirectoryMoves {
    /// So many since the mount.
    done: u64,
    /// One permit: its holder climbs alone.
    line: Semaphore,
}

impl Default for DirectoryMoves {
    fn default() -> DirectoryMoves {
        DirectoryMoves { done: 0, line: Semaphore::new(1) }
    }
}

impl DirectoryMoves {
    /// Counts a move, if a directory came `elsewhere`.
    pub(super) fn count(&mut self, elsewhere: bool) {
        self.done += u64::from(elsewhere);
    }
}

/// How far a rename is with its climbs.
#[derive(Default)]
pub(crate) struct CycleCheck {
    /// From where, whom to look for, and where it is.
    under_way: Option<(Ino, Ino, Ino)>,
    /// Directories on the way so far.
    steps: u64,
    /// Climbs that came to the root.
    clear: Vec<(Ino, Ino)>,
    /// [`DirectoryMoves::done`] of what it has seen.
    moves: u64,
    /// Nobody else moves a directory.
    alone: bool,
}

/// What a climb found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Below {
    Yes,
    No,
    /// It has not come to an end.
    NotYet,
}

/// What a step of a rename did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renamed {
    /// All of it; the inode that lost its last name, if one did.
    Done(Option<Ino>),
    /// Nothing: a climb has not come to an end.
    NotYet,
}

impl Core {
    /// Whether `ino` is `ancestor` or below it.
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
            // No tree is deeper than there are inodes: a cycle on the medium must not hang us.
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
    /// Renames; the inode that lost its last name, if one did. See [`crate::Fs::rename`].
    pub(crate) async fn rename(
        self: &Rc<Self>,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        time: Time,
    ) -> Result<Option<Ino>> {
        let mut check = CycleCheck::default();
        let mut alone = None;
        loop {
            let renamed = self.run(|core| core.rename(from, to, (mode, time), &mut check)).await?;
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
