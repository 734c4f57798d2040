//! The end of a recovery: what is torn is written anew, a checkpoint says what was found, and what
//! belongs to nothing is reset. Where there is no room for it, it waits until there is.

use crate::format::block;
use crate::volume::{Canary, Volume};
use furrow_log::pool::ReleaseProof;
use furrow_zone::{Result, ZoneId, ZoneReport, ZoneState};

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
    /// Zones that members had at the checkpoint's cut, and do not have any more.
    pub lacking: u64,
    /// Open segments that it went on with though a member that is being rebuilt has no zone there.
    pub narrow: u64,
    /// Stripes that may have counted and cannot be had, whose loss was accepted.
    pub undecided: u64,
    /// Segments, and zones of none, that were reset before its checkpoint, to have room for what it
    /// writes.
    pub early: u64,
}

/// How far a recovery has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The map is being changed: what counts in segments is not known.
    Applying,
    /// Stripes that lack a chunk are being written anew.
    Healing,
    /// They are, and a checkpoint is next.
    Healed,
}

/// What recovery found, and does before anything is reset.
pub(crate) struct Unsettled {
    /// Blocks of stripes that count but lack a chunk.
    pub(crate) torn: Vec<u32>,
    /// Zones that hold something and belong to nothing.
    pub(crate) strays: Vec<(u32, ZoneId)>,
    pub(crate) stage: Stage,
    /// What is left to do lacks room: what is empty may be reset for it, as at any other time.
    pub(crate) starved: bool,
}

impl Unsettled {
    /// At the start.
    pub(crate) fn new(torn: Vec<u32>, strays: Vec<(u32, ZoneId)>) -> Unsettled {
        Unsettled { torn, strays, stage: Stage::Applying, starved: false }
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

    /// Steps 6 and 7: after them zones may be reset.
    ///
    /// # Errors
    /// `NoSpace` if there is no room for it: it is to be tried again.
    pub(crate) async fn settle(&self) -> Result<()> {
        self.checkpoint(false).await?;
        // Once more: from now on every member is known to have a record of this run, so that no
        // image of it from before is taken for it again.
        self.write_state(false).await;
        self.failed().map_or(Ok(()), Err)?;
        let settled = self.0.room.unsettled.take();
        let strays = settled.map(|unsettled| unsettled.strays).unwrap_or_default();
        self.release_strays(&strays).await;
        self.leave_unfit();
        self.room_changed();
        Ok(())
    }

    /// Active zones that nobody writes to hold resources no permit accounts for: they are ended.
    pub(crate) async fn finish_strays(&self, strays: &[(u32, ZoneId)], zones: &[Vec<ZoneReport>]) {
        for (index, zone) in strays {
            let Some(drive) = self.0.members[*index as usize].drive() else { continue };
            let report = &zones[*index as usize][zone.0 as usize];
            if report.state.is_active() {
                drive.writer.open_reported(report);
                // A zone that cannot be finished stays; what is in it is of no use.
                let _ = drive.writer.finish(*zone).await;
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
            if let Some(owner) = drive.zones.owner(*zone) {
                let proof = ReleaseProof::by(drive.zones.durable_checkpoint());
                // One that cannot be emptied is out of use.
                let _ = drive.zones.release(owner, proof).await;
            }
        }
    }

    /// Writes anew what is in stripes that recovery found to lack a chunk.
    pub(crate) async fn heal(&self) -> Result<()> {
        let torn = match &*self.0.room.unsettled.borrow() {
            Some(unsettled) if unsettled.stage < Stage::Healed => unsettled.torn.clone(),
            _ => return Ok(()),
        };
        if self.has(Canary::TornStripe) {
            return Ok(());
        }
        let mut blocks = Vec::new();
        for number in &torn {
            let (slot, row, chunk) =
                self.0.shape.locate(*number).expect("invariant: it was found there");
            let from = self.origin(*number);
            let (identity, page) = match self.block_or_made(slot, row, chunk).await {
                Ok((Some(identity), page)) => (identity, page),
                // The drives are there again perhaps: it is to be tried anew then.
                Err(error) if error.is_gone() => return Err(error),
                Ok(_) | Err(_) => continue,
            };
            // What a trim took away is shown by its record alone until there is a checkpoint.
            if identity.kind == block::TRIM || self.counts(*number, &identity).await? {
                blocks.push((identity, page, from));
            }
        }
        self.move_blocks(blocks).await?;
        self.enter(Stage::Healed);
        self.0.segments.borrow_mut().iter_mut().for_each(|segment| segment.fallback = false);
        Ok(())
    }

    /// Notes how far the recovery has come.
    pub(crate) fn enter(&self, stage: Stage) {
        if let Some(unsettled) = &mut *self.0.room.unsettled.borrow_mut() {
            unsettled.stage = stage;
        }
    }
}
