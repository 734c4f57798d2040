//! The audit of the zone allocator.

use super::ZoneAllocator;
use crate::audit::Residents;
use crate::extent::FileId;
use furrow_log::audit::{broken, equal, holds};
use furrow_log::pool::SuperzoneState;
use furrow_zone::{Result, ZoneId};
use std::collections::{BTreeMap, BTreeSet};

impl ZoneAllocator {
    /// Compares the accounts of zones with the counted valid blocks, with the files that are logs,
    /// and with the pool, the permits and the writer.
    ///
    /// # Errors
    /// `Internal`: names the account, the expected value and the value found.
    pub(crate) fn audit(
        &self,
        counted: &Residents,
        logs: BTreeSet<FileId>,
        is_file: impl Fn(FileId) -> bool,
    ) -> Result<()> {
        self.audit_residents(counted)?;
        self.audit_logs(counted, logs)?;
        self.audit_open(is_file)?;
        let (least, free) = (self.least_free.get(), self.pool.free_count());
        holds("fewest free zones", least <= free, || format!("{least}, but {free} are free"))?;
        for zone in self.youngest.borrow().keys() {
            holds("youngest blob files", !self.is_free(*zone), || format!("zone {zone} is free"))?;
        }
        let next = self.next_ticket.get();
        let queues = self.space_queues.borrow();
        let mut tickets: Vec<u64> = queues.iter().flatten().copied().collect();
        let count = tickets.len();
        tickets.sort_unstable();
        tickets.dedup();
        equal("tickets of those who wait for space", count, tickets.len())?;
        holds("tickets of those who wait for space", tickets.iter().all(|t| *t < next), || {
            format!("expected below {next}, found {:?}", tickets.last())
        })
    }

    fn is_free(&self, zone: ZoneId) -> bool {
        self.pool.owner(zone).is_some_and(|id| self.pool.state(id) == SuperzoneState::Free)
    }

    fn audit_residents(&self, counted: &Residents) -> Result<()> {
        let residents = self.residents.borrow();
        for zone in counted.keys().chain(residents.keys()) {
            let (expected, found) = (counted.get(zone), residents.get(zone));
            if expected != found {
                let what = format!("expected {expected:?}, found {found:?}");
                return Err(broken(format_args!("valid blocks by file in zone {zone}"), what));
            }
            holds("free zones", !self.is_free(*zone), || {
                format!("expected nothing valid in zone {zone}, found {expected:?}")
            })?;
        }
        let sum =
            counted.values().flat_map(BTreeMap::values).map(|blocks| u64::from(*blocks)).sum();
        equal("valid blocks", sum, self.valid.get())?;
        for zone in self.releasing.borrow().iter() {
            let valid = residents.get(zone).map_or(0, BTreeMap::len);
            let open = self.open.borrow().iter().any(|open| open.zone == *zone);
            holds("zones being reset", open || valid == 0, || {
                format!("expected nothing valid in zone {zone}, found blocks of {valid} files")
            })?;
        }
        Ok(())
    }

    fn audit_logs(&self, counted: &Residents, expected: BTreeSet<FileId>) -> Result<()> {
        let logs = self.logs.borrow();
        equal("files that are logs", expected, logs.keys().copied().collect())?;
        for (file, blocks) in logs.iter() {
            let of_file = counted.values().filter_map(|files| files.get(file));
            let sum = of_file.map(|blocks| u64::from(*blocks)).sum();
            equal(format_args!("valid blocks of log {}", file.0), sum, *blocks)?;
        }
        equal("valid blocks of logs", logs.values().sum(), self.log_blocks.get())
    }

    fn audit_open(&self, is_file: impl Fn(FileId) -> bool) -> Result<()> {
        let open = self.open.borrow();
        let mut zones: Vec<ZoneId> = open.iter().map(|open| open.zone).collect();
        zones.sort_unstable();
        let all = (0..self.pool.total()).map(furrow_log::pool::SuperzoneId);
        let active = all.filter(|id| self.pool.state(*id) == SuperzoneState::Active);
        let mut active: Vec<ZoneId> = active.map(|id| self.pool.zone(id, 0)).collect();
        active.sort_unstable();
        equal("open zones", active, zones)?;
        for each in open.iter() {
            let zone = each.zone;
            equal(
                format_args!("superzone of open zone {zone}"),
                self.pool.owner(zone),
                Some(each.id),
            )?;
            let held = self.writer.permits_of(zone);
            let expected = u32::from(self.writer.space_left(zone) > 0);
            holds("permits of open zones", held >= expected, || {
                format!("expected {expected} for zone {zone}, found {held}")
            })?;
            let known = each.holder.is_none_or(&is_file);
            holds("holders of open zones", known, || {
                format!("zone {zone} is held by {:?}, which is gone", each.holder)
            })?;
        }
        let (held, in_zones) =
            (self.budget.total() - self.budget.available(), self.writer.permits());
        holds("permits held", in_zones <= held, || format!("{held}, but zones hold {in_zones}"))
    }
}

/// Corruptions of accounts, for tests of the audit.
#[cfg(test)]
impl ZoneAllocator {
    pub(crate) fn corrupt_residents(&self, change: impl FnOnce(&mut Residents)) {
        change(&mut self.residents.borrow_mut());
    }

    pub(crate) fn corrupt_log_blocks(&self, blocks: u64) {
        self.log_blocks.set(blocks);
    }

    /// Removes the first open zone that `fits` accepts.
    pub(crate) fn corrupt_open(&self, fits: impl Fn(ZoneId) -> bool) {
        let mut open = self.open.borrow_mut();
        let at = open.iter().position(|open| fits(open.zone)).expect("a zone is open");
        open.remove(at);
    }
}
