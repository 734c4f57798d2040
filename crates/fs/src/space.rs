//! Room on the drive: what is left, what is promised, and who may have the rest.
//!
//! *Room* is what the main area takes before anything is reset: the rest of each stream's
//! superzone, and the free superzones. Every dirty page is *promised* one block of it. The rest is
//! *spare*. Because a stream that has no superzone may write into another's (see
//! [`Core::write_block`]), room is one number: no distribution of dirty pages over streams can make
//! it insufficient, and asking costs the same however much is dirty.
//!
//! Operations ask *before* they change anything. Those of users leave a little more than
//! [`RESERVE`] superzones spare, removals one: with that, cleaning can always move what is valid
//! in a victim and write the nodes that changes. A cleaning under way has its own reservation,
//! which nobody may go below. So a checkpoint, which writes what was promised, and a cleaning, once
//! begun, never run out. Neither does recovery: what was written since the last durable checkpoint
//! may be garbage after a crash, and has to be written again, so as much room again stays beyond
//! all that.
//!
//! Who lacks room stands in line, first come, first served; the first one cleans until there is
//! enough ([`Inner::gain_space`]). `NoSpace` is the answer only when nothing more can be reclaimed.

use crate::clean::{Outcome, Urgency};
use crate::core::{Core, Inner, Stop};
use furrow_log::pool::{SuperzoneId, SuperzoneState};
use furrow_rt::{Permit, Semaphore};
use furrow_zone::{Error, ErrorKind, Result};
use std::rc::Rc;

/// Superzones' worth of room that users leave for cleaning: what is valid in a victim, and as many
/// nodes that point to it.
pub(crate) const RESERVE: u32 = 2;
/// Blocks that recovery may write beside what it replays: for files removed while open.
const RECOVERY_MIN: u64 = 8;
/// Checkpoints that gave nothing back after which it is said that there is no room.
const CHECKPOINTS_MAX: u32 = 4;
/// The same for superzones that were cleaned without gain.
const MOVES_MAX: u32 = 16;

/// What was done for an operation that lacks room, since there was last more than ever.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tried {
    most: u64,
    checkpoints: u32,
    moves: u32,
}

/// What an operation lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// Blocks.
    Room,
    /// Node ids.
    Nodes,
}

impl Lack {
    pub(crate) fn error(self) -> Error {
        let message = match self {
            Lack::Room => "no space left on the drive",
            Lack::Nodes => "no inode left",
        };
        Error::new(ErrorKind::NoSpace, message)
    }
}

/// Who waits for room, and what is set aside.
pub(crate) struct State {
    /// One permit: whoever holds it is first in line.
    pub(crate) line: Semaphore,
    /// The operation that runs now is the first in line.
    pub(crate) first: bool,
    /// Room the cleaning under way will still need.
    pub(crate) cleaning: u32,
    /// A cleaning writes: it may open the superzones kept for it.
    pub(crate) for_cleaning: bool,
    /// Blocks written since the last durable checkpoint, but for cleaning: a crash makes them
    /// garbage, and recovery may have to write as many again.
    pub(crate) at_risk: u64,
    /// How many of them the checkpoint under way covers.
    pub(crate) at_risk_cut: u64,
    /// Nodes that are dirty only because cleaning moved what they point to: after a crash they
    /// are as they were.
    pub(crate) moved_below: u64,
}

impl Default for State {
    fn default() -> State {
        State {
            line: Semaphore::new(1),
            first: false,
            cleaning: 0,
            for_cleaning: false,
            at_risk: 0,
            at_risk_cut: 0,
            moved_below: 0,
        }
    }
}

impl Core {
    /// Payload blocks of a whole superzone.
    pub(crate) fn superzone_blocks(&self) -> u32 {
        self.layout.stripe(self.layout.width).payload_blocks().max(1)
    }

    /// Payload blocks of superzone `id`, which may lack zones.
    pub(crate) fn payload_of(&self, id: SuperzoneId) -> u32 {
        match self.zones.width(id) {
            0 => 0,
            width => self.layout.stripe(width).payload_blocks(),
        }
    }

    /// Blocks that can be written before anything is reset.
    pub(crate) fn room(&self) -> u64 {
        let open: u64 = (0..self.layout.streams as usize).map(|s| u64::from(self.room_in(s))).sum();
        let free = if self.zones.is_narrow() {
            let all = (0..self.zones.total()).map(SuperzoneId);
            let free = all.filter(|id| self.zones.state(*id) == SuperzoneState::Free);
            free.map(|id| u64::from(self.payload_of(id))).sum()
        } else {
            u64::from(self.zones.free_count()) * u64::from(self.superzone_blocks())
        };
        open + free
    }

    /// Room beyond what is promised.
    pub(crate) fn spare(&self) -> u64 {
        self.room().saturating_sub(self.cache.dirty_pages() as u64)
    }

    /// True if at least `wanted` blocks of room are spare. Asked by every change: most of the
    /// time the free superzones alone will do.
    pub(crate) fn has_spare(&self, wanted: u64) -> bool {
        let wanted = wanted + self.cache.dirty_pages() as u64;
        let whole = !self.zones.is_narrow();
        let free = u64::from(self.zones.free_count()) * u64::from(self.superzone_blocks());
        whole && free >= wanted || self.room() >= wanted
    }

    /// Room that users leave: two superzones' worth for cleaning, and a quarter of one for nodes
    /// that several victims share.
    pub(crate) fn kept_from_users(&self) -> u64 {
        let per = u64::from(self.superzone_blocks());
        u64::from(RESERVE) * per + per / 4 + RECOVERY_MIN
    }

    /// Room that must stay spare.
    pub(crate) fn kept(&self, removal: bool) -> u64 {
        let per = u64::from(self.superzone_blocks());
        let kept = if removal { per + RECOVERY_MIN } else { self.kept_from_users() };
        kept.max(u64::from(self.space.cleaning) + self.recovery_needs())
    }

    /// Room that recovery may need after a crash now: to write again what is dirty, and what was
    /// written since the last durable checkpoint.
    pub(crate) fn recovery_needs(&self) -> u64 {
        let dirty = self.cache.dirty_pages() as u64;
        RECOVERY_MIN + self.space.at_risk + dirty.saturating_sub(self.space.moved_below)
    }

    /// A checkpoint's cut: what was written before it.
    pub(crate) fn cut_space(&mut self) {
        self.space.at_risk_cut = self.space.at_risk;
        self.space.moved_below = 0;
    }

    /// The checkpoint is durable.
    pub(crate) fn space_durable(&mut self) {
        self.space.at_risk -= std::mem::take(&mut self.space.at_risk_cut);
    }

    /// Refuses a change that would dirty `data` more blocks and `nodes` more nodes if there is no
    /// room for them, or if others have waited for longer. Removals may use part of the reserve
    /// and stand in no line: they make room.
    pub(crate) fn reserve(&mut self, data: u32, nodes: u32, removal: bool) -> Result<(), Stop> {
        if self.replaying {
            return Ok(());
        }
        if nodes + 8 > self.ids.free_count() && !removal {
            return Err(Stop::Space(Lack::Nodes));
        }
        let others_first = !removal && !self.space.first && self.space.line.available() == 0;
        let wanted = u64::from(data) + u64::from(nodes);
        if others_first || !self.has_spare(self.kept(removal) + wanted) {
            return Err(Stop::Space(Lack::Room));
        }
        Ok(())
    }

    /// Whether a stream may take a free superzone: the last ones are for cleaning.
    pub(crate) fn may_open(&self) -> bool {
        let keep = if self.space.for_cleaning { 0 } else { RESERVE };
        self.zones.free_count() > keep
    }

    /// True if a checkpoint would give back what is lacking.
    fn checkpoint_gains(&self, lack: Lack) -> bool {
        match lack {
            Lack::Room => self.empty_superzones().next().is_some(),
            Lack::Nodes => self.ids.waiting_count() > 0,
        }
    }

    /// Superzones written to their end that hold nothing valid.
    pub(crate) fn empty_superzones(&self) -> impl Iterator<Item = SuperzoneId> + '_ {
        let empty = self.superzone_valid.iter().enumerate().filter(|(_, valid)| **valid == 0);
        empty
            .map(|(index, _)| SuperzoneId(index as u32))
            .filter(|id| self.zones.state(*id) == SuperzoneState::Full)
    }
}

impl Inner {
    /// Stands in the line of those who lack room; first in it while the answer lives.
    pub(crate) async fn wait_in_line(&self) -> Permit {
        let line = self.core.borrow().space.line.clone();
        line.acquire(1).await
    }

    /// Makes room by one step, for the first in line; false if there is nothing to reclaim.
    pub(crate) async fn gain_space(self: &Rc<Self>, lack: Lack, tried: &mut Tried) -> Result<bool> {
        if self.core.borrow().checkpoint_gains(lack) {
            self.checkpoint(false).await?;
            return Ok(true);
        }
        if lack == Lack::Nodes {
            if self.core.borrow_mut().grow_tables() {
                self.checkpoint(false).await?;
                return Ok(true);
            }
            // With a superzone more, the tables would have room for nodes.
            if !self.core.borrow().tables_can_grow() {
                return Ok(false);
            }
        }
        {
            let mut core = self.core.borrow_mut();
            core.counters.space_waits += 1;
            let spare = core.spare();
            if spare > tried.most {
                *tried = Tried { most: spare, ..Tried::default() };
            }
        }
        // Cleaning comes cheap where much is garbage. Else what is dirty is written first: what
        // it replaces is garbage only then. At last, anything.
        for urgency in [Urgency::Waiting, Urgency::Last] {
            match self.clean_some(urgency).await? {
                Outcome::Gained => return Ok(true),
                Outcome::Moved => {
                    tried.moves += 1;
                    return Ok(tried.moves < MOVES_MAX);
                }
                Outcome::Nothing => {}
            }
            let unsafe_yet = self.core.borrow().recovery_needs() > RECOVERY_MIN;
            if unsafe_yet && tried.checkpoints < CHECKPOINTS_MAX {
                tried.checkpoints += 1;
                self.checkpoint(false).await?;
                return Ok(true);
            }
        }
        Ok(false)
    }
}
