//! Damaged images: mount, fsck and dump may refuse what they find, but must neither panic nor hang;
//! the same for those of file stores (`store`).
//!
//! A seed makes a file system with a history, cuts the power in half of the cases, and damages the
//! image: bits, fields, blocks, at places that hold metadata more often than not. Checksums would
//! catch nearly all of that, so in most cases they are made to fit again, up to the checkpoint, and
//! those of nodes and content are not looked at (the canary that drops them): the code behind them
//! is what is tried. What comes out is not judged; that is for the sweeps whose checksums hold.

mod repair;
mod store;

pub use repair::{Repaired, repaired};
pub use store::damaged_store;

use crate::crash::{Case, Subject};
use crate::files::Files;
use furrow_emu::{Emulator, Fates, Medium, Options};
use furrow_fs::dump::{Part, Which, dump};
use furrow_fs::format::{BLOCK, CheckpointBody, StreamState, SuperblockBody, UnitRef, kind};
use furrow_fs::{Canary, CleanOptions, Fs, FsckOptions, Ino, MountOptions, NewNode, WriteData};
use furrow_log::format::{ExtentEntry, RecordHeader};
use furrow_log::record::{crc32c, crc32c_append, peek};
use furrow_rt::{Config, Pages, Pool, Rng, Rt};
use furrow_zone::{
    Action, BlockCount, Command, Geometry, Lba, QueueId, Request, Target, ZoneId, ZoneReport,
    ZoneState, ZonedDevice,
};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use zerocopy::{FromBytes, IntoBytes};

/// What became of an image.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// It could be mounted.
    pub mounted: bool,
    /// What fsck found; `None` if it could not check.
    pub findings: Option<usize>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mounted = if self.mounted { "mounted" } else { "not mounted" };
        match self.findings {
            Some(findings) => write!(f, "{mounted}, {findings} findings"),
            None => write!(f, "{mounted}, fsck refused"),
        }
    }
}

/// What is on a drive, zone by zone up to the write pointers.
#[derive(Clone)]
pub struct Image {
    geometry: Geometry,
    zones: Vec<Vec<u8>>,
    /// Zones that are full, whether written to their end or not.
    full: Vec<bool>,
}

impl Image {
    /// The image of `seed`, undamaged.
    ///
    /// # Errors
    /// If the engine fails: a bug that has nothing to do with damage.
    pub fn make(seed: u64) -> Result<Image, String> {
        let files = Files { rot: true, ..Files::default() };
        Image::of(&files, Case { seed, volatile: false })
    }

    /// What a run leaves on its drive.
    fn of<S: Subject>(subject: &S, case: Case) -> Result<Image, String> {
        let seed = case.seed;
        let geometry = subject.drive(case);
        let rt = Rt::new(Config::shuffled(seed));
        let medium = Medium::memory(&geometry);
        let drive = Emulator::new(&rt, geometry.clone(), medium, Options::simulated());
        let drive = drive.map_err(|error| error.to_string())?;
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        subject.prepare(&rt, device.clone(), case)?;
        let history = Rc::new(RefCell::new(S::History::default()));
        subject.run(&rt, device.clone(), case, history)?;
        let left = drive.snapshot().power_cut(&Fates::seeded(seed));
        rt.clear();
        let rt = Rt::new(Config::shuffled(seed));
        let drive = Emulator::from_snapshot(&rt, &left, Options::simulated());
        let zones = rt.block_on(async move { read(&drive).await });
        rt.clear();
        let (zones, full) = zones?.into_iter().unzip();
        Ok(Image { geometry, zones, full })
    }

    fn bytes(&mut self, (zone, block): (usize, usize)) -> &mut [u8] {
        &mut self.zones[zone][block * BLOCK..(block + 1) * BLOCK]
    }

    fn blocks(&self, zone: usize) -> usize {
        self.zones[zone].len() / BLOCK
    }

    /// A block that is written, in the zones of the metadata if `metadata`.
    fn pick(&self, rng: &mut Rng, metadata: bool) -> Option<(usize, usize)> {
        // Ring, delta log, tables and sync log come first; none has more than a few zones here.
        let zones = if metadata { 12.min(self.zones.len()) } else { self.zones.len() };
        let written: Vec<usize> = (0..zones).filter(|zone| self.blocks(*zone) > 0).collect();
        let zone = *written.get(rng.below(written.len().max(1) as u64) as usize)?;
        Some((zone, rng.below(self.blocks(zone) as u64) as usize))
    }

    /// Damages a place or two.
    pub fn damage(&mut self, rng: &mut Rng) {
        for _ in 0..1 + rng.below(3) {
            let metadata = !rng.one_in(3);
            let Some(at) = self.pick(rng, metadata) else { return };
            let offset = rng.below(BLOCK as u64) as usize;
            let aligned = offset & !3;
            match rng.below(6) {
                0 => self.bytes(at)[offset] ^= 1 << rng.below(8),
                1 => {
                    let values = [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX, rng.next() as u32];
                    let value = values[rng.below(values.len() as u64) as usize];
                    self.bytes(at)[aligned..aligned + 4].copy_from_slice(&value.to_le_bytes());
                }
                2 => self.bytes(at)[offset] = rng.next() as u8,
                3 => {
                    let Some(from) = self.pick(rng, metadata) else { return };
                    let other = self.bytes(from).to_vec();
                    self.bytes(at).copy_from_slice(&other);
                }
                4 => {
                    // A field near the start of a block: headers, lengths, counts.
                    let aligned = aligned % 256;
                    let value = rng.below(300) as u32;
                    self.bytes(at)[aligned..aligned + 4].copy_from_slice(&value.to_le_bytes());
                }
                _ => self.bytes(at)[offset..].fill(0),
            }
        }
    }

    /// Makes the checksums of records fit what they hold, and those of the checkpoints what they
    /// name.
    pub fn mend(&mut self) {
        self.seal_records(|_| true);
        let blocks: Vec<(usize, usize)> =
            self.records(|header| kind_of(header) == kind::CHECKPOINT);
        for at in blocks {
            self.mend_checkpoint(at);
        }
        self.seal_records(|header| kind_of(header) == kind::CHECKPOINT);
    }

    /// First blocks of the records that `wanted` names.
    fn records(&self, wanted: impl Fn(&RecordHeader) -> bool) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        for (zone, bytes) in self.zones.iter().enumerate() {
            for (block, content) in bytes.chunks_exact(BLOCK).enumerate() {
                if peek(content).is_some_and(|header| wanted(&header)) {
                    found.push((zone, block));
                }
            }
        }
        found
    }

    fn seal_records(&mut self, wanted: impl Fn(&RecordHeader) -> bool) {
        for (zone, block) in self.records(wanted) {
            let record = &mut self.zones[zone][block * BLOCK..];
            let Ok((mut header, _)) = RecordHeader::read_from_prefix(record) else { continue };
            let length = header.length.get() as usize;
            if length > record.len() {
                continue;
            }
            header.crc = 0.into();
            let crc = crc32c_append(crc32c(header.as_bytes()), &record[RecordHeader::SIZE..length]);
            record[12..16].copy_from_slice(&crc.to_le_bytes());
        }
    }

    /// Sets the checksums that the checkpoint at `at` has of extents and units.
    fn mend_checkpoint(&mut self, (zone, block): (usize, usize)) {
        let start = block * BLOCK + RecordHeader::SIZE;
        let record = self.zones[zone][start..].to_vec();
        let Ok((body, _)) = CheckpointBody::read_from_prefix(&record) else { return };
        let streams = size_of::<CheckpointBody>()
            + body.streams.get() as usize % 64 * size_of::<StreamState>();
        let extents = body.extents.get() as usize % 256;
        let units = streams + extents * size_of::<ExtentEntry>();
        let log = |index: usize| usize::from(index >= body.log_extents.get() as usize);
        for index in 0..extents {
            let at = streams + index * size_of::<ExtentEntry>();
            let extent = record.get(at..).and_then(|b| ExtentEntry::read_from_prefix(b).ok());
            let Some(crc) = extent.and_then(|(extent, _)| self.extent_crc(log(index), &extent))
            else {
                return;
            };
            let field = start + at + std::mem::offset_of!(ExtentEntry, crc);
            self.zones[zone][field..field + 4].copy_from_slice(&crc.to_le_bytes());
        }
        let capacity = self.geometry.zone_capacity.0 as usize;
        for index in 0..body.units.get() as usize % 4096 {
            let at = units + index * size_of::<UnitRef>();
            let Some(unit) = record.get(at..).and_then(|b| UnitRef::read_from_prefix(b).ok())
            else {
                return;
            };
            let addr = unit.0.addr.get() as usize;
            let first =
                self.zones.get(addr / capacity).and_then(|z| z.get(addr % capacity * BLOCK..));
            let Some(crc) = first.and_then(|b| b.get(12..16)).map(<[u8]>::to_vec) else { continue };
            self.zones[zone][start + at + 4..start + at + 8].copy_from_slice(&crc);
        }
    }
}

impl Image {
    /// Checksum of the blocks of an extent of delta log `log`, as far as they are there.
    fn extent_crc(&self, log: usize, extent: &ExtentEntry) -> Option<u32> {
        let (zone, block) = *self.records(|h| kind_of(h) == kind::SUPERBLOCK).first()?;
        let body = self.zones[zone].get(block * BLOCK + RecordHeader::SIZE..)?;
        let (plan, _) = SuperblockBody::read_from_prefix(body).ok()?;
        let (first, zones) = (plan.delta_start.get() as usize, plan.delta_zones.get() as usize);
        let capacity = self.geometry.zone_capacity.0 as usize;
        let mut crc = 0;
        let blocks = (extent.first.get() as usize..).take(extent.blocks.get() as usize % 4096);
        for block in blocks {
            let zone = first + (2 * log + usize::from(extent.half)) * zones + block / capacity;
            let at = block % capacity * BLOCK;
            crc = crc32c_append(crc, self.zones.get(zone)?.get(at..at + BLOCK)?);
        }
        Some(crc)
    }
}

fn kind_of(header: &RecordHeader) -> u16 {
    header.kind.get()
}

/// What each zone holds, and whether it is full.
async fn read(drive: &Emulator) -> Result<Vec<(Vec<u8>, bool)>, String> {
    let count = drive.geometry().zones;
    let reports: Vec<ZoneReport> =
        drive.report(ZoneId(0), count).map_err(|status| status.to_string())?;
    let pool = Pool::new(64);
    let mut zones = Vec::new();
    for report in reports {
        let capacity = drive.geometry().zone_capacity.0;
        let end = report.write_pointer.0.min(capacity) as u32;
        let from = furrow_log::BlockAddr(report.zone.0 * capacity as u32);
        let mut bytes = Vec::new();
        for block in 0..end {
            let page = furrow_log::read_blocks(drive, QueueId(0), from.plus(block), 1, &pool).await;
            match page {
                Ok(page) => bytes.extend_from_slice(page[0].bytes()),
                // A full zone may have lost its end.
                Err(_) if report.state == ZoneState::Full => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        zones.push((bytes, report.state == ZoneState::Full));
    }
    Ok(zones)
}

/// Puts an image on a new drive.
async fn restore(drive: &Emulator, image: &Image) -> Result<(), String> {
    let pool = Pool::new(64);
    let mut zones: Vec<(ZoneId, &Vec<u8>)> = (0..).map(ZoneId).zip(&image.zones).collect();
    // Full ones first: the others stay active.
    zones.sort_by_key(|(zone, _)| !image.full[zone.0 as usize]);
    for (zone, bytes) in zones {
        let start = drive.geometry().start(zone);
        for (block, content) in (0..).zip(bytes.chunks_exact(BLOCK)) {
            let mut page = pool.take();
            page.make_mut().copy_from_slice(content);
            let mut data = Pages::new();
            data.push(page);
            let command = Command::Write { lba: Lba(start.0 + block), blocks: BlockCount(1) };
            let request = Request { data, ..Request::bare(command) };
            let status = drive.submit(QueueId(0), request).await.status;
            if !status.is_ok() {
                return Err(format!("zone {zone} block {block}: {status}"));
            }
        }
        if image.full[zone.0 as usize] {
            let finish = Command::Manage { target: Target::Zone(start), action: Action::Finish };
            let status = drive.submit(QueueId(0), Request::bare(finish)).await.status;
            if !status.is_ok() {
                return Err(format!("finish of zone {zone}: {status}"));
            }
        }
    }
    Ok(())
}

/// Looks at everything, then changes something; whatever fails may fail.
async fn use_it(fs: &Fs) {
    let mut directories = vec![(Ino::ROOT, 0)];
    let mut seen = 0;
    while let Some((directory, depth)) = directories.pop() {
        let mut cookie = 0;
        // A damaged directory may go round in circles.
        for _ in 0..64 {
            let Ok(entries) = fs.readdir(directory, cookie, 32).await else { break };
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            for entry in &entries {
                seen += 1;
                if seen > 4000 {
                    return;
                }
                let Ok(attr) = fs.lookup(directory, &entry.name).await else { continue };
                let _ = fs.readlink(attr.ino).await;
                let _ = fs.read(attr.ino, 0, 64 * 1024).await;
                let _ = fs.read(attr.ino, attr.size.saturating_sub(4096), 4096).await;
                for name in fs.listxattr(attr.ino).await.unwrap_or_default() {
                    let _ = fs.getxattr(attr.ino, &name).await;
                }
                if fs.readdir(attr.ino, 0, 1).await.is_ok() && depth < 8 {
                    directories.push((attr.ino, depth + 1));
                }
            }
        }
    }
    let _ = fs.clean(CleanOptions { superzones: 2, ..CleanOptions::default() }).await;
    if let Ok(attr) = fs.create(Ino::ROOT, b"after", &NewNode::file()).await {
        let _ = fs.write(attr.ino, WriteData::copy(fs.pool(), 0, &[7; 9000])).await;
        let _ = fs.fsync(attr.ino, false).await;
    }
    let _ = fs.sync().await;
}

/// Damages `image` as `seed` says and looks what the tools make of it.
///
/// # Errors
/// If an image cannot be put on a drive. Panics are the caller's to catch.
pub fn damaged(image: &Image, seed: u64) -> Result<Summary, String> {
    let mut rng = Rng::new(seed ^ 0xda3a_6ed0);
    let mut image = image.clone();
    image.damage(&mut rng);
    let mended = !rng.one_in(4);
    if mended {
        image.mend();
    }
    let canary = (mended && rng.one_in(2)).then_some(Canary::DroppedCrc);
    let read_only = rng.one_in(4);
    let rt = Rt::new(Config::shuffled(seed));
    let medium = Medium::memory(&image.geometry);
    let drive = Emulator::new(&rt, image.geometry.clone(), medium, Options::simulated());
    let drive = drive.map_err(|error| error.to_string())?;
    let on = rt.clone();
    let summary = rt.block_on(async move {
        restore(&drive, &image).await?;
        let device: Rc<dyn ZonedDevice> = Rc::new(drive);
        let mut summary = Summary::default();
        let report = furrow_fs::fsck(device.clone(), &FsckOptions::default()).await;
        summary.findings = report.ok().map(|report| report.findings.len());
        for part in [
            Part::Superblock,
            Part::Checkpoint,
            Part::Nat(0..=u32::MAX),
            Part::Sit(0..=u32::MAX),
            Part::Directory(Which::Number(1)),
            Part::Segment(rng.below(60) as u32),
        ] {
            let _ = dump(device.clone(), &part).await;
        }
        let options = MountOptions { read_only, canary, ..MountOptions::default() };
        if let Ok(fs) = Fs::mount(&on, device, options).await {
            summary.mounted = true;
            use_it(&fs).await;
            let _ = fs.unmount().await;
        }
        Ok(summary)
    });
    rt.clear();
    summary
}
