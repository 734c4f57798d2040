//! The end of a recovery: a checkpoint makes its result durable, then zones that belong to no
//! segment are reset. Without space for the checkpoint, both the checkpoint and the resets wait.

use crate::recover::steps::FINISH;
use crate::recover::unfinished::{Recovered, Stage};
use crate::steps::{self, OF_FINISH};
use crate::volume::Volume;
use furrow_zone::{Result, ZoneId, ZoneReport, ZoneState};

impl Volume {
    /// The counts of the recovery that ran when this volume was assembled.
    pub fn recovered(&self) -> Recovered {
        self.0.recovered.get()
    }

    /// Whether the recovery is finished: the members' state records hold its result.
    pub fn is_recovered(&self) -> bool {
        self.0.space.recovery.borrow().is_none()
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

    /// Runs the last steps ([`FINISH`]). After them, zones may be reset.
    ///
    /// # Errors
    /// `NoSpace` if there is no space for the steps: the caller tries again later.
    pub(crate) async fn finish_recovery(&self) -> Result<()> {
        steps::run(&self.0.rt, OF_FINISH, FINISH, &mut self.clone()).await
    }

    /// Resets the zones that belong to no segment, which finishes the recovery.
    pub(crate) async fn release_all_strays(&self) -> Result<()> {
        let recovery = self.0.space.recovery.take();
        let strays = recovery.map(|recovery| recovery.strays).unwrap_or_default();
        self.release_strays(&strays).await;
        self.leave_unfit();
        self.space_changed();
        Ok(())
    }

    /// Finishes active zones that no writer continues, because each takes one of the drive's active
    /// zones without a permit.
    pub(crate) async fn finish_strays(&self, strays: &[(u32, ZoneId)], zones: &[Vec<ZoneReport>]) {
        for (index, zone) in strays {
            let Some(drive) = self.0.array.member(*index).drive() else { continue };
            let report = &zones[*index as usize][zone.0 as usize];
            if report.state.is_active() {
                // A zone that cannot be finished stays as it is: its content does not count.
                let _ = furrow_log::survey::finish(drive.writer(), report).await;
            }
            if let Some(owner) = drive.zones().owner(*zone)
                && drive.zones().state(owner) == furrow_log::SuperzoneState::Free
            {
                drive.zones().mark_full(owner);
            }
        }
    }

    async fn release_strays(&self, strays: &[(u32, ZoneId)]) {
        for (index, zone) in strays {
            let Some(drive) = self.0.array.member(*index).drive() else { continue };
            // If a zone cannot be emptied, the pool takes it out of use.
            let _ = drive.empty(*zone).await;
        }
    }

    /// Empties zones that belong to no segment before the recovery is finished. A later recovery
    /// would ignore their content as this one did.
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

    /// Records the stage that the recovery has reached.
    pub(crate) fn enter(&self, stage: Stage) {
        if let Some(recovery) = &mut *self.0.space.recovery.borrow_mut() {
            recovery.stage = stage;
        }
    }
}
