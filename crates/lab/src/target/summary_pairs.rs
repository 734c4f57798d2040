//! Segment summaries in pairs of zones, as in the plain pair to which Z-LFS compares itself.
//!
//! The published code of that pair is NAIVE_MFZ: `merge_ssa` in `segment.c`, called by
//! `f2fs_write_checkpoint`. Each segment of 2 MiB has a summary of one block in an area of zones,
//! and each zone of that area has a second zone. A checkpoint writes each zone with a new summary,
//! as a whole, to the other zone of its pair; the checkpoint's last record waits for these copies.
//! The engine keeps summaries in segments, so this layer between engine and drive does that work in
//! addition. The layer takes the pairs' zones from the end of the drive.
//!
//! Invariants
//! - The last record of a checkpoint reaches the drive after the copies of all zones with
//!   summaries of segments that were full when the checkpoint's tables began to be written.
//! - The engine's own commands reach the drive in the order in which they were submitted, zone
//!   by zone.
//!
//! Two simplifications favour the pair: the copied zones come from memory, even the first time,
//! where the kernel reads them block by block; and up to [`COPIES`] zones are copied at once. One
//! counts against the pair: the engine has that many fewer active zones.
//!
//! Not here: summaries of tables. Tables take zones of the main area when half of the node ids of
//! mkfs are in use, and this drive would then count those zones as segments of files. The claims
//! make fewer files than that.

use anyhow::{Context as _, Result};
use furrow_fs::{Fs, ZoneUse};
use furrow_rt::{Completion, CompletionTable, PAGE_SIZE, Page, Pages, Rt, Semaphore, Ticket};
use furrow_zone::{
    Action, BlockCount, Command, FaultInjection, Geometry, Lba, Outcome, QueueId, Reports, Request,
    Status, Target, ZoneId, ZonedDevice,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

/// Number of blocks of an F2FS segment.
const SEGMENT: u64 = 512;

/// Number of blocks of a copy's command: the largest request of the kernel's block layer, 1 MiB.
const COMMAND: u64 = 256;

/// Number of zones that are copied at once. The engine has that many fewer active zones.
const COPIES: u32 = 8;

/// The zones of a file system by use.
#[derive(Clone, Debug)]
struct Areas {
    ring: Range<u32>,
    tables: Range<u32>,
    main: u32,
}

/// The phase of the checkpoint in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No checkpoint is in progress, or it has not yet written a table.
    Idle,
    /// Zones with summaries are being copied.
    Copying,
    /// Zones with summaries have been copied; the status is that of the copies.
    Copied(Status),
}

/// A drive that also copies summaries.
#[derive(Clone)]
pub(super) struct SummaryPairs(Rc<Inner>);

struct Inner {
    rt: Rt,
    drive: Rc<dyn ZonedDevice>,
    /// The geometry without the zones of the pairs.
    geometry: Geometry,
    areas: RefCell<Option<Areas>>,
    phase: Cell<Phase>,
    /// Pairs with a summary that is not yet on the drive.
    dirty: RefCell<BTreeSet<u32>>,
    /// How often each pair was copied. This decides to which zone of the pair the next copy goes,
    /// and whether that zone is reset first.
    copies: RefCell<Vec<u32>>,
    /// Requests for the checkpoint ring that wait until the copies end.
    held: RefCell<Vec<(QueueId, Request, Ticket)>>,
    answers: CompletionTable<Outcome>,
    copied: Cell<u64>,
}

impl SummaryPairs {
    /// Puts this layer before `drive`, and uses the drive's last zones for pairs.
    pub(super) fn behind(rt: &Rt, drive: Rc<dyn ZonedDevice>) -> SummaryPairs {
        let mut geometry = drive.geometry().clone();
        let segments = u64::from(geometry.zones) * geometry.zone_capacity.0.div_ceil(SEGMENT);
        let pairs = segments.div_ceil(geometry.zone_capacity.0) as usize;
        geometry.zones = geometry.zones.saturating_sub(2 * pairs as u32);
        let fewer = |limit: Option<u32>| limit.map(|limit| limit.saturating_sub(COPIES).max(1));
        geometry.max_active = fewer(geometry.max_active);
        geometry.max_open = fewer(geometry.max_open);
        SummaryPairs(Rc::new(Inner {
            rt: rt.clone(),
            drive,
            geometry,
            areas: RefCell::new(None),
            phase: Cell::new(Phase::Idle),
            dirty: RefCell::default(),
            copies: RefCell::new(vec![0; pairs]),
            held: RefCell::default(),
            answers: CompletionTable::new(),
            copied: Cell::new(0),
        }))
    }

    /// Starts tracking the summaries of `fs`, which has just been mounted.
    ///
    /// # Errors
    /// If the drive does not report its zones, or the zones are not those of a file system
    /// with tables.
    pub(super) async fn begin(&self, fs: &Fs) -> Result<()> {
        let uses = fs.zone_map().await?;
        let range = |wanted: ZoneUse| -> Result<Range<u32>> {
            let first = uses.iter().position(|zone| zone.usage == wanted);
            let first = first.with_context(|| format!("no zone has the use {wanted:?}"))?;
            let count = uses[first..].iter().take_while(|zone| zone.usage == wanted).count();
            Ok(first as u32..(first + count) as u32)
        };
        let (ring, tables) = (range(ZoneUse::Checkpoint)?, range(ZoneUse::Tables)?);
        let main = range(ZoneUse::SyncLog)?.end;
        *self.0.areas.borrow_mut() = Some(Areas { ring, tables, main });
        Ok(())
    }

    /// Number of bytes that were copied.
    pub(super) fn copied(&self) -> u64 {
        self.0.copied.get()
    }
}

impl Inner {
    /// Records which segments are filled by a write of `blocks` from `offset` of main zone `index`.
    fn note(&self, index: u32, offset: u64, blocks: u64) {
        let segments = self.geometry.zone_capacity.0.div_ceil(SEGMENT);
        let first = u64::from(index) * segments;
        let full =
            |to: u64| if to == self.geometry.zone_capacity.0 { segments } else { to / SEGMENT };
        let filled = full(offset)..full(offset + blocks);
        let pairs = filled.map(|at| ((first + at) / self.geometry.zone_capacity.0) as u32);
        self.dirty.borrow_mut().extend(pairs);
    }

    /// Starts the copies of a checkpoint.
    fn copy(self: &Rc<Self>) {
        self.phase.set(Phase::Copying);
        let pairs = self.dirty.take();
        let this = self.clone();
        self.rt.clone().spawn_detached(async move {
            let turns = Rc::new(Semaphore::new(u64::from(COPIES)));
            let copies: Vec<_> = pairs
                .into_iter()
                .map(|pair| {
                    let (this, turns) = (this.clone(), turns.clone());
                    this.rt.clone().spawn(async move {
                        let _turn = turns.acquire(1).await;
                        this.copy_zone(pair).await
                    })
                })
                .collect();
            let mut status = Status::Success;
            for copy in copies {
                let ended = copy.await;
                status = if status.is_ok() { ended } else { status };
            }
            this.phase.set(Phase::Copied(status));
            for (queue, request, ticket) in this.held.take() {
                let (answer, answers) = (this.record(queue, request), this.answers.clone());
                let forward = async move { answers.complete(ticket, answer.await) };
                this.rt.spawn_detached(forward);
            }
        });
    }

    /// Writes the summaries of `pair` to one of its zones; the two take turns.
    async fn copy_zone(&self, pair: u32) -> Status {
        let copies = self.copies.borrow()[pair as usize];
        self.copies.borrow_mut()[pair as usize] += 1;
        let zone = ZoneId(self.geometry.zones + 2 * pair + copies % 2);
        let start = self.drive.geometry().start(zone);
        if copies >= 2 {
            let action = Command::Manage { target: Target::Zone(start), action: Action::Reset };
            let answer = self.drive.submit(QueueId(0), Request::bare(action)).await;
            if !answer.status.is_ok() {
                return answer.status;
            }
        }
        let (page, capacity) = (Page::zeroed(), self.geometry.zone_capacity.0);
        let most = self.geometry.max_transfer.map_or(COMMAND, |most| most.0.min(COMMAND));
        let mut at = 0;
        while at < capacity {
            let blocks = most.min(capacity - at);
            let command = Command::Write { lba: Lba(start.0 + at), blocks: BlockCount(blocks) };
            let data: Pages = (0..blocks).map(|_| page.clone()).collect();
            let answer = self.drive.submit(QueueId(0), Request::with_data(command, data)).await;
            if !answer.status.is_ok() {
                return answer.status;
            }
            at += blocks;
        }
        self.copied.set(self.copied.get() + capacity * PAGE_SIZE as u64);
        Status::Success
    }

    /// Passes on a request for the checkpoint ring. The request with FUA ends the checkpoint, and
    /// fails if the copies failed.
    fn record(&self, queue: QueueId, request: Request) -> Completion<Outcome> {
        if let Phase::Copied(status) = self.phase.get()
            && request.fua
        {
            self.phase.set(Phase::Idle);
            if !status.is_ok() {
                let lba = Lba(0);
                let (ticket, answer) = self.answers.open();
                let (data, oob) = (Pages::new(), Vec::new());
                self.answers.complete(ticket, Outcome { status, lba, data, oob });
                return answer;
            }
        }
        self.drive.submit(queue, request)
    }
}

impl ZonedDevice for SummaryPairs {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn submit(&self, queue: QueueId, request: Request) -> Completion<Outcome> {
        let pairs = &self.0;
        let areas = pairs.areas.borrow();
        let (Some(areas), Command::Write { lba, blocks }) = (areas.as_ref(), request.command)
        else {
            return pairs.drive.submit(queue, request);
        };
        let Some((zone, offset)) = pairs.geometry.locate(lba) else {
            return pairs.drive.submit(queue, request);
        };
        if zone.0 >= areas.main {
            pairs.note(zone.0 - areas.main, offset.0, blocks.0);
        } else if pairs.phase.get() == Phase::Idle && areas.tables.contains(&zone.0) {
            pairs.copy();
        }
        if !areas.ring.contains(&zone.0) {
            return pairs.drive.submit(queue, request);
        }
        if pairs.phase.get() != Phase::Copying {
            return pairs.record(queue, request);
        }
        let (ticket, answer) = pairs.answers.open();
        pairs.held.borrow_mut().push((queue, request, ticket));
        answer
    }

    fn report(&self, first: ZoneId, count: u32) -> Reports<'_> {
        let left = self.0.geometry.zones.saturating_sub(first.0);
        self.0.drive.report(first, count.min(left))
    }

    fn answers(&self) -> bool {
        self.0.drive.answers()
    }

    fn misses(&self) -> u64 {
        self.0.drive.misses()
    }

    fn oldest(&self) -> Option<u64> {
        self.0.drive.oldest()
    }

    fn give_up(&self) {
        self.0.drive.give_up();
    }

    fn fault_injection(&self) -> Option<&dyn FaultInjection> {
        self.0.drive.fault_injection()
    }

    fn warnings(&self) -> &[String] {
        self.0.drive.warnings()
    }

    fn name(&self) -> String {
        self.0.drive.name()
    }
}

#[cfg(test)]
mod tests {
    use crate::catalogue::{Engine, Profile};
    use crate::host::Host;
    use crate::policy::{Metadata, Policy};
    use crate::target::files::Library;
    use furrow_fs::{Ino, NewNode};
    use furrow_rt::{Config, Rt};
    use furrow_zone::{Access, DeviceSpec, ZoneId, ZoneState, ZonedDevice as _};

    /// Returns the bytes of summaries that `files` files of 32 MiB cause, with a checkpoint after
    /// each file, and the states of the pair's zones after each file.
    fn written(summary_pairs: bool, files: u32) -> (u64, Vec<[ZoneState; 2]>) {
        let rt = Rt::new(Config::simulated(1));
        let spec: DeviceSpec =
            "mem:pm1731a,zones=256,zone-size=6MiB,timing=virtual".parse().unwrap();
        let drive = furrow_emu::open(&rt, &spec, Access::ReadWrite).unwrap();
        let policy = Policy { metadata: Metadata::NaivePair, summary_pairs, ..Policy::default() };
        let about = String::new();
        let profile = Profile { engine: Engine::Fs, about, policy, array: None, store: None };
        let on = rt.clone();
        let written = rt.block_on(async move {
            let host = Host::default();
            let library = Library::new(&on, drive.clone(), &profile, &host).await.unwrap();
            let mut states = Vec::new();
            for file in 0..files {
                let file = {
                    let (name, node) = (format!("{file}"), NewNode::file());
                    library.fs.create(Ino::ROOT, name.as_bytes(), &node).await.unwrap().ino
                };
                library.write(file, 0, 32 << 20).await.unwrap();
                library.fs.sync().await.unwrap();
                let pair = drive.report(ZoneId(254), 2).await.unwrap();
                states.push([pair[0].state, pair[1].state]);
            }
            (library.end().await.unwrap().written.summaries, states)
        });
        rt.clear();
        written
    }

    #[test]
    fn a_checkpoint_copies_the_zone_of_new_summaries_to_the_other_one_and_waits_for_it() {
        let (plain, _) = written(false, 3);
        let (pairs, states) = written(true, 3);
        // All 256 zones of 3 segments have their summaries in a single zone of 1,536 blocks.
        let copies = (pairs - plain) / (6 << 20);
        assert!((3..=4).contains(&copies), "{plain} {pairs}");
        assert!((pairs - plain) % (6 << 20) < 1 << 20, "{plain} {pairs}");
        use ZoneState::{Empty, Full};
        assert_eq!(states, [[Full, Empty], [Full, Full], [Full, Full]]);
    }
}
