//! A zoned drive as a zoned block device.

use crate::abi::{SECTOR, ZoneDescriptor};
use crate::backend::{Backend, Done, Properties, ZoneLimits};
use crate::recording::Recorder;
use crate::request::{Operation, Request};
use furrow_rt::{Pages, Pool, Ranges};
use furrow_zone::{
    Action, BlockCount, Command, Error, ErrorKind, Geometry, Lba, Outcome, QueueId, Status, Target,
    ZoneId, ZoneReport, ZoneState, ZonedDevice,
};
use rustix::io::Errno;
use std::rc::Rc;

/// Largest transfer in bytes.
const TRANSFER: u64 = 1 << 20;

/// Maximum number of zones of one report.
const REPORT: u32 = (TRANSFER / size_of::<ZoneDescriptor>() as u64) as u32;

/// Number of pages kept for reuse.
const PAGES: usize = 1024;

/// A zoned drive that is served as a zoned block device.
///
/// If the drive does not support Zone Append, appends become writes at the write pointer, one at a
/// time per zone.
pub struct Drive {
    drive: Rc<dyn ZonedDevice>,
    properties: Properties,
    pool: Pool,
    /// Locks on the zones that are being written, if the drive does not support Zone Append.
    turns: Ranges,
    recorder: Option<Rc<Recorder>>,
}

impl Drive {
    /// Prepares `drive` for serving.
    ///
    /// # Errors
    /// `Unsupported` if the kernel cannot have the drive's zones, for example because their size is
    /// not a power of two.
    pub fn new(drive: Rc<dyn ZonedDevice>) -> Result<Drive, Error> {
        let properties = properties(drive.geometry()).map_err(|what| {
            Error::new(ErrorKind::Unsupported, format!("{}: {what}", drive.name()))
        })?;
        let (pool, turns) = (Pool::new(PAGES), Ranges::default());
        Ok(Drive { drive, properties, pool, turns, recorder: None })
    }

    /// The same drive, with its commands recorded by `recorder`.
    #[must_use]
    pub fn recorded(self, recorder: Rc<Recorder>) -> Drive {
        Drive { recorder: Some(recorder), ..self }
    }

    /// The served drive.
    pub fn device(&self) -> &Rc<dyn ZonedDevice> {
        &self.drive
    }

    fn blocks(&self, sectors: u64) -> u64 {
        sectors * SECTOR / self.drive.geometry().block_size.0
    }

    async fn submit(&self, command: Command, data: Pages, fua: bool) -> Result<Outcome, Errno> {
        let recorder = self.recorder.as_ref();
        let recorded = recorder.map(|to| (to, to.submitted(&command, &data, fua)));
        let request = furrow_zone::Request { command, data, oob: Vec::new(), fua };
        let outcome = self.drive.submit(QueueId(0), request).await;
        if let Some((to, number)) = recorded {
            to.answered(number, &outcome);
        }
        if outcome.status.is_ok() { Ok(outcome) } else { Err(errno(outcome.status)) }
    }

    async fn report(&self, first: ZoneId, count: u32) -> Result<Vec<ZoneReport>, Errno> {
        self.drive.report(first, count).await.map_err(errno)
    }

    async fn append(
        &self,
        zone_start: Lba,
        data: Pages,
        blocks: BlockCount,
        fua: bool,
    ) -> Result<Lba, Errno> {
        let geometry = self.drive.geometry();
        let zone = geometry.zone_at(zone_start).ok_or(Errno::INVAL)?;
        if geometry.append_limit() != Some(BlockCount(0)) {
            let command = Command::Append { zone_start, blocks };
            return Ok(self.submit(command, data, fua).await?.lba);
        }
        if geometry.is_conventional(zone) {
            return Err(Errno::INVAL);
        }
        let _turn = self.turn(zone).await;
        let reports = self.report(zone, 1).await?;
        let pointer = reports.first().ok_or(Errno::IO)?.write_pointer;
        let lba = Lba(zone_start.0 + pointer.0);
        self.submit(Command::Write { lba, blocks }, data, fua).await?;
        Ok(lba)
    }

    async fn turn(&self, zone: ZoneId) -> furrow_rt::Held {
        self.turns.hold(u64::from(zone.0)..u64::from(zone.0) + 1).await
    }
}

impl Backend for Drive {
    fn properties(&self) -> Properties {
        self.properties.clone()
    }

    async fn carry_out(&self, request: Request, data: Pages) -> Result<Done, Errno> {
        let geometry = self.drive.geometry();
        let (lba, blocks) =
            (Lba(self.blocks(request.sector)), BlockCount(self.blocks(u64::from(request.sectors))));
        match request.operation {
            Operation::Read => {
                let pages = request.bytes().div_ceil(furrow_rt::PAGE_SIZE);
                let pages = (0..pages).map(|_| self.pool.take()).collect();
                let outcome = self.submit(Command::Read { lba, blocks }, pages, false).await?;
                Ok(Done::Read(outcome.data))
            }
            Operation::Write => {
                let zone = geometry.locate(lba).ok_or(Errno::INVAL)?.0;
                let _turn = match geometry.append_limit() {
                    Some(BlockCount(0)) => Some(self.turn(zone).await),
                    _ => None,
                };
                self.submit(Command::Write { lba, blocks }, data, request.fua).await?;
                Ok(Done::Plain)
            }
            Operation::Append => {
                let at = self.append(lba, data, blocks, request.fua).await?;
                Ok(Done::Appended(at.0 * geometry.block_size.0 / SECTOR))
            }
            Operation::Flush => {
                self.submit(Command::Flush, Pages::new(), false).await?;
                Ok(Done::Plain)
            }
            Operation::Manage(action) => {
                let command = Command::Manage { target: Target::Zone(lba), action };
                self.submit(command, Pages::new(), false).await?;
                Ok(Done::Plain)
            }
            Operation::ResetAll => {
                let command = Command::Manage { target: Target::All, action: Action::Reset };
                self.submit(command, Pages::new(), false).await?;
                Ok(Done::Plain)
            }
            Operation::Report => {
                // A current kernel requests a report at the write pointer before it writes
                // zeroes there.
                let (first, _) = geometry.locate(lba).ok_or(Errno::INVAL)?;
                let reports = self.report(first, request.sectors.min(REPORT)).await?;
                let zones: Vec<_> = reports.iter().map(|zone| descriptor(geometry, zone)).collect();
                Ok(Done::report(&zones))
            }
            Operation::Discard | Operation::WriteZeroes { .. } => Err(Errno::OPNOTSUPP),
        }
    }
}

/// The properties of the block device for a drive of `geometry`.
///
/// # Errors
/// The reason why the kernel cannot have the drive's zones, as the rest of a sentence that begins
/// with the drive.
fn properties(geometry: &Geometry) -> Result<Properties, String> {
    let in_sectors = |blocks: BlockCount| geometry.bytes(blocks).0 / SECTOR;
    let zone = in_sectors(geometry.zone_size);
    if !zone.is_power_of_two() {
        return Err(format!(
            "its zones have {} bytes, and the kernel needs a power of two: make the drive with \
             another zone-size (zone-capacity may be less)",
            geometry.bytes(geometry.zone_size)
        ));
    }
    if geometry.conventional_zones > 0 && geometry.zone_capacity < geometry.zone_size {
        return Err("its conventional zones have less capacity than size, and the kernel writes \
                    such zones to their end: make the drive without a zone-capacity"
            .to_owned());
    }
    let zone = u32::try_from(zone)
        .map_err(|_| "its zones are larger than the kernel can count (2 TiB)".to_owned())?;
    let transfer = geometry.max_transfer.map_or(TRANSFER, |most| geometry.bytes(most).0);
    // The kernel counts the memory of a transfer in whole pages.
    let transfer = transfer.min(TRANSFER).min(u64::from(zone) * SECTOR);
    if transfer < furrow_rt::PAGE_SIZE as u64 {
        return Err(format!("its largest transfer is {transfer} bytes, and the kernel needs 4096"));
    }
    let transfer = transfer & !(furrow_rt::PAGE_SIZE as u64 - 1);
    let append = match geometry.append_limit() {
        None | Some(BlockCount(0)) => transfer,
        Some(most) => geometry.bytes(most).0.min(transfer),
    };
    let limit = |most: Option<u32>| most.map_or(0, |most| most.min(geometry.zones));
    Ok(Properties {
        block_bytes: geometry.block_size.0 as u32,
        sectors: u64::from(geometry.zones) * u64::from(zone),
        transfer_bytes: transfer as u32,
        read_only: false,
        volatile_cache: geometry.volatile_cache,
        discards: false,
        zones: Some(ZoneLimits {
            sectors: zone,
            max_open: limit(geometry.max_open),
            max_active: limit(geometry.max_active),
            max_append: (append / SECTOR) as u32,
        }),
    })
}

/// The kernel's descriptor of a zone on a drive of `geometry`.
fn descriptor(geometry: &Geometry, report: &ZoneReport) -> ZoneDescriptor {
    let in_sectors = |blocks: BlockCount| geometry.bytes(blocks).0 / SECTOR;
    let length = in_sectors(geometry.zone_size);
    let start = u64::from(report.zone.0) * length;
    let is_conventional = geometry.is_conventional(report.zone);
    // The numbers are those of `enum blk_zone_cond`. A zone without a write pointer has all ones in
    // its place.
    let (condition, write_pointer) = match report.state {
        ZoneState::ReadOnly => (0xd, u64::MAX),
        ZoneState::Offline => (0xf, u64::MAX),
        _ if is_conventional => (0x0, u64::MAX),
        ZoneState::Full => (0xe, start + length),
        ZoneState::Empty => (0x1, start),
        ZoneState::ImplicitlyOpen => (0x2, start + in_sectors(report.write_pointer)),
        ZoneState::ExplicitlyOpen => (0x3, start + in_sectors(report.write_pointer)),
        ZoneState::Closed => (0x4, start + in_sectors(report.write_pointer)),
    };
    // The kernel refuses drives whose zones differ in capacity. A conventional zone can be written
    // to its end.
    let capacity = if is_conventional { length } else { in_sectors(geometry.zone_capacity) };
    ZoneDescriptor {
        start,
        length,
        write_pointer,
        kind: if is_conventional { 1 } else { 2 },
        condition,
        capacity,
        ..Default::default()
    }
}

/// The errno for `status`. It is the one to which the kernel translates this status of an NVMe
/// drive: `TOOMANYREFS` and `OVERFLOW` stand for the limits of open and active zones, `NODATA` for
/// the medium.
fn errno(status: Status) -> Errno {
    match status {
        Status::InvalidField | Status::LbaOutOfRange => Errno::INVAL,
        Status::CapacityExceeded => Errno::NOSPC,
        Status::TooManyActive => Errno::OVERFLOW,
        Status::TooManyOpen => Errno::TOOMANYREFS,
        Status::WriteFault | Status::UnrecoveredRead | Status::Unwritten => Errno::NODATA,
        Status::Success
        | Status::InternalError
        | Status::ZoneBoundary
        | Status::ZoneFull
        | Status::ZoneReadOnly
        | Status::ZoneOffline
        | Status::ZoneInvalidWrite
        | Status::InvalidTransition => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::{Config, Page, Rt};
    use furrow_zone::Access;

    const ZONE: u64 = 2048;

    fn drive(rt: &Rt, more: &str) -> Drive {
        let spec = format!("mem:zones=8,zone-size=1MiB{more}");
        let drive = furrow_emu::open(rt, &spec.parse().unwrap(), Access::ReadWrite).unwrap();
        Drive::new(drive).unwrap()
    }

    fn request(operation: Operation, sector: u64, sectors: u32) -> Request {
        Request { operation, sector, sectors, fua: false }
    }

    fn block(byte: u8) -> Pages {
        Pages::from_iter([Page::from_slice(&[byte; 4096])])
    }

    async fn zones(drive: &Drive, sector: u64, count: u32) -> Vec<ZoneDescriptor> {
        use zerocopy::FromBytes as _;
        let done = drive.carry_out(request(Operation::Report, sector, count), Pages::new()).await;
        let Ok(Done::Report(bytes)) = done else { panic!("no report") };
        bytes.chunks(64).map(|zone| ZoneDescriptor::read_from_bytes(zone).unwrap()).collect()
    }

    #[test]
    fn properties_are_the_geometrys() {
        let rt = Rt::new(Config::simulated(1));
        let drive = drive(&rt, ",max-open=3,max-active=5,conventional=1");
        let properties = drive.properties();
        let limits = ZoneLimits { sectors: 2048, max_open: 3, max_active: 5, max_append: 256 };
        assert_eq!(properties.zones, Some(limits));
        assert_eq!((properties.sectors, properties.block_bytes), (8 * ZONE, 4096));
        let unlimited = Geometry::unlimited(4, 1 << 20, 1 << 20);
        let limits = properties_of(&unlimited).unwrap().zones.unwrap();
        assert_eq!((limits.max_open, limits.max_active, limits.max_append), (0, 0, 2048));
        let many = Geometry { max_active: Some(99), max_open: Some(99), ..unlimited.clone() };
        let limits = properties_of(&many).unwrap().zones.unwrap();
        assert_eq!(
            (limits.max_open, limits.max_active),
            (4, 4),
            "the kernel refuses more than zones"
        );
        let small = Geometry {
            max_append: Some(BlockCount(2)),
            max_transfer: Some(BlockCount(17)),
            ..unlimited
        };
        let found = properties_of(&small).unwrap();
        assert_eq!((found.transfer_bytes, found.zones.unwrap().max_append), (17 * 4096, 16));
    }

    fn properties_of(geometry: &Geometry) -> Result<Properties, String> {
        super::properties(geometry)
    }

    #[test]
    fn zones_that_the_kernel_cannot_have_are_refused() {
        let odd = Geometry::unlimited(8, 768, 768);
        let what = properties_of(&odd).unwrap_err();
        assert!(what.contains("3145728 bytes") && what.contains("power of two"), "{what}");
        assert!(properties_of(&Geometry::unlimited(2, 1 << 31, 1)).is_err(), "too large");
        let tiny = Geometry {
            block_size: furrow_zone::ByteLen(512),
            max_transfer: Some(BlockCount(4)),
            ..Geometry::unlimited(2, 1024, 1024)
        };
        assert!(properties_of(&tiny).unwrap_err().contains("2048"), "less than a page");
        let short = Geometry { conventional_zones: 1, ..Geometry::unlimited(8, 256, 192) };
        assert!(properties_of(&short).unwrap_err().contains("conventional zones"));
    }

    #[test]
    fn commands_do_what_they_say_and_reports_show_it() {
        let rt = Rt::new(Config::simulated(1));
        let drive = drive(&rt, ",max-open=2,max-active=2,conventional=1");
        rt.block_on(async move {
            let ask = async |operation, sector, sectors, data| {
                drive.carry_out(request(operation, sector, sectors), data).await
            };
            let manage = async |action, zone| {
                ask(Operation::Manage(action), zone * ZONE, 0, Pages::new()).await
            };
            assert!(ask(Operation::Write, ZONE, 8, block(1)).await.is_ok());
            let done = ask(Operation::Append, ZONE, 8, block(2)).await;
            assert!(matches!(done, Ok(Done::Appended(sector)) if sector == ZONE + 8), "{done:?}");
            let done = ask(Operation::Read, ZONE + 8, 8, Pages::new()).await;
            let Ok(Done::Read(pages)) = done else { panic!("{done:?}") };
            assert_eq!(pages[0].bytes(), &[2; 4096]);
            let refused = ask(Operation::Write, ZONE, 8, block(1)).await;
            assert_eq!(refused.unwrap_err(), Errno::IO, "not at the write pointer");
            manage(Action::Open, 2).await.unwrap();
            assert_eq!(manage(Action::Open, 3).await.unwrap_err(), Errno::OVERFLOW);
            manage(Action::Close, 1).await.unwrap();
            manage(Action::Finish, 2).await.unwrap();
            let found = zones(&drive, 0, 99).await;
            assert_eq!(found.len(), 8, "the end of the drive");
            let within = zones(&drive, ZONE + 8, 1).await;
            assert_eq!(within[0].start, ZONE, "of the zone in which it begins");
            let states: Vec<_> = found.iter().map(|zone| zone.condition).collect();
            assert_eq!(states, [0, 4, 0xe, 1, 1, 1, 1, 1]);
            assert_eq!((found[0].kind, found[1].kind), (1, 2));
            let first = (found[1].start, found[1].length, found[1].capacity);
            assert_eq!(first, (ZONE, ZONE, ZONE));
            assert_eq!((found[1].write_pointer, found[3].write_pointer), (ZONE + 16, 3 * ZONE));
            manage(Action::Reset, 1).await.unwrap();
            assert_eq!(zones(&drive, ZONE, 1).await[0].condition, 1);
            ask(Operation::ResetAll, 0, 0, Pages::new()).await.unwrap();
            assert_eq!(zones(&drive, 2 * ZONE, 1).await[0].condition, 1);
            ask(Operation::Flush, 0, 0, Pages::new()).await.unwrap();
        });
    }

    #[test]
    fn a_drive_without_appends_gets_writes_in_turn() {
        let rt = Rt::new(Config::shuffled(7));
        let drive = Rc::new(drive(&rt, ",zone-capacity=768KiB,max-append=0"));
        assert_eq!(drive.properties().zones.unwrap().max_append, 2048);
        let tasks: Vec<_> = (0..8)
            .map(|byte| {
                let drive = drive.clone();
                rt.spawn(async move {
                    let append = request(Operation::Append, ZONE, 8);
                    match drive.carry_out(append, block(byte)).await {
                        Ok(Done::Appended(sector)) => (sector, byte),
                        done => panic!("{done:?}"),
                    }
                })
            })
            .collect();
        rt.block_on(async move {
            let mut places = Vec::new();
            assert_eq!(zones(&drive, 0, 1).await[0].capacity, 1536);
            for task in tasks {
                let (sector, byte) = task.await;
                let done = drive.carry_out(request(Operation::Read, sector, 8), Pages::new()).await;
                let Ok(Done::Read(pages)) = done else { panic!("{done:?}") };
                assert_eq!(pages[0].bytes(), &[byte; 4096]);
                places.push(sector);
            }
            places.sort_unstable();
            assert_eq!(places, (0..8).map(|n| ZONE + 8 * n).collect::<Vec<_>>());
        });
    }

    #[test]
    fn statuses_are_the_errnos_that_the_kernel_tells_apart() {
        assert_eq!(errno(Status::TooManyActive), Errno::OVERFLOW);
        assert_eq!(errno(Status::TooManyOpen), Errno::TOOMANYREFS);
        assert_eq!(errno(Status::CapacityExceeded), Errno::NOSPC);
        assert_eq!(errno(Status::UnrecoveredRead), Errno::NODATA);
        assert_eq!(errno(Status::ZoneInvalidWrite), Errno::IO);
    }
}
