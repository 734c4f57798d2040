//! A recording: commands, payloads, answers and marks of a served drive, in one order.
//!
//! ```text
//! Header (64 bytes) ── Entry (32 bytes), what follows it ── Entry ── ...
//! ```
//!
//! All numbers are little-endian. After the entry of a write or append comes a byte per page of
//! payload, 0 for a page of zeros and 1 for another, and then those other pages. After a mark comes
//! its text. Nothing follows other entries.
//!
//! Invariants: the entry of a command is written before the drive gets the command; the entry of an
//! answer is written after the drive has answered and before the kernel gets the answer; a mark is
//! written before the process that sent the mark gets its answer. So the drive can have had the
//! commands in the order of the entries. A recording may end anywhere: an entry that is cut off is
//! no entry.

use furrow_rt::{PAGE_SIZE, Page, Pages};
use furrow_zone::{
    Action, BlockCount, ByteLen, Command, Error, ErrorKind, Geometry, Lba, Target, ZoneId,
};
use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the format.
pub const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"FURROWRC";

/// Stands for the absence of a limit.
const NO_LIMIT: u32 = u32::MAX;

/// The header of a recording, which describes the drive.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    zones: U32,
    /// Size of a zone in blocks; `zone_capacity` is in blocks, too.
    zone_size: U64,
    zone_capacity: U64,
    block_bytes: U32,
    conventional_zones: U32,
    /// Maximum number of open zones; all ones for no limit, as in `max_active` and `max_append`.
    max_open: U32,
    max_active: U32,
    max_append: U32,
    /// The sum of 1, if the cache is volatile, and 2, if reads of blocks never written fail.
    flags: U32,
    reserved: [u8; 8],
}

/// The fixed part of an entry, for one event.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Entry {
    /// Kind of the event, see [`kind`].
    kind: u8,
    /// 1: the command is durable when answered (FUA). 2: in an answer, the command failed.
    flags: u8,
    /// The action on a zone, or the status code of an answer.
    code: U16,
    /// Bytes of a mark's text.
    length: U32,
    /// Number of the command, from 0 in order of submission; 0 for a mark.
    number: U64,
    /// First block of the command; in an answer, the block at which an append landed.
    lba: U64,
    blocks: U64,
}

const _: () = assert!(size_of::<Header>() == 64 && size_of::<Entry>() == 32);

mod kind {
    pub const READ: u8 = 1;
    pub const WRITE: u8 = 2;
    pub const APPEND: u8 = 3;
    pub const FLUSH: u8 = 4;
    /// An action on one zone.
    pub const ZONE: u8 = 5;
    /// An action on all zones.
    pub const ALL: u8 = 6;
    pub const ANSWER: u8 = 7;
    pub const MARK: u8 = 8;
}

/// Maximum number of bytes of a mark's text.
pub const MARK_MAX: usize = 256;

/// One entry of a recording.
#[derive(Debug)]
pub enum Event {
    /// The drive was given a command.
    Submitted {
        /// Number of the command, from 0 in order of submission.
        number: u64,
        /// The command.
        command: Command,
        /// Payload of a write or append.
        data: Pages,
        /// True if the command is durable when answered.
        fua: bool,
    },
    /// The drive has answered a command.
    Answered {
        /// The command's number.
        number: u64,
        /// True if the command succeeded.
        done: bool,
        /// First block of the command; for an append, the block at which it landed.
        lba: Lba,
    },
    /// Somebody has set a mark with this text.
    Mark(String),
}

/// Writes a recording.
pub struct Recorder {
    out: RefCell<Box<dyn Write>>,
    next: Cell<u64>,
    failed: RefCell<Option<String>>,
}

impl Recorder {
    /// Begins a recording of a drive of `geometry` in `out`.
    ///
    /// # Errors
    /// `Unsupported` for a drive with out-of-band bytes; `Io`.
    pub fn new(geometry: &Geometry, mut out: Box<dyn Write>) -> Result<Recorder, Error> {
        if geometry.oob_bytes > 0 {
            let what = "a recording holds no out-of-band bytes, which this drive has";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let limit = |most: Option<u32>| U32::new(most.unwrap_or(NO_LIMIT));
        let append = geometry.append_limit().map(|most| most.0.min(u64::from(NO_LIMIT - 1)) as u32);
        let flags =
            u32::from(geometry.volatile_cache) | u32::from(geometry.unwritten_reads_fail) << 1;
        let header = Header {
            magic: MAGIC,
            version: VERSION.into(),
            zones: geometry.zones.into(),
            zone_size: geometry.zone_size.0.into(),
            zone_capacity: geometry.zone_capacity.0.into(),
            block_bytes: (geometry.block_size.0 as u32).into(),
            conventional_zones: geometry.conventional_zones.into(),
            max_open: limit(geometry.max_open),
            max_active: limit(geometry.max_active),
            max_append: limit(append),
            flags: flags.into(),
            reserved: [0; 8],
        };
        out.write_all(header.as_bytes()).map_err(|error| unwritten(&error))?;
        Ok(Recorder { out: RefCell::new(out), next: Cell::new(0), failed: RefCell::new(None) })
    }

    /// Records a command before the drive gets it. Returns the command's number.
    pub fn submitted(&self, command: &Command, data: &Pages, fua: bool) -> u64 {
        let number = self.next.replace(self.next.get() + 1);
        let (kind, lba, blocks, code) = match *command {
            Command::Read { lba, blocks } => (kind::READ, lba, blocks, 0),
            Command::Write { lba, blocks } => (kind::WRITE, lba, blocks, 0),
            Command::Append { zone_start, blocks } => (kind::APPEND, zone_start, blocks, 0),
            Command::Flush => (kind::FLUSH, Lba(0), BlockCount(0), 0),
            Command::Manage { target, action } => {
                let (kind, lba) = match target {
                    Target::Zone(lba) => (kind::ZONE, lba),
                    Target::All => (kind::ALL, Lba(0)),
                };
                (kind, lba, BlockCount(0), action_code(action))
            }
        };
        let entry = Entry {
            kind,
            flags: u8::from(fua),
            code: code.into(),
            length: 0.into(),
            number: number.into(),
            lba: lba.0.into(),
            blocks: blocks.0.into(),
        };
        let payload: &[Page] = match kind {
            kind::WRITE | kind::APPEND => data,
            _ => &[],
        };
        let zero = |page: &Page| page.bytes().iter().all(|byte| *byte == 0);
        let map: Vec<u8> = payload.iter().map(|page| u8::from(!zero(page))).collect();
        self.put(|out| {
            out.write_all(entry.as_bytes())?;
            out.write_all(&map)?;
            let pages = payload.iter().zip(&map).filter(|(_, there)| **there == 1);
            pages.map(|(page, _)| page).try_for_each(|page| out.write_all(page.bytes()))
        });
        number
    }

    /// Records that the drive has answered command `number`.
    pub fn answered(&self, number: u64, outcome: &furrow_zone::Outcome) {
        let status = outcome.status;
        let entry = Entry {
            kind: kind::ANSWER,
            flags: u8::from(!status.is_ok()) << 1,
            code: status.code().into(),
            length: 0.into(),
            number: number.into(),
            lba: outcome.lba.0.into(),
            blocks: 0.into(),
        };
        self.put(|out| out.write_all(entry.as_bytes()));
    }

    /// Sets a mark; only its first [`MARK_MAX`] bytes are recorded.
    ///
    /// # Errors
    /// `Io` if the recording could not be written, now or before.
    pub fn mark(&self, text: &str) -> Result<(), Error> {
        let text = &text.as_bytes()[..text.len().min(MARK_MAX)];
        let entry = Entry {
            kind: kind::MARK,
            flags: 0,
            code: 0.into(),
            length: (text.len() as u32).into(),
            number: 0.into(),
            lba: 0.into(),
            blocks: 0.into(),
        };
        self.put(|out| out.write_all(entry.as_bytes()).and_then(|()| out.write_all(text)));
        self.check()
    }

    /// Writes out all buffered entries.
    ///
    /// # Errors
    /// `Io` if the recording could not be written, now or before.
    pub fn flush(&self) -> Result<(), Error> {
        self.put(|out| out.flush());
        self.check()
    }

    fn check(&self) -> Result<(), Error> {
        match &*self.failed.borrow() {
            Some(why) => Err(Error::new(ErrorKind::Io, format!("the recording: {why}"))),
            None => Ok(()),
        }
    }

    /// Writes an entry. After an error nothing is written any more, because a recording must have
    /// no gaps.
    fn put(&self, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) {
        let mut failed = self.failed.borrow_mut();
        if failed.is_none()
            && let Err(error) = write(&mut **self.out.borrow_mut())
        {
            *failed = Some(error.to_string());
        }
    }
}

/// Reads a recording.
pub struct Recording<R> {
    input: R,
    geometry: Geometry,
    /// Number of bytes read so far.
    at: u64,
}

impl<R: Read> Recording<R> {
    /// Opens the recording in `input`.
    ///
    /// # Errors
    /// `Corrupt` if it is not a recording; `Unsupported` for a newer version; `Io`.
    pub fn open(mut input: R) -> Result<Recording<R>, Error> {
        let mut header = Header::new_zeroed();
        if !fill(&mut input, header.as_mut_bytes())? || header.magic != MAGIC {
            return Err(Error::new(ErrorKind::Corrupt, "no recording: its header is not one"));
        }
        if header.version.get() != VERSION {
            let what = format!(
                "a recording of version {}, and this program knows {VERSION}",
                header.version
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let limit = |most: U32| (most.get() != NO_LIMIT).then_some(most.get());
        let mut geometry = Geometry::unlimited(
            header.zones.get(),
            header.zone_size.get(),
            header.zone_capacity.get(),
        );
        geometry.block_size = ByteLen(u64::from(header.block_bytes.get()));
        geometry.conventional_zones = header.conventional_zones.get();
        geometry.max_open = limit(header.max_open);
        geometry.max_active = limit(header.max_active);
        geometry.max_append = limit(header.max_append).map(|most| BlockCount(u64::from(most)));
        geometry.volatile_cache = header.flags.get() & 1 != 0;
        geometry.unwritten_reads_fail = header.flags.get() & 2 != 0;
        geometry.validate()?;
        Ok(Recording { input, geometry, at: size_of::<Header>() as u64 })
    }

    /// The recorded drive.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The next event; `None` at the end.
    ///
    /// # Errors
    /// `Corrupt`, with the offset of the damage; `Io`.
    pub fn next_event(&mut self) -> Result<Option<Event>, Error> {
        let mut entry = Entry::new_zeroed();
        if !fill(&mut self.input, entry.as_mut_bytes())? {
            return Ok(None);
        }
        let start = self.at;
        self.at += size_of::<Entry>() as u64;
        let (number, lba) = (entry.number.get(), Lba(entry.lba.get()));
        let blocks = BlockCount(entry.blocks.get());
        let command = match entry.kind {
            kind::READ => Command::Read { lba, blocks },
            kind::WRITE => Command::Write { lba, blocks },
            kind::APPEND => Command::Append { zone_start: lba, blocks },
            kind::FLUSH => Command::Flush,
            kind::ZONE | kind::ALL => {
                let target = if entry.kind == kind::ALL { Target::All } else { Target::Zone(lba) };
                let action = action_of(entry.code.get())
                    .ok_or_else(|| corrupt(start, format!("action {}", entry.code)))?;
                Command::Manage { target, action }
            }
            kind::ANSWER => {
                return Ok(Some(Event::Answered { number, done: entry.flags & 2 == 0, lba }));
            }
            kind::MARK => {
                let length = entry.length.get() as usize;
                if length > MARK_MAX {
                    return Err(corrupt(start, format!("a mark of {length} bytes")));
                }
                let mut text = vec![0; length];
                if !self.fill(&mut text)? {
                    return Ok(None);
                }
                return Ok(Some(Event::Mark(String::from_utf8_lossy(&text).into_owned())));
            }
            kind => return Err(corrupt(start, format!("kind {kind}"))),
        };
        let mut data = Pages::new();
        if matches!(entry.kind, kind::WRITE | kind::APPEND) {
            let zone = self.geometry.bytes(self.geometry.zone_size).0;
            let bytes = self.geometry.bytes(blocks).0;
            if blocks.0 == 0 || bytes > zone {
                return Err(corrupt(start, format!("a write of {blocks} blocks")));
            }
            let mut map = vec![0; bytes.div_ceil(PAGE_SIZE as u64) as usize];
            if !self.fill(&mut map)? {
                return Ok(None);
            }
            for there in map {
                let mut page = Page::zeroed();
                match there {
                    0 => {}
                    1 if self.fill(page.make_mut())? => {}
                    1 => return Ok(None),
                    other => return Err(corrupt(start, format!("{other} in a map of pages"))),
                }
                data.push(page);
            }
        }
        Ok(Some(Event::Submitted { number, command, data, fua: entry.flags & 1 != 0 }))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<bool, Error> {
        self.at += bytes.len() as u64;
        fill(&mut self.input, bytes)
    }
}

/// The zone that a command changes; `None` for a read, a flush or an action on all zones.
pub fn zone_of(geometry: &Geometry, command: &Command) -> Option<ZoneId> {
    match *command {
        Command::Write { lba, .. }
        | Command::Append { zone_start: lba, .. }
        | Command::Manage { target: Target::Zone(lba), .. } => {
            geometry.locate(lba).map(|(zone, _)| zone)
        }
        _ => None,
    }
}

/// Fills `bytes`. Returns false if the input ends before.
fn fill(input: &mut impl Read, bytes: &mut [u8]) -> Result<bool, Error> {
    match input.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(Error::new(ErrorKind::Io, format!("the recording: {error}"))),
    }
}

fn unwritten(error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("the recording: {error}"))
}

fn corrupt(at: u64, what: String) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the recording, byte {at}: {what}"))
}

const ACTIONS: [Action; 5] =
    [Action::Close, Action::Finish, Action::Open, Action::Reset, Action::Offline];

/// The number of an action: its place in [`ACTIONS`], from 1.
fn action_code(action: Action) -> u16 {
    ACTIONS.iter().position(|known| *known == action).map_or(0, |at| at as u16 + 1)
}

fn action_of(code: u16) -> Option<Action> {
    ACTIONS.get(usize::from(code).checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_zone::{Outcome, Status};
    use std::rc::Rc;

    /// A file in memory that a writer and a reader share.
    #[derive(Clone, Default)]
    struct Shared(Rc<RefCell<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.borrow_mut().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn outcome(status: Status, lba: u64) -> Outcome {
        Outcome { status, lba: Lba(lba), data: Pages::new(), oob: Vec::new() }
    }

    fn recorded() -> Vec<u8> {
        let mut geometry = Geometry::unlimited(9, 64, 48);
        geometry.volatile_cache = true;
        geometry.conventional_zones = 2;
        geometry.max_open = Some(3);
        let file = Shared::default();
        let recorder = Recorder::new(&geometry, Box::new(file.clone())).unwrap();
        let none = Pages::new();
        let data = Pages::from_iter([Page::from_slice(b"one"), Page::zeroed()]);
        let blocks = BlockCount(2);
        let write = Command::Write { lba: Lba(5), blocks };
        let append = Command::Append { zone_start: Lba(128), blocks };
        let reset = Command::Manage { target: Target::Zone(Lba(128)), action: Action::Reset };
        assert_eq!(recorder.submitted(&write, &data, true), 0);
        assert_eq!(recorder.submitted(&append, &data, false), 1);
        recorder.answered(1, &outcome(Status::Success, 128));
        recorder.answered(0, &outcome(Status::WriteFault, 0));
        recorder.mark("e 17").unwrap();
        recorder.submitted(&Command::Flush, &none, false);
        recorder.submitted(&reset, &none, false);
        recorder.submitted(&Command::Read { lba: Lba(0), blocks }, &data, false);
        recorder.flush().unwrap();
        file.0.take()
    }

    #[test]
    fn a_recording_is_read_as_it_was_written() {
        let bytes = recorded();
        let mut recording = Recording::open(&bytes[..]).unwrap();
        let geometry = recording.geometry().clone();
        assert_eq!((geometry.zones, geometry.conventional_zones), (9, 2));
        assert_eq!((geometry.max_open, geometry.max_active), (Some(3), None));
        assert!(geometry.volatile_cache && !geometry.unwritten_reads_fail);
        let mut seen = Vec::new();
        while let Some(event) = recording.next_event().unwrap() {
            seen.push(match event {
                Event::Submitted { number, command, data, fua } => {
                    let text = data.first().map(|page| page[..3].to_vec());
                    format!("{number} {command:?} {} {text:?} {fua}", data.len())
                }
                other => format!("{other:?}"),
            });
        }
        assert_eq!(
            seen,
            [
                "0 Write { lba: Lba(5), blocks: BlockCount(2) } 2 Some([111, 110, 101]) true",
                "1 Append { zone_start: Lba(128), blocks: BlockCount(2) } 2 \
                 Some([111, 110, 101]) false",
                "Answered { number: 1, done: true, lba: Lba(128) }",
                "Answered { number: 0, done: false, lba: Lba(0) }",
                "Mark(\"e 17\")",
                "2 Flush 0 None false",
                "3 Manage { target: Zone(Lba(128)), action: Reset } 0 None false",
                "4 Read { lba: Lba(0), blocks: BlockCount(2) } 0 None false",
            ]
        );
    }

    #[test]
    fn the_page_shows_the_layout() {
        use std::mem::offset_of;
        let page = include_str!("../../../docs/research/court.md");
        let rows = [
            ("header", offset_of!(Header, magic), "magic", 8),
            ("header", offset_of!(Header, version), "version", 4),
            ("header", offset_of!(Header, zones), "zones", 4),
            ("header", offset_of!(Header, zone_size), "zone_size", 8),
            ("header", offset_of!(Header, zone_capacity), "zone_capacity", 8),
            ("header", offset_of!(Header, block_bytes), "block_bytes", 4),
            ("header", offset_of!(Header, conventional_zones), "conventional_zones", 4),
            ("header", offset_of!(Header, max_open), "max_open", 4),
            ("header", offset_of!(Header, max_active), "max_active", 4),
            ("header", offset_of!(Header, max_append), "max_append", 4),
            ("header", offset_of!(Header, flags), "flags", 4),
            ("entry", offset_of!(Entry, kind), "kind", 1),
            ("entry", offset_of!(Entry, flags), "flags", 1),
            ("entry", offset_of!(Entry, code), "code", 2),
            ("entry", offset_of!(Entry, length), "length", 4),
            ("entry", offset_of!(Entry, number), "number", 8),
            ("entry", offset_of!(Entry, lba), "lba", 8),
            ("entry", offset_of!(Entry, blocks), "blocks", 8),
        ];
        for (part, offset, field, bytes) in rows {
            let row = format!("| {part} | {offset} | `{field}` | {bytes} |");
            assert!(page.contains(&row), "docs/research/court.md lacks {row}");
        }
    }

    #[test]
    fn a_recording_may_end_anywhere_and_nonsense_is_refused() {
        let bytes = recorded();
        let whole = |bytes: &[u8]| {
            let mut recording = Recording::open(bytes).unwrap();
            let mut events = 0;
            while recording.next_event().unwrap().is_some() {
                events += 1;
            }
            events
        };
        assert_eq!(whole(&bytes), 8);
        for end in size_of::<Header>()..bytes.len() {
            assert!(whole(&bytes[..end]) < 8, "{end}");
        }
        let mut wrong = bytes.clone();
        wrong[size_of::<Header>()] = 77;
        let error = Recording::open(&wrong[..]).unwrap().next_event().unwrap_err();
        assert!(error.to_string().contains("byte 64: kind 77"), "{error}");
        wrong[8] = 9;
        assert!(Recording::open(&wrong[..]).is_err());
        assert!(Recording::open(&bytes[..20]).is_err());
    }
}
