//! Scrub: reads everything on the drive that is in use and verifies it, in the background while the
//! file system is in use.
//!
//! The scrub first reads what a mount needs, with the reader that fsck uses: superblocks, ring,
//! checkpoint, tables, delta logs, sync records. Checkpoints may change these structures during the
//! reading. So if something seems damaged, it is read again while no checkpoint can begin, and
//! counts as damaged only if two readings agree. The scrub then reads all nodes in the order of
//! their ids, each with the blocks it points to, in small batches. As in cleaning, the owner of
//! each block is confirmed, and the block is compared with the checksum in its pointer. Between two
//! batches the scrub rests while requests are served.
//!
//! A repair rewrites what memory still holds. A damaged block that the cache holds with the right
//! checksum is moved. For damaged records of the engine itself, all tables and two checkpoints are
//! written, one in each zone of the ring. Content that only the drive had is reported, and never
//! gets a new checksum.
//!
//! Not read: summaries of segments, because cleaning finds the owners of blocks without them.

use crate::clean::{Confirmed, Item, Owner};
use crate::core::{Core, Failed, Inner};
use crate::format::Pointer;
use crate::fsck::{FsckReport, check_records};
use crate::tree::cache::Key;
use crate::tree::node;
use crate::types::Counters;
use crate::{blocked::Fetch, blocked::error_of};
use furrow_log::address::BlockAddr;
use furrow_log::record::crc32c;
use furrow_log::scrub::{ScrubFinding, ScrubOrder, ScrubReport};
use furrow_log::survey::{has_vanished, patiently};
use furrow_rt::{Nanos, Page};
use furrow_zone::{Error, Result};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Largest number of blocks read at a time.
const BATCH: usize = 128;
/// Largest number of node ids examined in one stretch.
const IDS: u32 = 2_048;
/// How often records that seem damaged are read again until two readings agree.
const READINGS: u32 = 4;

impl Core {
    /// The used nodes from id `from` on, at most a batch of them, and the id to continue from;
    /// `None` at the end.
    fn nodes_from(&self, from: u32) -> Option<(Vec<Item>, u32)> {
        let nat = self.tables.nat();
        let (mut items, mut next) = (Vec::new(), from);
        while next < nat.len() && items.len() < BATCH && next - from < IDS {
            let addr = nat.get(next).addr.get();
            if nat.get(next).ino.get() != 0 && self.alloc.is_valid(addr) {
                items.push(Item::node(addr, next));
            }
            next += 1;
        }
        (next > from).then_some((items, next))
    }

    /// The blocks that a node points to. `page` is the node as just read: it is put into the cache
    /// first, if the cache does not have the node.
    fn blocks_of(&mut self, nid: u32, page: Option<Page>) -> Vec<Item> {
        let entry = self.tables.nat().get(nid);
        if let Some(page) = page {
            let fetch = Fetch {
                key: Key::Node(nid),
                pointer: Pointer { addr: entry.addr, crc: entry.crc },
            };
            // If the node has moved meanwhile, the page is not inserted.
            let _ = self.insert_fetched(&fetch, page);
        }
        let Some(cached) = self.cache.peek(&Key::Node(nid)) else { return Vec::new() };
        let pointers = node::pointers(cached.page());
        let items = pointers.iter().map(|(slot, p)| Item::pointed_to(p.addr.get(), nid, *slot));
        items.collect()
    }

    /// Whether an unexpected content of a block proves damage: the owner still names this address,
    /// and no write to the block is in flight or has failed.
    fn is_damage(&mut self, item: &Item, owner: &Owner) -> bool {
        let writes = self.cache.peek(&owner.key()).is_some_and(|entry| entry.is_in_flight());
        let zone = BlockAddr(item.addr).locate(&self.env.geometry).map(|(zone, _)| zone);
        let failed = self.env.writer.failures().into_iter().any(|f| Some(f.zone) == zone);
        !writes && !failed && self.owner_of(item).is_ok_and(|now| now == Some(*owner))
    }

    /// Whether the cache holds the content of a damaged block.
    fn has_copy(&self, owner: &Owner) -> bool {
        let copy = self.cache.peek(&owner.key());
        copy.is_some_and(|copy| copy.is_dirty() || crc32c(copy.page().bytes()) == owner.crc())
    }

    fn finding(&self, item: &Item, owner: &Owner, what: String, repaired: bool) -> ScrubFinding {
        let place = match BlockAddr(item.addr).locate(&self.env.geometry) {
            Some((zone, offset)) => format!("zone {zone} offset {offset}"),
            None => format!("block {}", item.addr),
        };
        let (structure, inode, block) = match owner.key() {
            Key::Data(ino, block) => ("data", ino, Some(block)),
            Key::Node(nid) => ("node", self.tables.nat().get(nid).ino.get(), None),
        };
        let inode = Some(inode);
        let path = None;
        ScrubFinding { structure, inode, path, block, blocks: 1, place, what, repaired }
    }

    /// A number that changes with every read, write and fsync of users.
    fn requests(&self) -> u64 {
        let Counters { user_bytes, read_bytes, fsyncs, .. } = self.stats.counters;
        user_bytes.wrapping_add(read_bytes).wrapping_add(fsyncs)
    }
}

impl Inner {
    /// See [`crate::Fs::scrub`].
    pub(crate) fn order_scrub(self: &Rc<Self>, order: ScrubOrder) -> Result<()> {
        self.check_ended()?;
        let total = {
            let core = self.core.borrow();
            if order == (ScrubOrder::Start { repair: true }) {
                core.writable().map_err(error_of)?;
            }
            core.alloc.valid_by_superzone().map(|(_, valid)| u64::from(valid)).sum()
        };
        if let Some(repair) = self.scrub.order(&self.rt, order, total)? {
            let inner = self.clone();
            self.rt.spawn_detached(async move {
                let ended = inner.scrub_all(repair).await;
                inner.scrub.end(&inner.rt, ended);
            });
        }
        Ok(())
    }

    /// See [`crate::Fs::scrub_report`].
    pub(crate) fn scrub_report(&self) -> Option<ScrubReport> {
        self.scrub.report(&self.rt)
    }

    async fn rest(&self, (began, requests): (Nanos, u64)) {
        let busy = self.core.borrow().requests() != requests;
        self.scrub.rest(&self.rt, began, busy).await;
    }

    /// The present time, and the number of requests so far.
    fn begin_batch(&self) -> (Nanos, u64) {
        (self.rt.now(), self.core.borrow().requests())
    }

    /// Runs the whole scrub; false if it ended early.
    async fn scrub_all(self: &Rc<Self>, repair: bool) -> Result<bool> {
        if !self.scrub.may_continue().await {
            return Ok(false);
        }
        self.scrub_records(repair).await?;
        let mut from = 1;
        loop {
            if !self.scrub.may_continue().await {
                return Ok(false);
            }
            let Some((nodes, next)) = self.core.borrow().nodes_from(from) else { return Ok(true) };
            from = next;
            let batch = self.begin_batch();
            let mut pages = self.scrub_batch(&nodes, repair).await?;
            let mut blocks = Vec::new();
            for item in &nodes {
                let page = pages.remove(&item.addr);
                blocks.extend(self.core.borrow_mut().blocks_of(item.holder(), page));
            }
            self.rest(batch).await;
            for blocks in blocks.chunks(BATCH) {
                if !self.scrub.may_continue().await {
                    return Ok(false);
                }
                let batch = self.begin_batch();
                self.scrub_batch(blocks, repair).await?;
                self.rest(batch).await;
            }
        }
    }

    /// Reads nodes or blocks of files, and compares them with their checksums. Returns the content
    /// of intact blocks, by address.
    async fn scrub_batch(
        self: &Rc<Self>,
        items: &[Item],
        repair: bool,
    ) -> Result<BTreeMap<u32, Page>> {
        if items.is_empty() {
            return Ok(BTreeMap::new());
        }
        let device = self.core.borrow().env.device.clone();
        let confirm = async || self.run_quietly(|core| core.confirm(items)).await;
        let confirmed = match patiently(&self.rt, &*device, confirm).await {
            // A node above these blocks is damaged, which is a separate finding.
            Err(Failed::Load(error)) if !has_vanished(&*device, &error) => {
                return Ok(BTreeMap::new());
            }
            confirmed => confirmed.map_err(Failed::into_error)?,
        };
        let Confirmed { owned, pins, .. } = confirmed;
        // Blocks that are still being written cannot be read yet.
        self.drain().await?;
        let (pages, mut damaged) = self.read_patiently(&owned).await?;
        damaged.retain(|(item, owner, _)| self.core.borrow_mut().is_damage(item, owner));
        drop(pins);
        self.scrub.note(|report| report.done += (pages.len() + damaged.len()) as u64);
        damaged.sort_by_key(|(_, owner, _)| owner.key());
        if repair {
            self.move_copies(&damaged).await?;
        }
        for (item, owner, error) in damaged {
            let now = self.run_quietly(|core| core.owner_of(&item)).await;
            let repaired = repair && now.is_ok_and(|now| now != Some(owner));
            let finding = self.core.borrow().finding(&item, &owner, error.to_string(), repaired);
            self.scrub.note(|report| report.add(finding));
        }
        Ok(pages)
    }

    /// Writes those damaged blocks whose content the cache holds to new places, and makes the
    /// blocks durable.
    async fn move_copies(self: &Rc<Self>, damaged: &[(Item, Owner, Error)]) -> Result<()> {
        let items: Vec<Item> = {
            let core = self.core.borrow();
            let copied = damaged.iter().filter(|(_, owner, _)| core.has_copy(owner));
            copied.map(|(item, ..)| *item).collect()
        };
        if items.is_empty() {
            return Ok(());
        }
        let _one = self.clean_lock.acquire(1).await;
        let moved = self.run_quietly(|core| core.move_items(&items, &BTreeMap::new())).await;
        self.after_dispatch();
        moved.map_err(Failed::into_error)?;
        self.checkpoint(false).await
    }

    /// Reads and checks the structures that a mount needs.
    async fn scrub_records(self: &Rc<Self>, repair: bool) -> Result<()> {
        let mut found = self.read_records().await?;
        if !found.is_ok() {
            let _one = self.checkpoint_lock.acquire(1).await;
            for _ in 0..READINGS {
                self.drain().await?;
                let before = std::mem::replace(&mut found, self.read_records().await?);
                if before.findings == found.findings {
                    break;
                }
                found.findings.retain(|finding| before.findings.contains(finding));
            }
        }
        let statistics = found.statistics;
        self.scrub
            .note(|report| report.records = statistics.table_blocks + statistics.sync_records);
        if found.is_ok() {
            return Ok(());
        }
        let mut left = found.findings.clone();
        if repair {
            self.write_records().await?;
            let now = self.read_records().await?;
            left.retain(|finding| now.findings.contains(finding));
        }
        for finding in found.findings {
            let repaired = !left.contains(&finding);
            let what = format!("expected {}, found {}", finding.expected, finding.found);
            self.scrub.note(|report| {
                report.add(ScrubFinding {
                    structure: finding.structure,
                    blocks: 1,
                    place: finding.place,
                    what,
                    repaired,
                    ..ScrubFinding::default()
                });
            });
        }
        self.scrub.note(|report| {
            report.damaged += found.more_findings;
            report.more_findings += found.more_findings;
        });
        Ok(())
    }

    async fn read_records(&self) -> Result<FsckReport> {
        let device = self.core.borrow().env.device.clone();
        check_records(device).await
    }

    /// Writes all tables, and a checkpoint to each zone of the ring.
    async fn write_records(self: &Rc<Self>) -> Result<()> {
        self.core.borrow_mut().tables.write_all();
        for leave in [false, true, true] {
            {
                let core = &mut *self.core.borrow_mut();
                core.durability.require_checkpoint();
                core.durability.leave_ring(leave);
            }
            self.checkpoint(false).await?;
        }
        Ok(())
    }
}
