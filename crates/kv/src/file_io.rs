//! The content of files: appending, reading, truncating; where blocks get their places.
//!
//! Content is placed when enough of it is gathered, or when it is synced. It can be read before
//! that.

use crate::extent::{Extent, FileId, SUMS_INLINE, SYNCED_EXTENT, Sums};
use crate::file::{Block, File};
use crate::format::{EXTENT_MAX, SumsHead, kind};
use crate::inspect::wrong_content;
use crate::prepared_append::PreparedAppend;
use crate::store::Store;
use crate::zone_allocator::Use;
use crate::zone_allocator::Want;
use furrow_log::pool::ReadPin;
use furrow_log::record::{self, Expect, RecordId, crc32c};
use furrow_log::writer::{Kind, WriteHandle, ZoneWrite};
use furrow_log::{BLOCK_SIZE, BlockAddr, read_blocks};
use furrow_rt::{PAGE_SIZE, Page, Pages};
use furrow_zone::{Error, ErrorKind, QueueId, Result, ZoneId};
use smallvec::SmallVec;
use std::rc::Rc;
use zerocopy::{FromBytes, IntoBytes};

/// Number of whole blocks that gather before one write places them.
const GATHER: usize = 64;
/// Maximum number of blocks placed at a time, so that two files in one zone take turns.
const PIECE: usize = 256;

/// Bytes that a read returned, in pages.
#[derive(Clone, Debug, Default)]
pub struct Data {
    pages: Pages,
    skip: usize,
    len: usize,
}

impl Data {
    /// Creates content that holds a copy of `bytes`.
    pub fn of(bytes: &[u8]) -> Data {
        let pages = bytes.chunks(PAGE_SIZE).map(Page::from_slice).collect();
        Data::new(pages, 0, bytes.len())
    }

    pub(crate) fn new(pages: Pages, skip: usize, len: usize) -> Data {
        Data { pages, skip, len }
    }

    /// Iterates over the bytes in pieces.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        let end = self.skip + self.len;
        self.pages.iter().enumerate().map(move |(index, page)| {
            let start = index * PAGE_SIZE;
            &page.bytes()[self.skip.saturating_sub(start)..(end - start).min(PAGE_SIZE)]
        })
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no bytes: the read was at the end of the file.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the bytes into one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        self.chunks().collect::<Vec<_>>().concat()
    }
}

impl Store {
    /// Returns the size of a file in bytes.
    ///
    /// # Errors
    /// `NotFound` if the file is neither open nor named. All functions that take a file return
    /// this error.
    pub fn size(&self, id: FileId) -> Result<u64> {
        self.with(id, |file| file.size)
    }

    /// Appends to a file. Once this returns, the bytes can be read; [`Store::sync`] makes them
    /// durable.
    ///
    /// # Errors
    /// `NoSpace` if cleaning can free nothing, or the record ring has no space; then none of the
    /// bytes was appended. `Io` if the store died.
    pub async fn append(&self, id: FileId, bytes: &[u8]) -> Result<()> {
        self.check_alive()?;
        let lock = self.with(id, |file| file.lock.clone())?;
        let _one = lock.acquire(1).await;
        self.admit_append(id)?;
        self.reopen_tail(id).await?;
        let before = self.with(id, |file| {
            let before = (file.size, file.tail.clone());
            file.push(bytes);
            before
        })?;
        self.appended(id, bytes.len(), before).await
    }

    /// Appends the prepared data; false if the file has another size than the preparation assumed.
    ///
    /// # Errors
    /// The errors of [`Store::append`].
    pub async fn append_prepared(&self, id: FileId, prepared: PreparedAppend) -> Result<bool> {
        self.check_alive()?;
        let lock = self.with(id, |file| file.lock.clone())?;
        let _one = lock.acquire(1).await;
        self.admit_append(id)?;
        let bytes = prepared.len();
        let (before, fits) = self.with(id, |file| {
            let before = (file.size, file.tail.clone());
            (before, prepared.push_to(file))
        })?;
        if fits {
            self.appended(id, bytes, before).await?;
        }
        Ok(fits)
    }

    /// Refuses an append if the record ring has no space for more entries.
    fn admit_append(&self, id: FileId) -> Result<()> {
        self.admit(self.with(id, |file| file.claim())?, 0)
    }

    /// Completes an append to a locked file: places blocks once enough have gathered, and waits
    /// while too many pages are in flight. If there is no space, the file gets back its size and
    /// tail in `before`.
    async fn appended(&self, id: FileId, bytes: usize, before: (u64, Page)) -> Result<()> {
        let now = self.0.rt.wall().0;
        let waiting = self.with(id, |file| {
            file.modified = now;
            file.waiting.len()
        })?;
        self.count(|counters| counters.appended += bytes as u64);
        if waiting >= GATHER {
            let placed = self.place(id).await;
            if placed.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace) {
                let (size, tail) = before;
                self.cut(id, (size / PAGE_SIZE as u64) as u32, tail, size)?;
                self.count(|counters| counters.appended -= bytes as u64);
            }
            placed?;
        }
        while self.0.zones.writer.pages_in_flight() > self.0.options.pages_in_flight {
            self.check_alive()?;
            self.0.flights.answered().await;
        }
        Ok(())
    }

    /// Truncates a file.
    ///
    /// # Errors
    /// `Invalid` if the file is shorter than `size`; the errors of [`Store::read`], because the
    /// last block is read if only part of it remains; the store's error if the store has failed.
    pub async fn truncate(&self, id: FileId, size: u64) -> Result<()> {
        self.check_alive()?;
        let lock = self.with(id, |file| file.lock.clone())?;
        let _one = lock.acquire(1).await;
        let now = self.size(id)?;
        if size > now {
            let message = format!("{}: {now} bytes cannot be cut to {size}", self.name_of(id));
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if size == now {
            return Ok(());
        }
        // The remaining part of the last block becomes the tail.
        let last = (size / PAGE_SIZE as u64) as u32;
        let rest = (size % PAGE_SIZE as u64) as usize;
        let tail = match rest {
            0 => Page::zeroed(),
            _ => {
                let kept = self.read(id, u64::from(last) * PAGE_SIZE as u64, rest).await?;
                Page::from_slice(&kept.to_vec())
            }
        };
        self.keep_for_views(id, last).await?;
        self.cut(id, last, tail, size)?;
        self.plan_commit();
        Ok(())
    }

    /// Truncates a file to `last` whole blocks and the tail. The next group commit records
    /// the truncation.
    fn cut(&self, id: FileId, last: u32, tail: Page, size: u64) -> Result<()> {
        let lost = self.with(id, |file| {
            let lost = cut(file, last, tail, size);
            file.views.iter().for_each(|view| view.cut(size));
            self.weigh(file);
            lost
        })?;
        lost.iter().for_each(|extent| self.retire(id, extent));
        self.keep_from(id, size);
        self.0.commits.include(id);
        Ok(())
    }

    /// Closes a handle of a file. When the last handle is closed, all whole blocks get their
    /// places. The bytes after them become a padded block, unless the file is small and the ring is
    /// not crowded.
    ///
    /// # Errors
    /// The errors of [`Store::append`].
    pub async fn close(&self, id: FileId) -> Result<()> {
        let lock = self.with(id, |file| file.lock.clone())?;
        let one = lock.acquire(1).await;
        let opens = self.with(id, |file| {
            file.opens = self.0.zones.less("handles of a file", file.opens, 1);
            file.opens
        })?;
        let mut done = Ok(());
        if opens == 0 && self.check_alive().is_ok() && self.with(id, |file| file.names)? > 0 {
            done = self.end(id).await;
        }
        if opens == 0 {
            self.0.zones.release_hold(id);
        }
        drop(one);
        self.drop_unused(id);
        done
    }

    /// Pads the last block of a file that is not small, and places all blocks. In a crowded ring,
    /// the tail of a small file leaves the ring too.
    async fn end(&self, id: FileId) -> Result<()> {
        let ended = self.with(id, |file| {
            if file.tail_len() > 0 && file.size > PAGE_SIZE as u64 {
                file.pad();
            }
            !file.waiting.is_empty()
        })?;
        if ended {
            self.place(id).await?;
            // The durable bytes of the last block leave the ring with the next group commit.
            self.0.commits.include(id);
        }
        match self.ring_is_crowded() {
            true => self.leave_ring(id).await,
            false => Ok(()),
        }
    }

    /// Moves the bytes after the last whole block out of the ring into a block of their own, and
    /// the checksums of the last extent too. Without space, they stay in the ring. The caller holds
    /// the file's lock, and no blocks wait for their places.
    pub(crate) async fn leave_ring(&self, id: FileId) -> Result<()> {
        let left = self.leave_ring_if_space(id).await;
        match left {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                let back = |file: &mut File| {
                    if let Some(last) = file.waiting.pop_back() {
                        file.tail = last.page;
                    }
                };
                self.with(id, back)
            }
            left => left,
        }
    }

    async fn leave_ring_if_space(&self, id: FileId) -> Result<()> {
        let padded = self.with(id, |file| {
            let tail = file.tail_len() > 0;
            if tail {
                file.pad();
            }
            tail
        })?;
        if padded {
            self.place(id).await?;
            self.0.commits.include(id);
        }
        let (want, long) = self.with(id, |file| {
            let last = file.extents.last().filter(|last| last.blocks > SUMS_INLINE);
            let here = |last: &&Extent| matches!(last.sums, Sums::Here(_)) && !last.is_hole();
            (self.want_of(id, file), last.filter(here).map(|last| last.first))
        })?;
        if let Some(first) = long {
            self.store_sums(id, first, want).await?;
            self.0.commits.include(id);
        }
        Ok(())
    }

    /// Makes the file's last block its tail again if the block was padded.
    async fn reopen_tail(&self, id: FileId) -> Result<()> {
        let (size, blocks) = self.with(id, |file| (file.size, file.blocks()))?;
        if u64::from(blocks) * PAGE_SIZE as u64 <= size {
            return Ok(());
        }
        let last = blocks - 1;
        let rest = (size - u64::from(last) * PAGE_SIZE as u64) as usize;
        let kept = self.read(id, u64::from(last) * PAGE_SIZE as u64, rest).await?;
        let tail = Page::from_slice(&kept.to_vec());
        self.cut(id, last, tail, size)
    }

    /// Gives all whole blocks of a file a place. The caller holds the file's lock.
    pub(crate) async fn place(&self, id: FileId) -> Result<()> {
        loop {
            let (want, waiting) =
                self.with(id, |file| (self.want_of(id, file), file.waiting.len()))?;
            if waiting == 0 {
                return Ok(());
            }
            let zone = self.zone_for(want).await?;
            let left = self.space_for(want.claim).max(1);
            // Nothing is awaited from here on, so no other task takes the space found in the zone.
            let ended = self.with(id, |file| {
                let count = (self.0.zones.writer.space_left(zone) as usize).min(PIECE);
                let count = count.min(file.waiting.len()).min(EXTENT_MAX as usize);
                let count = count.min(usize::try_from(left).unwrap_or(usize::MAX));
                let first = file.placed();
                let blocks: Vec<Block> = file.waiting.drain(..count).collect();
                let pages = blocks.iter().map(|block| block.page.clone());
                file.flying.extend((first..).zip(pages));
                let extent = self.put(id, first, zone, blocks);
                self.0.zones.note_blob(zone, &file.role);
                let ended = self.extend(file, extent);
                self.weigh(file);
                ended
            })?;
            if let Some(first) = ended {
                self.store_sums(id, first, want).await?;
            }
        }
    }

    /// Adds an extent at the end of a file. If the previous extent is complete now and its
    /// checksums must be written to a block, returns the first block of the previous extent.
    fn extend(&self, file: &mut File, new: Extent) -> Option<u32> {
        let journaled = file.journaled;
        let Some(last) = file.extents.last_mut() else {
            file.extents.push(new);
            return None;
        };
        let synced = last.end() <= journaled && last.blocks >= SYNCED_EXTENT;
        let adjacent = !last.is_hole()
            && last.at.plus(last.blocks) == new.at
            && self.zone_of(last.at) == self.zone_of(new.at)
            && last.blocks + new.blocks <= EXTENT_MAX;
        if let (Sums::Here(sums), Sums::Here(more)) = (&mut last.sums, &new.sums)
            && adjacent
            && !synced
        {
            Rc::make_mut(sums).extend(more.iter());
            last.blocks += new.blocks;
            let first = last.first;
            file.changed_from(first);
            return None;
        }
        let inline = matches!(last.sums, Sums::Here(_)) && !last.is_hole();
        let ended = (inline && last.blocks > SUMS_INLINE).then_some(last.first);
        file.extents.push(new);
        ended
    }

    pub(crate) fn zone_of(&self, at: BlockAddr) -> ZoneId {
        at.zone(self.0.zones.writer.geometry())
    }

    /// The use of the zone that takes this file.
    pub(crate) fn usage_of(&self, file: &File) -> Use {
        self.0.zones.policy().usage(file.role.kind, file.lifetime)
    }

    fn want_of(&self, id: FileId, file: &File) -> Want {
        Want { usage: self.usage_of(file), file: Some(id), claim: file.claim(), content: true }
    }

    /// Finishes a zone before it is full, to open another; the rest of the zone stays unused.
    ///
    /// A finished zone appears written to its end, so recovery could not see that content is
    /// missing. Therefore the content is made durable first.
    pub(crate) async fn end_zone(&self, zone: ZoneId) -> Result<()> {
        let writer = &self.0.zones.writer;
        self.0.zones.abandon(zone);
        writer.drained(zone).await;
        self.flush_content().await?;
        match writer.finish(zone).await {
            Ok(()) => Ok(()),
            Err(error) => self.give_up_zone(zone, &error),
        }
    }

    /// Writes blocks to a zone that has space for them, and starts a task that handles the answer.
    fn put(&self, id: FileId, first: u32, zone: ZoneId, blocks: Vec<Block>) -> Extent {
        let (extent, written) = self.write(id, first, zone, blocks);
        self.watch(id, extent.clone(), written);
        extent
    }

    /// Writes blocks to a zone that has space for them. Returns their extent.
    pub(crate) fn write(
        &self,
        id: FileId,
        first: u32,
        zone: ZoneId,
        content: Vec<Block>,
    ) -> (Extent, WriteHandle) {
        let sums = content.iter().map(|block| block.sum).collect();
        let blocks = content.len() as u32;
        let pages: Pages = content.into_iter().map(|block| block.page).collect();
        let written = self.0.zones.writer.submit(ZoneWrite::pages(zone, Kind::Data, pages));
        let at = BlockAddr::new(self.0.zones.writer.geometry(), zone, written.at());
        self.0.zones.add(zone, id, blocks);
        (Extent { first, blocks, at, sums: Sums::Here(Rc::new(sums)) }, written)
    }

    /// Starts a task that waits for the write of an extent and handles its failure.
    fn watch(&self, id: FileId, extent: Extent, written: WriteHandle) {
        let flight = self.0.flights.begin(id);
        let store = self.clone();
        self.0.rt.spawn_detached(async move {
            let done = match written.await {
                Ok(_) => {
                    store.forget_pages(id, &extent);
                    Ok(())
                }
                Err(error) => store.relocate(id, &extent, &error).await,
            };
            if let Err(error) = done {
                store.die(&error);
            }
            store.0.flights.end(flight);
        });
    }

    /// Drops pages that are on the drive now, so reads get them from there.
    fn forget_pages(&self, id: FileId, extent: &Extent) {
        let mut files = self.0.files.borrow_mut();
        let Some(file) = files.get_mut(&id) else { return };
        for block in extent.first..extent.end() {
            // If the block got another place meanwhile, its page is still needed: the write to the
            // new place is under way.
            let geometry = self.0.zones.writer.geometry();
            let here = file.extent_of(block).filter(|now| !now.is_hole()).is_some_and(|now| {
                now.at.plus(block - now.first) == extent.at.plus(block - extent.first)
                    && now.at.locate(geometry).is_some()
            });
            if here {
                file.flying.remove(&block);
            }
        }
    }

    /// Writes the checksums of the extent that begins with block `first` to a block of their own.
    pub(crate) async fn store_sums(&self, id: FileId, first: u32, want: Want) -> Result<()> {
        let zone = self.zone_for(Want { content: false, ..want }).await?;
        let mut files = self.0.files.borrow_mut();
        let Some(file) = files.get_mut(&id) else { return Ok(()) };
        let at = file.extents.partition_point(|extent| extent.first < first);
        let Some(extent) = file.extents.get_mut(at).filter(|extent| extent.first == first) else {
            return Ok(());
        };
        let Sums::Here(sums) = extent.sums.clone() else { return Ok(()) };
        if extent.is_hole() {
            return Ok(());
        }
        let head = SumsHead { first: first.into(), blocks: extent.blocks.into() };
        let mut body = head.as_bytes().to_vec();
        sums.iter().for_each(|sum| body.extend(sum.to_le_bytes()));
        let record = RecordId {
            kind: kind::SUMS,
            sequence: id.0,
            device: self.0.identity.device,
            object: self.0.identity.uuid,
            ..RecordId::default()
        };
        let page = record::seal(&record, &body, &self.0.pages);
        let writer = &self.0.zones.writer;
        let written = writer.submit(ZoneWrite::pages(zone, Kind::Node, page));
        let place = BlockAddr::new(writer.geometry(), zone, written.at());
        extent.sums = Sums::At(place);
        file.changed_from(first);
        self.weigh(file);
        drop(files);
        self.0.zones.add(zone, id, 1);
        self.0.sums.keep(place, sums.clone());
        let flight = self.0.flights.begin(id);
        let store = self.clone();
        self.0.rt.spawn_detached(async move {
            if let Err(error) = written.await {
                store.unstore_sums(id, first, place, &sums);
                // The result is not needed: if the store fails here, every caller learns that.
                let _ = store.give_up_zone(zone, &error);
            }
            store.0.flights.end(flight);
        });
        Ok(())
    }

    /// Puts checksums back into the extent's entry, because their block could not be written.
    fn unstore_sums(&self, id: FileId, first: u32, place: BlockAddr, sums: &Rc<Vec<u32>>) {
        self.0.commits.note_move();
        let mut files = self.0.files.borrow_mut();
        let Some(file) = files.get_mut(&id) else { return };
        let found = file.extents.iter_mut().find(|e| e.sums == Sums::At(place));
        // If the extent is not found, it is gone, and so is its block of checksums.
        if let Some(extent) = found {
            let kept = sums.iter().take(extent.blocks as usize).copied().collect();
            extent.sums = Sums::Here(Rc::new(kept));
            file.changed_from(first);
            self.weigh(file);
            self.0.commits.include(id);
            self.0.leaving.retire((self.zone_of(place), id, 1));
        }
    }

    /// Retires an extent: its blocks stop counting as valid once the next group commit is durable.
    pub(crate) fn retire(&self, id: FileId, extent: &Extent) {
        if extent.is_hole() {
            return;
        }
        self.0.leaving.retire((self.zone_of(extent.at), id, extent.blocks));
        if let Sums::At(at) = extent.sums {
            self.0.leaving.retire((self.zone_of(at), id, 1));
            self.0.sums.forget(at);
        }
    }

    /// Reads from a file; returns less than `len` bytes at its end.
    ///
    /// # Errors
    /// `Corrupt` if a block is not what was written, `Io` if the drive does not return it; either
    /// names the file and the block.
    pub async fn read(&self, id: FileId, offset: u64, len: usize) -> Result<Data> {
        let size = self.size(id)?;
        let len = (len as u64).min(size.saturating_sub(offset)) as usize;
        if len == 0 {
            return Ok(Data::default());
        }
        let first = (offset / PAGE_SIZE as u64) as u32;
        let end = (offset + len as u64).div_ceil(PAGE_SIZE as u64) as u32;
        let mut pages = Pages::new();
        let mut block = first;
        while block < end {
            let more = self.read_run(id, block, end).await?;
            block += more.len() as u32;
            pages.extend(more);
        }
        self.count(|counters| counters.read += len as u64);
        Ok(Data { pages, skip: (offset % PAGE_SIZE as u64) as usize, len })
    }

    /// Reads at least one block, from `block` on, and no block from `end` on.
    pub(crate) async fn read_run(&self, id: FileId, block: u32, end: u32) -> Result<Pages> {
        let (pins, extent, count) = {
            let files = self.0.files.borrow();
            let missing = || Error::new(ErrorKind::NotFound, format!("file {} is gone", id.0));
            let file = files.get(&id).ok_or_else(missing)?;
            if let Some(page) = file.in_memory(block) {
                return Ok(smallvec::smallvec![page]);
            }
            let lost = || Error::new(ErrorKind::Corrupt, format!("block {block} has no place"));
            let extent = file.extent_of(block).cloned().ok_or_else(lost)?;
            if extent.is_hole() {
                let count = end.min(extent.end()) - block;
                return Ok((0..count).map(|_| Page::zeroed()).collect());
            }
            let on_drive = |block: &u32| !file.flying.contains_key(block);
            let count = (block..end.min(extent.end())).take_while(on_drive).count() as u32;
            // Cleaning may move the extent while the blocks are read, so the block of
            // checksums is pinned too.
            let pin = |(at, _)| self.0.zones.pool.pin(self.zone_of(at));
            let pins: SmallVec<[ReadPin; 2]> = extent.places().map(pin).collect();
            (pins, extent, count)
        };
        let inside = block - extent.first;
        let read = self.read_checked(id, &extent, inside, count).await;
        drop(pins);
        read.map_err(|error| error.at(self.name_of(id)))
    }

    /// Reads blocks of an extent from the drive and verifies their checksums. The caller pins the
    /// zones of the blocks and of the block of checksums.
    ///
    /// # Errors
    /// The errors of [`Store::read_verified`]; the error names the block and its place.
    pub(crate) async fn read_checked(
        &self,
        id: FileId,
        extent: &Extent,
        inside: u32,
        count: u32,
    ) -> Result<Pages> {
        let read = self.read_verified(id, extent, inside, count).await;
        read.map_err(|(inside, error)| {
            let (block, at) = (extent.first + inside, extent.at.plus(inside));
            let (zone, offset) = (self.zone_of(at), at.offset(self.0.zones.writer.geometry()));
            error.at(format!("block {block} (zone {zone} offset {offset})"))
        })
    }

    /// Reads blocks as [`Store::read_checked`] does.
    ///
    /// # Errors
    /// `Corrupt` if a block is not what was written, `Io` if the drive does not return it. The
    /// error comes with the index of the bad block in the extent; an error that concerns the whole
    /// command comes with the index of the first block to read.
    pub(crate) async fn read_verified(
        &self,
        id: FileId,
        extent: &Extent,
        inside: u32,
        count: u32,
    ) -> std::result::Result<Pages, (u32, Error)> {
        let writer = &self.0.zones.writer;
        let at = extent.at.plus(inside);
        let queue = QueueId(0);
        let pages = read_blocks(&**writer.device(), queue, at, count, &self.0.pages).await;
        let pages = pages.map_err(|error| (inside, error))?;
        let sums = self.sums_of(id, extent).await.map_err(|error| (inside, error))?;
        for (index, (page, sum)) in pages.iter().zip(&sums[inside as usize..]).enumerate() {
            let found = crc32c(page.bytes());
            if found != *sum {
                return Err((inside + index as u32, wrong_content(found, *sum)));
            }
        }
        Ok(pages)
    }

    /// Returns the checksums of an extent's blocks.
    pub(crate) async fn sums_of(&self, id: FileId, extent: &Extent) -> Result<Rc<Vec<u32>>> {
        let at = match &extent.sums {
            Sums::Here(sums) => return Ok(sums.clone()),
            Sums::At(at) => *at,
        };
        if let Some(sums) = self.0.sums.get(at) {
            return Ok(sums);
        }
        let writer = &self.0.zones.writer;
        let pages = read_blocks(&**writer.device(), QueueId(0), at, 1, &self.0.pages).await?;
        let what = |error: Error| error.at(format!("checksums at {at}"));
        let expect = Expect { kind: kind::SUMS, device: None, object: Some(self.0.identity.uuid) };
        let (header, body) = record::open(pages[0].bytes(), &expect).map_err(what)?;
        let corrupt = |why: String| what(Error::new(ErrorKind::Corrupt, why));
        let (head, rest) =
            SumsHead::read_from_prefix(body).map_err(|_| corrupt("too short".into()))?;
        let (first, blocks) = (head.first.get(), head.blocks.get());
        if header.sequence.get() != id.0
            || first != extent.first
            || blocks < extent.blocks
            || rest.len() != 4 * blocks as usize
        {
            let file = header.sequence.get();
            return Err(corrupt(format!("of file {file}, {blocks} blocks from {first}")));
        }
        let each = rest.chunks_exact(4).map(|sum| {
            u32::from_le_bytes(sum.try_into().expect("invariant: pieces of four bytes"))
        });
        let sums = Rc::new(each.collect());
        self.0.sums.keep(at, Rc::clone(&sums));
        Ok(sums)
    }
}

/// Truncates a file to `last` whole blocks and the tail. Returns the extents that the file lost.
fn cut(file: &mut File, last: u32, tail: Page, size: u64) -> Vec<Extent> {
    let placed = file.placed();
    file.waiting.truncate(last.saturating_sub(placed) as usize);
    file.flying.retain(|block, _| *block < last);
    let mut lost = Vec::new();
    while let Some(extent) = file.extents.last_mut().filter(|extent| extent.end() > last) {
        let kept = last.saturating_sub(extent.first);
        if kept == 0 {
            lost.push(file.extents.pop().expect("invariant: it was just there"));
            continue;
        }
        let rest = extent.blocks - kept;
        // The block of checksums stays valid as long as any part of the extent remains, so it is
        // not freed here.
        let at = if extent.is_hole() { BlockAddr::HOLE } else { extent.at.plus(kept) };
        let gone = Extent { first: last, blocks: rest, at, sums: nothing() };
        extent.blocks = kept;
        if let Sums::Here(sums) = &mut extent.sums {
            Rc::make_mut(sums).truncate(kept as usize);
        }
        let first = extent.first;
        file.changed_from(first);
        lost.push(gone);
    }
    file.changed_from(last);
    file.tail = tail;
    file.size = size;
    lost
}

fn nothing() -> Sums {
    Sums::Here(Rc::default())
}

const _: () = assert!(BLOCK_SIZE == PAGE_SIZE);
