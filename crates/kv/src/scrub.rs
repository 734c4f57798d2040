//! Scrub of an open store: reads and verifies, in the background, everything on the
//! drive that counts.
//!
//! First it checks the record ring and all blocks of checksums, with the check for stores that are
//! not open. Records and files change meanwhile, so damage counts only if several readings find it.
//! Then it compares the content of every file with its checksums. Blocks that are still in memory
//! are not on the drive yet, and are not read.
//!
//! A repair turns the ring, which rewrites all its records from memory. Content has no copy: a
//! damaged file has to be replaced.

use crate::extent::FileId;
use crate::fsck::{CheckOptions, Problem, check};
use crate::store::Store;
use furrow_log::scrub::{ScrubFinding, ScrubOrder, ScrubReport};
use furrow_log::survey::{has_vanished, patiently};
use furrow_zone::{Error, ErrorKind, Result};

/// Number of blocks read at a time.
const BATCH: u32 = 64;
/// Number of readings of the ring that must find the same damage before it counts.
const READINGS: u32 = 3;

/// Part of a file to read next.
struct Piece {
    first: u32,
    /// Number of blocks to read: 0 if there is nothing to read before `next`.
    count: u32,
    next: u32,
}

impl Store {
    /// Begins a scrub in the background, or pauses, resumes or stops the one that runs. A scrub
    /// reads the record ring and the content of all files, and compares them with their checksums.
    ///
    /// # Errors
    /// `Busy` for an order to start while a scrub runs, and for any other order while none runs;
    /// the store's error if the store has failed.
    pub fn scrub(&self, order: ScrubOrder) -> Result<()> {
        self.check_alive()?;
        let total = {
            let files = self.0.files.borrow();
            let extents = files.values().flat_map(|file| &file.extents);
            extents.filter(|extent| !extent.is_hole()).map(|e| u64::from(e.blocks)).sum()
        };
        if let Some(repair) = self.0.scrub.order(&self.0.rt, order, total)? {
            let store = self.clone();
            self.0.rt.spawn_detached(async move {
                let ended = store.scrub_all(repair).await;
                store.0.scrub.end(&store.0.rt, ended);
            });
        }
        Ok(())
    }

    /// Reports on the running scrub, or on the last one since the store was opened.
    pub fn scrub_report(&self) -> Option<ScrubReport> {
        self.0.scrub.report(&self.0.rt)
    }

    /// Reads everything; false if the scrub was stopped.
    async fn scrub_all(&self, repair: bool) -> Result<bool> {
        if !self.scrub_records(repair).await? {
            return Ok(false);
        }
        let ids: Vec<FileId> = self.0.files.borrow().keys().copied().collect();
        for id in ids {
            let mut block = 0;
            while let Some(piece) = self.piece(id, block) {
                if !self.0.scrub.may_continue().await {
                    return Ok(false);
                }
                self.check_alive()?;
                let (began, requests) = (self.0.rt.now(), self.requests());
                block = match piece.count {
                    0 => piece.next,
                    _ => self.scrub_piece(id, &piece).await?,
                };
                let busy = self.requests() != requests;
                self.0.scrub.rest(&self.0.rt, began, busy).await;
            }
        }
        Ok(true)
    }

    /// Returns a number that changes with every append, read and sync.
    fn requests(&self) -> u64 {
        let counters = self.counters();
        counters.appended.wrapping_add(counters.read).wrapping_add(counters.syncs)
    }

    /// Returns the part of a file to read next, from `block` on; `None` at the file's end, or if
    /// the file is gone.
    fn piece(&self, id: FileId, block: u32) -> Option<Piece> {
        let files = self.0.files.borrow();
        let file = files.get(&id)?;
        let extent = file.extents.iter().find(|extent| extent.end() > block)?;
        let first = extent.first.max(block);
        if extent.is_hole() {
            return Some(Piece { first, count: 0, next: extent.end() });
        }
        let end = extent.end().min(first + BATCH);
        let on_drive = |block: &u32| !file.flying.contains_key(block);
        let count = (first..end).take_while(on_drive).count() as u32;
        Some(Piece { first, count, next: first + count.max(1) })
    }

    /// Reads and compares a piece of a file. Returns the block to continue from.
    async fn scrub_piece(&self, id: FileId, piece: &Piece) -> Result<u32> {
        let found = self.with(id, |file| file.extent_of(piece.first).cloned());
        // The file was removed or truncated, or its blocks moved: moving has just read them.
        let Ok(Some(extent)) = found else { return Ok(piece.next) };
        if extent.is_hole() || extent.end() < piece.first + piece.count {
            return Ok(piece.next);
        }
        let pins: Vec<_> =
            extent.places().map(|(at, _)| self.0.zones.pool.pin(self.zone_of(at))).collect();
        let place = |block: u32| {
            let at = extent.at.plus(block - extent.first);
            let offset = at.offset(self.0.zones.writer.geometry());
            format!("zone {} offset {offset}", self.zone_of(at))
        };
        let is_same = || {
            self.with(id, |file| file.extent_of(piece.first).is_some_and(|now| now.at == extent.at))
                .unwrap_or(false)
        };
        let finding = |structure, block: u32, blocks: u64, error: Error| ScrubFinding {
            structure,
            path: Some(self.name_of(id)),
            block: Some(block),
            blocks,
            place: place(block),
            what: error.to_string(),
            ..ScrubFinding::default()
        };
        let device = self.0.zones.writer.device();
        let sums = async || self.sums_of(id, &extent).await;
        if let Err(error) = patiently(&self.0.rt, &**device, sums).await {
            self.of_drive(&error)?;
            if is_same() {
                let (first, blocks) = (extent.first, u64::from(extent.blocks));
                self.0.scrub.note(|report| report.add(finding("checksums", first, blocks, error)));
            }
            return Ok(extent.end());
        }
        let inside = piece.first - extent.first;
        if self.read_checked(id, &extent, inside, piece.count).await.is_err() {
            // Reads each block alone to find out which ones failed.
            for block in piece.first..piece.first + piece.count {
                let at = block - extent.first;
                let read = async || self.read_verified(id, &extent, at, 1).await;
                let Err((_, error)) = patiently(&self.0.rt, &**device, read).await else {
                    continue;
                };
                self.of_drive(&error)?;
                if is_same() {
                    self.0.scrub.note(|report| report.add(finding("content", block, 1, error)));
                }
            }
        }
        drop(pins);
        self.0.scrub.note(|report| report.done += u64::from(piece.count));
        Ok(piece.next)
    }

    /// Accepts an error that concerns only the blocks that were read: such an error is damage.
    ///
    /// # Errors
    /// Returns `error` if it concerns more than the blocks that were read.
    fn of_drive(&self, error: &Error) -> Result<()> {
        let damage = matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt);
        let vanished = has_vanished(&**self.0.zones.writer.device(), error);
        if damage && !vanished { Ok(()) } else { Err(error.clone()) }
    }

    /// Reads ring and checksums; false if the scrub was stopped.
    async fn scrub_records(&self, repair: bool) -> Result<bool> {
        let mut found = self.read_records().await?;
        for _ in 1..READINGS {
            if !self.0.scrub.may_continue().await {
                return Ok(false);
            }
            if found.is_empty() {
                return Ok(true);
            }
            // Changes that were under way at the first reading are recorded by now.
            self.join_group_commit(None).await?;
            let again = self.read_records().await?;
            found.retain(|problem| again.contains(problem));
        }
        let mut left = found.clone();
        if repair && found.iter().any(|problem| problem.structure == "ring") {
            self.0.commits.want_turn();
            self.join_group_commit(None).await?;
            let now = self.read_records().await?;
            left.retain(|problem| now.contains(problem));
        }
        for problem in found {
            let repaired = !left.contains(&problem);
            let place = problem.place.map(|(zone, offset)| format!("zone {zone} offset {offset}"));
            self.0.scrub.note(|report| {
                report.add(ScrubFinding {
                    structure: problem.structure,
                    path: problem.file,
                    block: problem.block,
                    blocks: 1,
                    place: place.unwrap_or_else(|| "record ring".to_owned()),
                    what: problem.what,
                    repaired,
                    ..ScrubFinding::default()
                });
            });
        }
        Ok(true)
    }

    /// Returns the problems that a check of everything but content finds.
    async fn read_records(&self) -> Result<Vec<Problem>> {
        let options = CheckOptions { content: false, ..CheckOptions::default() };
        let report = check(&**self.0.zones.writer.device(), &options).await?;
        let records = report.checked.records + report.checked.sums;
        self.0.scrub.note(|scrub| scrub.records = records);
        Ok(report.problems)
    }
}
