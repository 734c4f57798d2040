//! The image medium: an emulated drive in a sparse file that outlives its process, even after
//! kill -9.
//!
//! The layout is in [`mod@format`], the description in `docs/inside/emulated-image.md`.
//!
//! Invariants:
//! - **Data before the write pointer.** The blocks of a write are in the file before the zone's
//!   record covers them. The record of a reset is in the file before the blocks are returned to the
//!   host. Blocks that no record covers are never read.
//! - A zone's newer record never overwrites its older one.
//! - One process at a time: the file is locked while it is open (shared if only read).
//! - Blocks are returned by punching holes, never by writing zeros.
//!
//! Written bytes are in the host's page cache: they survive the process, but not a power cut of the
//! host. With `sync`, a flush of the drive also syncs the file.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a medium is a file")]

use crate::format::{self, BLOCK, FAULTS_AT, FAULTS_HALF, Header, Layout, Refusal, SLOT, Slot};
use crate::holder::in_use;
use crate::memory::Memory;
use crate::transfer::{MediumError, Shape, Span, ZoneRecord};
use furrow_rt::buf::is_zero;
use furrow_rt::{PAGE_SIZE, Page};
use furrow_zone::fault::Fault;
use furrow_zone::{
    Access, BlockCount, Error, ErrorKind, Geometry, Result, Zone, ZoneId, ZoneState,
};
use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind as IoKind, IoSlice, IoSliceMut, Read};
use std::os::unix::fs::{FileExt, FileTypeExt as _};
use std::path::Path;
use zerocopy::IntoBytes;

/// Maximum number of pieces of one vectored read or write; the system's limit is 1024.
const PIECES: usize = 64;

/// An open image.
#[derive(Debug)]
pub struct Image {
    file: File,
    name: String,
    writable: bool,
    sync: bool,
    geometry: Geometry,
    layout: Layout,
    shape: Shape,
    uuid: [u8; 16],
    preset: String,
    /// Generation of each zone's newest record.
    generations: Vec<u64>,
    faults_generation: u64,
}

/// The content of an image when it was opened.
pub(crate) struct Opened {
    pub image: Image,
    pub zones: Vec<ZoneRecord>,
    pub faults: Vec<Fault>,
    /// Damage that was tolerated, as sentences for the user.
    pub warnings: Vec<String>,
}

/// The identity of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The UUID, which is different for every image.
    pub uuid: [u8; 16],
    /// The preset from which the image is made; empty if there is none. At most 32 bytes are kept.
    pub preset: String,
}

impl Identity {
    /// A new identity, from the system's random numbers.
    ///
    /// # Errors
    /// If the system's random numbers cannot be read.
    pub fn fresh(preset: &str) -> Result<Identity> {
        let mut uuid = [0; 16];
        File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut uuid))
            .map_err(|error| io_error("/dev/urandom", "cannot be read", &error))?;
        // Version 4, variant 1 (RFC 9562).
        uuid[6] = uuid[6] & 0x0f | 0x40;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        Ok(Identity { uuid, preset: preset.to_owned() })
    }
}

/// Makes an image of a drive of `geometry` at `path`, with a fresh identity. An existing file is
/// an error unless `force`.
///
/// # Errors
/// If the geometry is not valid, or the file exists, is in use, or cannot be written.
pub fn create_image(path: &Path, geometry: &Geometry, force: bool) -> Result<()> {
    create_image_as(path, geometry, &Identity::fresh("")?, force)
}

/// Like [`create_image`], with an identity that the caller gives.
///
/// # Errors
/// The errors of [`create_image`].
pub fn create_image_as(
    path: &Path,
    geometry: &Geometry,
    identity: &Identity,
    force: bool,
) -> Result<()> {
    let name = path.display().to_string();
    let failed = |what: &str, error: std::io::Error| io_error(&name, what, &error);
    geometry.validate().map_err(|error| error.at(&name))?;
    let layout = Layout::of(geometry).ok_or_else(|| {
        Error::new(ErrorKind::TooLarge, format!("{name}: a drive of this size fits no file"))
    })?;
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let options = if force { options.create(true) } else { options.create_new(true) };
    let file = options.open(path).map_err(|error| match error.kind() {
        IoKind::AlreadyExists => Error::new(
            ErrorKind::Exists,
            format!("{name}: exists already: give --force to replace it and lose what is in it"),
        ),
        _ => failed("cannot be created", error),
    })?;
    lock(&file, path, true)?;
    // The file is emptied only under the lock: a program that has the image open must not lose its
    // content.
    file.set_len(0).map_err(|error| failed("cannot be emptied", error))?;
    let written = write_empty(&file, geometry, &layout, identity);
    written.map_err(|error| {
        if !force {
            // This call has made the file, so it holds nothing yet.
            let _ = std::fs::remove_file(path);
        }
        match error.kind() {
            IoKind::FileTooLarge => Error::new(
                ErrorKind::TooLarge,
                format!(
                    "{name}: the drive needs a (sparse) file of {} bytes, more than this file \
                     system, or the limit on files (ulimit -f), allows: give a smaller capacity",
                    layout.file_bytes
                ),
            ),
            _ => failed("cannot be written", error),
        }
    })
}

fn write_empty(
    file: &File,
    geometry: &Geometry,
    layout: &Layout,
    identity: &Identity,
) -> std::io::Result<()> {
    file.set_len(layout.file_bytes)?;
    let mut table = Vec::with_capacity(geometry.zones as usize * SLOT as usize);
    for zone in (0..geometry.zones).map(ZoneId) {
        let record = ZoneRecord { zone: fresh(geometry, zone), durable: 0 };
        table.extend_from_slice(Slot::new(zone, 1, &record).as_bytes());
    }
    file.write_all_at(&table, format::TABLE_AT)?;
    file.write_all_at(&format::fault_list(1, &[]), half(1))?;
    // The header is written last: until then nobody takes the file for an image.
    let header = Header::new(geometry, layout, identity.uuid, &identity.preset);
    file.write_all_at(header.as_bytes(), 0)?;
    file.sync_all()
}

fn fresh(geometry: &Geometry, zone: ZoneId) -> Zone {
    let capacity = geometry.zone_capacity;
    if geometry.is_conventional(zone) {
        Zone { state: ZoneState::Full, write_pointer: capacity, capacity }
    } else {
        Zone { state: ZoneState::Empty, write_pointer: BlockCount(0), capacity }
    }
}

/// Offset of the half of the fault list that holds the generation `generation`.
fn half(generation: u64) -> u64 {
    FAULTS_AT + (generation % 2) * FAULTS_HALF
}

fn io_error(name: &str, what: &str, error: &std::io::Error) -> Error {
    let kind = match error.kind() {
        IoKind::NotFound => ErrorKind::NotFound,
        IoKind::PermissionDenied => ErrorKind::Denied,
        IoKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
        IoKind::StorageFull | IoKind::QuotaExceeded => ErrorKind::NoSpace,
        IoKind::IsADirectory => ErrorKind::IsDirectory,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("{name}: {what}: {error}"))
}

fn lock(file: &File, path: &Path, exclusive: bool) -> Result<()> {
    let name = path.display();
    let locked = if exclusive { file.try_lock() } else { file.try_lock_shared() };
    locked.map_err(|error| match error {
        TryLockError::WouldBlock => Error::new(
            ErrorKind::Busy,
            format!("{name}: {}: run this again when that process has ended", in_use(path)),
        ),
        TryLockError::Error(error) => io_error(&name.to_string(), "cannot be locked", &error),
    })
}

impl Image {
    /// Opens the image at `path`. Writes nothing, with one exception: if the image is opened for
    /// writing and only the magic of its header is damaged, the magic is restored.
    pub(crate) fn open(path: &Path, access: Access, sync: bool) -> Result<Opened> {
        let name = path.display().to_string();
        let writable = access.writes();
        // Opening a pipe would wait for its writer forever.
        if std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_fifo()) {
            let what = format!("{name}: a pipe, not an emulated drive's image");
            return Err(Error::new(ErrorKind::WrongFormat, what));
        }
        let file = OpenOptions::new().read(true).write(writable).open(path).map_err(|error| {
            if error.kind() == IoKind::NotFound {
                let what = format!(
                    "{name}: no such file: check the name; furrow device create makes new drives"
                );
                return Error::new(ErrorKind::NotFound, what);
            }
            io_error(&name, "cannot be opened", &error)
        })?;
        lock(&file, path, writable)?;
        let meta = file.metadata().map_err(|error| io_error(&name, "cannot be read", &error))?;
        let (header, magic) = read_header(&file, &name, meta.len())?;
        let geometry = header.geometry();
        let layout = Layout::of(&geometry).expect("invariant: a parsed header has a layout");
        if meta.len() < layout.file_bytes {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "{name}: truncated: {} bytes, expected {}: restore it from a copy or create \
                     a new one",
                    meta.len(),
                    layout.file_bytes
                ),
            ));
        }
        let mut image = Image {
            file,
            name,
            writable,
            sync,
            layout,
            shape: Shape::of(&geometry),
            uuid: header.uuid(),
            preset: header.preset(),
            generations: Vec::new(),
            faults_generation: 0,
            geometry,
        };
        let mut warnings = Vec::new();
        if magic == Magic::Lost {
            image.restore_magic(&mut warnings)?;
        }
        let zones = image.read_table(&mut warnings)?;
        let faults = image.read_faults(&mut warnings)?;
        Ok(Opened { image, zones, faults, warnings })
    }

    /// The image's name in messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The drive's geometry.
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The UUID of the image.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// The preset from which the image was made; empty if there was none.
    pub fn preset(&self) -> &str {
        &self.preset
    }

    /// Number of bytes of the file that are allocated on the host.
    pub fn allocated_bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        self.file.metadata().map_or(0, |meta| meta.blocks() * 512)
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Writes the magic again, if the image is open for writing.
    fn restore_magic(&mut self, warnings: &mut Vec<String>) -> Result<()> {
        let done = match self.writable {
            true => "they were written again",
            false => "they are written again when the image is opened for writing",
        };
        if self.writable {
            self.file
                .write_all_at(&format::MAGIC, 0)
                .map_err(|error| io_error(&self.name, "its header cannot be written", &error))?;
        }
        warnings.push(format!(
            "{}: the first {} bytes are damaged; by its checksum the rest of the header is \
             intact: {done}",
            self.name,
            format::MAGIC.len()
        ));
        Ok(())
    }

    fn read_table(&mut self, warnings: &mut Vec<String>) -> Result<Vec<ZoneRecord>> {
        let bytes = self.geometry.zones as usize * SLOT as usize;
        let (mut odd, mut even) = (vec![0; bytes], vec![0; bytes]);
        for (table, at) in [(&mut odd, format::TABLE_AT), (&mut even, self.layout.table_b)] {
            self.file
                .read_exact_at(table, at)
                .map_err(|error| io_error(&self.name, "zone table cannot be read", &error))?;
        }
        let mut zones = Vec::with_capacity(self.geometry.zones as usize);
        for zone in (0..self.geometry.zones).map(ZoneId) {
            let range = zone.0 as usize * SLOT as usize..(zone.0 as usize + 1) * SLOT as usize;
            let (odd, even) = (&odd[range.clone()], &even[range]);
            let (generation, record) = self.newest(zone, odd, even, warnings)?;
            self.generations.push(generation);
            zones.push(record);
        }
        Ok(zones)
    }

    /// The newer of a zone's two records. A damaged record is taken for a torn write: the other
    /// record counts. A record that was never written (all zeros) does not count.
    fn newest(
        &self,
        zone: ZoneId,
        odd: &[u8],
        even: &[u8],
        warnings: &mut Vec<String>,
    ) -> Result<(u64, ZoneRecord)> {
        match (Slot::parse(odd, zone, true), Slot::parse(even, zone, false)) {
            (Ok(odd), Ok(even)) => Ok(if odd.0 > even.0 { odd } else { even }),
            (Ok(odd), Err(_)) if is_zero(even) && odd.0 == 1 => Ok(odd),
            (Ok(good), Err(bad)) | (Err(bad), Ok(good)) => {
                warnings.push(format!(
                    "{}: zone {zone}: one of its two records is damaged ({bad}); generation {} \
                     holds: check what is on the drive",
                    self.name, good.0
                ));
                Ok(good)
            }
            (Err(odd), Err(even)) => Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "{}: zone {zone}: both of its records are damaged ({odd}; {even}): restore \
                     the image from a copy",
                    self.name
                ),
            )),
        }
    }

    fn read_faults(&mut self, warnings: &mut Vec<String>) -> Result<Vec<Fault>> {
        let mut best: Option<(u64, Vec<Fault>)> = None;
        let mut bytes = vec![0; FAULTS_HALF as usize];
        for index in [0, 1] {
            self.file
                .read_exact_at(&mut bytes, half(index))
                .map_err(|error| io_error(&self.name, "fault list cannot be read", &error))?;
            if is_zero(&bytes) {
                continue;
            }
            match format::parse_fault_list(&bytes) {
                Ok(list) if best.as_ref().is_none_or(|best| list.0 > best.0) => best = Some(list),
                Ok(_) => {}
                Err(Refusal::Value(what)) => {
                    return Err(Error::new(
                        ErrorKind::WrongFormat,
                        format!(
                            "{}: fault list: unknown {what}: use a newer furrow, or clear the \
                             list with it",
                            self.name
                        ),
                    ));
                }
                Err(bad) => warnings
                    .push(format!("{}: a half of the fault list is damaged ({bad})", self.name)),
            }
        }
        let Some((generation, faults)) = best else {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "{}: both halves of the fault list are damaged: restore the image from a copy",
                    self.name
                ),
            ));
        };
        self.faults_generation = generation;
        Ok(faults)
    }

    fn place(&self, span: Span) -> (u64, u64) {
        let zone = u64::from(span.zone.0);
        let data = self.layout.data + zone * self.layout.data_stride;
        let oob = self.layout.oob + zone * self.layout.oob_stride;
        (
            data + span.offset * self.shape.block_size as u64,
            oob + span.offset * self.shape.oob_bytes as u64,
        )
    }

    pub(crate) fn write(
        &mut self,
        span: Span,
        pages: &[Page],
        oob: &[u8],
    ) -> Result<(), MediumError> {
        let (data_at, oob_at) = self.place(span);
        let bytes = span.blocks as usize * self.shape.block_size;
        self.write_pages(pages, bytes, data_at)?;
        let length = span.blocks as usize * self.shape.oob_bytes;
        if length > 0 {
            // A write without out-of-band bytes means zeros, because the file may still hold the
            // bytes of an older block there.
            let zeros;
            let oob = if oob.is_empty() {
                zeros = vec![0; length];
                &zeros
            } else {
                &oob[..length]
            };
            self.file.write_all_at(oob, oob_at)?;
        }
        Ok(())
    }

    fn write_pages(&self, pages: &[Page], bytes: usize, at: u64) -> std::io::Result<()> {
        let mut done = 0;
        while done < bytes {
            let mut pieces = smallvec::SmallVec::<[IoSlice<'_>; PIECES]>::new();
            let mut from = done;
            while from < bytes && pieces.len() < PIECES {
                let end = bytes.min((from / PAGE_SIZE + 1) * PAGE_SIZE);
                let page = &pages[from / PAGE_SIZE].bytes()[from % PAGE_SIZE..];
                pieces.push(IoSlice::new(&page[..end - from]));
                from = end;
            }
            match rustix::io::pwritev(&self.file, &pieces, at + done as u64) {
                Ok(0) => return Err(IoKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    pub(crate) fn read(
        &self,
        span: Span,
        pages: &mut [Page],
        into: usize,
        oob: &mut [u8],
    ) -> Result<(), MediumError> {
        let (data_at, oob_at) = self.place(span);
        let start = into * self.shape.block_size;
        let end = start + span.blocks as usize * self.shape.block_size;
        self.read_pages(pages, start, end, data_at)?;
        let from = into * self.shape.oob_bytes;
        let length = span.blocks as usize * self.shape.oob_bytes;
        if let Some(oob) = oob.get_mut(from..from + length)
            && length > 0
        {
            self.file.read_exact_at(oob, oob_at)?;
        }
        Ok(())
    }

    fn read_pages(
        &self,
        pages: &mut [Page],
        start: usize,
        end: usize,
        at: u64,
    ) -> std::io::Result<()> {
        let mut done = start;
        while done < end {
            let mut pieces = smallvec::SmallVec::<[IoSliceMut<'_>; PIECES]>::new();
            let mut from = done;
            for page in pages[done / PAGE_SIZE..].iter_mut().take(PIECES) {
                if from >= end {
                    break;
                }
                let to = end.min((from / PAGE_SIZE + 1) * PAGE_SIZE);
                let page = &mut page.make_mut()[from % PAGE_SIZE..];
                pieces.push(IoSliceMut::new(&mut page[..to - from]));
                from = to;
            }
            match rustix::io::preadv(&self.file, &mut pieces, at + (done - start) as u64) {
                Ok(0) => return Err(IoKind::UnexpectedEof.into()),
                Ok(read) => done += read,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns the blocks of `zone` from `offset` on to the host. A failure is ignored: blocks that
    /// no record covers are never read.
    pub(crate) fn punch(&mut self, zone: ZoneId, offset: u64) {
        let (data_at, oob_at) = self.place(Span { zone, offset, blocks: 0 });
        let (data, oob) = self.place(Span { zone, offset: 0, blocks: 0 });
        let ends = [data + self.layout.data_stride, oob + self.layout.oob_stride];
        for (from, end) in [data_at, oob_at].into_iter().zip(ends) {
            let from = from.next_multiple_of(BLOCK);
            if from < end {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let _ = rustix::fs::fallocate(&self.file, flags, from, end - from);
            }
        }
    }

    pub(crate) fn flip(&mut self, zone: ZoneId, offset: u64, bit: u64) -> Result<(), MediumError> {
        let (at, _) = self.place(Span { zone, offset, blocks: 1 });
        let at = at + (bit / 8) % self.shape.block_size as u64;
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, at)?;
        byte[0] ^= 1 << (bit % 8);
        Ok(self.file.write_all_at(&byte, at)?)
    }

    pub(crate) fn record(&mut self, zone: ZoneId, record: &ZoneRecord) -> Result<(), MediumError> {
        let generation = self.generations[zone.0 as usize] + 1;
        let slot = Slot::new(zone, generation, record);
        let at = self.layout.slot(zone, generation);
        self.file.write_all_at(slot.as_bytes(), at)?;
        self.generations[zone.0 as usize] = generation;
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> Result<(), MediumError> {
        if self.sync {
            self.file.sync_data()?;
        }
        Ok(())
    }

    /// Stores `faults` for the next time the image is opened.
    pub(crate) fn store_faults(&mut self, faults: &[Fault]) -> Result<(), MediumError> {
        if !self.writable {
            return Err(MediumError::Failed);
        }
        let generation = self.faults_generation + 1;
        let list = format::fault_list(generation, faults);
        self.file.write_all_at(&list, half(generation))?;
        self.faults_generation = generation;
        Ok(())
    }

    /// A copy in memory of all written blocks. Blocks that cannot be read are marked as unreadable.
    pub(crate) fn load(&self, geometry: &Geometry, written: &dyn Fn(ZoneId) -> u64) -> Memory {
        let mut memory = Memory::new(geometry);
        let mut page = [Page::zeroed()];
        let mut oob = vec![0; self.shape.oob_bytes];
        for zone in (0..geometry.zones).map(ZoneId) {
            for offset in 0..written(zone) {
                let span = Span { zone, offset, blocks: 1 };
                match self.read(span, &mut page, 0, &mut oob) {
                    Ok(()) => memory.write(span, &page, &oob),
                    Err(_) => memory.lose(zone.0 as usize, offset as usize),
                }
            }
        }
        memory
    }
}

/// The state of an image's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Magic {
    Found,
    /// The magic is missing, but the checksum shows that it was there.
    Lost,
}

/// Whether the bytes after the header belong to an image: the record of its first zone, or its
/// fault list.
fn is_image_behind_header(file: &File) -> bool {
    let mut record = [0; SLOT as usize];
    let mut faults = vec![0; FAULTS_HALF as usize];
    let read = |bytes: &mut [u8], at| file.read_exact_at(bytes, at).is_ok();
    read(&mut record, format::TABLE_AT) && Slot::parse(&record, ZoneId(0), true).is_ok()
        || [0, 1].into_iter().any(|index| {
            read(&mut faults, half(index))
                && !is_zero(&faults)
                && format::parse_fault_list(&faults).is_ok()
        })
}

fn read_header(file: &File, name: &str, length: u64) -> Result<(Header, Magic)> {
    let foreign = || {
        Error::new(
            ErrorKind::WrongFormat,
            format!(
                "{name}: not an emulated drive's image: check the path, or create one with \
                 'furrow device create'"
            ),
        )
    };
    let mut bytes = [0; BLOCK as usize];
    if length < BLOCK {
        return Err(foreign());
    }
    file.read_exact_at(&mut bytes, 0).map_err(|error| io_error(name, "cannot be read", &error))?;
    let parsed = match Header::parse(&bytes) {
        Err(Refusal::Foreign) => {
            bytes[..format::MAGIC.len()].copy_from_slice(&format::MAGIC);
            match Header::parse(&bytes) {
                Ok(header) => return Ok((header, Magic::Lost)),
                Err(_) => Err(Refusal::Foreign),
            }
        }
        parsed => parsed,
    };
    parsed.map(|header| (header, Magic::Found)).map_err(|refusal| match refusal {
        Refusal::Foreign if is_image_behind_header(file) => Error::new(
            ErrorKind::Corrupt,
            format!(
                "{name}: an emulated drive's image whose header, the first {BLOCK} bytes, is \
                 damaged or overwritten; its zone table is there: restore the header from a copy \
                 of the image, and make nothing new in this file"
            ),
        ),
        Refusal::Foreign => foreign(),
        Refusal::TooNew(version) => Error::new(
            ErrorKind::WrongFormat,
            format!(
                "{name}: image format version {version}, but this program knows up to {}: use a \
                 newer furrow",
                format::VERSION
            ),
        ),
        damaged => Error::new(
            ErrorKind::Corrupt,
            format!("{name}: header at offset 0 is damaged ({damaged}): restore it from a copy"),
        ),
    })
}
