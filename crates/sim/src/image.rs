//! Images of drives that are damaged on purpose: making them, damaging them at random places, and
//! restoring them to a drive.

use crate::crash::{Case, Subject};
use furrow_emu::{Emulator, Fates, Medium, Options};
use furrow_log::format::RecordHeader;
use furrow_log::record::{crc32c, crc32c_append, peek};
use furrow_rt::{Config, PAGE_SIZE, Pages, Pool, Rng, Rt};
use furrow_zone::{
    Action, BlockCount, Command, Geometry, Lba, QueueId, Request, Target, ZoneId, ZoneReport,
    ZoneState, ZonedDevice,
};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use zerocopy::{FromBytes, IntoBytes};

/// The result of using a damaged image.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Whether the image could be mounted.
    pub mounted: bool,
    /// Number of fsck's findings; `None` if fsck refused the image.
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

/// The content of a drive, zone by zone up to the write pointers.
#[derive(Clone)]
pub struct Image {
    pub(crate) geometry: Geometry,
    pub(crate) zones: Vec<Vec<u8>>,
    /// For each zone, whether it is full, even if not written to its end.
    full: Vec<bool>,
}

impl Image {
    /// The image of the drive after the run of `case` and a power cut.
    pub(crate) fn of<S: Subject>(subject: &S, case: Case) -> Result<Image, String> {
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

    pub(crate) fn bytes(&mut self, (zone, block): (usize, usize)) -> &mut [u8] {
        &mut self.zones[zone][block * PAGE_SIZE..(block + 1) * PAGE_SIZE]
    }

    fn blocks(&self, zone: usize) -> usize {
        self.zones[zone].len() / PAGE_SIZE
    }

    /// Picks a written block; if `metadata`, one in a metadata zone.
    fn pick(&self, rng: &mut Rng, metadata: bool) -> Option<(usize, usize)> {
        // On the small drives of these tests, the first 12 zones hold ring, delta log, tables and
        // sync log.
        let zones = if metadata { 12.min(self.zones.len()) } else { self.zones.len() };
        let written: Vec<usize> = (0..zones).filter(|zone| self.blocks(*zone) > 0).collect();
        let zone = *written.get(rng.below(written.len().max(1) as u64) as usize)?;
        Some((zone, rng.below(self.blocks(zone) as u64) as usize))
    }

    /// Damages one block, in one bit or more. Returns the block's zone and its number in the zone,
    /// or `None` if the damage would change nothing.
    pub(crate) fn damage_one(&mut self, rng: &mut Rng) -> Option<(usize, usize)> {
        let metadata = !rng.one_in(4);
        let at = self.pick(rng, metadata)?;
        let offset = rng.below(PAGE_SIZE as u64) as usize;
        let block = self.bytes(at);
        let before = block.to_vec();
        match rng.below(6) {
            0 => block.fill(0),
            1 => block[offset..].fill(0xff),
            // Favours headers, near the start of the block.
            2 => block[offset % 256] ^= 1 << rng.below(8),
            _ => block[offset] ^= 1 << rng.below(8),
        }
        (before != block).then_some(at)
    }

    /// Damages one to three places.
    pub fn damage(&mut self, rng: &mut Rng) {
        for _ in 0..1 + rng.below(3) {
            let metadata = !rng.one_in(3);
            let Some(at) = self.pick(rng, metadata) else { return };
            let offset = rng.below(PAGE_SIZE as u64) as usize;
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
                    // Favours fields near the start of a block: headers, lengths, counts.
                    let aligned = aligned % 256;
                    let value = rng.below(300) as u32;
                    self.bytes(at)[aligned..aligned + 4].copy_from_slice(&value.to_le_bytes());
                }
                _ => self.bytes(at)[offset..].fill(0),
            }
        }
    }

    /// The first block of each record that `wanted` selects, as zone and block in the zone.
    pub(crate) fn records(&self, wanted: impl Fn(&RecordHeader) -> bool) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        for (zone, bytes) in self.zones.iter().enumerate() {
            for (block, content) in bytes.chunks_exact(PAGE_SIZE).enumerate() {
                if peek(content).is_some_and(|header| wanted(&header)) {
                    found.push((zone, block));
                }
            }
        }
        found
    }

    /// Recomputes the checksums of the records that `wanted` selects.
    pub(crate) fn seal_records(&mut self, wanted: impl Fn(&RecordHeader) -> bool) {
        for (zone, block) in self.records(wanted) {
            let record = &mut self.zones[zone][block * PAGE_SIZE..];
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
}

/// The content of each zone up to its write pointer, and whether the zone is full.
pub(crate) async fn read(drive: &Emulator) -> Result<Vec<(Vec<u8>, bool)>, String> {
    let count = drive.geometry().zones;
    let reports: Vec<ZoneReport> =
        drive.report_now(ZoneId(0), count).map_err(|status| status.to_string())?;
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
                // The end of a full zone may be unreadable.
                Err(_) if report.state == ZoneState::Full => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        zones.push((bytes, report.state == ZoneState::Full));
    }
    Ok(zones)
}

/// Puts an image on a new drive.
pub(crate) async fn restore(drive: &Emulator, image: &Image) -> Result<(), String> {
    let pool = Pool::new(64);
    let mut zones: Vec<(ZoneId, &Vec<u8>)> = (0..).map(ZoneId).zip(&image.zones).collect();
    // Full zones come first, because the other zones stay active.
    zones.sort_by_key(|(zone, _)| !image.full[zone.0 as usize]);
    for (zone, bytes) in zones {
        let start = drive.geometry().start(zone);
        for (block, content) in (0..).zip(bytes.chunks_exact(PAGE_SIZE)) {
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
