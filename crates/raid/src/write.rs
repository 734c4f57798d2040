//! Writes: from a call to stripes on the drives, and what happens when a drive fails meanwhile.

use crate::format::{BlockMeta, CODED, NONE, TrimEntry, block, kind};
use crate::level::Level;
use crate::map::Map;
use crate::meta::inband::Cover;
use crate::meta::{Identity, oob, seal};
use crate::paging::Pinner;
use crate::parity::{encode, sum_of_crcs};
use crate::stream::{Call, Item, Open, Origin, Stream, Stripe, Use};
use crate::volume::Volume;
use furrow_log::record::{self, crc32c};
use furrow_log::writer::{Kind, WriteObserver};
use furrow_policy::RaidDefect;
use furrow_rt::{Page, Pages};
use furrow_zone::Result;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use zerocopy::IntoBytes;

/// What a block is (`None`: parity), and its CRC32C.
pub(crate) type Block = (Option<Identity>, u32);

/// A parity block, what lies beside it, and its CRC32C.
struct Parity {
    page: Page,
    code: [u8; CODED],
    crc: u32,
}

/// Where parity goes.
type Outputs<'a> = SmallVec<[&'a mut [u8]; 2]>;

/// A stripe on its way to the drives: when the fate of all its chunks is known it counts, or is
/// written again elsewhere.
struct Flight {
    volume: Volume,
    stream: Rc<Stream>,
    open: Rc<Open>,
    number: u32,
    stripe: RefCell<Stripe>,
    /// CRC32C of each parity block, chunk by chunk.
    parity: SmallVec<[u32; 2]>,
    /// What has to list it, on drives without an out-of-band area.
    cover: Cell<Option<Rc<Cover>>>,
    /// Chunks whose fate is not known, and one more until all are sent.
    left: Cell<u32>,
    /// Chunks that are there.
    there: Cell<u32>,
    /// One is not, though its member is.
    broken: Cell<bool>,
}

impl WriteObserver for Flight {
    fn on_complete(self: Rc<Self>, chunk: u32, at: Result<u32>) {
        let (volume, index) = (&self.volume, self.drive(chunk));
        match at {
            Ok(at) => {
                self.there.set(self.there.get() | 1 << chunk);
                volume.note_written(index);
                let row = at - volume.0.shape.offset(0);
                let stripe = self.stripe.borrow();
                let blocks = self.blocks(&stripe, chunk);
                volume.landed(&self.open, index, (row, self.number), blocks);
            }
            Err(error) => {
                if !volume.note_write_error(index, Some(self.open.sequence), &error) {
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
    fn drive(&self, chunk: u32) -> u32 {
        self.volume.0.shape.placement.drive(self.number, chunk)
    }

    /// The blocks of a chunk, as footers know them.
    fn blocks<'a>(&'a self, stripe: &'a Stripe, chunk: u32) -> impl Iterator<Item = Block> + 'a {
        let (blocks, zero_crc) = (self.open.groups.chunk as usize, self.volume.0.zero_crc);
        let data = self.volume.0.shape.placement.k as usize * blocks;
        let first = chunk as usize * blocks;
        (first..first + blocks).map(move |at| match at.checked_sub(data) {
            Some(at) => (None, self.parity[at]),
            None => stripe.block(at, zero_crc),
        })
    }

    /// Every chunk's fate is known.
    fn over(self: Rc<Self>) {
        let volume = &self.volume;
        let cover = self.cover.take().filter(|_| !volume.has(RaidDefect::Unlisted));
        let noting = volume.0.noting.get() && !volume.has(RaidDefect::EarlyDegradedAck);
        if cover.is_none() && !noting {
            return self.conclude();
        }
        let engine = volume.0.rt.clone();
        engine.spawn_detached(async move {
            let (volume, placement) = (&self.volume, &self.volume.0.shape.placement);
            if let Some(cover) = cover {
                // What nothing lists is not there.
                let (listed, failed) = cover.wait().await;
                let has = |c: u32| listed >> self.drive(c) & 1;
                let all = (0..placement.n).fold(0, |set, c| set | has(c) << c);
                self.there.set(self.there.get() & all);
                self.broken.set(self.broken.get() | failed);
            }
            if volume.0.noting.get() && !volume.has(RaidDefect::EarlyDegradedAck) {
                // An error is told below if it ends the volume.
                let _ = volume.failures_noted().await;
            }
            self.conclude();
        });
    }

    /// It counts, or is written again.
    fn conclude(&self) {
        let Flight { volume, stream, open, .. } = self;
        let (stripe, there) = (self.stripe.take(), self.there.get());
        if self.broken.get() {
            open.broken.set(true);
        }
        let error = volume.failed();
        if let Some(error) = &error {
            stripe.over(Some(error));
        } else if self.broken.get()
            || !volume.0.shape.placement.recoverable(|c| there >> c & 1 == 1)
        {
            open.broken.set(true);
            volume.again(stream, stripe);
        } else {
            volume.complete(open, self.number, &stripe);
            stripe.over(None);
        }
        volume.stripe_over(stream, open);
    }
}

/// So many bytes of zeros.
fn zeros(count: usize) -> SmallVec<[u8; 64]> {
    match count {
        0..=64 => SmallVec::from_buf_and_len([0; 64], count),
        _ => SmallVec::from_elem(0, count),
    }
}

impl Volume {
    /// Writes blocks. When it returns they survive a crash and the failure of as many drives as
    /// the level allows, as far as drives without power-loss protection were flushed; `fua` does
    /// that.
    ///
    /// # Errors
    /// `Invalid` past the end, `Io` if too many drives are gone: then nothing is acknowledged any
    /// more.
    pub async fn write(&self, block: u64, data: Pages, fua: bool) -> Result<()> {
        self.check_alive()?;
        self.check_range(block, data.len() as u64)?;
        let count = data.len() as u64;
        if count == 0 {
            return if fua { self.flush_drives().await } else { Ok(()) };
        }
        let _held = self.0.ranges.hold(block..block + count).await;
        let (mut at, mut data) = (block, data.into_iter());
        while at < block + count {
            let piece = self.piece(at, block + count - at);
            self.write_piece(at, data.by_ref().take(piece as usize), piece).await?;
            at += piece;
        }
        if fua {
            self.flush_drives().await?;
        }
        Ok(())
    }

    async fn write_piece(
        &self,
        block: u64,
        data: impl Iterator<Item = Page>,
        count: u64,
    ) -> Result<()> {
        let pins = self.pin(Pinner::User, (block, count), true).await?;
        self.check_alive()?;
        let call = Call::pinning(pins);
        let (mut left, mut stream) = (count as u32, None);
        for (lba, page) in (block..).zip(data) {
            let stream = stream.get_or_insert_with(|| self.route(self.purpose(left)));
            self.put(stream, self.item(block::DATA, lba, page), &call);
            left -= 1;
            let filled = stream.filling.borrow().items.len() as u32;
            if filled.is_multiple_of(stream.chunk) && left > 0 {
                // A chunk is whole: what is left may go another way.
                let next = self.route(self.purpose(left));
                *stream = next;
            }
        }
        self.count(|counters| counters.written += count);
        if !self.has(RaidDefect::EarlyAck) {
            call.wait().await?;
        }
        Ok(())
    }

    fn purpose(&self, left: u32) -> Use {
        let config = &self.0.config;
        if config.large > 0 && left >= config.chunk_large { Use::Large } else { Use::Small }
    }

    fn item(&self, kind: u8, lba: u64, page: Page) -> Item {
        let sequence = self.next_sequence();
        let crc = crc32c(page.bytes());
        let identity = Identity { lba, sequence, crc, kind };
        Item { identity, page, from: None, trimmed: 0 }
    }

    pub(crate) fn next_sequence(&self) -> u64 {
        let sequence = self.0.sequence.get();
        self.0.sequence.set(sequence + 1);
        sequence
    }

    /// Writes a block of the volume's own; its number.
    pub(crate) async fn write_internal(
        &self,
        blocks: Vec<(u8, u64, Page)>,
    ) -> Result<Vec<(u64, u32)>> {
        let call = Call::new(true);
        let stream = self.route(Use::Internal);
        for (kind, lba, page) in blocks {
            self.put(&stream, self.item(kind, lba, page), &call);
        }
        self.close_stripe(&stream);
        call.wait().await?;
        Ok(call.placed())
    }

    /// Writes blocks at another place, as what they are; each counts only if its address is still
    /// mapped to where it was.
    pub(crate) async fn move_blocks(&self, blocks: Vec<(Identity, Page, Origin)>) -> Result<()> {
        let leaf =
            |identity: &Identity| (identity.kind == block::DATA).then(|| Map::leaf(identity.lba));
        let mut blocks = blocks;
        blocks.sort_by_key(|(identity, ..)| leaf(identity));
        let mut left = blocks.into_iter().peekable();
        while left.peek().is_some() {
            let (mut calls, stream) = (Vec::new(), self.route(Use::Internal));
            while let Some(next) = left.peek().map(|(identity, ..)| *identity) {
                let call = match leaf(&next) {
                    // The root names it, not the map.
                    None => Call::new(false),
                    Some(_) if calls.is_empty() || !self.is_bounded() => {
                        let range = (next.lba, 1);
                        Call::pinning(self.pin(Pinner::Internal, range, false).await?)
                    }
                    Some(_) => match self.pin_more(next.lba).await? {
                        Some(pins) => Call::pinning(Some(pins)),
                        // Not before those that are under way are over.
                        None => break,
                    },
                };
                while let Some((mut identity, page, from)) =
                    left.next_if(|(identity, ..)| leaf(identity) == leaf(&next))
                {
                    if self.has(RaidDefect::FreshSequence) {
                        identity.sequence = self.next_sequence();
                    }
                    self.put(&stream, Item { identity, page, from: Some(from), trimmed: 0 }, &call);
                }
                calls.push(call);
            }
            self.close_stripe(&stream);
            for call in calls {
                call.wait().await?;
            }
        }
        Ok(())
    }

    /// Forgets what the blocks hold: they read as zeros, and their room is free. A record of it is
    /// durable when this returns, as a write is.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub async fn trim(&self, block: u64, count: u64, fua: bool) -> Result<()> {
        self.check_alive()?;
        self.check_range(block, count)?;
        if count == 0 {
            return Ok(());
        }
        let _held = self.0.ranges.hold(block..block + count).await;
        let mut at = block;
        while at < block + count {
            let piece = self.piece(at, block + count - at);
            self.trim_piece(at, piece).await?;
            at += piece;
        }
        if fua {
            self.flush_drives().await?;
        }
        Ok(())
    }

    async fn trim_piece(&self, block: u64, count: u64) -> Result<()> {
        let pins = self.pin(Pinner::User, (block, count), false).await?;
        self.check_alive()?;
        // The number a trim has decides what it takes away: those of later writes are higher.
        let entry = TrimEntry { lba: block.into(), blocks: count.into() };
        let sequence = self.next_sequence();
        let id = self.record_id(kind::TRIM, 0, sequence);
        let id = record::RecordId { device: furrow_log::Uuid::NIL, ..id };
        let page = record::seal(&id, entry.as_bytes(), &self.0.pages).remove(0);
        if self.has(RaidDefect::TrimWithoutRecord) {
            self.forget(block, count);
            return Ok(());
        }
        let call = Call::pinning(pins);
        let stream = self.route(Use::Small);
        let crc = crc32c(page.bytes());
        let identity = Identity { lba: block, sequence, crc, kind: block::TRIM };
        self.put(&stream, Item { identity, page, from: None, trimmed: count }, &call);
        call.wait().await
    }

    /// Writes zeros: as [`Volume::trim`], since what is not mapped reads as zeros.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub async fn write_zeroes(&self, block: u64, count: u64, fua: bool) -> Result<()> {
        self.trim(block, count, fua).await
    }

    /// Sends a stripe to the drives.
    pub(crate) fn dispatch(
        &self,
        stream: &Rc<Stream>,
        open: &Rc<Open>,
        number: u32,
        mut stripe: Stripe,
    ) {
        self.drop_outdated(&mut stripe);
        let shape = &self.0.shape;
        let (k, n, chunk) = (shape.placement.k, shape.placement.n, open.groups.chunk);
        self.0.in_flight.set(self.0.in_flight.get() + 1);
        open.in_flight.set(open.in_flight.get() + 1);
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
            stream: stream.clone(),
            open: open.clone(),
            number,
            stripe: RefCell::new(stripe),
            parity: parity.iter().map(|parity| parity.crc).collect(),
            cover: Cell::new(None),
            left: Cell::new(n + 1),
            there: Cell::new(0),
            broken: Cell::new(false),
        });
        self.send(&flight, &parity);
        flight.cover.set(self.join_cover(stream, open));
        flight.left.set(flight.left.get() - 1);
        if flight.left.get() == 0 {
            // No member takes anything. Not at once: the caller may be dispatching others.
            self.0.rt.spawn_detached(async move { flight.over() });
        }
    }

    /// Leaves out blocks that were overwritten since they were read to be moved. Recovery takes any
    /// copy that was written after a checkpoint's snapshot for newer than what the checkpoint says:
    /// so a copy has to be current when it is dispatched.
    fn drop_outdated(&self, stripe: &mut Stripe) {
        for item in &mut stripe.items {
            if !self.is_current(item) {
                let crc = self.0.zero_crc;
                item.identity = Identity { crc, ..Identity::default() };
                item.page = self.0.zero.clone();
            }
        }
    }

    /// Whether nobody has written what is to be moved since it was read. Its segment has to be the
    /// same, too: only a cleaning keeps that from being released and its slot from being used
    /// again, a repair and a scrub do not.
    fn is_current(&self, item: &Item) -> bool {
        let Some(from) = item.from else { return true };
        let map = self.0.map.borrow();
        let now = match item.identity.kind {
            block::DATA => map.get(item.identity.lba),
            block::MAPPING => map.root_of(item.identity.lba as u32),
            _ => return true,
        };
        now == from.number && self.origin(now) == from
    }

    /// The place of a block number, as long as its slot's segment is the one it is now.
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
        // Members are alike in that; with none left nothing is sent.
        let drive = self.0.members.iter().find_map(|member| member.drive());
        let beside = drive.map_or(BlockMeta::SIZE, |drive| oob::bytes(drive.geometry()));
        let data = placement.k as usize * chunk;
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
            let drive = self.0.members[index as usize].drive();
            let (Some(zone), Some(drive)) = (zones[index as usize], drive) else {
                // Its blocks are in the footers of others all the same.
                let row = (number * open.groups.chunk, number);
                self.note_footer(open, index, row, flight.blocks(&stripe, c));
                flight.left.set(flight.left.get() - 1);
                continue;
            };
            let pages = (first..first + chunk).map(|at| block(at).0.clone());
            let party = (flight.clone() as Rc<dyn WriteObserver>, c);
            drive.writer.send(zone, Kind::Data, (pages, oob), open.append, party);
        }
    }

    /// What a block is that nobody filled: zeros.
    fn empty(&self) -> Identity {
        Identity { crc: self.0.zero_crc, ..Identity::default() }
    }

    /// The parity blocks of a stripe, chunk by chunk.
    fn parity_of(&self, chunk: usize, stripe: &Stripe) -> SmallVec<[Parity; 2]> {
        let placement = &self.0.shape.placement;
        let (k, m) = (placement.k as usize, placement.m as usize);
        let zero = (self.empty(), &self.0.zero);
        let mut parity = SmallVec::new();
        for row in 0..chunk {
            let item = |c: usize| stripe.items.get(c * chunk + row);
            let data = (0..k).map(|c| item(c).map_or(zero, |item| (item.identity, &item.page)));
            for (at, block) in self.parity_of_row(m, data).into_iter().enumerate() {
                // From row by row to chunk by chunk.
                parity.insert(at * (row + 1) + row, block);
            }
        }
        parity
    }

    /// The parity blocks of a row of data, and of the codes beside it.
    fn parity_of_row<'a>(
        &self,
        count: usize,
        data: impl Iterator<Item = (Identity, &'a Page)> + Clone,
    ) -> SmallVec<[Parity; 2]> {
        let placement = &self.0.shape.placement;
        if placement.level == Level::Raid01 {
            let mirror = |(identity, page): (Identity, &Page)| Parity {
                page: page.clone(),
                code: identity.bytes(),
                crc: identity.crc,
            };
            return data.map(mirror).collect();
        }
        let empty = || Parity { page: self.0.pages.take_dirty(), code: [0; CODED], crc: 0 };
        let mut parity: SmallVec<[Parity; 2]> = (0..count).map(|_| empty()).collect();
        let blocks: SmallVec<[&[u8]; 8]> = data.clone().map(|(_, page)| &page[..]).collect();
        let codes = data.clone().map(|(identity, _)| identity.bytes());
        if let [p] = &mut parity[..] {
            encode(placement, &blocks, &mut [&mut p.page.make_mut()[..]]);
            for code in codes {
                p.code.iter_mut().zip(code).for_each(|(byte, code)| *byte ^= code);
            }
        } else {
            let codes: SmallVec<[[u8; CODED]; 8]> = codes.collect();
            let codes: SmallVec<[&[u8]; 8]> = codes.iter().map(|code| &code[..]).collect();
            let (mut pages, mut beside): (Outputs<'_>, Outputs<'_>) = parity
                .iter_mut()
                .map(|parity| (&mut parity.page.make_mut()[..], &mut parity.code[..]))
                .unzip();
            encode(placement, &blocks, &mut pages);
            encode(placement, &codes, &mut beside);
        }
        for (at, parity) in parity.iter_mut().enumerate() {
            // Of the sum it follows from those of the data: and then tells a wrong sum, too.
            parity.crc = match at {
                0 => sum_of_crcs(data.clone().map(|(identity, _)| identity.crc), self.0.zero_crc),
                _ => crc32c(parity.page.bytes()),
            };
        }
        parity
    }

    pub(crate) fn stripe_over(&self, stream: &Rc<Stream>, open: &Rc<Open>) {
        open.in_flight.set(open.in_flight.get() - 1);
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        if open.in_flight.get() == 0 {
            open.idle.notify_all();
        }
        if self.0.in_flight.get() == 0 {
            self.0.idle.notify_all();
            if self.0.space.is_wanted() {
                self.0.wanted.notify_all();
            }
        }
        self.pump(stream);
    }

    fn landed(
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

    /// A stripe is on the drives: its blocks count from now on.
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
                    let next = self.0.checkpoint.snapshots.get() + 1;
                    self.0.segments.borrow_mut()[open.slot as usize].needed = next;
                    // In this stretch: a checkpoint's snapshot shows the record and what it did, or
                    // neither.
                    self.forget(item.identity.lba, item.trimmed);
                }
                _ => {}
            }
        }
        stripe.tell(place);
    }

    fn forget(&self, block: u64, count: u64) {
        if !self.0.lost_blocks.is_empty() {
            self.0.lost_blocks.remove(block..block + count);
        }
        for lba in block..block + count {
            let old = self.0.map.borrow_mut().set(lba, NONE);
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
        let old = self.0.map.borrow_mut().set(item.identity.lba, number);
        self.credit(number);
        self.debit(old);
    }

    /// A mapping block is written anew. What the last checkpoint refers to stays until the next.
    fn remap_leaf(&self, item: &Item, number: u32) {
        if !self.is_current(item) {
            return;
        }
        let leaf = item.identity.lba as u32;
        let old = self.0.map.borrow_mut().set_root(leaf, number);
        self.0.segments.borrow_mut()[self.0.shape.slot(number) as usize].leaves += 1;
        if old != NONE {
            self.0.checkpoint.replaced.borrow_mut().push((leaf, old));
        }
    }
}
