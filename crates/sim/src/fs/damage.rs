//! Damaged images of file systems: mount, fsck and dump may refuse an image, but must neither panic
//! nor hang. The same test for file stores is in `kv/damage`.
//!
//! A seed makes a file system with a history, cuts the power in half of the cases, and damages the
//! image: bits, fields, blocks, mostly at places with metadata. Checksums would catch nearly all of
//! the damage, but the code behind the checksums is to be tested. So in most cases the harness
//! makes checksums fit again, up to the checkpoint. In half of these cases, the engine does not
//! check nodes and content at all (the defect that drops those checksums). The results are not
//! judged; the sweeps with valid checksums do that.

use crate::crash::Case;
use crate::fs::crash::FsSubject;
use crate::image::{Image, Summary, restore};
use furrow_emu::{Emulator, Medium, Options};
use furrow_fs::dump::{Part, Which, dump};
use furrow_fs::format::{BLOCK, CheckpointBody, StreamState, SuperblockBody, UnitRef, kind};
use furrow_fs::{CleanOptions, Fs, FsckOptions, Ino, MountOptions, NewNode, WriteData};
use furrow_log::format::{ExtentEntry, RecordHeader};
use furrow_log::record::crc32c_append;
use furrow_policy::{FsDefect, FsVariant};
use furrow_rt::{Config, Rng, Rt};
use furrow_zone::ZonedDevice;
use std::rc::Rc;
use zerocopy::FromBytes;

impl Image {
    /// The image of `seed`, undamaged.
    ///
    /// # Errors
    /// If the engine fails, which is a defect unrelated to damage.
    pub fn make(seed: u64) -> Result<Image, String> {
        let files = FsSubject { rot: true, ..FsSubject::default() };
        Image::of(&files, Case { seed, volatile: false })
    }

    /// Makes the checksums of records fit their content, and the checksums in checkpoints fit the
    /// blocks that they name.
    pub fn mend(&mut self) {
        self.seal_records(|_| true);
        let blocks: Vec<(usize, usize)> =
            self.records(|header| kind_of(header) == kind::CHECKPOINT);
        for at in blocks {
            self.mend_checkpoint(at);
        }
        self.seal_records(|header| kind_of(header) == kind::CHECKPOINT);
    }

    /// Sets the checksums of extents and units in the checkpoint that begins at block `block`
    /// of `zone`.
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
    /// Checksum of the blocks of an extent of delta log `log`; `None` if a block is missing.
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

/// Reads everything, then changes something. Any operation may fail.
async fn use_it(fs: &Fs) {
    let mut directories = vec![(Ino::ROOT, 0)];
    let mut seen = 0;
    while let Some((directory, depth)) = directories.pop() {
        let mut cookie = 0;
        // The listing of a damaged directory may never end.
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

/// Damages `image` as `seed` determines, and runs the tools on it.
///
/// # Errors
/// If an image cannot be put on a drive. The caller catches panics.
pub fn damaged(image: &Image, seed: u64) -> Result<Summary, String> {
    let mut rng = Rng::new(seed ^ 0xda3a_6ed0);
    let mut image = image.clone();
    image.damage(&mut rng);
    let mended = !rng.one_in(4);
    if mended {
        image.mend();
    }
    let defect = (mended && rng.one_in(2)).then_some(FsDefect::DroppedCrc);
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
        let variant = FsVariant { defect, ..FsVariant::default() };
        let options = MountOptions { read_only, variant, ..MountOptions::default() };
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
