//! Audits of the tables: nodes and their ids, table pages and the zones they are in.

use super::alloc::{bits, is_set};
use crate::core::Core;
use crate::format::{HOLE, NatEntry};
use crate::tables::table_zones::zone_of;
use crate::tree::cache::{Entry, Key};
use furrow_log::audit::{broken, equal, expect};
use furrow_log::pool::{SuperzoneId, SuperzoneState};
use furrow_zone::Result;

impl Core {
    /// Checks the NAT against node ids, the SIT and the cache.
    pub(super) fn audit_nodes(&self) -> Result<()> {
        let (mut live, mut inodes) = (0, 0);
        for (nid, entry) in self.tables.nat().iter() {
            let ino = entry.ino.get();
            if ino == 0 {
                continue;
            }
            live += 1;
            inodes += u64::from(ino == nid);
            self.audit_node(nid, entry)?;
            let inode = self.tables.nat().get(ino).ino.get();
            equal(format_args!("NatEntry::ino of inode {ino}, node {nid}'s"), ino, inode)?;
        }
        for nid in self.tables.ids().freed() {
            let account = format_args!("NatEntry::ino of node {nid}, which waits to be free");
            equal(account, 0, self.tables.nat().get(nid).ino.get())?;
        }
        equal(
            "NodeIds::count",
            live + self.tables.ids().waiting_count(),
            self.tables.ids().count(),
        )?;
        equal("inodes", inodes, self.tree.inodes())?;
        for nid in self.tables.changed_nodes().since_snapshot() {
            let account = format_args!("Table::dirty of NAT entry {nid}");
            expect(
                account,
                self.tables.nat().is_dirty(nid),
                "dirty, as the node changed since the snapshot",
            )?;
        }
        Ok(())
    }

    /// Checks a node in use: its id must be taken, and its block must be valid, or the node must
    /// exist only in the cache.
    fn audit_node(&self, nid: u32, entry: &NatEntry) -> Result<()> {
        expect(
            format_args!("NodeIds::used of node {nid}"),
            self.tables.ids().is_used(nid),
            "in use",
        )?;
        let addr = entry.addr.get();
        if addr == HOLE {
            let dirty = self.cache.audited(&Key::Node(nid)).is_some_and(Entry::is_dirty);
            let account = format_args!("NatEntry::addr of node {nid}");
            return expect(account, dirty, "an address, or a dirty page");
        }
        let account = format_args!("NatEntry::addr of node {nid}");
        let Some((_, segment, block)) = self.alloc.segment_of(addr) else {
            let why = format_args!("expected a block of the main area, found {addr}");
            return Err(broken(account, why));
        };
        let valid = is_set(&self.alloc.sit().get(segment), block);
        let account = format_args!("SitEntry::map of the block at {addr}, which node {nid} names");
        expect(account, valid, "a set bit")
    }

    /// Checks the zones of the tables against the table pages in them and the writer's positions.
    pub(super) fn audit_table_zones(&self) -> Result<()> {
        for (table, pages) in self.tables.pages().iter().enumerate() {
            for (page, place) in pages.iter().enumerate() {
                let Some(zone) = zone_of(place, &self.env.geometry) else { continue };
                let account = format_args!("TableZones::zones of zone {zone}");
                if !self.tables.zones().holds_pages(zone) {
                    let why =
                        format_args!("expected written, as page {page} of table {table} is in it");
                    return Err(broken(account, why));
                }
            }
        }
        for zone in self.tables.zones().empty_zones() {
            let written = self.env.writer.is_open(zone) && self.env.writer.position(zone) > 0;
            expect(
                format_args!("TableZones::zones of zone {zone}"),
                !written,
                "written, by its position",
            )?;
        }
        for superzone in self.tables.zones().superzones() {
            let state = self.alloc.zones().state(SuperzoneId(superzone));
            let account = format_args!("state of superzone {superzone}, which tables have");
            expect(account, state == SuperzoneState::Tables, "tables")?;
        }
        for (index, log) in self.tables.logs().iter().enumerate() {
            if let Some(zone) = log.open {
                let account = format_args!("Log::open of log {index}, zone {zone}");
                expect(
                    account,
                    self.tables.zones().holds_pages(zone),
                    "a zone of tables that is not empty",
                )?;
            }
            log.delta.audit(&log.extents)?;
        }
        Ok(())
    }

    /// Checks the accounts that changed since the last checkpoint, that is the dirty entries of NAT
    /// and SIT. Also checks the small accounts.
    ///
    /// # Errors
    /// `Internal`, as [`Core::audit`].
    pub(crate) fn audit_changed(&self) -> Result<()> {
        if self.health.failed().is_some() || self.env.options.read_only {
            return self.audit_failure();
        }
        self.durability.audit()?;
        self.tables.changed_nodes().audit()?;
        for (nid, entry) in self.tables.nat().dirty() {
            if entry.ino.get() != 0 {
                self.audit_node(nid, &entry)?;
            }
        }
        let mut last = None;
        for (segment, entry) in self.alloc.sit().dirty() {
            let account = format_args!("SitEntry::valid of segment {segment}");
            equal(account, bits(&entry), u32::from(entry.valid.get()))?;
            let superzone = segment / self.env.layout.segments;
            if last.replace(superzone) != Some(superzone) {
                let first = superzone * self.env.layout.segments;
                let segments = first..first + self.env.layout.segments;
                let sum = segments.map(|s| u32::from(self.alloc.sit().get(s).valid.get())).sum();
                let said = self.alloc.valid_in(superzone);
                equal(format_args!("superzone_valid of superzone {superzone}"), sum, said)?;
            }
        }
        let total = self.alloc.valid_by_superzone().map(|(_, valid)| u64::from(valid)).sum();
        equal("space.valid", total, self.alloc.valid())?;
        self.audit_heads()?;
        self.audit_open_superzones(false)?;
        self.audit_promised_space()?;
        self.audit_logs()
    }
}
