//! Flight: sends a stripe's chunks to the drives, and changes the map when the chunks are there.

use crate::format::{BlockMeta, NONE, block};
use crate::meta::identity::{Identity, seal};
use crate::meta::oob;
use crate::meta::windows::Cover;
use crate::volume::Volume;
use crate::write::encode::Parity;
use crate::write::item::{Block, Item, Origin, Stripe};
use crate::write::open::Open;
use furrow_log::writer::{self, Kind, WriteObserver, ZoneWrite};
use furrow_policy::RaidDefect;
use furrow_zone::Result;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use zerocopy::IntoBytes;

/// The stage that learns how flights end.
pub(crate) trait FlightObserver {
    /// The flight of a stripe of `open` has ended: the stripe is durable, or its calls have got an
    /// error. The observer has to write the stripe in `again`, if there is one, elsewhere.
    fn on_landed(self: Rc<Self>, volume: &Volume, open: &Rc<Open>, again: Option<Stripe>);
}

/// A stripe in flight. When every chunk has been written or has failed, the stripe counts, or is
/// written again elsewhere.
pub(crate) struct Flight {
    volume: Volume,
    observer: Rc<dyn FlightObserver>,
    open: Rc<Open>,
    number: u32,
    /// Value of [`Volume::asked`] when the stripe was sent.
    since: u64,
    stripe: RefCell<Stripe>,
    /// CRC32C of each parity block, ordered by chunk.
    parity: SmallVec<[u32; 2]>,
    /// With in-band metadata: the metadata stripe that has to list this stripe.
    cover: Cell<Option<Rc<Cover>>>,
    /// Number of chunks that are neither written nor failed, plus 1 until all chunks are sent.
    left: Cell<u32>,
    /// Chunks that are on their drives, as bits by chunk number.
    there: Cell<u32>,
    /// Whether a chunk failed although its member is in service, or the metadata stripe failed.
    broken: Cell<bool>,
}

impl WriteObserver for Flight {
    fn on_complete(self: Rc<Self>, chunk: u32, at: Result<u32>) {
        let (volume, index) = (&self.volume, self.member_of(chunk));
        match at {
            Ok(at) => {
                self.there.set(self.there.get() | 1 << chunk);
                volume.note_written(index);
                let row = at - volume.0.shape.offset(0);
                let stripe = self.stripe.borrow();
                let blocks = self.blocks(&stripe, chunk);
                volume.chunk_landed(&self.open, index, (row, self.number), blocks);
            }
            Err(error) => {
                let of = (index, self.since);
                if !volume.note_write_error(of, Some(self.open.sequence), &error) {
                    self.broken.set(true);
                }
            }
        }
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            self.over();
        }
    }
}

impl Flight {
    /// Notes that all chunks are sent. With in-band metadata, `cover` is the stripe that has to
    /// list them.
    pub(crate) fn sent(self: Rc<Self>, cover: Option<Rc<Cover>>) {
        self.cover.set(cover);
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            // No member takes a chunk. A task ends the flight, because the caller may be
            // dispatching other stripes.
            let engine = self.volume.0.rt.clone();
            engine.spawn_detached(async move { self.over() });
        }
    }

    fn member_of(&self, chunk: u32) -> u32 {
        self.volume.0.shape.placement.drive(self.number, chunk)
    }

    /// For each block of a chunk, the identity and CRC that footers record.
    fn blocks<'a>(&'a self, stripe: &'a Stripe, chunk: u32) -> impl Iterator<Item = Block> + 'a {
        let (blocks, zero_crc) = (self.open.groups.chunk as usize, self.volume.0.zero_crc);
        let data = self.volume.0.shape.placement.k as usize * blocks;
        let first = chunk as usize * blocks;
        (first..first + blocks).map(move |at| match at.checked_sub(data) {
            Some(at) => (None, self.parity[at]),
            None => stripe.block(at, zero_crc),
        })
    }

    /// Ends the flight: every chunk has been written or has failed.
    fn over(self: Rc<Self>) {
        let volume = &self.volume;
        let cover = self.cover.take().filter(|_| !volume.has(RaidDefect::Unlisted));
        let noting = volume.0.array.is_noting() && !volume.has(RaidDefect::EarlyDegradedAck);
        if cover.is_none() && !noting {
            return self.conclude();
        }
        let engine = volume.0.rt.clone();
        engine.spawn_detached(async move {
            let (volume, placement) = (&self.volume, &self.volume.0.shape.placement);
            if let Some(cover) = cover {
                // A chunk that no metadata block lists does not count as written.
                let (listed, failed) = cover.wait().await;
                let has = |c: u32| listed >> self.member_of(c) & 1;
                let all = (0..placement.n).fold(0, |set, c| set | has(c) << c);
                self.there.set(self.there.get() & all);
                self.broken.set(self.broken.get() | failed);
            }
            if volume.0.array.is_noting() && !volume.has(RaidDefect::EarlyDegradedAck) {
                // `conclude` reports this error, which ends the volume's writes.
                let _ = volume.failures_noted().await;
            }
            self.conclude();
        });
    }

    /// Makes the stripe count, or hands it back to be written again.
    fn conclude(&self) {
        let Flight { volume, open, .. } = self;
        let (stripe, there) = (self.stripe.take(), self.there.get());
        if self.broken.get() {
            open.broken.set(true);
        }
        let mut again = None;
        if let Some(error) = &volume.failed() {
            stripe.over(Some(error));
        } else if self.broken.get()
            || !volume.0.shape.placement.recoverable(|c| there >> c & 1 == 1)
        {
            open.broken.set(true);
            again = Some(stripe);
        } else {
            volume.complete(open, self.number, &stripe);
            stripe.over(None);
        }
        self.observer.clone().on_landed(volume, open, again);
    }
}

/// `count` bytes of zeros.
fn zeros(count: usize) -> SmallVec<[u8; 64]> {
    match count {
        0..=64 => SmallVec::from_buf_and_len([0; 64], count),
        _ => SmallVec::from_elem(0, count),
    }
}

impl Volume {
    /// Sends a stripe to the drives. The flight ends only after [`Flight::sent`] is called.
    pub(crate) fn send_stripe(
        &self,
        observer: Rc<dyn FlightObserver>,
        open: &Rc<Open>,
        number: u32,
        mut stripe: Stripe,
    ) -> Rc<Flight> {
        self.drop_outdated(&mut stripe);
        let shape = &self.0.shape;
        let (k, n, chunk) = (shape.placement.k, shape.placement.n, open.groups.chunk);
        let padding = (k * chunk) as usize - stripe.items.len();
        let now = self.0.rt.now_coarse();
        let waited = u128::from(now.0) * stripe.items.len() as u128 - stripe.came;
        self.count(|counters| {
            counters.stripes += 1;
            counters.waited += waited as u64;
            counters.padded += padding as u64;
        });
        let parity = self.parity_of(chunk as usize, &stripe);
        let flight = Rc::new(Flight {
            volume: self.clone(),
            observer,
            open: open.clone(),
            number,
            since: self.asked(),
            stripe: RefCell::new(stripe),
            parity: parity.iter().map(|parity| parity.crc).collect(),
            cover: Cell::new(None),
            left: Cell::new(n + 1),
            there: Cell::new(0),
            broken: Cell::new(false),
        });
        self.send(&flight, &parity);
        flight
    }

    /// Drops moved blocks that were overwritten since they were read. Recovery takes a copy written
    /// after a checkpoint's snapshot for newer than the checkpoint's block, so a moved block must
    /// be current when it is dispatched.
    fn drop_outdated(&self, stripe: &mut Stripe) {
        for item in &mut stripe.items {
            if !self.is_current(item) {
                let crc = self.0.zero_crc;
                item.identity = Identity { crc, ..Identity::default() };
                item.page = self.0.zero.clone();
            }
        }
    }

    /// Whether a block to be moved is still mapped where it was read, and that segment is still in
    /// its slot: cleaning keeps a segment from being released, but repairs and scrubs do not.
    fn is_current(&self, item: &Item) -> bool {
        let Some(from) = item.from else { return true };
        let map = self.0.paging.map();
        let now = match item.identity.kind {
            block::DATA => map.get(item.identity.lba),
            block::MAPPING => map.root_of(item.identity.lba as u32),
            _ => return true,
        };
        now == from.number && self.origin(now) == from
    }

    /// The origin of block `number`, with the segment that is in the block's slot now.
    pub(crate) fn origin(&self, number: u32) -> Origin {
        let slot = self.0.shape.slot(number) as usize;
        Origin { number, segment: self.0.segments.borrow()[slot].sequence }
    }

    /// Sends the chunks of a stripe to their drives.
    fn send(&self, flight: &Rc<Flight>, parity: &[Parity]) {
        let (stripe, open, number) = (flight.stripe.borrow(), &flight.open, flight.number);
        let (placement, chunk) = (&self.0.shape.placement, open.groups.chunk as usize);
        let segments = self.0.segments.borrow();
        let zones = &segments[open.slot as usize].zones;
        // All members have the same out-of-band size. With no member in service, nothing is sent.
        let drive = self.0.array.members().iter().find_map(|member| member.drive());
        let beside = drive.map_or(BlockMeta::SIZE, |drive| oob::bytes(drive.geometry()));
        let data = placement.k as usize * chunk;
        let place = match open.append {
            true => writer::Placement::Append,
            false => writer::Placement::Position,
        };
        for c in 0..placement.n {
            let (index, first) = (placement.drive(number, c), c as usize * chunk);
            let block = |at: usize| match (at.checked_sub(data), stripe.items.get(at)) {
                (Some(at), _) => (&parity[at].page, parity[at].code, parity[at].crc),
                (None, Some(Item { identity, page, .. })) => (page, identity.bytes(), identity.crc),
                (None, None) => (&self.0.zero, self.empty().bytes(), self.0.zero_crc),
            };
            let mut oob = zeros(chunk * beside);
            for (at, oob) in (first..).zip(oob.chunks_exact_mut(beside)) {
                let (_, code, crc) = block(at);
                let meta = seal(&code, open.sequence, number, crc);
                oob[..BlockMeta::SIZE].copy_from_slice(meta.as_bytes());
            }
            let oob = open.meta.note(number, index, &oob);
            let drive = self.0.array.member(index).drive();
            let (Some(zone), Some(drive)) = (zones[index as usize], drive) else {
                // The member is gone, but the footers of other members list its chunk's blocks.
                let row = (number * open.groups.chunk, number);
                self.note_footer(open, index, row, flight.blocks(&stripe, c));
                flight.left.set(flight.left.get() - 1);
                continue;
            };
            let pages = (first..first + chunk).map(|at| block(at).0.clone());
            let observer = flight.clone() as Rc<dyn WriteObserver>;
            drop(drive.writer().submit(ZoneWrite {
                oob,
                placement: place,
                observer: Some((observer, c)),
                ..ZoneWrite::pages(zone, Kind::Data, pages)
            }));
        }
    }

    fn chunk_landed(
        &self,
        open: &Open,
        drive: u32,
        (row, stripe): (u32, u32),
        blocks: impl Iterator<Item = Block>,
    ) {
        self.note_footer(open, drive, (row, stripe), blocks);
        if open.groups.group > 1 {
            let place = open.groups.place(stripe, row);
            let segments = self.0.segments.borrow();
            if let Some(table) = &segments[open.slot as usize].table {
                table.borrow_mut().set(stripe, drive, place);
            }
        }
    }

    /// Makes the blocks of a stripe count: the stripe is on the drives.
    fn complete(&self, open: &Open, number: u32, stripe: &Stripe) {
        let chunk = open.groups.chunk;
        let place = |i: usize| {
            let row = number * chunk + i as u32 % chunk;
            self.0.shape.number(open.slot, row, i as u32 / chunk)
        };
        for (i, item) in stripe.items.iter().enumerate() {
            match item.identity.kind {
                block::DATA => self.remap(item, place(i)),
                block::MAPPING => self.remap_leaf(item, place(i)),
                block::TRIM => {
                    let next = self.0.checkpoint.snapshots() + 1;
                    self.0.segments.borrow_mut()[open.slot as usize].needed = next;
                    // Without an await between the record and its effect, a checkpoint's snapshot
                    // has both or neither.
                    self.unmap(item.identity.lba, item.trimmed);
                }
                _ => {}
            }
        }
        stripe.tell(place);
    }

    pub(crate) fn unmap(&self, block: u64, count: u64) {
        if !self.0.lost_blocks.is_empty() {
            self.0.lost_blocks.remove(block..block + count);
        }
        for lba in block..block + count {
            let old = self.0.paging.map_mut().set(lba, NONE);
            self.debit(old);
        }
    }

    fn remap(&self, item: &Item, number: u32) {
        if !self.is_current(item) {
            return;
        }
        if !self.0.lost_blocks.is_empty() {
            self.0.lost_blocks.remove(item.identity.lba..item.identity.lba + 1);
        }
        let old = self.0.paging.map_mut().set(item.identity.lba, number);
        self.credit(number);
        self.debit(old);
    }

    /// Notes a new copy of a mapping block. The copy that the last checkpoint names is kept until
    /// the next checkpoint.
    fn remap_leaf(&self, item: &Item, number: u32) {
        if !self.is_current(item) {
            return;
        }
        let leaf = item.identity.lba as u32;
        let old = self.0.paging.map_mut().set_root(leaf, number);
        self.0.segments.borrow_mut()[self.0.shape.slot(number) as usize].leaves += 1;
        if old != NONE {
            self.0.checkpoint.note_replaced(leaf, old);
        }
    }
}
