//! Reading a recording of a drive's commands; the format is that of [`furrow_ublk::recording`].

use furrow_rt::{PAGE_SIZE, Page, Pages};
use furrow_ublk::recording::{ACTIONS, Entry, Header, MAGIC, MARK_MAX, NO_LIMIT, VERSION, kind};
use furrow_zone::{Action, BlockCount, ByteLen, Command, Error, ErrorKind, Geometry, Lba, Target};
use std::io::Read;
use zerocopy::little_endian::U32;
use zerocopy::{FromZeros as _, IntoBytes as _};

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
        /// First block of the command; for an append, the block that the drive chose.
        lba: Lba,
    },
    /// A mark with this text was set.
    Mark(String),
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
    /// `Corrupt` if `input` is not a recording; `Unsupported` for another version of the format;
    /// `Invalid` for an impossible geometry; `Io`.
    pub fn open(mut input: R) -> Result<Recording<R>, Error> {
        let mut header = Header::new_zeroed();
        if !fill(&mut input, header.as_mut_bytes())? || header.magic != MAGIC {
            return Err(Error::new(ErrorKind::Corrupt, "not a recording: its header is wrong"));
        }
        if header.version.get() != VERSION {
            let what = format!(
                "a recording of version {}, but this program knows {VERSION}",
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

    /// The next event; `None` at the end, also if the recording breaks off within an event.
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

/// Fills `bytes`. Returns false if the input ends before.
fn fill(input: &mut impl Read, bytes: &mut [u8]) -> Result<bool, Error> {
    match input.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(Error::new(ErrorKind::Io, format!("the recording: {error}"))),
    }
}

fn corrupt(at: u64, what: String) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the recording, byte {at}: {what}"))
}

fn action_of(code: u16) -> Option<Action> {
    ACTIONS.get(usize::from(code).checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_ublk::recording::Recorder;
    use furrow_zone::{Outcome, Status};
    use std::cell::RefCell;
    use std::io::Write;
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
