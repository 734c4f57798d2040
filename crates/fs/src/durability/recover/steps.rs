//! The steps of a mount: a table, executed in order.
//!
//! [`mount`] runs [`STEPS`] one after the other and notes each of them in the trace. [`Mount`]
//! keeps the results of a step for later steps. After each step, the step's audit compares accounts
//! of the engine in memory. Audits do not check the content of the medium, because a damaged medium
//! may contradict itself: the code that reads it checks it.

use super::read::{Found, find, tables};
use super::replay::replay;
use super::sync_scan::{SyncScan, scan_sync_log};
use super::{
    assemble, check_heads, delta_layouts, name_replay_end, reap_orphans, reopen_superzones,
    reset_stale_zones,
};
use crate::core::{Core, Inner};
use crate::format::{NatEntry, SitEntry, SummaryEntry};
use crate::tables::table::Table;
use crate::types::MountOptions;
use furrow_log::DurableSnapshot;
use furrow_log::audit::{at_most, equal, expect};
use furrow_log::delta::DeltaLayout;
use furrow_policy::FsDefect;
use furrow_rt::{Pool, Rt};
use furrow_zone::{Error, ErrorKind, Result, ZonedDevice};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// A step that is running.
type Running<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// A step of a mount.
pub(crate) struct Step {
    /// The name of the step, which the design page uses too.
    pub(crate) name: &'static str,
    /// True if a read-only mount skips the step.
    writes: bool,
    run: for<'a> fn(&'a mut Mount) -> Running<'a>,
    audit: fn(&Mount) -> Result<()>,
}

/// The steps of a mount, in order.
pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "Newest whole checkpoint",
        writes: false,
        run: |mount| Box::pin(mount.read_checkpoint()),
        audit: |_| Ok(()),
    },
    Step {
        name: "Sync records that count",
        writes: false,
        run: |mount| Box::pin(mount.scan()),
        audit: Mount::audit_scan,
    },
    Step {
        name: "Tables by extent",
        writes: false,
        run: |mount| Box::pin(mount.read_tables()),
        audit: Mount::audit_tables,
    },
    Step {
        name: "State in memory",
        writes: false,
        run: |mount| Box::pin(mount.assemble()),
        audit: |mount| mount.audit(Core::audit_own),
    },
    Step {
        name: "Checkpoint that names the replay end",
        writes: true,
        run: |mount| Box::pin(mount.name_replay_end()),
        audit: Mount::audit_replay_end,
    },
    Step {
        name: "Zones nothing refers to are reset",
        writes: true,
        run: |mount| Box::pin(mount.reset_stale_zones()),
        audit: |mount| mount.audit(Core::audit_logs),
    },
    Step {
        name: "Sync records replayed",
        writes: false,
        run: |mount| Box::pin(mount.replay()),
        audit: Mount::audit_replay,
    },
    Step {
        name: "Superzones reopened",
        writes: true,
        run: |mount| Box::pin(mount.reopen_superzones()),
        audit: |mount| mount.audit(Core::audit_heads),
    },
    Step {
        name: "Orphans freed",
        writes: true,
        run: |mount| Box::pin(mount.free_orphans()),
        audit: |mount| mount.audit(Core::audit_own),
    },
    Step {
        name: "Checkpoint of what was recovered",
        writes: true,
        run: |mount| Box::pin(mount.checkpoint()),
        audit: |mount| mount.audit(Core::audit_logs),
    },
    Step {
        name: "Background work",
        writes: true,
        run: |mount| Box::pin(mount.start_background_work()),
        audit: |_| Ok(()),
    },
];

/// The tables as read from the drive, and the layouts of their delta logs.
type Tables = ((Table<NatEntry>, Table<SitEntry>), Vec<DeltaLayout>);

/// A mount in progress: the results of its steps so far.
pub(crate) struct Mount {
    rt: Rt,
    device: Rc<dyn ZonedDevice>,
    options: MountOptions,
    pages: Pool,
    found: Option<Found>,
    scan: Option<SyncScan>,
    tables: Option<Tables>,
    inner: Option<Rc<Inner>>,
    /// The checkpoint that names the replay end, once it is durable.
    replay_end: Option<DurableSnapshot>,
    /// Owners of the blocks that the replay added.
    owners: BTreeMap<u32, SummaryEntry>,
}

/// Mounts the file system on `device`.
pub(crate) async fn mount(
    rt: &Rt,
    device: Rc<dyn ZonedDevice>,
    options: MountOptions,
) -> Result<Rc<Inner>> {
    let mut mount = Mount {
        rt: rt.clone(),
        device,
        pages: Pool::new(options.cache_pages.min(65_536)),
        options,
        found: None,
        scan: None,
        tables: None,
        inner: None,
        replay_end: None,
        owners: BTreeMap::new(),
    };
    for (number, step) in (0..).zip(STEPS) {
        if step.writes && mount.options.read_only {
            continue;
        }
        (step.run)(&mut mount).await?;
        (step.audit)(&mount).map_err(|error| error.at(format!("mount: {}", step.name)))?;
        rt.trace(&[0x6d_6f75_6e74, number]);
    }
    mount.inner.ok_or_else(|| too_early("the state in memory"))
}

/// The error of a step that lacks an earlier result, which means that the table is in the
/// wrong order.
fn too_early(what: &str) -> Error {
    Error::new(ErrorKind::Internal, format!("mount: a step needs {what} too early"))
}

impl Mount {
    fn found(&self) -> Result<&Found> {
        self.found.as_ref().ok_or_else(|| too_early("the checkpoint"))
    }

    fn sync_scan(&self) -> Result<&SyncScan> {
        self.scan.as_ref().ok_or_else(|| too_early("the sync records"))
    }

    fn inner(&self) -> Result<Rc<Inner>> {
        self.inner.clone().ok_or_else(|| too_early("the state in memory"))
    }

    fn audit(&self, audit: fn(&Core) -> Result<()>) -> Result<()> {
        let inner = self.inner()?;
        let core = inner.core.borrow();
        // If a write fails during a step, the engine fails. The pages of that write stay in the
        // cache, as the only copy, so the accounts no longer agree.
        if core.health.failed().is_some() { Ok(()) } else { audit(&core) }
    }

    async fn read_checkpoint(&mut self) -> Result<()> {
        let found = find(&*self.device, &self.pages).await?;
        let unknown = found.layout.ro_compat & !crate::format::RO_COMPAT_KNOWN;
        if unknown != 0 && !self.options.read_only {
            let message = format!(
                "{}: the file system has features {unknown:#x} that this version can only read: \
                 mount it read-only",
                self.device.name()
            );
            return Err(Error::new(ErrorKind::WrongFormat, message));
        }
        for zone in &found.bad_copies {
            let used = if found.alone { "one in a checkpoint" } else { "the other one" };
            (self.options.notice)(&format!(
                "the copy of the superblock in zone {zone} is damaged: {used} is used, until the \
                 ring enters that zone again"
            ));
        }
        check_heads(&*self.device, &found)?;
        self.found = Some(found);
        Ok(())
    }

    async fn scan(&mut self) -> Result<()> {
        let skip = self.options.variant.has(FsDefect::SkippedRecord);
        let scan = scan_sync_log(&*self.device, self.found()?, &self.pages, skip).await?;
        if let Some(error) = scan.refusal(&self.device.name()) {
            return Err(error);
        }
        self.scan = Some(scan);
        Ok(())
    }

    fn audit_scan(&self) -> Result<()> {
        let (found, scan) = (self.found()?, self.sync_scan()?);
        let first = found.image.body.sync_sequence.get();
        at_most("first sync record of the checkpoint", scan.replay_end, first)?;
        at_most("heads of the checkpoint", scan.chains.len(), found.image.heads.len())
    }

    async fn read_tables(&mut self) -> Result<()> {
        let found = self.found()?;
        let deltas = delta_layouts(self.device.geometry(), &found.layout, &self.options)?;
        let read = tables(&*self.device, found, &self.pages, &deltas).await?;
        self.tables = Some((read, deltas));
        Ok(())
    }

    fn audit_tables(&self) -> Result<()> {
        let Some(((nat, sit), _)) = &self.tables else { return Err(too_early("the tables")) };
        nat.audit("NAT")?;
        sit.audit("SIT")
    }

    async fn assemble(&mut self) -> Result<()> {
        let (tables, deltas) = self.tables.take().ok_or_else(|| too_early("the tables"))?;
        let (device, options) = (self.device.clone(), self.options.clone());
        let (found, scan) = (self.found()?, self.sync_scan()?);
        let pages = self.pages.clone();
        let inner = assemble(&self.rt, device, options, found, scan, tables, pages, deltas).await?;
        self.inner = Some(inner);
        Ok(())
    }

    async fn name_replay_end(&mut self) -> Result<()> {
        let (inner, found, scan) = (self.inner()?, self.found()?, self.sync_scan()?);
        self.replay_end = Some(name_replay_end(&inner, found, scan).await?);
        Ok(())
    }

    fn replay_end(&self) -> Result<&DurableSnapshot> {
        self.replay_end.as_ref().ok_or_else(|| too_early("the checkpoint of the replay end"))
    }

    fn audit_replay_end(&self) -> Result<()> {
        self.replay_end()?;
        let (id, found) = (self.inner()?.core.borrow().durability.checkpoint.id, self.found()?);
        equal("checkpoint.id", id, found.id.checkpoint + 1)
    }

    async fn reset_stale_zones(&mut self) -> Result<()> {
        let durable = self.replay_end()?;
        reset_stale_zones(&self.inner()?, self.found()?, self.sync_scan()?, durable).await
    }

    /// Must run before superzones are reopened: padding needs the owners that replay finds, and
    /// replay does not depend on padding.
    async fn replay(&mut self) -> Result<()> {
        let inner = self.inner()?;
        let scan = self.scan.as_mut().ok_or_else(|| too_early("the sync records"))?;
        let records = std::mem::take(&mut scan.records);
        replay(&inner, records, &mut self.owners).await?;
        if !self.options.read_only {
            inner.core.borrow_mut().limit_nodes();
        }
        Ok(())
    }

    fn audit_replay(&self) -> Result<()> {
        let inner = self.inner()?;
        let core = inner.core.borrow();
        expect("Health::replaying", !core.health.replaying(), "the end of the replay")?;
        let freed = core.tree.files().none_removed();
        expect("OpenFiles::removed", freed, "empty after the replay")?;
        core.audit_own()
    }

    async fn reopen_superzones(&mut self) -> Result<()> {
        let (inner, found, scan) = (self.inner()?, self.found()?, self.sync_scan()?);
        reopen_superzones(&inner, found, &scan.chains, &self.owners).await
    }

    async fn free_orphans(&mut self) -> Result<()> {
        reap_orphans(&self.inner()?).await
    }

    async fn checkpoint(&mut self) -> Result<()> {
        let inner = self.inner()?;
        inner.core.borrow_mut().durability.checkpoint.forced = true;
        inner.survive_failures();
        inner.checkpoint(false).await
    }

    async fn start_background_work(&mut self) -> Result<()> {
        let (inner, found) = (self.inner()?, self.found()?);
        {
            let core = &mut *inner.core.borrow_mut();
            core.health.begin_use();
            core.health.set_sound(cfg!(debug_assertions) && core.audit().is_ok());
        }
        inner.resume_merge();
        inner.start_commits();
        inner.core.borrow_mut().note_closed_zones(&found.reports);
        inner.start_cleaning();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::STEPS;

    /// The design page lists the steps in the order in which the code runs them.
    #[test]
    fn the_design_page_has_the_steps_in_their_order() {
        let page = include_str!("../../../../../docs/inside/design/file-system.md");
        let (_, section) = page.split_once("\n## Recovery\n").expect("a section on recovery");
        let section = section.split("\n## ").next().unwrap_or_default();
        let said = section.lines().filter_map(|line| {
            let (number, rest) = line.split_once(". **")?;
            number.parse::<u32>().ok()?;
            Some(rest.split_once(".**")?.0)
        });
        let steps: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        assert_eq!(said.collect::<Vec<_>>(), steps);
    }
}
