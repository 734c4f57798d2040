//! Owners of the valid blocks of a superzone: from its summaries or, where a summary is missing or
//! damaged, from all nodes.
//!
//! The owners found are hints, because a summary is never changed: by the time a block is moved,
//! its owner may have dropped it, or (if the file grew) moved the pointer to the file's first leaf.

use crate::alloc::place::NODE_SLOT;
use crate::blocked::NotApplied;
use crate::core::{Core, Inner};
use crate::format::{
    HOLE, LEAF_POINTERS, LEVEL_INODE, NatEntry, Pointer, SUMMARY_MAGIC, SummaryEntry, SummaryHeader,
};
use crate::tree::cache::Key;
use crate::tree::node::{self, Holder, header};
use crate::types::Ino;
use furrow_log::address::{BlockAddr, read_blocks};
use furrow_log::pool::{SuperzoneId, SuperzoneState};
use furrow_log::record::crc32c;
use furrow_rt::Page;
use furrow_zone::{QueueId, Result};
use std::collections::BTreeMap;
use std::rc::Rc;
use zerocopy::{FromBytes, FromZeros};

/// Number of nodes read at a time when all nodes are searched.
const SCAN: u32 = 128;

/// A valid block of a victim, and its possible owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) addr: u32,
    /// The node that points to the block, or the block's own id if it is a node; 0 if unknown.
    node: u32,
    slot: u16,
}

impl Item {
    /// The item of the block at `addr`, to which slot `slot` of node `node` points.
    pub(crate) fn pointed_to(addr: u32, node: u32, slot: u16) -> Item {
        Item { addr, node, slot }
    }

    /// The item of node `node`, whose block is at `addr`.
    pub(crate) fn node(addr: u32, node: u32) -> Item {
        Item { addr, node, slot: NODE_SLOT }
    }

    /// The node that points to the block, or the block's own id if it is a node; 0 if unknown.
    pub(crate) fn holder(&self) -> u32 {
        self.node
    }

    /// The node that changes when the block moves; `None` if the block itself is a node.
    pub(crate) fn parent(&self) -> Option<u32> {
        (self.slot != NODE_SLOT).then_some(self.node)
    }
}

/// The confirmed owner of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A block of a file, with the place of its pointer.
    Data { key: Key, holder: Holder, class: u8, pointer: Pointer },
    /// A node.
    Node { nid: u32, entry: NatEntry },
}

impl Owner {
    pub(crate) fn key(&self) -> Key {
        match self {
            Owner::Data { key, .. } => *key,
            Owner::Node { nid, .. } => Key::Node(*nid),
        }
    }

    /// CRC32C of the block, as its owner recorded it.
    pub(crate) fn crc(&self) -> u32 {
        match self {
            Owner::Data { pointer, .. } => pointer.crc.get(),
            Owner::Node { entry, .. } => entry.crc.get(),
        }
    }
}

impl Core {
    /// Finds the owner of `item`. `None` if the owner is unknown or gone, or no longer points
    /// to `item.addr`.
    pub(crate) fn owner_of(&mut self, item: &Item) -> Result<Option<Owner>, NotApplied> {
        let entry = self.tables.nat().get(item.node);
        if item.node == 0 || entry.ino.get() == 0 {
            return Ok(None);
        }
        if item.slot == NODE_SLOT {
            let owns = entry.addr.get() == item.addr;
            return Ok(owns.then_some(Owner::Node { nid: item.node, entry }));
        }
        let head = *header(self.node(item.node)?);
        let ino = head.ino.get();
        let holder = match head.level {
            0 if usize::from(item.slot) < LEAF_POINTERS => {
                Some(Holder { nid: item.node, slot: item.slot })
            }
            // The first pointers of a file start in its inode, and move to a leaf when
            // the file grows.
            LEVEL_INODE => self.holder(Ino(ino), u32::from(item.slot))?,
            _ => None,
        };
        let Some(holder) = holder else { return Ok(None) };
        let pointer = self.slot(holder);
        if pointer.addr.get() != item.addr {
            return Ok(None);
        }
        let head = *header(self.node(holder.nid)?);
        let base = if head.level == LEVEL_INODE { 0 } else { head.base.get() };
        let key = Key::Data(ino, base.saturating_add(u32::from(holder.slot)));
        Ok(Some(Owner::Data { key, holder, class: head.class, pointer }))
    }

    /// Valid blocks of a segment of `superzone`: their addresses, and their places in the segment.
    fn valid_in(&self, superzone: SuperzoneId, segment: u32) -> Vec<(u32, usize)> {
        let stripe = self.alloc.stripe(superzone.0);
        let entry = self.alloc.sit().get(superzone.0 * self.env.layout.segments + segment);
        let mut valid = Vec::with_capacity(usize::from(entry.valid.get()));
        for (block, v) in stripe.segment_range(segment).enumerate() {
            if entry.map[block / 8] >> (block % 8) & 1 == 1 {
                let (column, offset) = stripe.place(v);
                let zone = self.alloc.zones().zone(superzone, column);
                valid.push((BlockAddr::new(&self.env.geometry, zone, offset).0, block));
            }
        }
        valid
    }

    /// The valid blocks of `superzone`, each with the owner that the `summaries` of its
    /// segments name.
    fn items(
        &self,
        superzone: SuperzoneId,
        summaries: &[(u32, Option<Vec<SummaryEntry>>)],
    ) -> Vec<Item> {
        let mut items = Vec::new();
        for (segment, entries) in summaries {
            for (addr, block) in self.valid_in(superzone, *segment) {
                let known = entries.as_ref().and_then(|entries| entries.get(block));
                let entry = known.copied().unwrap_or_else(SummaryEntry::new_zeroed);
                items.push(Item { addr, node: entry.node.get(), slot: entry.slot.get() });
            }
        }
        items
    }

    /// The entries of a summary block, if it is the summary of `segment` of `superzone`.
    fn summary_entries(
        &self,
        page: &Page,
        superzone: SuperzoneId,
        segment: u32,
    ) -> Option<Vec<SummaryEntry>> {
        let (head, rest) = SummaryHeader::ref_from_prefix(page.bytes()).ok()?;
        let mut zeroed = page.clone();
        let crc = size_of::<u32>();
        zeroed.make_mut()[crc..2 * crc].fill(0);
        let object = u64::from_le_bytes(self.env.layout.uuid.0[..8].try_into().ok()?);
        let right = head.magic.get() == SUMMARY_MAGIC
            && head.crc.get() == crc32c(zeroed.bytes())
            && head.superzone.get() == superzone.0
            && head.segment.get() == segment
            && head.generation.get() == self.alloc.zones().generation(superzone)
            && head.object.get() == object;
        let bytes = rest.get(..usize::from(head.count.get()) * size_of::<SummaryEntry>())?;
        let entries = bytes.chunks_exact(size_of::<SummaryEntry>());
        let entries = entries.map(|chunk| SummaryEntry::read_from_bytes(chunk).ok());
        right.then(|| entries.collect()).flatten()
    }
}

impl Inner {
    /// Every valid block of `victim` with its possible owner, in the order in which the blocks
    /// were written.
    pub(super) async fn owners(self: &Rc<Self>, victim: SuperzoneId) -> Result<Vec<Item>> {
        let (zones, writer, generation) = {
            let core = self.core.borrow();
            (
                core.alloc.zones().clone(),
                core.env.writer.clone(),
                core.alloc.zones().generation(victim),
            )
        };
        // The victim may have become full only recently, with writes still in flight.
        for zone in zones.get(victim).zones {
            writer.drained(zone).await;
        }
        let summaries = self.summaries(victim).await;
        if zones.generation(victim) != generation || zones.state(victim) != SuperzoneState::Full {
            return Ok(Vec::new());
        }
        let mut items = self.core.borrow().items(victim, &summaries);
        if items.iter().any(|item| item.node == 0) {
            self.find_owners(&mut items).await;
        }
        Ok(items)
    }

    /// Reads the summaries of all segments of `victim` that contain valid blocks, in parallel.
    async fn summaries(
        self: &Rc<Self>,
        victim: SuperzoneId,
    ) -> Vec<(u32, Option<Vec<SummaryEntry>>)> {
        let mut flights = Vec::new();
        {
            let core = self.core.borrow();
            let stripe = core.alloc.stripe(victim.0);
            for segment in 0..stripe.segments().min(core.env.layout.segments) {
                if core.alloc.sit().get(victim.0 * core.env.layout.segments + segment).valid.get()
                    == 0
                {
                    continue;
                }
                let (column, offset) = stripe.place(stripe.summary_index(segment));
                let zone = core.alloc.zones().zone(victim, column);
                let addr = BlockAddr::new(&core.env.geometry, zone, offset);
                let pin = core.alloc.zones().pin(zone);
                let (device, pages) = (core.env.device.clone(), self.pages.clone());
                let read = self.rt.spawn(async move {
                    let page = read_blocks(&*device, QueueId(0), addr, 1, &pages).await;
                    drop(pin);
                    page.ok().and_then(|mut pages| pages.pop())
                });
                flights.push((segment, read));
            }
        }
        let mut summaries = Vec::with_capacity(flights.len());
        for (segment, read) in flights {
            let page = read.await;
            let core = self.core.borrow();
            let entries = page.and_then(|page| core.summary_entries(&page, victim, segment));
            summaries.push((segment, entries));
        }
        summaries
    }

    /// Searches all nodes for the owners of blocks that no summary names. Reading every node is
    /// slow but rare: only a crash or a failed zone leaves blocks without a summary.
    async fn find_owners(self: &Rc<Self>, items: &mut [Item]) {
        let mut wanted: BTreeMap<u32, usize> = BTreeMap::new();
        for (index, item) in items.iter().enumerate().filter(|(_, item)| item.node == 0) {
            wanted.insert(item.addr, index);
        }
        let nodes = self.core.borrow().tables.nat().len();
        let mut next = 1;
        while next < nodes {
            let upto = next.saturating_add(SCAN).min(nodes);
            for (nid, addr, page) in self.read_nodes(next, upto).await {
                if let Some(index) = wanted.get(&addr) {
                    (items[*index].node, items[*index].slot) = (nid, NODE_SLOT);
                }
                for (slot, pointer) in page.iter().flat_map(node::pointers) {
                    if let Some(index) = wanted.get(&pointer.addr.get()) {
                        (items[*index].node, items[*index].slot) = (nid, slot);
                    }
                }
            }
            next = upto;
        }
    }

    /// The nodes in use among `from..upto`, each with its address, and with its page if that can
    /// be read.
    async fn read_nodes(self: &Rc<Self>, from: u32, upto: u32) -> Vec<(u32, u32, Option<Page>)> {
        let mut flights = Vec::new();
        let mut found = Vec::new();
        {
            let core = self.core.borrow();
            for nid in from..upto {
                let entry = core.tables.nat().get(nid);
                if entry.ino.get() == 0 {
                    continue;
                }
                let addr = entry.addr.get();
                if let Some(cached) = core.cache.peek(&Key::Node(nid)) {
                    found.push((nid, addr, Some(cached.page().clone())));
                    continue;
                }
                let Some((zone, _)) = BlockAddr(addr).locate(&core.env.geometry) else { continue };
                debug_assert_ne!(addr, HOLE);
                let pin = core.alloc.zones().pin(zone);
                let (device, pages) = (core.env.device.clone(), self.pages.clone());
                let read = self.rt.spawn(async move {
                    let read = read_blocks(&*device, QueueId(0), BlockAddr(addr), 1, &pages).await;
                    drop(pin);
                    let page = read.ok().and_then(|mut pages| pages.pop())?;
                    let whole = crc32c(page.bytes()) == entry.crc.get()
                        && node::check(&page, nid, entry.ino.get()).is_ok();
                    whole.then_some(page)
                });
                flights.push((nid, addr, read));
            }
        }
        for (nid, addr, read) in flights {
            found.push((nid, addr, read.await));
        }
        found
    }
}
