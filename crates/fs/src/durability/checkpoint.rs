//! Checkpoints: a change of the tables counts only once a checkpoint lists it, and only a durable
//! checkpoint lets zones be reset.
//!
//! In one stretch without an await, every dirty page is dispatched, and a *snapshot* is taken of
//! dirty table entries, stream positions, open summaries and the other small state. Operations then
//! continue. The checkpoint waits for the writes dispatched before the snapshot and flushes them.
//! Next, the checkpoint writes and flushes the table deltas, and writes the checkpoint record with
//! FUA. Zones are released only after that.
//!
//! When a half of a delta log has no space for the deltas of another checkpoint, a merge
//! begins (`delta_merge`).

use crate::alloc::heads::Head;
use crate::blocked::{Blocked, Fetch, NotApplied};
use crate::core::{Core, Inner};
use crate::format::{
    CheckpointBody, NatEntry, SitEntry, StreamState, SummaryEntry, SuperblockBody, UnitRef, kind,
};
use crate::layout::Layout;
use crate::tables::delta_merge::{Plan, Write};
use crate::tables::{TABLES, TablePages};
use crate::tree::cache::Key;
use crate::types::Ino;
use furrow_log::SequencePoint;
use furrow_log::format::{Descriptor, ExtentEntry};
use furrow_log::pool::{DurableSnapshot, SuperzoneId};
use furrow_log::record::{RecordId, blocks_for, check_label, seal};
use furrow_log::writer::{Durability, Kind as WriteKind, WriteHandle, ZoneWrite};
use furrow_policy::FsDefect;
use furrow_rt::{Boxed, Nanos};
use furrow_zone::{Error, ErrorKind, Result, ZoneId};
use smallvec::SmallVec;
use std::rc::Rc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Largest number of attempts at a checkpoint when zone after zone fails.
const ATTEMPTS: u32 = 8;

/// Largest number of missing index nodes that a snapshot requests at once.
const LOADED_AT_ONCE: usize = 256;

/// The content of a checkpoint, except for the addresses of its tables.
#[derive(Clone)]
pub(crate) struct Image {
    pub(crate) body: CheckpointBody,
    pub(crate) heads: Vec<Head>,
    pub(crate) descriptors: Vec<Descriptor>,
    pub(crate) orphans: Vec<u32>,
}

impl Image {
    /// True if an unmount wrote the checkpoint, so that nothing was written after it.
    pub(crate) fn is_clean(&self) -> bool {
        self.body.flags.get() & 1 == 1
    }
}

struct Snapshot {
    image: Image,
    nat: Vec<(u32, NatEntry)>,
    sit: Vec<(u32, SitEntry)>,
    /// For each delta log, whether the checkpoint appends deltas to it or writes table
    /// pages instead.
    plans: Vec<Plan>,
    /// For each delta log, the table pages to write instead of deltas.
    writes: Vec<Write>,
    /// Addresses of the table pages.
    places: TablePages,
    /// Table superzones that this checkpoint is the first to list.
    grown: Vec<u32>,
    /// Superzones that the checkpoint shows to be empty.
    releasable: Vec<SuperzoneId>,
    /// The pool's snapshot. Once the checkpoint is durable, this snapshot proves that the
    /// superzones `releasable` are empty.
    empties: furrow_log::Snapshot,
    /// Zones that failed before the snapshot; their lost blocks are written elsewhere.
    lost: Vec<ZoneId>,
    names: u64,
    stamp: u64,
    point: SequencePoint,
}

/// True if an error may concern only one file: a damaged or unreadable node, on a drive that
/// still answers.
fn of_a_file(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt) && !error.is_gone()
}

/// Names up to eight files of a list by their inodes.
pub(crate) fn show_files<'a>(inos: impl ExactSizeIterator<Item = &'a Ino>) -> String {
    const NAMED: usize = 8;
    let count = inos.len();
    let named: Vec<String> = inos.take(NAMED).map(ToString::to_string).collect();
    let (noun, more) = match count {
        1 => ("inode", ""),
        0..=NAMED => ("inodes", ""),
        _ => ("inodes", " and others"),
    };
    format!("{noun} {}{more}", named.join(", "))
}

impl Core {
    /// Loads the nodes needed to dispatch every dirty page: the index nodes above the nodes that
    /// hold pointers to dirty blocks.
    fn prepare_write_all(&mut self) -> Result<(), NotApplied> {
        let mut missing = SmallVec::new();
        for ino in self.files_to_write() {
            match self.prepare_write_file(ino) {
                Err(NotApplied::Blocked(Blocked::Load(fetches)))
                    if missing.len() < LOADED_AT_ONCE =>
                {
                    missing.extend(fetches);
                }
                Err(NotApplied::Blocked(Blocked::Load(_))) => break,
                done => done?,
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(Blocked::Load(missing).into()) }
    }

    /// Files with dirty pages, except those that are set aside.
    fn files_to_write(&self) -> Vec<Ino> {
        let files = self.cache.dirty_files().map(Ino);
        files.filter(|ino| !self.durability.checkpoint.aside.contains_key(ino)).collect()
    }

    /// Loads the nodes needed to dispatch the dirty pages of one file, as
    /// [`Core::prepare_write_all`] does for all files.
    pub(crate) fn prepare_write_file(&mut self, ino: Ino) -> Result<(), NotApplied> {
        let mut blocks = self.cache.dirty_of(ino.0).peekable();
        if blocks.peek().is_none() {
            return Ok(());
        }
        let blocks: Vec<u32> = blocks.collect();
        if self.inode(ino)?.head.height < 2 {
            return Ok(());
        }
        let mut missing: SmallVec<[Fetch; 4]> = SmallVec::new();
        for block in blocks {
            match self.holder(ino, block) {
                Err(NotApplied::Blocked(Blocked::Load(fetches)))
                    if missing.len() < LOADED_AT_ONCE =>
                {
                    // Neighbouring blocks miss the same node, so keep one fetch of each.
                    let new = fetches.into_iter().filter(|new| {
                        missing.last().is_none_or(|last| last.pointer.addr != new.pointer.addr)
                    });
                    let new: SmallVec<[Fetch; 4]> = new.collect();
                    missing.extend(new);
                }
                Err(NotApplied::Blocked(Blocked::Load(_))) => break,
                done => drop(done?),
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(Blocked::Load(missing).into()) }
    }

    /// True if a checkpoint would write anything new.
    pub(crate) fn needs_checkpoint(&self) -> bool {
        self.durability.checkpoint.forced
            || self.cache.dirty_pages() > 0
            || self.durability.namespace_log.len() > 0
            || self.tables.nat().dirty_count() > 0
            || self.alloc.sit().dirty_count() > 0
    }

    fn image(&self, clean: bool) -> Image {
        let body = CheckpointBody {
            flags: u32::from(clean).into(),
            streams: (self.alloc.heads_count() as u32).into(),
            sync_half: u32::from(self.durability.sync.half()).into(),
            sync_next: self.durability.sync.next().into(),
            sync_sequence: self.durability.sync.sequence().into(),
            sync_limit: u64::MAX.into(),
            sync_epoch: self.durability.checkpoint.epoch.into(),
            namespace_sequence: self.durability.namespace_log.next().into(),
            written: self.env.rt.wall().0.into(),
            inodes: self.tree.inodes().into(),
            generation: self.tree.generation().into(),
            ..CheckpointBody::new_zeroed()
        };
        Image {
            body,
            heads: self.alloc.heads().cloned().collect(),
            descriptors: self.alloc.zones().descriptors(),
            orphans: self.tree.files().orphans().iter().map(|ino| ino.0).collect(),
        }
    }

    /// Writes everything dirty, and takes the snapshot of a checkpoint.
    fn take_snapshot(&mut self, clean: bool) -> Result<Snapshot, NotApplied> {
        let lost = self.take_back()?;
        self.prepare_write_all()?;
        self.now();
        for ino in self.files_to_write() {
            self.write_file(ino)?;
        }
        let nodes: Vec<Key> = self.cache.all_dirty().collect();
        for key in nodes {
            if let Key::Node(nid) = key {
                self.write_node(nid)?;
            }
        }
        let image = self.image(clean);
        self.tables.snapshot();
        self.alloc.snapshot();
        self.durability.sync.recorded.snapshot();
        self.durability.checkpoint.forced = false;
        let dirty = [self.tables.nat().dirty_count() as u32, self.alloc.sit().dirty_count() as u32];
        let mut plans = self.plan_logs(dirty);
        let nat = self.tables.take_changed_nodes();
        let sit = self.alloc.take_changed_segments();
        let writes = self.take_unmerged(&mut plans);
        let entries =
            nat.len() * size_of::<(u32, NatEntry)>() + sit.len() * size_of::<(u32, SitEntry)>();
        self.durability.checkpoint.snapshot_bytes = entries as u64;
        self.note_memory();
        let releasable: Vec<SuperzoneId> = self.alloc.empty_superzones().collect();
        let empties = self.alloc.zones().snapshot();
        releasable.iter().for_each(|id| empties.note_empty(*id));
        Ok(Snapshot {
            image,
            nat,
            sit,
            plans,
            writes,
            places: self.tables.pages().clone(),
            grown: self.tables.zones().pending(),
            releasable,
            empties,
            lost,
            names: self.durability.namespace_log.next(),
            stamp: self.alloc.stamp(),
            point: self.env.writer.sequence_point(),
        })
    }

    /// Undoes a snapshot because some of its blocks were written to a zone that failed.
    fn abandon_snapshot(&mut self, snapshot: &Snapshot) {
        let pages =
            |table| snapshot.writes.iter().flat_map(move |write| write.table_pages_of(table));
        self.tables.untake_nodes(&snapshot.nat, pages(TABLES[0]));
        self.alloc.untake_segments(&snapshot.sit, pages(TABLES[1]));
        self.durability.checkpoint.snapshot_bytes = 0;
    }

    /// Writes the snapshot's changed table entries, or table pages, for checkpoint `id` to list. If
    /// table pages were written, returns the time at which writing them began.
    fn write_tables(&mut self, id: u64, snapshot: &mut Snapshot) -> Result<Option<Nanos>> {
        let mut held_up = None;
        for index in 0..self.tables.logs().len() {
            let record = self.record_id(kind::DELTA, id, 0);
            match snapshot.plans[index] {
                Plan::Write => {
                    held_up = Some(self.env.rt.now());
                    let write = std::mem::take(&mut snapshot.writes[index]);
                    self.write_table_pages(id, index, write, &mut snapshot.places)?;
                    continue;
                }
                Plan::Switch => self.tables.switch_half(index)?,
                Plan::Append => {}
            }
            self.tables.append_deltas(index, &record, &snapshot.nat, &snapshot.sit)?;
        }
        Ok(held_up)
    }

    pub(crate) fn record_id(&self, kind: u16, checkpoint: u64, sequence: u64) -> RecordId {
        RecordId {
            kind,
            epoch: self.durability.checkpoint.epoch,
            checkpoint,
            sequence,
            device: self.env.layout.device,
            object: self.env.layout.uuid,
        }
    }

    /// Encodes the body of a checkpoint: its sections, in the order that the format defines.
    pub(crate) fn encode_image(&self, image: &Image, places: &TablePages) -> Vec<u8> {
        let extents = self.tables.logs().iter().map(|log| log.extents.len() as u32);
        let mut body = image.body;
        body.extents = extents.sum::<u32>().into();
        body.log_extents = (self.tables.logs()[0].extents.len() as u32).into();
        body.units = (places.iter().map(Vec::len).sum::<usize>() as u32).into();
        body.nat_units = (places[0].len() as u32).into();
        body.superzones = (image.descriptors.len() as u32).into();
        body.orphans = (image.orphans.len() as u32).into();
        let (half, next) = self.tables.logs()[0].delta.position();
        body.delta_half = u32::from(half).into();
        body.delta_next = next.into();
        if let Some(log) = self.tables.logs().get(1) {
            let (half, next) = log.delta.position();
            body.sit_half = u32::from(half).into();
            body.sit_next = next.into();
        }
        let mut out = body.as_bytes().to_vec();
        out.extend(self.env.layout.encode().as_bytes());
        for head in &image.heads {
            let state = StreamState {
                superzone: head.superzone.unwrap_or(u32::MAX).into(),
                next: head.next.into(),
                summary: (head.summary.len() as u32).into(),
                reserved: 0.into(),
            };
            out.extend(state.as_bytes());
        }
        for extent in self.tables.logs().iter().flat_map(|log| &log.extents) {
            out.extend(extent.entry().as_bytes());
        }
        for pages in places {
            out.extend(pages.as_bytes());
        }
        out.extend(image.descriptors.as_bytes());
        for orphan in &image.orphans {
            out.extend(orphan.to_le_bytes());
        }
        for head in &image.heads {
            out.extend(head.summary.as_bytes());
        }
        out
    }

    /// Space left in the ring's current zone, in blocks; 0 if the next checkpoint must go to the
    /// other zone.
    pub(crate) fn ring_space(&self) -> u32 {
        let zone = self.env.layout.ring_start + u32::from(self.durability.checkpoint.ring);
        let zone = ZoneId(zone);
        let usable = self.env.writer.is_open(zone) && !self.durability.checkpoint.leave_ring;
        if usable { self.env.writer.space_left(zone) } else { 0 }
    }

    /// Writes a checkpoint record, twice if the zone has space for two copies. If the current zone
    /// of the ring lacks space, the record goes to the other zone.
    ///
    /// # Errors
    /// `NoSpace` if the record does not fit into a zone behind the superblock.
    pub(crate) fn write_checkpoint(&mut self, id: u64, body: &[u8]) -> Result<WriteHandle> {
        let (blocks, most) = (blocks_for(body.len()), self.env.layout.capacity.saturating_sub(1));
        let span = self.env.layout.checkpoint_span(blocks);
        if blocks > most {
            let message = format!(
                "{}: a checkpoint needs {blocks} blocks, but a zone of the ring holds {most}: {} \
                 removed files could not be freed",
                self.env.device.name(),
                self.tree.files().orphans().len()
            );
            return Err(Error::new(ErrorKind::NoSpace, message));
        }
        if self.ring_space() < span {
            let old =
                ZoneId(self.env.layout.ring_start + u32::from(self.durability.checkpoint.ring));
            self.fill_zone(old);
            self.durability.checkpoint.ring = 1 - self.durability.checkpoint.ring;
            let new =
                ZoneId(self.env.layout.ring_start + u32::from(self.durability.checkpoint.ring));
            self.open_after(new, Some(old));
            self.write_superblock(new);
            self.durability.checkpoint.leave_ring = false;
        }
        let zone = ZoneId(self.env.layout.ring_start + u32::from(self.durability.checkpoint.ring));
        let mut record = seal(&self.record_id(kind::CHECKPOINT, id, id), body, &self.env.pages);
        let copies = (span / blocks) as usize;
        record = (0..copies).flat_map(|_| record.iter().cloned()).collect();
        self.durability.checkpoint.blocks = record.len() as u32;
        self.alloc.next_stamp();
        let written = self.env.writer.submit(ZoneWrite {
            durability: Durability::Fua,
            ..ZoneWrite::pages(zone, WriteKind::Checkpoint, record)
        });
        self.durability.checkpoint.ring_used[usize::from(self.durability.checkpoint.ring)] = true;
        Ok(written)
    }

    /// Writes a superblock copy, the first block of a ring zone.
    pub(crate) fn write_superblock(&mut self, zone: ZoneId) {
        let id = self.record_id(kind::SUPERBLOCK, self.durability.checkpoint.id, 0);
        let pages = seal(&id, self.env.layout.encode().as_bytes(), &self.env.pages);
        self.dispatch(zone, pages, WriteKind::Checkpoint, Durability::Fua);
    }

    /// Tells all parts that checkpoint `id` is durable; `names` is the number of the first name
    /// operation that the checkpoint does not include.
    fn checkpoint_durable(&mut self, id: u64, names: u64) {
        self.durability.checkpoint.id = id;
        self.durability.namespace_log.durable(names);
        self.tables.checkpoint_durable();
        self.durability.sync.recorded.durable();
        self.alloc.checkpoint_durable();
        self.stats.counters.checkpoints += 1;
    }

    /// Returns the zones of the logs that the durable checkpoint no longer needs; the other zone of
    /// the ring counts as unused from now on. `sync_half` is the half of the sync log in which the
    /// checkpoint's sync records start.
    fn stale_log_zones(&mut self, sync_half: u8) -> Vec<ZoneId> {
        let mut zones = Vec::new();
        let other_ring = 1 - self.durability.checkpoint.ring;
        if std::mem::take(&mut self.durability.checkpoint.ring_used[usize::from(other_ring)]) {
            zones.push(ZoneId(self.env.layout.ring_start + u32::from(other_ring)));
        }
        for (index, log) in self.tables.logs().iter().enumerate() {
            let other = 1 - log.delta.position().0;
            if log.is_in_one_half() && !log.delta.is_clean(other) {
                zones.extend(self.env.layout.delta_half(index, other));
            }
        }
        let other = 1 - self.durability.sync.half();
        if sync_half == self.durability.sync.half() && self.durability.sync.is_used(other) {
            // The half counts as used until its zones are reset: see `sync_released`.
            zones.extend(self.env.layout.sync_half(other));
        }
        zones
    }

    /// Notes that zones of the sync log were reset: a half may be written again once all of its
    /// zones were reset.
    fn sync_released(&mut self, zones: &[ZoneId]) {
        for half in [0, 1] {
            if self.env.layout.sync_half(half).iter().all(|zone| zones.contains(zone)) {
                self.durability.sync.released(half);
            }
        }
    }
}

impl Inner {
    /// Makes all changes so far durable and releases the space that this frees. `clean` marks the
    /// checkpoint of an unmount.
    #[inline(never)]
    pub(crate) fn checkpoint(self: &Rc<Self>, clean: bool) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            // Run in a separate task, so that a checkpoint that has begun completes even if its
            // caller is dropped.
            let inner = self.clone();
            let task = self.rt.spawn(async move { inner.checkpoint_whole(clean).await });
            task.await
        })
    }

    /// See [`crate::Fs::set_label`].
    pub(crate) async fn set_label(self: &Rc<Self>, label: &str) -> Result<()> {
        check_label(label)?;
        let (inner, label) = (self.clone(), label.to_owned());
        // Run in a separate task, so that the change, once begun, completes even if its caller
        // is dropped.
        self.rt.spawn(async move { inner.set_label_whole(&label).await }).await
    }

    async fn set_label_whole(self: &Rc<Self>, label: &str) -> Result<()> {
        // Hold the lock: a checkpoint under way has the old label, and must not be written after a
        // superblock with the new one.
        let _one = self.checkpoint_lock.acquire(1).await;
        let set = self.run(|core| {
            core.writable()?;
            let layout = Layout { label: label.to_owned(), ..(*core.env.layout).clone() };
            core.env.layout = Rc::new(layout);
            core.durability.leave_ring(true);
            Ok(())
        });
        set.await?;
        self.checkpoint_surely(false).await
    }

    async fn checkpoint_whole(self: &Rc<Self>, clean: bool) -> Result<()> {
        let _one = self.checkpoint_lock.acquire(1).await;
        if self.ended.get() {
            // An unmount wrote everything while this call was waiting for the lock.
            return self.core.borrow().health.failed().cloned().map_or(Ok(()), Err);
        }
        if self.core.borrow().health.is_nothing_lost() {
            return Ok(());
        }
        if !clean && !self.core.borrow().needs_checkpoint() {
            // Nothing is dirty, but writes dispatched earlier may still be in flight.
            let (stamp, point) = {
                let core = self.core.borrow();
                (core.alloc.stamp(), core.env.writer.sequence_point())
            };
            if self.flushed(stamp, point, &[]).await.is_ok() {
                return Ok(());
            }
            self.close_failed().await?;
        }
        self.checkpoint_surely(clean).await
    }

    /// Makes a checkpoint, with up to [`ATTEMPTS`] attempts if zones fail during it. The caller
    /// holds the lock.
    #[inline(never)]
    pub(crate) fn checkpoint_surely(self: &Rc<Self>, clean: bool) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            let mut last = None;
            for _ in 0..ATTEMPTS {
                match self.try_checkpoint(clean).await? {
                    None => return Ok(()),
                    Some(error) => last = Some(error),
                }
                self.close_failed().await?;
            }
            let error = last.unwrap_or_else(|| Error::new(ErrorKind::Io, "no attempt"));
            self.fail(&error);
            Err(error)
        })
    }

    /// Writes a checkpoint of the accepted changes, and then stops writing. Called after damage,
    /// with `errors=remount-ro`.
    pub(crate) async fn stop_after_checkpoint(self: &Rc<Self>, error: Error) {
        // Hold the lock: no other checkpoint may begin before writing has stopped, above all not
        // that of an unmount.
        let _one = self.checkpoint_lock.acquire(1).await;
        if self.ended.get() || self.core.borrow().health.failed().is_some() {
            return;
        }
        let written = self.checkpoint_surely(false).await;
        let core = &mut *self.core.borrow_mut();
        let aside = &core.durability.checkpoint.aside;
        let outcome = match (&written, aside.first_key_value()) {
            (Err(why), _) => {
                format!("what was not synced could not be written, and is lost: {why}")
            }
            (Ok(()), Some((_, why))) => format!(
                "changes of {} are lost, everything else written before is durable: {why}",
                show_files(aside.keys())
            ),
            (Ok(()), None) => {
                core.health.stopped_whole();
                "everything written before is durable".to_owned()
            }
        };
        let message = format!("{error}; {outcome}");
        core.health.fail(Error::new(error.kind(), message));
        core.env.writer.give_up();
        self.progress.notify_all();
    }

    async fn try_snapshot(self: &Rc<Self>, clean: bool) -> Result<Snapshot> {
        let _held = self.hold_appends().await;
        let snapshot = self.run(|core| {
            core.may_write()?;
            core.take_snapshot(clean)
        });
        snapshot.await
    }

    /// Sets aside the files whose dirty blocks cannot be written because their nodes cannot be
    /// loaded; true if there are any.
    async fn set_aside(self: &Rc<Self>) -> bool {
        let files = self.core.borrow().files_to_write();
        for ino in files {
            match self.run(|core| core.prepare_write_file(ino)).await {
                Err(error) if of_a_file(&error) => {
                    self.core.borrow_mut().durability.checkpoint.aside.insert(ino, error);
                }
                // Ignore any other error: it occurs again at the next snapshot.
                _ => {}
            }
        }
        !self.core.borrow().durability.checkpoint.aside.is_empty()
    }

    /// Returns the error if the last checkpoint set aside one of the files `inos`, or any file for
    /// `None`: the changes of such files exist only in memory.
    pub(crate) fn left_aside(&self, inos: Option<&[Ino]>) -> Result<()> {
        let core = self.core.borrow();
        let mut aside = core.durability.checkpoint.aside.iter();
        match aside.find(|(ino, _)| inos.is_none_or(|inos| inos.contains(ino))) {
            Some((_, error)) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Makes one attempt at a checkpoint; returns the error if another attempt should follow.
    async fn try_checkpoint(self: &Rc<Self>, clean: bool) -> Result<Option<Error>> {
        self.core.borrow_mut().durability.checkpoint.aside.clear();
        match self.append_files(&[]).await {
            Err(error) if !of_a_file(&error) => return Err(error),
            // Ignore an error that concerns one file: it occurs again at the snapshot.
            _ => {}
        }
        self.write_before_snapshot().await;
        self.audit_before_snapshot()?;
        let mut snapshot = self.try_snapshot(clean).await;
        if snapshot.as_ref().is_err_and(of_a_file) && self.set_aside().await {
            snapshot = self.try_snapshot(clean).await;
        }
        // No operation and no other checkpoint may come after the snapshot of an unmount.
        if clean && snapshot.is_ok() {
            self.ended.set(true);
        }
        self.after_dispatch();
        let snapshot = snapshot?;
        if let Err(error) = self.flushed(snapshot.stamp, snapshot.point, &snapshot.lost).await {
            self.core.borrow_mut().abandon_snapshot(&snapshot);
            if clean {
                self.ended.set(false);
            }
            return Ok(Some(error));
        }
        let relocated = !snapshot.lost.is_empty();
        let result = self.commit(snapshot).await;
        self.core.borrow_mut().durability.checkpoint.snapshot_bytes = 0;
        self.start_merge();
        if let Err(error) = &result {
            self.fail(error);
        }
        self.progress.notify_all();
        if relocated {
            self.start_cleaning();
        }
        result.map(|()| None)
    }

    /// Waits until all writes dispatched so far have completed. Ignores failures of replaceable
    /// zones ([`Core::is_replaceable`]).
    pub(crate) async fn drain(&self) -> Result<()> {
        let writer = self.core.borrow().env.writer.clone();
        let excused = |zone| self.core.borrow().is_replaceable(zone);
        writer.wait_excusing(writer.sequence_point(), excused).await
    }

    /// Completes a checkpoint, once the writes dispatched before its snapshot are durable.
    async fn commit(self: &Rc<Self>, mut snapshot: Snapshot) -> Result<()> {
        let writer = self.core.borrow().env.writer.clone();
        let id = self.core.borrow().durability.checkpoint.id + 1;
        let early = snapshot.empties.too_early();
        if let Some(early) = &early {
            self.release(early, &snapshot.releasable, Vec::new()).await?;
        }
        let held_up = {
            let core = &mut *self.core.borrow_mut();
            core.write_tables(id, &mut snapshot)?
        };
        let flush = self.flush_early(0).await;
        self.drain().await?;
        writer.flush_after(flush).await?;
        let record = {
            let mut core = self.core.borrow_mut();
            if let Some(since) = held_up {
                let stall = core.env.rt.now().since(since);
                core.stats.counters.longest_merge_stall_ns =
                    core.stats.counters.longest_merge_stall_ns.max(stall);
            }
            let body = core.encode_image(&snapshot.image, &snapshot.places);
            core.write_checkpoint(id, &body)?
        };
        self.drain().await?;
        let durable = snapshot.empties.committed(record).await?;
        let mut releasable = self.releasable(snapshot.releasable, &durable);
        let (stale, tables) = {
            let mut core = self.core.borrow_mut();
            core.checkpoint_durable(id, snapshot.names);
            core.relocated(&snapshot.lost);
            core.adopt_table_superzones(&snapshot.grown);
            core.durability.sync.durable(snapshot.image.body.sync_sequence.get());
            let stale = core.stale_log_zones(snapshot.image.body.sync_half.get() as u8);
            (stale, core.stale_table_zones(&snapshot.places))
        };
        if early.is_some() {
            releasable.clear();
        }
        self.release_tables(&durable, tables).await?;
        {
            let mut core = self.core.borrow_mut();
            let given_back = core.resize_tables();
            // The superzones given back hold no tables any more: all their zones were reset.
            given_back.iter().for_each(|id| durable.note_empty(*id));
            releasable.extend(given_back);
        }
        self.release(&durable, &releasable, stale).await?;
        self.core.borrow_mut().tables.delta_released();
        Ok(())
    }

    /// Resets table zones that a durable checkpoint shows to be unused.
    pub(crate) async fn release_tables(
        self: &Rc<Self>,
        durable: &DurableSnapshot,
        zones: Vec<ZoneId>,
    ) -> Result<()> {
        let pool = self.core.borrow().alloc.zones().clone();
        for zone in zones {
            let done = pool.try_release_zone(zone, durable).await?;
            self.core.borrow_mut().tables.zone_was_reset(zone, done);
        }
        Ok(())
    }

    /// Superzones that a checkpoint releases: those that were empty at its snapshot. Superzones
    /// that became empty later stay, because sync records written since the snapshot may refer
    /// to them.
    fn releasable(
        &self,
        at_snapshot: Vec<SuperzoneId>,
        durable: &DurableSnapshot,
    ) -> Vec<SuperzoneId> {
        let core = self.core.borrow();
        if !core.env.options.variant.has(FsDefect::ReleaseLiveRecord) {
            return at_snapshot;
        }
        let now: Vec<SuperzoneId> = core.alloc.empty_superzones().collect();
        now.iter().for_each(|id| durable.note_empty(*id));
        now
    }

    /// Resets superzones and zones that a durable checkpoint shows to be unused.
    pub(crate) async fn release(
        self: &Rc<Self>,
        durable: &DurableSnapshot,
        superzones: &[SuperzoneId],
        zones: Vec<ZoneId>,
    ) -> Result<()> {
        let pool = self.core.borrow().alloc.zones().clone();
        for zone in &zones {
            pool.release_zone(*zone, durable).await?;
        }
        self.core.borrow_mut().sync_released(&zones);
        for superzone in superzones {
            pool.release(*superzone, durable).await?;
        }
        Ok(())
    }
}

/// Parses the body of a checkpoint; `None` if its sections and lengths are inconsistent.
pub(crate) fn decode_image(body: &[u8]) -> Option<(Image, Vec<ExtentEntry>, TablePages)> {
    fn section<T: FromBytes + Copy>(rest: &mut &[u8], count: u32) -> Option<Vec<T>> {
        let size = size_of::<T>().checked_mul(count as usize)?;
        let (now, later) = rest.split_at_checked(size)?;
        *rest = later;
        now.chunks_exact(size_of::<T>()).map(|chunk| T::read_from_bytes(chunk).ok()).collect()
    }
    let (head, rest) = CheckpointBody::read_from_prefix(body).ok()?;
    let (_, mut rest) = SuperblockBody::read_from_prefix(rest).ok()?;
    let states: Vec<StreamState> = section(&mut rest, head.streams.get())?;
    let extents = section(&mut rest, head.extents.get())?;
    let mut nat: Vec<UnitRef> = section(&mut rest, head.units.get())?;
    let of_nat = head.nat_units.get() as usize;
    let sit = (of_nat <= nat.len()).then(|| nat.split_off(of_nat))?;
    let descriptors = section(&mut rest, head.superzones.get())?;
    let orphans: Vec<zerocopy::little_endian::U32> = section(&mut rest, head.orphans.get())?;
    let mut heads = Vec::new();
    for state in states {
        let summary: Vec<SummaryEntry> = section(&mut rest, state.summary.get())?;
        let superzone = state.superzone.get();
        heads.push(Head {
            superzone: (superzone != u32::MAX).then_some(superzone),
            next: state.next.get(),
            summary,
            previous: None,
        });
    }
    let orphans = orphans.into_iter().map(u32::from).collect();
    rest.is_empty().then_some((
        Image { body: head, heads, descriptors, orphans },
        extents,
        [nat, sit],
    ))
}
