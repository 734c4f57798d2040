//! The proof that a release needs: a durable state of the engine that shows a superzone empty.
//!
//! An engine takes a [`Snapshot`] of its state, notes in it which superzones hold nothing that
//! counts, and makes the state durable: by a record on the medium ([`Snapshot::committed`]), or by
//! a flush if the state is on the drive already ([`Snapshot::flushed`]). Both wait for the drive,
//! and nothing else makes a [`DurableSnapshot`]. A release needs a [`DurableSnapshot`], and is
//! refused if neither this snapshot nor an earlier one showed the superzone empty.

use super::{SuperzoneId, SuperzoneState, ZonePool};
use crate::writer::WriteHandle;
use furrow_zone::{Error, ErrorKind, Result};
use std::fmt;
use std::rc::Rc;

/// A state of an engine that is not durable yet.
#[must_use = "a snapshot proves something once it is durable"]
pub struct Snapshot {
    pool: ZonePool,
    number: u64,
    /// Number of the first write that was not yet dispatched when the snapshot was taken.
    first: u64,
}

/// A state of an engine that is on the medium. [`ZonePool::release`] requires one.
///
/// Only this crate can create one, after the drive has answered:
///
/// ```compile_fail,E0451
/// # fn forge(pool: furrow_log::ZonePool) {
/// let forged = furrow_log::DurableSnapshot { pool, number: 7 };
/// # }
/// ```
#[derive(Clone)]
pub struct DurableSnapshot {
    pool: ZonePool,
    number: u64,
}

impl Snapshot {
    /// Notes that the superzone holds nothing that counts in this state.
    pub fn note_empty(&self, id: SuperzoneId) {
        self.pool.note_empty(id, self.number);
    }

    /// Waits until `record` is on the medium. `record` describes this state and was written after
    /// the snapshot was taken. Flushes if `record` was not written with FUA.
    ///
    /// # Errors
    /// `Invalid` if `record` was written before the snapshot was taken, or has no blocks; or the
    /// failure of the write or of the flush.
    pub async fn committed(self, record: WriteHandle) -> Result<DurableSnapshot> {
        let (sequence, fua) = (record.sequence(), record.is_fua());
        if sequence.is_none_or(|sequence| sequence < self.first) {
            let message = format!("the record of snapshot {} was written before it", self.number);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        record.await?;
        if fua { Ok(self.made_durable()) } else { self.flushed().await }
    }

    /// Flushes the drive. Every write that this state consists of must be answered before the call.
    ///
    /// # Errors
    /// The failure of the flush.
    pub async fn flushed(self) -> Result<DurableSnapshot> {
        self.pool.0.writer.flush().await?;
        Ok(self.made_durable())
    }

    /// Returns a proof without a durable state, for the defect that resets zones too early; `None`
    /// without the defect.
    pub fn too_early(&self) -> Option<DurableSnapshot> {
        let (pool, number) = (self.pool.clone(), self.number);
        self.pool.resets_early().then_some(DurableSnapshot { pool, number })
    }

    fn made_durable(self) -> DurableSnapshot {
        let durable = &self.pool.0.durable;
        durable.set(durable.get().max(self.number));
        DurableSnapshot { pool: self.pool, number: self.number }
    }
}

impl DurableSnapshot {
    /// Notes that the superzone holds nothing that counts in this state, for callers that learn it
    /// only after the state became durable.
    pub fn note_empty(&self, id: SuperzoneId) {
        self.pool.note_empty(id, self.number);
    }

    /// Whether this snapshot, or an earlier one, shows the superzone empty. If so, a release with
    /// this snapshot as proof is not refused.
    pub fn shows_empty(&self, id: SuperzoneId) -> bool {
        let since = self.pool.0.superzones.borrow()[id.0 as usize].empty_since;
        since.is_some_and(|since| since <= self.number)
    }
}

impl fmt::Debug for DurableSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DurableSnapshot({})", self.number)
    }
}

impl ZonePool {
    /// Takes a snapshot of the engine's present state.
    pub fn snapshot(&self) -> Snapshot {
        let number = self.0.snapshots.get() + 1;
        self.0.snapshots.set(number);
        Snapshot { pool: self.clone(), number, first: self.0.writer.sequence_point().0 }
    }

    /// Returns the newest durable snapshot.
    pub fn durable(&self) -> Option<DurableSnapshot> {
        let number = self.0.durable.get();
        (number > 0).then(|| DurableSnapshot { pool: self.clone(), number })
    }

    /// Remembers the first snapshot that shows a superzone empty, until the superzone is in use
    /// again. Active and retired superzones are not released, so nothing is noted for them.
    fn note_empty(&self, id: SuperzoneId, snapshot: u64) {
        let superzone = &mut self.0.superzones.borrow_mut()[id.0 as usize];
        if !matches!(superzone.state, SuperzoneState::Active | SuperzoneState::Retired) {
            superzone.empty_since.get_or_insert(snapshot);
        }
    }

    /// Refuses a proof that belongs to another drive, or does not show the superzone empty.
    pub(super) fn verify(
        &self,
        what: fmt::Arguments<'_>,
        superzone: Option<SuperzoneId>,
        proof: &DurableSnapshot,
    ) -> Result<()> {
        let refuse = |why: String| {
            Err(Error::new(ErrorKind::Invalid, format!("release of {what} refused: {why}")))
        };
        if self.resets_early() {
            return Ok(());
        }
        if !Rc::ptr_eq(&self.0, &proof.pool.0) {
            return refuse("the snapshot is one of another drive".into());
        }
        let Some(id) = superzone else { return Ok(()) };
        match self.0.superzones.borrow()[id.0 as usize].empty_since {
            None => refuse("no snapshot shows it empty".into()),
            Some(since) if since > proof.number => refuse(format!(
                "snapshot {since} shows it empty, but the newest durable one is {}",
                proof.number
            )),
            Some(_) => Ok(()),
        }
    }
}
