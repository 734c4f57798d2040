//! The end of a recovery: a checkpoint says what was found, then zones that belong to nothing are
//! reset. Without space for the checkpoint this waits until there is some.

use crate::recover::steps::FINISH;
use crate::space::plan::Recovery;
use crate::steps::{self, OF_FINISH};
use crate::volume::Volume;
use furrow_zone::{Result, ZoneId, ZoneReport, ZoneState};
use std::collections::BTreeMap;

/// What a recovery met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Zones that were closed but active.
    pub closed: u64,
    /// Zones that could only be read.
    pub read_only: u64,
    /// Zones that were gone with what they held.
    pub offline: u64,
    /// Footers of which only a part had been written.
    pub torn_footers: u64,
    /// Blocks of stripes that counted and lacked a chunk.
    pub torn_blocks: u64,
    /// Zones that a rebuild had not come to the end of.
    pub unbuilt: u64,
    /// Zones that members had at the checkpoint's snapshot, and do not have any more.
    pub lacking: u64,
    /// Open segments that it went on with though a member that is being rebuilt has no zone there.
    pub narrow: u64,
    /// Stripes that may have counted and cannot be had, whose loss was accepted.
    pub in_doubt: u64,
    /// Segments, and zones of none, that were reset before its checkpoint, to have space for what
    /// it writes.
    pub early: u64,
}

/// How far a recovery has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The map is being changed: what counts in segments is not known.
    Applying,
    /// Stripes that lack a chunk are being written anew.
    Repairing,
    /// They are, and a checkpoint is next.
    Repaired,
}

/// What recovery found, and does before anything is reset.
///
/// Invariant: until the stage is `Repaired`, a slot is in `older` and `trimmed` as often as its
/// segment's `fallback` says; after that none is kept.
pub(crate) struct UnfinishedRecovery {
    /// Blocks of stripes that count but lack a chunk.
    pub(crate) torn: Vec<u32>,
    /// Zones that hold something and belong to nothing.
    pub(crate) strays: Vec<(u32, ZoneId)>,
    /// Slots of older blocks, by the number of the block that lacks a chunk and took their place.
    pub(crate) older: BTreeMap<u32, Vec<u32>>,
    /// Slots of blocks that were taken away by trims whose records alone lack a chunk.
    pub(crate) trimmed: Vec<u32>,
    pub(crate) stage: Stage,
    /// What is left to do lacks space: what is empty may be reset for it, as at any other time.
    pub(crate) starved: bool,
}

impl UnfinishedRecovery {
    /// How far it has come, as space is concerned.
    pub(crate) fn stage(&self) -> Recovery {
        match self.stage {
            _ if self.starved => Recovery::Starved,
            Stage::Applying => Recovery::Applying,
            Stage::Repairing | Stage::Repaired => Recovery::Unfinished,
        }
    }

    /// At the start.
    pub(crate) fn new(torn: Vec<u32>, strays: Vec<(u32, ZoneId)>) -> UnfinishedRecovery {
        let (older, trimmed) = Default::default();
        UnfinishedRecovery { torn, strays, older, trimmed, stage: Stage::Applying, starved: false }
    }
}

impl Volume {
    /// What the recovery met when this volume was put together.
    pub fn recovered(&self) -> Recovered {
        self.0.recovered.get()
    }

    pub(crate) fn note_recovered(&self, change: impl FnOnce(&mut Recovered)) {
        let mut recovered = self.0.recovered.get();
        change(&mut recovered);
        self.0.recovered.set(recovered);
    }

    pub(crate) fn note_zones(&self, zones: &[Vec<ZoneReport>]) {
        let of = |state: ZoneState| {
            zones.iter().flatten().filter(|report| report.state == state).count() as u64
        };
        self.note_recovered(|recovered| {
            recovered.closed = of(ZoneState::Closed);
            recovered.read_only = of(ZoneState::ReadOnly);
            recovered.offline = of(ZoneState::Offline);
        });
    }

    /// Runs the last steps ([`FINISH`]): after them zones may be reset.
    ///
    /// # Errors
    /// `NoSpace` if there is no space for them: they are to be tried again.
    pub(crate) async fn finish_recovery(&self) -> Result<()> {
        steps::run(&self.0.rt, OF_FINISH, FINISH, &mut self.clone()).await
    }

    /// Resets the zones that belong to nothing: the recovery is finished.
    pub(crate) async fn release_all_strays(&self) -> Result<()> {
        let recovery = self.0.space.recovery.take();
        let strays = recovery.map(|recovery| recovery.strays).unwrap_or_default();
        self.release_strays(&strays).await;
        self.leave_unfit();
        self.space_changed();
        Ok(())
    }

    /// Active zones that nobody writes to hold resources no permit accounts for: they are ended.
    pub(crate) async fn finish_strays(&self, strays: &[(u32, ZoneId)], zones: &[Vec<ZoneReport>]) {
        for (index, zone) in strays {
            let Some(drive) = self.0.members[*index as usize].drive() else { continue };
            let report = &zones[*index as usize][zone.0 as usize];
            if report.state.is_active() {
                // A zone that cannot be finished stays; nothing in it counts.
                let _ = furrow_log::survey::finish(&drive.writer, report).await;
            }
            if let Some(owner) = drive.zones.owner(*zone)
                && drive.zones.state(owner) == furrow_log::SuperzoneState::Free
            {
                drive.zones.mark_full(owner);
            }
        }
    }

    async fn release_strays(&self, strays: &[(u32, ZoneId)]) {
        for (index, zone) in strays {
            let Some(drive) = self.0.members[*index as usize].drive() else { continue };
            // One that cannot be emptied is out of use.
            let _ = drive.empty(*zone).await;
        }
    }

    /// Empties zones that belong to nothing before the recovery is finished. A later recovery would
    /// go by them as little as this one did.
    pub(crate) async fn release_strays_early(&self) -> bool {
        let strays = match &mut *self.0.space.recovery.borrow_mut() {
            Some(recovery) => std::mem::take(&mut recovery.strays),
            None => return false,
        };
        self.release_strays(&strays).await;
        self.note_recovered(|recovered| recovered.early += strays.len() as u64);
        self.space_made();
        true
    }

    /// Notes how far the recovery has come.
    pub(crate) fn enter(&self, stage: Stage) {
        if let Some(recovery) = &mut *self.0.space.recovery.borrow_mut() {
            recovery.stage = stage;
        }
    }
}
