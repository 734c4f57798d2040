//! Whether a directory may move where it is to: not below itself.
//!
//! Who moves a directory to another one climbs from there to the root, and must not meet the
//! directory. That takes as many steps as the tree is deep, which only a user decides. So a climb
//! goes in stretches, and remembers where it is. What it has seen holds as long as no directory
//! moves to another one: if one did, the climb begins from below again; and who has far to climb
//! does so *alone*, with everybody else who would move a directory waiting in line, so that it
//! comes to an end.

use crate::core::{Core, Inner, Stop};
use crate::format::ROOT_NODE;
use crate::types::{Ino, RenameMode, Time};
use furrow_zone::Result;
use std::rc::Rc;

/// Directories of one stretch of a climb.
const STEPS: u32 = 256;

/// How far a rename is with its climbs.
#[derive(Default)]
pub(crate) struct Climb {
    /// From where, whom to look for, and where it is.
    under_way: Option<(Ino, Ino, Ino)>,
    /// Directories on the way so far.
    steps: u64,
    /// Climbs that came to the root.
    clear: Vec<(Ino, Ino)>,
    /// [`Core::directory_moves`] of what it has seen.
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
        climb: &mut Climb,
        ino: Ino,
        ancestor: Ino,
    ) -> std::result::Result<Below, Stop> {
        if climb.moves != self.directory_moves {
            let (moves, alone) = (self.directory_moves, climb.alone);
            *climb = Climb { moves, alone, ..Climb::default() };
        }
        if climb.clear.contains(&(ino, ancestor)) {
            return Ok(Below::No);
        }
        if !climb.alone && self.climbing.available() == 0 {
            return Ok(Below::NotYet);
        }
        let mut at = match climb.under_way {
            Some((from, wanted, at)) if (from, wanted) == (ino, ancestor) => at,
            _ => {
                climb.steps = 0;
                ino
            }
        };
        for _ in 0..STEPS {
            if at == ancestor {
                return Ok(Below::Yes);
            }
            if at.0 == ROOT_NODE || at.0 == 0 {
                climb.clear.push((ino, ancestor));
                return Ok(Below::No);
            }
            // No tree is deeper than there are inodes: a cycle on the medium must not hang us.
            if climb.steps > self.inodes {
                return Err(self.corrupt(format!("directory {ino} is in a cycle")));
            }
            climb.under_way = Some((ino, ancestor, at));
            at = Ino(self.inode(at)?.head.parent.get());
            climb.steps += 1;
        }
        climb.under_way = Some((ino, ancestor, at));
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
        let mut climb = Climb::default();
        let mut alone = None;
        loop {
            let renamed = self.run(|core| core.rename(from, to, (mode, time), &mut climb)).await?;
            if let Renamed::Done(gone) = renamed {
                return Ok(gone);
            }
            if alone.is_none() {
                let line = self.core.borrow().climbing.clone();
                alone = Some(line.acquire(1).await);
                climb.alone = true;
            }
        }
    }
}
