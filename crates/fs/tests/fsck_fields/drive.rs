//! A drive in memory whose blocks can be changed, and the structures found in it: a third reader of
//! the format, for file systems known to be intact.

use furrow_fs::format::{
    BLOCK, CheckpointBody, HOLE, NatEntry, SitEntry, StreamState, SummaryEntry, SuperblockBody,
    UnitRef, kind, table,
};
use furrow_log::format::{DeltaGroup, Descriptor, ExtentEntry, RecordHeader};
use furrow_log::record::{crc32c, crc32c_append, peek};
use furrow_rt::{Completion, CompletionTable};
use furrow_zone::{
    Command, Geometry, Lba, Outcome, QueueId, Reports, Request, Status, ZoneId, ZoneReport,
    ZonedDevice, reported,
};
use std::collections::BTreeMap;
use std::rc::Rc;
use zerocopy::{FromBytes, IntoBytes};

/// The content of a drive, and the changes made to it.
#[derive(Clone)]
pub struct Drive {
    geometry: Geometry,
    reports: Vec<ZoneReport>,
    base: Rc<BTreeMap<u32, Vec<u8>>>,
    changed: BTreeMap<u32, Vec<u8>>,
}

impl ZonedDevice for Drive {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, _: QueueId, request: Request) -> Completion<Outcome> {
        let Command::Read { lba, blocks } = request.command else {
            panic!("fsck sent {:?}", request.command);
        };
        let (zone, offset) = self.geometry.locate(lba).unwrap();
        let first = zone.0 * self.capacity() + offset.0 as u32;
        let mut data = request.data;
        assert_eq!(data.len() as u64, blocks.0);
        for (addr, page) in (first..).zip(data.iter_mut()) {
            page.make_mut().copy_from_slice(&self.block(addr));
        }
        let table = CompletionTable::new();
        let (ticket, completion) = table.open();
        table.complete(ticket, Outcome { status: Status::Success, lba: Lba(0), data, oob: vec![] });
        completion
    }

    fn report(&self, first: ZoneId, count: u32) -> Reports<'_> {
        let all = self.reports.iter().skip(first.0 as usize);
        reported(Ok(all.take(count as usize).copied().collect()))
    }

    fn name(&self) -> String {
        "image".into()
    }
}

/// A position on the drive: block address, and byte offset, which may be past the block's end.
pub type At = (u32, usize);

impl Drive {
    /// Reads the whole content of `device`.
    pub async fn read(device: &dyn ZonedDevice) -> Drive {
        let geometry = device.geometry().clone();
        assert_eq!(geometry.block_size.0 as usize, BLOCK);
        let reports = device.report(ZoneId(0), geometry.zones).await.unwrap();
        let pool = furrow_rt::Pool::new(64);
        let mut base = BTreeMap::new();
        let capacity = geometry.zone_capacity.0 as u32;
        for report in &reports {
            let end = report.write_pointer.0 as u32;
            let from = furrow_log::BlockAddr(report.zone.0 * capacity);
            let pages = furrow_log::read_blocks(device, QueueId(0), from, end, &pool).await;
            for (addr, page) in (from.0..).zip(pages.unwrap()) {
                base.insert(addr, page.bytes().to_vec());
            }
        }
        Drive { geometry, reports, base: Rc::new(base), changed: BTreeMap::new() }
    }

    /// Number of blocks per zone.
    pub fn capacity(&self) -> u32 {
        self.geometry.zone_capacity.0 as u32
    }

    /// The content of a block; zeros if it was never written.
    pub fn block(&self, addr: u32) -> Vec<u8> {
        let block = self.changed.get(&addr).or_else(|| self.base.get(&addr));
        block.cloned().unwrap_or_else(|| vec![0; BLOCK])
    }

    /// Number of written blocks of `zone`.
    pub fn written(&self, zone: u32) -> u32 {
        self.reports[zone as usize].write_pointer.0 as u32
    }

    /// The `len` bytes at a position.
    pub fn bytes(&self, (addr, offset): At, len: usize) -> Vec<u8> {
        let last = (offset + len).div_ceil(BLOCK) as u32;
        let all: Vec<u8> = (addr..addr + last).flat_map(|addr| self.block(addr)).collect();
        all[offset..offset + len].to_vec()
    }

    /// Reads the structure at `at`.
    pub fn load<T: FromBytes>(&self, at: At) -> T {
        T::read_from_bytes(&self.bytes(at, size_of::<T>())).unwrap()
    }

    /// Overwrites the bytes at a position.
    pub fn store(&mut self, (addr, offset): At, bytes: &[u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            let addr = addr + (at / BLOCK) as u32;
            let mut block = self.block(addr);
            block[at % BLOCK] = *byte;
            self.changed.insert(addr, block);
        }
    }

    /// Flips a bit of the field at `at`.
    pub fn flip(&mut self, (addr, offset): At, bit: usize) {
        let byte = self.bytes((addr, offset + bit / 8), 1)[0];
        self.store((addr, offset + bit / 8), &[byte ^ 1 << (bit % 8)]);
    }

    /// Updates the checksum of the record at `addr` after a change. The record's length field may
    /// be damaged: `length` is the original length.
    fn reseal(&mut self, addr: u32, length: usize) {
        let mut header: RecordHeader = self.load((addr, 0));
        header.crc = 0.into();
        let claimed = header.length.get() as usize;
        let written = self.written(addr / self.capacity()) - addr % self.capacity();
        let possible = (RecordHeader::SIZE..=written as usize * BLOCK).contains(&claimed);
        let length = if possible { claimed } else { length };
        let body = self.bytes((addr, RecordHeader::SIZE), length - RecordHeader::SIZE);
        let crc = crc32c_append(crc32c(header.as_bytes()), &body);
        self.store((addr, 12), &crc.to_le_bytes());
    }
}

/// Names the structure that holds the checksum of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// Both superblock copies, which must stay equal.
    Superblock,
    /// The checkpoint.
    Checkpoint,
    /// A delta block: the index of its extent, and its address.
    Delta(usize, u32),
    /// A table page.
    Unit(usize),
    /// A node, by its NAT entry.
    Node(u32),
    /// Content of a file: the node with its pointer, and the pointer's offset in the node's block.
    Content(u32, usize),
    /// A summary, which holds its own checksum.
    Summary(u32),
    /// A sync record.
    Sync(u32),
}

/// The positions of all structures.
pub struct Map {
    /// Addresses of the superblock copies.
    pub superblocks: Vec<u32>,
    /// The body of the superblock.
    pub plan: SuperblockBody,
    /// Address and record length of the newest checkpoint.
    pub checkpoint: (u32, usize),
    /// The body of this checkpoint.
    pub body: CheckpointBody,
    /// Offsets of the body's sections from the start of the record: streams, extents, units,
    /// superzones, orphans, summaries.
    pub sections: [usize; 6],
    /// Table entries: from (table, index) to the position, and the structure that holds
    /// the checksum.
    pub entries: BTreeMap<(u8, u32), (At, Chain)>,
}

impl Map {
    /// Finds all structures on an intact drive.
    pub fn of(drive: &Drive) -> Map {
        let capacity = drive.capacity();
        let record = |addr| peek(&drive.block(addr)).filter(|h| h.magic.get() != 0);
        let copies = (0..2).map(|zone| zone * capacity);
        let superblocks: Vec<u32> =
            copies.filter(|a| record(*a).is_some_and(|h| h.kind == kind::SUPERBLOCK)).collect();
        let plan: SuperblockBody = drive.load((superblocks[0], RecordHeader::SIZE));
        let ring = (0..2).flat_map(|z| z * capacity + 1..z * capacity + drive.written(z).max(1));
        let checkpoints = ring.filter_map(|addr| Some((record(addr)?, addr)));
        let newest = checkpoints
            .filter(|(header, _)| header.kind == kind::CHECKPOINT)
            .max_by_key(|(header, _)| header.checkpoint.get())
            .unwrap();
        let checkpoint = (newest.1, newest.0.length.get() as usize);
        let body: CheckpointBody = drive.load((checkpoint.0, RecordHeader::SIZE));
        let sizes = [
            body.streams.get() as usize * size_of::<StreamState>(),
            body.extents.get() as usize * size_of::<ExtentEntry>(),
            body.units.get() as usize * size_of::<UnitRef>(),
            body.superzones.get() as usize * size_of::<Descriptor>(),
            body.orphans.get() as usize * 4,
        ];
        let mut sections = [RecordHeader::SIZE + CheckpointBody::SIZE + SuperblockBody::SIZE; 6];
        for (index, size) in sizes.iter().enumerate() {
            sections[index + 1] = sections[index] + size;
        }
        let entries = BTreeMap::new();
        let mut map = Map { superblocks, plan, checkpoint, body, sections, entries };
        map.find_units(drive);
        map.find_deltas(drive);
        map
    }

    /// Number of entries of `size` bytes in a table page.
    pub fn per_unit(&self, size: usize) -> u32 {
        ((self.plan.unit_blocks.get() as usize * BLOCK - RecordHeader::SIZE) / size) as u32
    }

    /// Position of item `index` in a section of the checkpoint.
    pub fn in_checkpoint(&self, section: usize, size: usize, index: usize) -> At {
        (self.checkpoint.0, self.sections[section] + index * size)
    }

    fn find_units(&mut self, drive: &Drive) {
        let per_nat = self.per_unit(size_of::<NatEntry>());
        let per_sit = self.per_unit(size_of::<SitEntry>());
        let nat_units = self.body.nat_units.get() as usize;
        for index in 0..self.body.units.get() as usize {
            let unit: UnitRef = drive.load(self.in_checkpoint(2, size_of::<UnitRef>(), index));
            if unit.addr == HOLE {
                continue;
            }
            let (which, size, per, first) = match index.checked_sub(nat_units) {
                None => (table::NAT, size_of::<NatEntry>(), per_nat, index as u32 * per_nat),
                Some(i) => (table::SIT, size_of::<SitEntry>(), per_sit, i as u32 * per_sit),
            };
            for i in 0..per {
                let at = (unit.addr.get(), RecordHeader::SIZE + i as usize * size);
                self.entries.insert((which, first + i), (at, Chain::Unit(index)));
            }
        }
    }

    fn find_deltas(&mut self, drive: &Drive) {
        for index in 0..self.body.extents.get() as usize {
            let (start, blocks) = self.extent(drive, index);
            for addr in start..start + blocks {
                let header: RecordHeader = drive.load((addr, 0));
                let mut at = RecordHeader::SIZE;
                while at < header.length.get() as usize {
                    let group: DeltaGroup = drive.load((addr, at));
                    at += DeltaGroup::SIZE;
                    for _ in 0..group.entries.get() {
                        let bytes = drive.bytes((addr, at), 4);
                        let id = u32::from_le_bytes(bytes.try_into().unwrap());
                        let place = ((addr, at + 4), Chain::Delta(index, addr));
                        self.entries.insert((group.table, id), place);
                        at += 4 + usize::from(group.payload.get());
                    }
                }
            }
        }
    }

    /// First block and number of blocks of an extent.
    pub fn extent(&self, drive: &Drive, index: usize) -> (u32, u32) {
        let at = self.in_checkpoint(1, size_of::<ExtentEntry>(), index);
        let extent: ExtentEntry = drive.load(at);
        let log = u32::from(index >= self.body.log_extents.get() as usize);
        let zones = self.plan.delta_zones.get() * (2 * log + u32::from(extent.half));
        let start = (self.plan.delta_start.get() + zones) * drive.capacity();
        (start + extent.first.get(), extent.blocks.get())
    }

    /// The NAT entry of `nid`.
    pub fn nat(&self, drive: &Drive, nid: u32) -> NatEntry {
        drive.load(self.entries[&(table::NAT, nid)].0)
    }

    /// Corrects the checksums from the changed block up to the checkpoint.
    pub fn repair(&self, drive: &mut Drive, chain: Chain) {
        match chain {
            Chain::Superblock => {
                let block = drive.block(self.superblocks[0]);
                for addr in &self.superblocks {
                    drive.store((*addr, 0), &block);
                    drive.reseal(*addr, RecordHeader::SIZE + SuperblockBody::SIZE);
                }
            }
            Chain::Checkpoint => drive.reseal(self.checkpoint.0, self.checkpoint.1),
            Chain::Delta(extent, addr) => {
                drive.reseal(addr, BLOCK);
                let (start, blocks) = self.extent(drive, extent);
                let crc = (start..start + blocks)
                    .fold(0, |crc, addr| crc32c_append(crc, &drive.block(addr)));
                let (at, offset) = self.in_checkpoint(1, size_of::<ExtentEntry>(), extent);
                drive.store((at, offset + 12), &crc.to_le_bytes());
                self.repair(drive, Chain::Checkpoint);
            }
            Chain::Unit(index) => {
                let (at, offset) = self.in_checkpoint(2, size_of::<UnitRef>(), index);
                let unit: UnitRef = drive.load((at, offset));
                drive.reseal(unit.addr.get(), self.plan.unit_blocks.get() as usize * BLOCK);
                let crc = drive.bytes((unit.addr.get(), 12), 4);
                drive.store((at, offset + 4), &crc);
                self.repair(drive, Chain::Checkpoint);
            }
            Chain::Node(nid) => {
                let ((at, offset), holder) = self.entries[&(table::NAT, nid)];
                let entry: NatEntry = drive.load((at, offset));
                let crc = crc32c(&drive.block(entry.addr.get()));
                drive.store((at, offset + 4), &crc.to_le_bytes());
                self.repair(drive, holder);
            }
            Chain::Content(nid, offset) => {
                let node = self.nat(drive, nid).addr.get();
                let pointer = drive.bytes((node, offset), 4);
                let addr = u32::from_le_bytes(pointer.try_into().unwrap());
                let crc = crc32c(&drive.block(addr));
                drive.store((node, offset + 4), &crc.to_le_bytes());
                self.repair(drive, Chain::Node(nid));
            }
            Chain::Summary(addr) => {
                drive.store((addr, 4), &[0; 4]);
                let crc = crc32c(&drive.block(addr));
                drive.store((addr, 4), &crc.to_le_bytes());
            }
            Chain::Sync(addr) => {
                let length: RecordHeader = drive.load((addr, 0));
                drive.reseal(addr, (length.length.get() as usize).clamp(RecordHeader::SIZE, BLOCK));
            }
        }
    }

    /// Position of the entries of the summary of stream `stream` in the checkpoint, and
    /// their number.
    pub fn stream_summary(&self, drive: &Drive, stream: usize) -> (At, u32) {
        let state = |index: usize| -> StreamState {
            drive.load(self.in_checkpoint(0, size_of::<StreamState>(), index))
        };
        let before: u32 = (0..stream).map(|index| state(index).summary.get()).sum();
        let at = self.in_checkpoint(5, size_of::<SummaryEntry>(), before as usize);
        (at, state(stream).summary.get())
    }
}
