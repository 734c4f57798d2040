//! Group commit: one record and one flush make names and files durable for all waiting callers.
//!
//! A group commit has a number, its *round*. It consists of one or more records of the ring, sent
//! together with the content that they name, and of one flush. The next group commit begins when
//! the flush has returned. So only the last group commit on a drive may name content that is
//! missing, and then no caller was told that it is durable.
//!
//! When the half of the ring is full, or a zone of it fails, the group commit is a turn: a snapshot
//! of everything in another half, sent once the content is durable.

mod turn;

use crate::commits::CommitGroup;
use crate::entries::{Bodies, Entry, FileState};
use crate::extent::FileId;
use crate::file::{File, Synced};
use crate::format::{INCOMPAT_HOLES, INCOMPAT_ROLES, SuperblockBody, flag, kind};
use crate::namespace::paths::Node;
use crate::store::{Inner, Store};
use furrow_log::BLOCK_SIZE;
use furrow_log::pool::{DurableSnapshot, Snapshot};
use furrow_log::record::{RecordHeader, RecordId, blocks_for};
use furrow_log::writer::WriteHandle;
use furrow_policy::StoreDefect;
use furrow_rt::Boxed;
use furrow_zone::{ErrorKind, Result, ZoneId};
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::IntoBytes;

/// Maximum number of blocks of a record, unless a single entry is longer.
const RECORD_BLOCKS: u32 = 32;

impl Store {
    /// Makes a file durable in its present state, and all names too.
    ///
    /// # Errors
    /// The errors of [`Store::append`]; `Io` if a write or the flush fails: then the store
    /// has failed.
    pub async fn sync(&self, id: FileId) -> Result<()> {
        self.check_alive()?;
        self.count(|counters| counters.syncs += 1);
        let lock = self.with(id, |file| file.lock.clone())?;
        let one = lock.acquire(1).await;
        self.settle(id).await?;
        drop(one);
        self.join_group_commit(Some(id)).await
    }

    /// Makes all names durable.
    ///
    /// # Errors
    /// The errors of [`Store::sync`].
    pub async fn sync_names(&self) -> Result<()> {
        self.check_alive()?;
        let inner = &self.0;
        let told = inner.names.borrow().changes.is_empty() && !inner.leaving.has_retired();
        if told && !inner.commits.is_running() {
            return Ok(());
        }
        if self.has(StoreDefect::EarlyNamesAck) {
            return Ok(());
        }
        self.join_group_commit(None).await
    }

    /// Makes all names and all files durable.
    ///
    /// # Errors
    /// The errors of [`Store::sync`].
    pub async fn sync_all(&self) -> Result<()> {
        let unsynced = |file: &File| file.names > 0 && file.is_unsynced();
        let ids: Vec<FileId> = {
            let files = self.0.files.borrow();
            files.iter().filter(|(_, file)| unsynced(file)).map(|(id, _)| *id).collect()
        };
        let mut done = Ok(());
        for id in ids {
            // The file may have been removed meanwhile.
            let Ok(lock) = self.with(id, |file| file.lock.clone()) else { continue };
            let one = lock.acquire(1).await;
            if self.with(id, |file| file.names).is_ok_and(|names| names > 0) {
                // One file without space must not keep the others from being durable.
                match self.settle(id).await {
                    Err(error) if error.kind() == ErrorKind::NoSpace => done = done.and(Err(error)),
                    settled => {
                        settled?;
                        self.0.commits.include(id);
                    }
                }
            }
            drop(one);
        }
        self.join_group_commit(None).await?;
        done
    }

    /// Gives blocks of a file their places before a group commit records it. The bytes after them
    /// go to the ring, unless they would crowd it.
    async fn settle(&self, id: FileId) -> Result<()> {
        self.place(id).await?;
        if self.with(id, |file| self.tail_crowds(file))? {
            self.leave_ring(id).await?;
        }
        self.with(id, |file| self.weigh_tail(file))
    }

    /// Makes all names and all files durable, and stops the store.
    ///
    /// # Errors
    /// The errors of [`Store::sync`].
    #[inline(never)]
    pub fn stop(&self) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            self.0.scrub.stop().await;
            self.sync_all().await?;
            // The store's last commit must follow the snapshot of the half: the commit's record
            // proves that everything before the record was durable. So if the commit turns the
            // ring, a second commit follows.
            for _ in 0..2 {
                let turn = self.0.commits.turn();
                self.join_group_commit(None).await?;
                if self.0.commits.turn() == turn {
                    break;
                }
            }
            self.begin_stop();
            self.0.zones.wanted.notify_all();
            self.0.zones.writer.completed().await;
            // Background tasks get this error when they next use the drive.
            let message = "the store was stopped";
            self.die(&furrow_zone::Error::new(furrow_zone::ErrorKind::Io, message));
            // A group commit under way ends before the drive is released.
            loop {
                let over = self.0.flights.answered();
                if !self.0.commits.is_running() {
                    break;
                }
                over.await;
            }
            self.0.zones.end();
            self.0.zones.writer.let_go();
            Ok(())
        })
    }

    /// Makes names and removals durable after the commit interval.
    pub(crate) fn plan_commit(&self) {
        if !self.0.commits.plan() {
            return;
        }
        let store = self.clone();
        self.0.rt.spawn_detached(async move {
            store.0.rt.sleep(store.0.options.commit_interval).await;
            store.0.commits.plan_is_due();
            if store.check_alive().is_ok() {
                // The error is not lost: the store has failed, and every caller learns that.
                let _ = store.join_group_commit(None).await;
            }
        });
    }

    /// Waits for the next group commit, which will include the file.
    pub(crate) async fn join_group_commit(&self, id: Option<FileId>) -> Result<()> {
        self.check_alive()?;
        let (group, idle) = self.0.commits.join(id);
        if idle {
            self.start_group_commits();
        }
        group.ended().await
    }

    /// Starts the task that runs group commits. This function is not async: otherwise every crate
    /// that awaits it would compile the group commits again.
    #[inline(never)]
    fn start_group_commits(&self) {
        self.0.rt.spawn_detached(run_group_commits(self.clone()));
    }

    async fn run_group_commit(&self, group: &CommitGroup) -> Result<()> {
        let inner = &*self.0;
        let number = inner.commits.begin_round();
        inner.leaving.begin_commit();
        let snapshot = inner.zones.pool.snapshot();
        let empty = self.note_empty_zones(&snapshot);
        if self.has(StoreDefect::EarlyRelease) {
            // The defect: the snapshot of the previous commit serves as proof, while this commit is
            // not written yet.
            let before = inner.zones.pool.durable();
            before.map_or(Ok(()), |before| self.apply_commit(&before, Vec::new(), &empty))?;
        }
        let mut wanted = group.take_files();
        wanted.append(&mut inner.commits.take_included());
        let mut views = Vec::new();
        let mut told = false;
        loop {
            let (moves, mark) = (inner.commits.moves(), inner.flights.next());
            let mut bodies = Bodies::new(inner.record_bytes());
            if !told {
                let changes = std::mem::take(&mut inner.names.borrow_mut().changes);
                changes.iter().for_each(|entry| bodies.push(entry));
                for zone in inner.zones.take_untold() {
                    bodies.push(&inner.zone_entry(zone));
                }
            }
            views = self.view(&wanted, &mut bodies, views);
            let bodies = bodies.finish((0, 0), number, inner.names.borrow().next_file);
            if !self.fits(&bodies) {
                views = self.turn(number, &mut wanted, views, bodies).await?;
                break;
            }
            if let Err(error) = self.send(kind::ENTRIES, bodies).await {
                self.end_half(&error, true).await?;
                views = self.turn(number, &mut wanted, views, Vec::new()).await?;
                break;
            }
            told = true;
            if !self.has(StoreDefect::EarlyAck) {
                self.answered(mark, Some(&wanted)).await?;
            }
            if inner.commits.moves() == moves {
                break;
            }
        }
        let durable = self.flush(snapshot).await?;
        self.apply_commit(&durable, views, &empty)
    }

    /// Notes in `snapshot` the zones that are empty once this group commit has retired blocks.
    /// Candidates are the zones in which the group commit retires blocks, and full zones that no
    /// durable snapshot shows empty yet. Returns the zones noted.
    fn note_empty_zones(&self, snapshot: &Snapshot) -> Vec<ZoneId> {
        let zones = &self.0.zones;
        let unshown = zones.take_unshown().into_iter().map(|zone| (zone, 0));
        let mut retiring: BTreeMap<ZoneId, u32> = unshown.collect();
        for (zone, _, blocks) in &*self.0.leaving.in_commit() {
            *retiring.entry(*zone).or_default() += blocks;
        }
        let early = self.has(StoreDefect::EarlyRelease) || self.has(StoreDefect::SkippedFlush);
        // With these defects, the snapshot of the previous commit serves as proof for the release.
        let before = early.then(|| zones.pool.durable()).flatten();
        retiring.retain(|zone, blocks| {
            let owner = zones.pool.owner(*zone).filter(|_| zones.valid(*zone) == *blocks);
            match (owner, &before) {
                (Some(id), Some(before)) => before.note_empty(id),
                (Some(id), None) => snapshot.note_empty(id),
                (None, _) => return false,
            }
            true
        });
        retiring.into_keys().collect()
    }

    /// Makes content that has arrived durable. The flush proves nothing about empty zones: the
    /// group commit that retires their blocks may not be written yet.
    pub(crate) async fn flush_content(&self) -> Result<()> {
        if self.has(StoreDefect::SkippedFlush) && self.0.zones.pool.durable().is_some() {
            return Ok(());
        }
        self.0.zones.writer.flush().await.map_err(|error| self.die(&error))
    }

    pub(crate) async fn flush(&self, snapshot: Snapshot) -> Result<DurableSnapshot> {
        if self.has(StoreDefect::SkippedFlush)
            && let Some(before) = self.0.zones.pool.durable()
        {
            return Ok(before);
        }
        let next = self.0.commits.next_record();
        // After a failed flush it is unknown what the drive lost, so nothing can be made durable
        // any more.
        let durable = snapshot.flushed().await.map_err(|error| self.die(&error))?;
        self.0.commits.set_durable(next);
        Ok(durable)
    }

    /// Adds an entry with the present state of each file in `wanted` to `bodies`. Returns `views`,
    /// updated with these states.
    fn view(
        &self,
        wanted: &BTreeSet<FileId>,
        bodies: &mut Bodies,
        mut views: Vec<(FileId, Synced)>,
    ) -> Vec<(FileId, Synced)> {
        let mut files = self.0.files.borrow_mut();
        views.retain(|(id, _)| !wanted.contains(id));
        for id in wanted {
            let Some(file) = files.get_mut(id).filter(|file| file.names > 0) else { continue };
            let mut view = file.view();
            if let Some(synced) = &file.synced
                && self.has(StoreDefect::StaleTail)
                && synced.blocks == view.blocks
            {
                view.clone_from(synced);
            }
            let from = file.journaled.min(view.blocks);
            let extents = file.extents_between(from, view.blocks);
            let keep = extents.first().map_or(view.blocks, |extent| extent.first);
            let state = FileState {
                size: view.size,
                modified: view.modified,
                lifetime: file.lifetime,
                extents,
                tail: view.tail.clone(),
            };
            bodies.push(&Entry::File { file: *id, keep, state });
            file.journaled = view.blocks;
            views.push((*id, view));
        }
        views
    }

    fn record_id(&self, kind: u16) -> RecordId {
        let inner = &*self.0;
        RecordId {
            kind,
            epoch: inner.commits.turn(),
            checkpoint: inner.commits.round(),
            sequence: inner.commits.begin_record(),
            device: inner.identity.device,
            object: inner.identity.uuid,
        }
    }

    /// Writes records to the ring.
    fn dispatch(&self, kind: u16, bodies: &[Vec<u8>]) -> Result<Vec<WriteHandle>> {
        let mut ring = self.0.ring.borrow_mut();
        let durable = self.0.commits.durable();
        let each = bodies.iter().map(|body| ring.append(&self.record_id(kind), durable, body));
        each.collect()
    }

    /// Writes records to the ring, and waits for them.
    async fn send(&self, kind: u16, bodies: Vec<Vec<u8>>) -> Result<()> {
        all_written(self.dispatch(kind, &bodies)?).await
    }

    /// Waits for the writes that began before `mark`, to the files in `wanted` or, if `wanted` is
    /// `None`, to all files.
    async fn answered(&self, mark: u64, wanted: Option<&BTreeSet<FileId>>) -> Result<()> {
        loop {
            let answered = self.0.flights.answered();
            self.check_alive()?;
            if !self.0.flights.has_before(mark, wanted) {
                return Ok(());
            }
            answered.await;
        }
    }

    /// Applies a durable group commit: its state becomes the durable one, the blocks it retired
    /// stop counting, and the zones it leaves empty are released.
    fn apply_commit(
        &self,
        durable: &DurableSnapshot,
        views: Vec<(FileId, Synced)>,
        empty: &[ZoneId],
    ) -> Result<()> {
        let inner = &*self.0;
        self.count(|counters| counters.rounds += 1);
        for (id, view) in views {
            // The file may have been dropped meanwhile.
            let _ = self.with(id, |file| {
                file.synced = Some(view);
                self.weigh(file);
            });
        }
        let retired = inner.leaving.end_commit();
        for (zone, file, blocks) in retired {
            inner.zones.remove(zone, file, blocks)?;
        }
        empty.iter().for_each(|zone| self.release_later(*zone, durable));
        Ok(())
    }

    /// Resets a zone in the background if no block in it is valid.
    pub(crate) fn release_later(&self, zone: ZoneId, durable: &DurableSnapshot) {
        if self.0.zones.valid(zone) > 0 {
            return;
        }
        let (store, durable) = (self.clone(), durable.clone());
        self.0.rt.spawn_detached(async move {
            if let Err(error) = store.0.zones.release(zone, &durable).await {
                store.die(&error);
            }
        });
    }
}

async fn all_written(handles: Vec<WriteHandle>) -> Result<()> {
    for written in handles {
        written.await?;
    }
    Ok(())
}

/// Counts the blocks of all records with these bodies, and of the longest record.
fn blocks_of(bodies: &[Vec<u8>]) -> (u32, u32) {
    let blocks = bodies.iter().map(|body| blocks_for(body.len()));
    (blocks.clone().sum(), blocks.max().unwrap_or(0))
}

/// Runs group commits until no caller waits for one.
async fn run_group_commits(store: Store) {
    loop {
        let Some(group) = store.0.commits.take_next() else { break };
        let result = match store.check_alive() {
            Ok(()) => store.run_group_commit(&group).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &result {
            store.die(error);
        }
        group.end(result);
    }
    store.0.commits.task_ended();
    store.0.flights.wake();
}

impl Inner {
    /// Builds the superblock of the half being written, with the role of each zone of the ring.
    fn superblock(&self) -> Vec<u8> {
        let geometry = self.zones.writer.geometry();
        let mut label = [0; 64];
        label[..self.identity.label.len()].copy_from_slice(self.identity.label.as_bytes());
        let holes = if self.forgotten.borrow().wanted { INCOMPAT_HOLES } else { 0 };
        let body = SuperblockBody {
            compat: 0.into(),
            ro_compat: 0.into(),
            incompat: (INCOMPAT_ROLES | holes).into(),
            label,
            created: self.identity.created.into(),
            zones: geometry.zones.into(),
            zone_blocks: self.zones.capacity().into(),
            ring_start: self.ring_zones.start.into(),
            half_zones: self.ring_zones.half.into(),
            spare_zones: self.ring_zones.spares.into(),
            reserved: [0; 4],
        };
        let roles = self.ring.borrow().roles().into_iter().map(|role| role as u8);
        body.as_bytes().iter().copied().chain(roles).collect()
    }

    /// Maximum number of bytes of entries in a record, unless a single entry is longer. Small zones
    /// get shorter records: a record that does not fit leaves the rest of a zone unused.
    fn record_bytes(&self) -> usize {
        let blocks = RECORD_BLOCKS.min(self.zones.capacity() / 4).max(1);
        blocks as usize * BLOCK_SIZE - RecordHeader::SIZE
    }

    fn zone_entry(&self, zone: ZoneId) -> Entry {
        Entry::Zone { zone, youngest: self.zones.youngest_in(zone) }
    }

    /// Builds a snapshot of all names and all files: files in `views` have the state given there,
    /// all others their durable state.
    pub(crate) fn snapshot(&self, views: &[(FileId, Synced)], number: u64) -> Vec<Vec<u8>> {
        let mut bodies = Bodies::new(self.record_bytes());
        let (names, files) = (self.names.borrow(), self.files.borrow());
        for (path, node) in &names.nodes {
            let file = match node {
                Node::Directory => None,
                Node::File(id) => Some(*id),
            };
            bodies.push(&Entry::Name { path: path.clone(), file });
        }
        for (id, file) in files.iter().filter(|(_, file)| file.names > 0) {
            let view = views.iter().find(|(viewed, _)| viewed == id).map(|(_, view)| view);
            let Some(synced) = view.or(file.synced.as_ref()) else { continue };
            bodies.push_pieces(*id, file.durable(synced));
        }
        for zone in self.zones.with_blobs() {
            bodies.push(&self.zone_entry(zone));
        }
        let last = flag::SNAPSHOT | flag::WHOLE;
        bodies.finish((flag::SNAPSHOT, last), number, names.next_file)
    }
}
