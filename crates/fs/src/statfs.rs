//! Statistics that the file system reports: space, zones, memory.

use crate::blocked::NotApplied;
use crate::core::Core;
use crate::format::{BLOCK, LEAF_POINTERS, NAME_MAX};
use crate::memory_use::{Memory, PAGE, set_bytes};
use crate::types::{Ino, Kind, StatFs, ZoneInfo, ZoneUse};
use furrow_log::pool::{SuperzoneId, SuperzoneState};
use furrow_zone::{Error, ErrorKind, Result, ZoneId, ZoneReport, ZoneState};

impl Core {
    /// See [`crate::Fs::statfs`].
    pub(crate) fn statfs(&self) -> StatFs {
        let blocks = self.alloc.main_blocks();
        let logs = u64::from(self.env.layout.main_start - self.env.layout.ring_start);
        let valid = self.alloc.valid();
        let kept = self.alloc.kept_from_users();
        let left = self.alloc.capacity().saturating_sub(self.in_use());
        // Leave blocks for the nodes of large files and of a new file, because nodes count as
        // users' blocks too.
        let available = left.saturating_sub(left.div_ceil(LEAF_POINTERS as u64 / 2) + 4);
        // A file takes a block for its inode. One block in 64 is left for tables and directories.
        let unused = self.tables.ids().unused_count();
        let inodes_free = u64::from(unused).min(available - available.div_ceil(64));
        StatFs {
            block_size: BLOCK as u32,
            blocks,
            blocks_free: blocks.saturating_sub(self.in_use()),
            blocks_available: available,
            blocks_now: self.spare().saturating_sub(kept).min(available),
            blocks_stale: blocks.saturating_sub(self.alloc.space_left() + valid),
            blocks_logs: logs * u64::from(self.env.layout.capacity) + self.table_superzone_blocks(),
            blocks_logs_used: self.logs_used(),
            blocks_summaries: u64::from(self.env.layout.segment_count()),
            // If space runs out before ids do, report fewer inodes in all, not more inodes in use.
            inodes: self.tree.inodes() + inodes_free,
            inodes_free,
            name_max: NAME_MAX as u32,
        }
    }

    /// Blocks in use by superblock and checkpoint, delta log extents, table pages and the sync log.
    fn logs_used(&self) -> u64 {
        let extents = self.tables.logs().iter().flat_map(|log| &log.extents);
        let deltas: u64 = extents.map(|extent| u64::from(extent.blocks)).sum();
        let checkpoint = 1 + u64::from(self.durability.checkpoint_blocks());
        checkpoint + deltas + self.table_blocks_used() + u64::from(self.durability.sync_blocks())
    }

    /// See [`crate::Fs::parent`].
    pub(crate) fn parent(&mut self, ino: Ino) -> Result<Ino, NotApplied> {
        let head = &self.inode(ino)?.head;
        if Kind::from_code(head.kind) != Some(Kind::Directory) {
            let message = format!("inode {ino} is not a directory");
            return Err(NotApplied::Failed(Error::new(ErrorKind::NotDirectory, message)));
        }
        Ok(Ino(head.parent.get()))
    }

    /// See [`crate::Fs::zone_map`]; `reports` are those of all zones.
    pub(crate) fn zone_map(&self, reports: &[ZoneReport]) -> Vec<ZoneInfo> {
        let mut map = Vec::with_capacity(reports.len());
        for report in reports {
            let written = crate::durability::recover::written(report, &self.env.geometry);
            let broken = matches!(report.state, ZoneState::ReadOnly | ZoneState::Offline);
            let (usage, valid) = self.zone_use(report.zone);
            map.push(ZoneInfo {
                usage: if broken { ZoneUse::Retired } else { usage },
                open: report.state.is_active(),
                written,
                valid,
            });
        }
        map
    }

    fn zone_use(&self, zone: ZoneId) -> (ZoneUse, u32) {
        let layout = &self.env.layout;
        let usage = match zone.0 {
            z if z < layout.ring_start => ZoneUse::Unused,
            z if z < layout.delta_start => ZoneUse::Checkpoint,
            z if z < layout.table_start => ZoneUse::DeltaLog,
            z if z < layout.sync_start => ZoneUse::Tables,
            z if z < layout.main_start => ZoneUse::SyncLog,
            _ => return self.main_use(zone),
        };
        (usage, 0)
    }

    fn main_use(&self, zone: ZoneId) -> (ZoneUse, u32) {
        let Some(superzone) = self.env.layout.superzone_of(zone) else {
            return (ZoneUse::Unused, 0);
        };
        let id = SuperzoneId(superzone);
        let Some(column) = self.alloc.zones().column(id, zone) else {
            return (ZoneUse::Retired, 0);
        };
        match self.alloc.zones().state(id) {
            SuperzoneState::Free => return (ZoneUse::Free, 0),
            SuperzoneState::Tables => return (ZoneUse::Tables, 0),
            _ => {}
        }
        let stripe = self.alloc.stripe(superzone);
        let mut valid = 0;
        let mut stream = None;
        for segment in 0..stripe.segments() {
            let entry = self.alloc.sit().get(superzone * self.env.layout.segments + segment);
            if entry.valid.get() == 0 {
                continue;
            }
            stream = Some(entry.stream);
            for (block, v) in stripe.segment_range(segment).enumerate() {
                let bit = entry.map[block / 8] >> (block % 8) & 1 == 1;
                valid += u32::from(bit && stripe.place(v).0 == column);
            }
        }
        let open = self.alloc.head_of(superzone);
        let stream = open.map(|head| self.alloc.stream_of_head(head) as u8).or(stream).unwrap_or(0);
        let half = self.env.layout.streams as u8 / 2;
        let usage =
            if stream < half { ZoneUse::Data(stream) } else { ZoneUse::Node(stream - half) };
        (usage, valid)
    }
}

impl Core {
    /// See [`crate::Fs::memory`].
    pub(crate) fn memory(&self) -> Memory {
        let pages = self.cache.pages();
        let on_the_way = self.env.writer.pages_in_flight() as u64;
        let dirty = self.tables.nat().dirty_count() + self.alloc.sit().dirty_count();
        Memory {
            data: pages.data as u64 * PAGE,
            nodes: pages.nodes as u64 * PAGE,
            dirty: self.cache.dirty_pages() as u64 * PAGE,
            in_flight: self.durability.in_flight() as u64 * PAGE,
            cache_index: self.cache.index_bytes(),
            writes: on_the_way.saturating_sub(pages.shared as u64) * PAGE,
            tables: self.tables.nat().bytes()
                + self.alloc.sit().bytes()
                + self.tables.ids().bytes(),
            deltas: set_bytes(dirty, 4)
                + self.durability.snapshot_bytes()
                + self
                    .tables
                    .logs()
                    .iter()
                    .map(|log| size_of_val(&log.extents[..]) as u64)
                    .sum::<u64>(),
            directories: self.tree.directories().bytes(),
            changes: self.durability.names_bytes()
                + self.tables.changed_nodes().bytes()
                + pages.logged as u64 * PAGE,
        }
    }

    /// Updates the peak of memory use.
    pub(crate) fn note_memory(&mut self) {
        self.stats.note_memory(self.memory());
    }
}
