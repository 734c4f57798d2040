//! Checkpoints: they bound what recovery has to read.
//!
//! At the *snapshot* stripes are quiesced: none is in flight while the segment table and the
//! mapping blocks that changed are copied. Then stripes resume. The mapping blocks are written like
//! other blocks of the volume; then a state record on every member lists the place of each mapping
//! block. Recovery starts from that record and reads the rows that were written after the snapshot.
//!
//! When a member fails, the volume writes the same kind of record, with the last
//! checkpoint's content.

pub(crate) mod state;

use crate::checkpoint::state::Image;
use crate::format::{SegmentEntry, segment};
use crate::payload::Payload;
use crate::segment::SegmentState;
use crate::volume::Volume;
use furrow_array::service::{Sent, State};
use furrow_rt::{Boxed, Permit};
use furrow_zone::{Error, ErrorKind, Result};
use zerocopy::FromZeros;

impl Volume {
    /// Writes a checkpoint. With `clean`, its record says that the volume was stopped cleanly.
    ///
    /// # Errors
    /// `NoSpace` if there is no space for the checkpoint's blocks; otherwise the error of the
    /// volume or of a drive.
    #[inline(never)]
    pub fn checkpoint(&self, clean: bool) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            let state = &self.0.checkpoint;
            self.repair_torn_stripes().await?;
            let _one = state.one.acquire(1).await;
            let writes = self.0.paging.writes.acquire(1).await;
            self.quiesce().await;
            if cfg!(debug_assertions)
                && let Err(error) = self.audit()
            {
                self.resume();
                self.die(error.clone());
                return Err(error);
            }
            state.snapshots.set(state.snapshots.get() + 1);
            let snapshot = state.snapshots.get();
            let pages = &self.0.pages;
            let dirty = self.0.paging.map_mut().take_dirty(0, usize::MAX, || pages.take_dirty());
            let mut root = self.0.paging.map().root().to_vec();
            let entries = self.entries();
            let (sequence, next_segment) = (self.0.segments.sequence(), self.0.segments.next());
            state.written.set(self.0.counters.borrow().written);
            self.resume();
            // A mapping block that is evicted from here on may hold changes from after the
            // snapshot, so the checkpoint does not name the copy that the eviction writes.
            for (leaf, number) in self.write_leaves(&dirty).await? {
                root[leaf as usize] = number;
            }
            drop(writes);
            self.flush_drives().await?;
            let replaced = std::mem::take(&mut *state.replaced.borrow_mut());
            let named = |(leaf, number): &(u32, u32)| root[*leaf as usize] == *number;
            let (stay, unnamed): (Vec<_>, Vec<_>) = replaced.into_iter().partition(named);
            state.replaced.borrow_mut().extend(stay);
            state.unnamed.borrow_mut().extend(unnamed);
            *state.image.borrow_mut() = Image { entries, root, sequence, next_segment };
            state.id.set(snapshot);
            self.write_state(clean).await;
            if let Some(error) = self.failed() {
                return Err(error);
            }
            for (_, number) in state.unnamed.take() {
                let slot = self.0.shape.slot(number);
                self.less_in(slot, "mapping blocks", |segment| &mut segment.leaves);
            }
            let mut segments = self.0.segments.borrow_mut();
            for segment in segments.iter_mut().filter(|segment| segment.needed <= snapshot) {
                segment.needed = 0;
            }
            drop(segments);
            self.count(|counters| counters.checkpoints += 1);
            self.0.wanted.notify_all();
            Ok(())
        })
    }

    /// Stops dispatching stripes until [`Volume::resume`], and waits until none is in flight.
    pub(crate) async fn quiesce(&self) {
        self.0.segments.quiesce();
        while self.0.segments.in_flight() > 0 {
            self.0.segments.idle().await;
        }
    }

    /// Undoes one [`Volume::quiesce`]; stripes are dispatched again when all are undone.
    pub(crate) fn resume(&self) {
        self.0.segments.resume(&self.0.broken);
        self.check_accounts();
        for stream in &self.0.streams {
            self.dispatch_ready(&stream.writer);
        }
        if self.0.space.is_wanted() {
            self.0.wanted.notify_all();
        }
    }

    /// Number of the row at which the next stripe of an open segment begins; `None` if no stream
    /// writes to the segment.
    pub(crate) fn next_row(&self, slot: u32) -> Option<u32> {
        self.0.streams.iter().find_map(|stream| {
            let open = stream.writer.open.borrow();
            let open = open.as_ref().filter(|open| open.slot == slot)?;
            Some(open.next.get() * open.groups.chunk)
        })
    }

    /// An entry for each segment that is not free.
    fn entries(&self) -> Vec<SegmentEntry> {
        let segments = self.0.segments.borrow();
        let used = segments.iter().enumerate().filter(|(_, s)| s.state != SegmentState::Free);
        used.map(|(slot, s)| {
            let rows = match s.state {
                // A segment to which no stream writes is being ended.
                SegmentState::Open => self.next_row(slot as u32).unwrap_or(s.rows),
                SegmentState::Truncated => s.rows,
                _ => self.0.shape.rows,
            };
            let mut entry = SegmentEntry::new_zeroed();
            entry.slot = (slot as u32).into();
            entry.state = match s.state {
                SegmentState::Open => segment::OPEN,
                SegmentState::Truncated => segment::TRUNCATED,
                _ => segment::SEALED,
            };
            entry.sequence = s.sequence.into();
            entry.valid = s.valid.into();
            entry.rows = rows.into();
            entry.chunk = s.chunk.into();
            entry.group = s.group.into();
            entry.missing = s.missing().into();
            entry
        })
        .collect()
    }

    /// Writes a state record to every member. A member that refuses the record is taken out
    /// of service.
    pub(crate) async fn write_state(&self, clean: bool) {
        let one = self.state_records().await;
        self.write_state_but(clean, None, &one).await;
    }

    /// Waits until no other task writes state records. None begins to write while the permit
    /// is held.
    pub(crate) async fn state_records(&self) -> Permit {
        self.0.checkpoint.record.acquire(1).await
    }

    /// Like [`Volume::write_state`], but leaves out member `but`.
    pub(crate) async fn write_state_but(&self, clean: bool, but: Option<u32>, _: &Permit) {
        if self.failed().is_some() {
            // After the volume has failed, no member may record that it continued without
            // the others.
            return;
        }
        let since = self.asked();
        let (shape, config) = (&self.0.shape, &self.0.config);
        let state = State {
            incompat: shape.meta.incompat(),
            checkpoint: self.0.checkpoint.id.get(),
            clean,
            payload: Payload::bytes(shape, config, &self.0.checkpoint.image.borrow()).into(),
        };
        let Sent { number, flights } =
            self.0.array.send_records(&self.0.rt, &self.0.pages, but, &state);
        for (index, flight) in flights {
            let member = self.0.array.member(index);
            match flight.await {
                Ok(()) => {
                    member.note_recorded(number);
                    self.retire_without_ring(index);
                }
                Err(error) => {
                    member.count(since, |errors| errors.write += 1);
                    self.member_failed(index, error);
                }
            }
        }
    }

    /// Takes a member out of service if it has only one zone left for state records and the array
    /// can do without it now. When that zone is full the member must leave, and by then the array
    /// may need it.
    fn retire_without_ring(&self, index: u32) {
        let lost = self.0.array.member(index).drive().and_then(|drive| drive.lost_ring_zone());
        let Some(zone) = lost.filter(|_| self.survives_without(&[index])) else { return };
        let what = format!(
            "zone {zone}, one of the two for its state records, cannot be written any more: \
             replace the drive"
        );
        self.member_failed(index, Error::new(ErrorKind::Io, what));
    }
}
