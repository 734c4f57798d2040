//! A recording: commands, payloads, answers and marks of a served drive, in one order.
//!
//! ```text
//! Header (64 bytes) ── Entry (32 bytes), what follows it ── Entry ── ...
//! ```
//!
//! All numbers are little-endian. After the entry of a write or append comes a byte per page of
//! payload, 0 for a page of zeros and 1 for any other page, and then the pages that are not zeros.
//! After a mark comes its text. Nothing follows other entries.
//!
//! Invariants: The entry of a command is written before the drive gets the command. The entry of an
//! answer is written after the drive has answered, and before the kernel gets the answer. A mark is
//! written before the process that sent the mark gets an answer. So the order of the entries is one
//! in which the drive may have received the commands. A recording may end anywhere: an entry that
//! is cut off does not count.

use furrow_rt::buf::is_zero;
use furrow_rt::{Page, Pages};
use furrow_zone::{Action, BlockCount, Command, Error, ErrorKind, Geometry, Lba, Target};
use std::cell::{Cell, RefCell};
use std::io::Write;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the format.
pub const VERSION: u32 = 1;

/// The first bytes of a recording.
pub const MAGIC: [u8; 8] = *b"FURROWRC";

/// Stands for the absence of a limit.
pub const NO_LIMIT: u32 = u32::MAX;

/// The header of a recording, which describes the drive.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: U32,
    /// Number of zones.
    pub zones: U32,
    /// Size of a zone in blocks.
    pub zone_size: U64,
    /// Capacity of a zone in blocks.
    pub zone_capacity: U64,
    /// Bytes of a block.
    pub block_bytes: U32,
    /// Number of conventional zones.
    pub conventional_zones: U32,
    /// Maximum number of open zones, or [`NO_LIMIT`].
    pub max_open: U32,
    /// Maximum number of active zones, or [`NO_LIMIT`].
    pub max_active: U32,
    /// Largest append in blocks, or [`NO_LIMIT`].
    pub max_append: U32,
    /// The sum of 1, if the cache is volatile, and 2, if reads of blocks never written fail.
    pub flags: U32,
    /// Zeros.
    pub reserved: [u8; 8],
}

/// The fixed part of an entry, for one event.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Entry {
    /// Kind of the event, see [`kind`].
    pub kind: u8,
    /// 1: the command is durable when answered (FUA). 2: in an answer, the command failed.
    pub flags: u8,
    /// The action on a zone, or the status code of an answer.
    pub code: U16,
    /// Bytes of a mark's text.
    pub length: U32,
    /// Number of the command, from 0 in order of submission; 0 for a mark.
    pub number: U64,
    /// First block of the command; in an answer, the block that an append wrote first.
    pub lba: U64,
    /// Number of blocks of the command.
    pub blocks: U64,
}

const _: () = assert!(size_of::<Header>() == 64 && size_of::<Entry>() == 32);

/// Kinds of entries.
pub mod kind {
    /// A read.
    pub const READ: u8 = 1;
    /// A write.
    pub const WRITE: u8 = 2;
    /// An append.
    pub const APPEND: u8 = 3;
    /// A flush.
    pub const FLUSH: u8 = 4;
    /// An action on one zone.
    pub const ZONE: u8 = 5;
    /// An action on all zones.
    pub const ALL: u8 = 6;
    /// The drive's answer to a command.
    pub const ANSWER: u8 = 7;
    /// A mark.
    pub const MARK: u8 = 8;
}

/// Maximum number of bytes of a mark's text.
pub const MARK_MAX: usize = 256;

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
        let zero = |page: &Page| is_zero(page.bytes());
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

fn unwritten(error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("the recording: {error}"))
}

/// The actions on zones; an entry names an action by its place in this list, counted from 1.
pub const ACTIONS: [Action; 5] =
    [Action::Close, Action::Finish, Action::Open, Action::Reset, Action::Offline];

fn action_code(action: Action) -> u16 {
    ACTIONS.iter().position(|known| *known == action).map_or(0, |at| at as u16 + 1)
}
