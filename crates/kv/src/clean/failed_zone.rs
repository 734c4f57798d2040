//! A zone that failed: it is given up, and what did not reach the drive is written elsewhere.

use crate::extent::{Extent, FileId, Sums};
use crate::store::Store;
use furrow_log::record::crc32c;
use furrow_policy::StoreDefect;
use furrow_zone::{Error, ErrorKind, Result, ZoneId};
use std::rc::Rc;

impl Store {
    /// Stops writing to a zone after a failed write. If the drive itself failed, the store fails: a
    /// drive that failed for a while may have lost unflushed blocks.
    ///
    /// # Errors
    /// `error`, if the store failed.
    pub(crate) fn give_up_zone(&self, zone: ZoneId, error: &Error) -> Result<()> {
        let writer = &self.0.zones.writer;
        if error.is_gone() || !writer.device().answers() {
            return Err(self.die(error));
        }
        self.0.zones.abandon(zone);
        self.0.commits.note_move();
        let store = self.clone();
        self.0.rt.spawn_detached(async move {
            // Relocation may need the zone's permit, so the zone is finished at once. The last
            // group commit on the drive may then name content that the zone lacks; recovery
            // checks for that.
            let writer = &store.0.zones.writer;
            writer.drained(zone).await;
            // A zone that cannot be finished stays active, and its permit is lost.
            let _ = writer.close(zone).await;
            writer.forgive(zone);
            let _ = store.join_group_commit(None).await;
        });
        Ok(())
    }

    /// Handles a failed write: gives the zone up, and writes the lost part of the file elsewhere.
    pub(crate) async fn relocate(&self, id: FileId, lost: &Extent, error: &Error) -> Result<()> {
        let zone = self.zone_of(lost.at);
        self.give_up_zone(zone, error)?;
        if self.has(StoreDefect::SkippedRelocation) {
            return Ok(());
        }
        let find = || {
            let files = self.0.files.borrow();
            let file = files.get(&id)?;
            let overlaps = |e: &&Extent| {
                self.zone_of(e.at) == zone && e.first < lost.end() && lost.first < e.end()
            };
            file.extents.iter().find(overlaps).cloned()
        };
        while let Some(extent) = find() {
            let extent = self.split(id, extent, lost.first);
            let runs = self.runs_with_pages(id, &extent).await?;
            self.move_runs(id, &extent, runs).await.map_err(|why| match why.kind() {
                ErrorKind::NoSpace => error.clone().at(why.to_string()),
                _ => why,
            })?;
            // A group commit under way may have recorded the place of the failed write,
            // which holds nothing.
            self.0.commits.note_move();
            self.count(|counters| counters.relocated += 1);
        }
        Ok(())
    }

    /// Splits an extent at block `at`: the blocks before `at` are on the drive and stay there.
    /// Returns the extent of the other blocks, which are still in memory. Returns the whole extent
    /// if the other blocks are not in memory, or if `at` is not inside the extent.
    fn split(&self, id: FileId, whole: Extent, at: u32) -> Extent {
        let mut files = self.0.files.borrow_mut();
        let Some(file) = files.get_mut(&id).filter(|_| whole.first < at) else { return whole };
        let in_memory = (at..whole.end()).map(|block| file.flying.get(&block));
        let sums: Option<Vec<u32>> =
            in_memory.map(|page| page.map(|page| crc32c(page.bytes()))).collect();
        let (Some(sums), Some(index)) = (sums, file.extents.iter().position(|e| *e == whole))
        else {
            return whole;
        };
        let kept = at - whole.first;
        let rest = Extent {
            first: at,
            blocks: whole.blocks - kept,
            at: whole.at.plus(kept),
            sums: Sums::Here(Rc::new(sums)),
        };
        let first = &mut file.extents[index];
        first.blocks = kept;
        if let Sums::Here(sums) = &mut first.sums {
            Rc::make_mut(sums).truncate(kept as usize);
        }
        file.extents.insert(index + 1, rest.clone());
        file.changed_from(whole.first);
        self.weigh(file);
        self.0.commits.include(id);
        rest
    }
}
