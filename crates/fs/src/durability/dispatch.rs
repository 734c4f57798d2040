//! Dispatch: dirty blocks get addresses from the allocator and go to the writer.

use crate::alloc::ZoneAction;
use crate::alloc::place::{Block, NODE_SLOT, data_stream, node_stream};
use crate::blocked::NotApplied;
use crate::core::Core;
use crate::tree::cache::Key;
use crate::tree::node::{Holder, header};
use crate::types::Ino;
use furrow_log::record::crc32c;
use furrow_log::writer::{Durability, Kind as WriteKind, ZoneWrite};
use furrow_rt::{Page, Pages};
use furrow_zone::{Error, ZoneId};
use smallvec::SmallVec;

impl Core {
    /// Carries out the actions that the allocator has queued. Must follow every call of the
    /// allocator that may queue an action.
    pub(crate) fn carry_out(&mut self) {
        for action in self.alloc.take_actions() {
            match action {
                ZoneAction::Open { zone, after } => match after {
                    Some(after) if self.env.writer.is_open(after) => {
                        self.env.writer.open_zone_after(zone, after);
                    }
                    _ => self.env.writer.open_empty(zone),
                },
                ZoneAction::Write { zone, offset, page, kind } => {
                    let pages = smallvec::smallvec![page];
                    let placed = self.send(zone, pages, kind, Durability::Cached);
                    debug_assert_eq!(placed, offset, "zone {zone}");
                }
                ZoneAction::Reserve { zone, offset } => {
                    let reserve = ZoneWrite::reserve(zone, WriteKind::Summary);
                    let reserved = self.env.writer.submit(reserve);
                    debug_assert_eq!(reserved.at(), offset, "zone {zone}");
                }
                ZoneAction::Fill { zone, offset, page } => {
                    self.env.writer.fill_reserved(zone, offset, page);
                }
                ZoneAction::Return { zones, permit } => {
                    let writer = self.env.writer.clone();
                    self.env.rt.spawn_detached(async move {
                        for zone in zones {
                            writer.freed(zone).await;
                        }
                        drop(permit);
                    });
                }
            }
        }
    }

    /// Marks the block at `addr` as no longer valid.
    pub(crate) fn invalidate(&mut self, addr: u32) {
        self.cache.look(1);
        self.alloc.invalidate(addr);
    }

    /// Marks the block at `addr` valid or invalid; no effect if it is in that state already.
    pub(crate) fn set_valid(&mut self, addr: u32, valid: bool, stream: u8) {
        self.cache.look(1);
        self.alloc.set_valid(addr, valid, stream);
    }

    /// Writes one block through its stream and returns its address. The page must not change from
    /// then on.
    pub(crate) fn write_block(&mut self, block: Block, page: Page) -> Result<u32, NotApplied> {
        self.cache.look(1);
        let dirty = self.cache.dirty_pages() as u64;
        let placed = self.alloc.write(block, page, dirty);
        self.carry_out();
        placed.map_err(|error| self.out_of_places(error))
    }

    /// Stops writing, because the allocator has no place for a block that had a reservation.
    pub(crate) fn out_of_places(&mut self, error: Error) -> NotApplied {
        self.health.fail(error.clone());
        NotApplied::Failed(error)
    }

    /// Hands pages to the writer and counts the dispatch. Returns the block of `zone` at which the
    /// pages begin.
    pub(crate) fn dispatch(
        &mut self,
        zone: ZoneId,
        pages: Pages,
        kind: WriteKind,
        durability: Durability,
    ) -> u32 {
        self.alloc.next_stamp();
        self.send(zone, pages, kind, durability)
    }

    /// Hands pages to the writer. The allocator or [`Core::dispatch`] has already counted
    /// the dispatch.
    fn send(&mut self, zone: ZoneId, pages: Pages, kind: WriteKind, durability: Durability) -> u32 {
        let write = ZoneWrite { durability, ..ZoneWrite::pages(zone, kind, pages) };
        let written = self.env.writer.submit(write);
        let offset = written.at();
        // If no caller watches the writes, the next wait for a sequence point notices
        // their failures.
        if let Some(watched) = &mut self.durability.writes.watched {
            watched.push(written);
        }
        offset
    }

    /// Writes the dirty `block` of `ino` to a new place, and updates its pointer.
    pub(crate) fn write_data(&mut self, ino: Ino, block: u32) -> Result<(), NotApplied> {
        let holder: Holder = match self.holder(ino, block)? {
            Some(holder) => holder,
            None => return Err(self.corrupt(format!("inode {ino} block {block} has no holder"))),
        };
        let key = Key::Data(ino.0, block);
        let entry = self.cache.peek(&key).expect("invariant: dirty blocks are in the cache");
        let crc = entry.crc().unwrap_or_else(|| crc32c(entry.page().bytes()));
        let class = header(self.node(holder.nid)?).class;
        let (page, ticket) = self.cache.begin_write(&key, crc).expect("invariant: looked up");
        let stream = data_stream(class);
        let addr = self.write_block(Block { stream, node: holder.nid, slot: holder.slot }, page)?;
        self.durability.writes.tickets.push(ticket);
        let old = self.slot(holder);
        self.set_slot(holder, crate::format::Pointer::new(addr, crc));
        if old.addr.get() != crate::format::HOLE {
            self.invalidate(old.addr.get());
        }
        Ok(())
    }

    /// Writes the dirty node `nid` to a new place, and updates its NAT entry.
    pub(crate) fn write_node(&mut self, nid: u32) -> Result<(), NotApplied> {
        let checkpoint = self.durability.checkpoint.id;
        let bytes = self.node_mut(nid);
        bytes[24..32].copy_from_slice(&checkpoint.to_le_bytes());
        let crc = crc32c(bytes);
        let key = Key::Node(nid);
        let (page, ticket) = self.cache.begin_write(&key, crc).expect("invariant: just changed");
        let (class, level) = (header(&page).class, header(&page).level);
        let stream = node_stream(class, level);
        let addr = self.write_block(Block { stream, node: nid, slot: NODE_SLOT }, page)?;
        self.durability.writes.tickets.push(ticket);
        let old = self.tables.wrote_node(nid, addr, crc);
        if old.addr.get() != crate::format::HOLE {
            self.invalidate(old.addr.get());
        }
        Ok(())
    }

    /// Writes every dirty block of `ino`.
    pub(crate) fn write_blocks(&mut self, ino: Ino) -> Result<(), NotApplied> {
        let blocks: SmallVec<[u32; 32]> = self.cache.dirty_of(ino.0).collect();
        for block in blocks {
            self.write_data(ino, block)?;
        }
        Ok(())
    }

    /// Writes every dirty block of `ino`, then its dirty nodes.
    pub(crate) fn write_file(&mut self, ino: Ino) -> Result<(), NotApplied> {
        self.write_blocks(ino)?;
        let nodes: SmallVec<[u32; 8]> = self.cache.dirty_nodes_of(ino.0).collect();
        for nid in nodes {
            self.write_node(nid)?;
        }
        Ok(())
    }
}
