//! fsync and the sync log.
//!
//! An fsync dispatches, in one stretch without an await, the file's data, then the nodes with large
//! changes, then one record in the sync log. The fsync answers when data, nodes, record *and
//! everything dispatched earlier* are durable. The record holds the changes of the file's other
//! nodes ([`node_change`](super::node_change)), the new places of the nodes that were written, the
//! namespace operations that are not in a record yet, and the superzones that the streams took.
//! Because nothing orders the three kinds of writes on the drive, the record also holds the write
//! pointers that zones with writes in flight must have reached for the record to count. A record
//! never carries SIT entries: recovery derives them by comparing old and new nodes.
//!
//! A rename over an existing file is in the next record, no matter which file is fsynced. This
//! record also carries the content of the moved file, as if that file had been fsynced. Programs
//! that replace a file in this way expect the old or the new content, and the old content no
//! longer exists. Truncating a file is not a name change, so only a record of the file itself
//! contains the truncation.
//!
//! The log is a pair of halves, striped like data. Records are no longer needed after the next
//! checkpoint. A half is reset once a checkpoint that starts in the other half is durable. When
//! both halves are in use, the next record must wait for a checkpoint.

use crate::blocked::{Blocked, NotApplied};
use crate::core::{Core, Inner};
use crate::durability::namespace_log::Encoder;
use crate::durability::node_change::{self, Encoded, Recorded};
use crate::format::{HOLE, INCOMPAT_XATTRS, item, kind};
use crate::tree::cache::{Entry, Key};
use crate::tree::node::{attr, first_pointer};
use crate::types::{Ino, Kind};
use furrow_log::record::{RecordId, blocks_for, seal_after};
use furrow_log::writer::{Durability, EarlyFlush, Kind as WriteKind, ZoneWrite};
use furrow_policy::{FsDefect, SyncRecord};
use furrow_rt::{CompletionTable, Pages, Ticket};
use furrow_zone::{Error, ErrorKind, Result, ZoneId};
use smallvec::SmallVec;
use std::rc::Rc;

/// Largest number of records in flight; further fsyncs share the next records. With 16 records in
/// flight, the lab's J5100 made 1.2 times as many fsyncs for 16 clients, but the lab's ZN540 only
/// two thirds as many, because each command has a cost there.
///
/// The number of fsyncs that share a record is limited too. A record of many fsyncs takes long; in
/// that time, records of one fsync end and start again. So 12 of 16 clients kept sharing one
/// record, which took 82 us on the J5100, while the other three records had one fsync each. In
/// equal shares, all four records take 60 us.
pub(crate) const RECORDS_IN_FLIGHT: u32 = 4;

/// Largest size of a record, in blocks. An fsync that would need a longer record makes a checkpoint
/// instead, which need not repeat the record's content.
const RECORD_BLOCKS_MAX: u32 = 1_024;

/// Largest size of a record in a half of `capacity` blocks. If a half has this many blocks left,
/// the next record goes to this half.
pub(crate) fn record_blocks_max(capacity: u32) -> u32 {
    RECORD_BLOCKS_MAX.min(capacity / 2)
}
/// Largest number of bytes that the changes of a file's nodes may take in a record. A node whose
/// change does not fit is written, which costs one block; a record that is one block longer would
/// cost as much.
const CHANGES_MAX: usize = 1_024;
/// After this many consecutive records of a single fsync, the next record is expected to be of a
/// single fsync too.
const ALONE: u32 = 8;
/// Largest number of dirty blocks of a file that an fsync dispatches in one stretch with its
/// record. The other blocks are dispatched earlier, and other operations can run in between.
const AHEAD: usize = 256;

/// The state of the sync log.
///
/// Invariants:
/// - `next` is the writer's position in the zones of `half`.
/// - `used` is true for each half that was written since its reset.
/// - An fsync waits for a record to begin only while a record is in flight.
/// - `sharing` is the number of fsyncs that the records in flight answer.
/// - `durable` is at most [`RECORDS_IN_FLIGHT`] below `sequence`.
#[derive(Default)]
pub(crate) struct SyncLog {
    /// The half that records are written to now.
    half: u8,
    /// The next block of `half`, in striping order.
    next: u32,
    /// Sequence number of the next record.
    sequence: u64,
    /// The sequence number below which records are durable.
    durable: u64,
    /// Whether each half of the log holds anything.
    used: [bool; 2],
    /// Number of records that are not yet durable.
    in_flight: u32,
    /// Fsyncs that wait for a record to begin, in the order of their calls.
    waiters: Group,
    /// Number of fsyncs whose records are in flight.
    sharing: u32,
    /// Number of consecutive records that held one fsync and ended while no other record was in
    /// flight and no fsync waited.
    alone: u32,
    /// The buffer for the bodies of records, kept for reuse.
    body: Vec<u8>,
    /// Nodes whose changes are in records since the last durable checkpoint.
    pub(super) recorded: Recorded,
    answers: CompletionTable<Result<()>>,
}

/// Fsyncs, each with the ticket by which it is answered.
type Group = Vec<(Ino, Ticket)>;

impl SyncLog {
    /// A log whose next record has `sequence` and goes to block `next` of `half`; `used` says which
    /// halves are not empty.
    pub(super) fn new(half: u8, next: u32, sequence: u64, used: [bool; 2]) -> SyncLog {
        SyncLog { half, next, sequence, durable: sequence, used, ..SyncLog::default() }
    }

    /// The half that records are written to now.
    pub(super) fn half(&self) -> u8 {
        self.half
    }

    /// The next block of the current half, in striping order.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Sequence number of the next record.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// True if `half` is not empty.
    pub(super) fn is_used(&self, half: u8) -> bool {
        self.used[usize::from(half)]
    }

    /// Notes that the records below `sequence` are durable.
    pub(super) fn durable(&mut self, sequence: u64) {
        self.durable = self.durable.max(sequence);
    }

    /// Number of records that are not yet durable.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Number of fsyncs that wait for a record to begin.
    pub(super) fn waiters(&self) -> usize {
        self.waiters.len()
    }

    /// Takes the fsyncs that share the next record, if a record can begin. The fsyncs under way are
    /// divided equally among the records.
    fn next_group(&mut self) -> Option<Group> {
        let waiting = self.waiters.len();
        if self.in_flight >= RECORDS_IN_FLIGHT || waiting == 0 {
            return None;
        }
        let under_way = self.sharing as usize + waiting;
        let share = under_way.div_ceil(RECORDS_IN_FLIGHT as usize).min(waiting);
        self.in_flight += 1;
        self.sharing += share as u32;
        Some(self.waiters.drain(..share).collect())
    }

    /// Puts the next record at block `next` of the current half; a block past the end means the
    /// other half.
    pub(super) fn go_on_at(&mut self, next: u32) {
        self.next = next;
    }

    /// Marks `half` as empty; true if it was used.
    pub(super) fn released(&mut self, half: u8) -> bool {
        std::mem::take(&mut self.used[usize::from(half)])
    }
}

impl Core {
    /// Upper limit for the size of a record for `inos`, in bytes.
    fn record_bound(&self, inos: &[Ino]) -> usize {
        let mut bytes = self.durability.namespace_log.unlogged_bytes() + 64;
        bytes += self.alloc.allocated().len() * 16 + self.alloc.unstable().len() * 16;
        let per = self.env.layout.stripe(self.env.layout.width).payload_blocks().max(1) as usize;
        for ino in inos {
            let dirty = self.cache.dirty_of(ino.0).count();
            let nodes = self.cache.dirty_nodes_of(ino.0).count()
                + self.tables.changed_nodes().most_of(ino.0);
            bytes += (nodes + 1) * 24 + 80 + CHANGES_MAX;
            let inode = self.cache.peek(&Key::Node(ino.0));
            bytes += inode.map_or(0, |entry| xattr_bytes(entry.page()));
            // Superzones that the file's blocks may open, and zones that they may be written to.
            let superzones = (dirty + nodes) / per + 2 * self.alloc.heads_count();
            let zones = (dirty + nodes).min(superzones * self.env.layout.width as usize);
            bytes += superzones * 16 + zones * 16;
        }
        bytes
    }

    /// Finds space for a record of `blocks` blocks; false if a checkpoint must be made instead.
    fn sync_room(&mut self, blocks: u32) -> bool {
        let capacity = self.env.layout.sync_stripe().blocks();
        if blocks > record_blocks_max(capacity) {
            return false;
        }
        if self.has_lost_zone() {
            self.durability.sync.go_on_at(capacity);
        }
        if self.durability.sync.next + blocks <= capacity {
            return true;
        }
        let other = 1 - self.durability.sync.half;
        if self.durability.sync.used[usize::from(other)] {
            return false;
        }
        let old = self.env.layout.sync_half(self.durability.sync.half);
        let new = self.env.layout.sync_half(other);
        for (zone, previous) in new.iter().zip(&old) {
            if self.env.writer.is_open(*previous) {
                // Fill the previous zone, so that it gives its permit back.
                let zeros = ZoneWrite::zeros_to(*previous, self.env.layout.capacity);
                drop(self.env.writer.submit(zeros));
                self.env.writer.open_zone_after(*zone, *previous);
            } else {
                // The previous zone was never written, or recovery found it full, so it holds
                // no permit.
                self.env.writer.open_empty(*zone);
            }
        }
        self.durability.sync.half = other;
        self.durability.sync.next = 0;
        true
    }

    /// True if a zone of the current half failed before it was full. The next record then cannot go
    /// to this half.
    fn has_lost_zone(&self) -> bool {
        let (stripe, next) = (self.env.layout.sync_stripe(), self.durability.sync.next);
        let zones = self.env.layout.sync_half(self.durability.sync.half);
        next < stripe.blocks()
            && (0..).zip(zones).any(|(column, zone)| {
                let middle = 1..self.env.layout.capacity;
                middle.contains(&stripe.fill(column, next)) && !self.env.writer.is_open(zone)
            })
    }

    pub(super) fn write_record(&mut self, body: &[u8]) {
        let id = RecordId {
            kind: kind::SYNC,
            epoch: self.durability.checkpoint.epoch,
            checkpoint: self.durability.checkpoint.id,
            sequence: self.durability.sync.sequence,
            device: self.env.layout.device,
            object: self.env.layout.uuid,
        };
        let durable = match self.env.layout.has_proofs() {
            true => self.durability.sync.durable,
            false => 0,
        };
        let mut pages = seal_after(&id, durable, body, &self.env.pages);
        let stripe = self.env.layout.sync_stripe();
        while !pages.is_empty() {
            let (column, offset) = stripe.place(self.durability.sync.next);
            let zone = self.env.layout.sync_zone(self.durability.sync.half, column);
            if !self.env.writer.is_open(zone) {
                self.env.writer.open_empty(zone);
            }
            let run = (stripe.run(self.durability.sync.next) as usize).min(pages.len());
            let rest: Pages = pages.drain(run..).collect();
            let placed = self.dispatch(zone, pages, WriteKind::Sync, Durability::Cached);
            debug_assert_eq!(placed, offset);
            self.durability.sync.next += run as u32;
            pages = rest;
        }
        self.durability.sync.used[usize::from(self.durability.sync.half)] = true;
        self.durability.sync.sequence += 1;
    }

    /// Files whose content the next record must hold, because the record holds a rename that put
    /// the file in place of another file. They are in ascending order. Files without changes since
    /// their last record are left out, and so are files in the sorted list `asked`, which the
    /// record includes anyway.
    fn carried(&self, asked: &[Ino]) -> Vec<Ino> {
        let unsynced = |ino: Ino| {
            let mut dirty = self.cache.dirty_of(ino.0).chain(self.cache.dirty_nodes_of(ino.0));
            dirty.next().is_some() || self.tables.changed_nodes().has(ino.0)
        };
        // A freed file, or one without a name, need not be in a record. Do not read its inode,
        // which may not be in the cache.
        let named = |ino: Ino| {
            self.tables.nat().get(ino.0).ino.get() == ino.0 && !self.tree.files().is_orphan(ino)
        };
        let wanted = |ino: &Ino| asked.binary_search(ino).is_err() && named(*ino) && unsynced(*ino);
        let mut inos: Vec<Ino> = self.durability.namespace_log.carried().filter(wanted).collect();
        inos.sort_unstable();
        inos.dedup();
        inos
    }

    /// Dispatches data, nodes and one record for `inos`; returns the stamp to wait for. `None` if a
    /// checkpoint must be made instead, which makes the record unnecessary.
    pub(crate) fn dispatch_sync(&mut self, inos: &[Ino]) -> Result<Option<u64>, NotApplied> {
        self.may_write()?;
        let carried = self.carried(inos);
        for ino in &carried {
            self.prepare_write_file(*ino)?;
        }
        let all = [inos, &carried].concat();
        let bound = self.record_bound(&all);
        if !self.sync_room(blocks_for(bound)) {
            return Ok(None);
        }
        // Reuse the buffer of the last record, because a buffer of this size is slow to allocate.
        let mut out = Encoder(std::mem::take(&mut self.durability.sync.body));
        out.0.clear();
        let mut changed = false;
        for ino in inos {
            changed |= self.sync_file(*ino, &mut out)?;
        }
        for ino in carried {
            changed |= self.log_content(ino, &mut out)?;
        }
        self.durability.namespace_log.take_unlogged(&mut out);
        if !changed && out.0.is_empty() {
            return Ok(Some(self.alloc.stamp()));
        }
        for (head, superzone, generation) in self.alloc.allocated() {
            out.u8(item::ALLOCATED).u8(*head).u32(*superzone).u32(*generation);
        }
        let silent = self.env.options.variant.has(FsDefect::NoWritePointers);
        for (zone, end) in self.alloc.unstable().filter(|_| !silent) {
            let superzone = self.env.layout.superzone_of(zone);
            let generation = superzone
                .map_or(0, |s| self.alloc.zones().generation(furrow_log::pool::SuperzoneId(s)));
            out.u8(item::DEPENDS).u32(zone.0).u32(generation).u32(end);
        }
        debug_assert!(out.0.len() <= bound, "{} > {bound}", out.0.len());
        self.write_record(&out.0);
        self.durability.sync.body = out.0;
        Ok(Some(self.alloc.stamp()))
    }

    /// Dispatches a file's data and notes its nodes in `out`. For a directory, only attributes are
    /// noted: its content is already in the namespace operations.
    fn sync_file(&mut self, ino: Ino, out: &mut Encoder) -> Result<bool, NotApplied> {
        let head = match self.inode(ino) {
            Ok(inode) => inode.head,
            // If the inode is not in the cache, the file has no dirty blocks, but some of its nodes
            // may have been written since the last record.
            Err(NotApplied::Blocked(Blocked::Load(fetch))) => {
                return Err(Blocked::Load(fetch).into());
            }
            Err(stop) => return Err(stop),
        };
        // An inode that has no name and cannot get one need not be in a record.
        if head.links.get() == 0 && !self.tree.files().is_unnamed(ino) {
            return Ok(false);
        }
        if Kind::from_code(head.kind) == Some(Kind::Directory) {
            let a = attr(&head);
            out.u8(item::ATTRIBUTES).u32(ino.0).u16(a.mode).u32(a.uid).u32(a.gid);
            out.time(a.atime).time(a.mtime).time(a.ctime);
            if self.env.layout.incompat & INCOMPAT_XATTRS != 0 {
                let packed = self.packed_xattrs(ino)?;
                out.u8(item::XATTRS).u32(ino.0).long_bytes(&packed);
            }
            return Ok(true);
        }
        self.log_content(ino, out)
    }

    /// Dispatches the data of a file. For each node, either notes its changes in `out`, or
    /// dispatches the node and notes its new place.
    fn log_content(&mut self, ino: Ino, out: &mut Encoder) -> Result<bool, NotApplied> {
        let ranges = ranges(self.cache.dirty_of(ino.0));
        self.write_blocks(ino)?;
        let before = out.0.len();
        let nodes: SmallVec<[u32; 8]> = self.cache.dirty_nodes_of(ino.0).collect();
        for nid in nodes {
            let most = CHANGES_MAX.saturating_sub(out.0.len() - before);
            if !self.log_change(nid, out, most) {
                self.write_node(nid)?;
            }
        }
        let changed = self.tables.logged(ino.0);
        if changed.is_empty() && out.0.len() == before {
            return Ok(false);
        }
        let unplaced = self.env.options.variant.has(FsDefect::UnplacedChange);
        for nid in changed {
            if unplaced && self.cache.peek(&Key::Node(nid)).is_some_and(Entry::is_dirty) {
                continue;
            }
            let entry = self.tables.nat().get(nid);
            if entry.ino.get() == 0 {
                out.u8(item::FREED).u32(nid).u32(ino.0);
            } else {
                debug_assert_ne!(entry.addr.get(), HOLE);
                out.u8(item::NODE).u32(nid).u32(entry.ino.get()).u32(entry.addr.get());
                out.u32(entry.crc.get());
            }
        }
        for (first, count) in ranges.into_iter().take(4) {
            out.u8(item::RANGE).u32(ino.0).u32(first).u32(count);
        }
        Ok(true)
    }

    /// Largest number of nodes whose changes may be in records at a time. Recovery makes these
    /// nodes dirty and writes them. A quarter of a superzone is always available for that, even if
    /// the power fails repeatedly during recovery on a full drive.
    fn recorded_max(&self) -> usize {
        (self.alloc.superzone_blocks() / 4) as usize
    }

    /// True if a checkpoint should write the nodes whose changes are in records, to make space for
    /// the changes of other nodes.
    pub(crate) fn many_are_recorded(&self) -> bool {
        self.durability.sync.recorded.len() > self.recorded_max() / 2
    }

    /// Notes the change of node `nid` since its logged content, in at most `most` bytes. False if
    /// the node must be written instead.
    fn log_change(&mut self, nid: u32, out: &mut Encoder, most: usize) -> bool {
        let recorded = &self.durability.sync.recorded;
        let may = recorded.takes(nid, self.recorded_max());
        if self.env.options.variant.record != SyncRecord::Changes || !may {
            return false;
        }
        let entry = self.cache.peek(&Key::Node(nid)).expect("invariant: dirty nodes are cached");
        let logged = entry.logged();
        let (node, at) = ((nid, entry.owner()), self.tables.nat().get(nid).addr.get());
        // A node with a place but no logged content must be written: a failed zone lost it, or the
        // file system lacks the feature `INCOMPAT_CHANGES`.
        let new = at == HOLE && self.cache.keeps_logged();
        if logged.is_none() && !new {
            return false;
        }
        let page = entry.page();
        match node_change::encode(out, node, (logged, page), first_pointer(page), most) {
            Encoded::Added(places) => {
                self.cache.note_logged_change(nid, &places);
                self.durability.sync.recorded.note(nid);
            }
            Encoded::Nothing => {}
            Encoded::TooLong => return false,
        }
        true
    }

    /// Notes that everything dispatched up to `stamp` is durable.
    pub(crate) fn stable(&mut self, stamp: u64) {
        self.alloc.flushed(stamp);
    }
}

/// Bytes of extended attributes of the inode in `page`.
fn xattr_bytes(page: &furrow_rt::Page) -> usize {
    crate::tree::node::as_inode(page).head.xattr_bytes.get() as usize
}

fn ranges(blocks: impl Iterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for block in blocks {
        match ranges.last_mut() {
            Some((first, count)) if *first + *count == block => *count += 1,
            _ => ranges.push((block, 1)),
        }
    }
    ranges
}

impl Inner {
    /// See [`crate::Fs::fsync`].
    pub(crate) async fn fsync(self: &Rc<Self>, ino: Ino) -> Result<()> {
        let (answer, first) = {
            let mut core = self.core.borrow_mut();
            if core.health.is_nothing_lost() {
                return Ok(());
            }
            core.may_write().map_err(crate::blocked::error_of)?;
            let sync = &mut core.durability.sync;
            let (ticket, answer) = sync.answers.open();
            sync.waiters.push((ino, ticket));
            (answer, sync.waiters.len() == 1)
        };
        if first {
            self.gather();
        }
        answer.await
    }

    /// Starts records for the fsyncs that wait. While another record is in flight, first lets other
    /// tasks call fsync: clients whose fsyncs shared a record often call again at the same time. A
    /// lone fsync does not wait.
    fn gather(self: &Rc<Self>) {
        if self.core.borrow().durability.sync.in_flight == 0 {
            return self.start_records();
        }
        let inner = self.clone();
        self.rt.spawn_detached(async move {
            inner.rt.yield_now().await;
            inner.start_records();
        });
    }

    /// Starts records while fsyncs wait and fewer than [`RECORDS_IN_FLIGHT`] records are in flight.
    /// Each record runs in a detached task, so that the record completes even if a caller is
    /// dropped: other fsyncs share the record.
    fn start_records(self: &Rc<Self>) {
        while let Some(group) = self.core.borrow_mut().durability.sync.next_group() {
            let inner = self.clone();
            self.rt.spawn_detached(async move {
                let mut inos: Vec<Ino> = group.iter().map(|(ino, _)| *ino).collect();
                inos.sort_unstable();
                inos.dedup();
                let results = inner.sync_each(&inos).await;
                inner.record_done(&inos, &results, group);
            });
        }
    }

    /// Ends a record: answers the fsyncs of `group` with the `results` for `inos`, and starts
    /// records for waiting fsyncs.
    fn record_done(self: &Rc<Self>, inos: &[Ino], results: &[Result<()>], group: Group) {
        {
            let mut core = self.core.borrow_mut();
            let (records, fsyncs) = (core.durability.sync.in_flight, core.durability.sync.sharing);
            core.durability.sync.in_flight = core.less("SyncLog::in_flight", records, 1);
            let left = core.less("SyncLog::sharing", fsyncs, group.len() as u32);
            core.durability.sync.sharing = left;
            let sync = &mut core.durability.sync;
            let alone = records == 1 && group.len() == 1 && sync.waiters.is_empty();
            sync.alone = if alone { sync.alone.saturating_add(1) } else { 0 };
            for (ino, ticket) in group {
                // Each fsync of the group has a result. A missing result must never pass as
                // success, because the data would not be durable.
                let at = inos.binary_search(&ino).expect("invariant: the record was for the group");
                core.durability.sync.answers.complete(ticket, results[at].clone());
            }
            if core.durability.sync.waiters.is_empty() {
                return;
            }
        }
        self.gather();
    }

    /// Writes one record for all of `inos`. If one of the files is damaged, writes a separate
    /// record for each file instead: damage of one file must not fail the fsync of another. The
    /// results are in the order of `inos`.
    async fn sync_each(self: &Rc<Self>, inos: &[Ino]) -> Vec<Result<()>> {
        let result = self.sync_now(inos).await;
        let damage = |error: &Error| matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt);
        let apart = inos.len() > 1 && result.as_ref().is_err_and(damage);
        let mut results = Vec::with_capacity(inos.len());
        for ino in inos {
            results.push(if apart { self.sync_now(&[*ino]).await } else { result.clone() });
        }
        results
    }

    /// Dispatches data, nodes and a record, and waits until they are durable.
    async fn sync_now(self: &Rc<Self>, inos: &[Ino]) -> Result<()> {
        let carried = self.core.borrow().carried(inos);
        let all = [inos, &carried].concat();
        self.append_files(&all).await?;
        self.write_ahead(&all).await?;
        if self.core.borrow().env.options.variant.record == SyncRecord::AfterNodes {
            self.write_before_record(&all).await?;
        }
        let dispatched = self
            .run(|core| {
                // An inode that was removed in the meantime need not be in the record.
                let mut alive = Vec::with_capacity(inos.len());
                for ino in inos {
                    match core.inode(*ino) {
                        Ok(_) => alive.push(*ino),
                        Err(NotApplied::Failed(error)) if error.kind() == ErrorKind::NotFound => {}
                        Err(stop) => return Err(stop),
                    }
                }
                for ino in &alive {
                    core.take_access(*ino);
                    core.prepare_write_file(*ino)?;
                    core.prepare_xattrs(*ino)?;
                }
                let stamp = core.dispatch_sync(&alive)?;
                let (point, next) =
                    (core.env.writer.sequence_point(), core.durability.sync.sequence);
                Ok(stamp.map(|stamp| (stamp, point, next)))
            })
            .await;
        self.after_dispatch();
        match dispatched {
            Ok(Some(_)) if self.core.borrow().env.options.variant.has(FsDefect::EarlyAck) => Ok(()),
            Ok(Some((stamp, point, next))) => {
                self.make_stable(stamp, point).await?;
                self.core.borrow_mut().durability.sync.durable(next);
                Ok(())
            }
            Ok(None) => {
                self.checkpoint(false).await?;
                self.left_aside(Some(inos))
            }
            Err(error) => Err(error),
        }
    }

    /// Dispatches data and nodes of `inos` and waits for them; used in variants that write the
    /// record last.
    async fn write_before_record(self: &Rc<Self>, inos: &[Ino]) -> Result<()> {
        let mut own = Vec::new();
        for ino in inos {
            let dispatched = self.run(|core| {
                core.prepare_write_file(*ino)?;
                core.durability.watch();
                let done = core.write_file(*ino);
                own.extend(core.durability.watched());
                done
            });
            let dispatched = dispatched.await;
            self.after_dispatch();
            dispatched?;
        }
        let mut lost = false;
        for written in own {
            lost |= written.await.is_err();
        }
        if !lost {
            return Ok(());
        }
        let point = self.core.borrow().env.writer.sequence_point();
        self.wait_durable_or_relocated(point).await
    }

    /// Dispatches dirty blocks of each file in `inos`, from the front of the file, until at most
    /// [`AHEAD`] dirty blocks of the file are left.
    async fn write_ahead(self: &Rc<Self>, inos: &[Ino]) -> Result<()> {
        for ino in inos {
            let mut from = 0;
            while self.core.borrow().cache.dirty_in(ino.0, from..).nth(AHEAD).is_some() {
                let done = self.run(|core| core.write_range(*ino, from, u32::MAX)).await;
                self.after_dispatch();
                from = done?;
            }
        }
        Ok(())
    }

    /// Waits until every write before `point` is on the drive and durable.
    pub(crate) async fn make_stable(
        self: &Rc<Self>,
        stamp: u64,
        point: furrow_log::SequencePoint,
    ) -> Result<()> {
        let writer = self.core.borrow().env.writer.clone();
        let result = async {
            let early = self.flush_early(1).await;
            self.wait_durable_or_relocated(point).await?;
            writer.flush_after(early).await
        };
        result.await.inspect_err(|error| self.fail(error))?;
        self.core.borrow_mut().stable(stamp);
        Ok(())
    }

    /// Sends a flush before the writes that it covers are answered
    /// ([`furrow_log::Writer::flush_early`]), if one client fsyncs at a time and at most `own`
    /// records are in flight. With many clients, about half of the clients write while a flush for
    /// the other half is under way, and that flush must not wait for these writes.
    pub(crate) async fn flush_early(&self, own: u32) -> Option<EarlyFlush> {
        let writer = {
            let core = self.core.borrow();
            let sync = &core.durability.sync;
            (sync.alone >= ALONE && sync.in_flight <= own).then(|| core.env.writer.clone())
        };
        writer?.flush_early().await
    }

    /// Waits until every write before `point` is durable, ignoring failures of the zones `excused`.
    pub(crate) async fn flushed(
        &self,
        stamp: u64,
        point: furrow_log::SequencePoint,
        excused: &[ZoneId],
    ) -> Result<()> {
        let writer = self.core.borrow().env.writer.clone();
        let early = self.flush_early(0).await;
        writer.wait_excusing(point, |zone| excused.contains(&zone)).await?;
        writer.flush_after(early).await?;
        self.core.borrow_mut().stable(stamp);
        Ok(())
    }
}
