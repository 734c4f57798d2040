//! Requests: parsing of headers and validation of commands.

use crate::volume::BLOCK;
use crate::wire::{Code, Fields, PAYLOAD_MAX, REQUEST_MAGIC, command, flag};

/// The header of a request, as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) flags: u16,
    pub(crate) kind: u16,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

/// A valid command. A WRITE_ZEROES may free blocks (`may_free`), unless the client forbids holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Read,
    Write { fua: bool },
    Flush,
    Trim { fua: bool },
    Cache,
    WriteZeroes { may_free: bool, fast: bool, fua: bool },
    BlockStatus { one: bool },
}

/// The code and the reason with which a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) Code, pub(crate) &'static str);

/// The negotiated features that decide which requests are valid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) size: u64,
    pub(crate) read_only: bool,
    pub(crate) structured: bool,
    pub(crate) allocation: bool,
}

impl Header {
    /// Parses a header of 28 bytes. `None` if the magic is wrong: then the rest of the stream
    /// cannot be parsed.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Header> {
        let mut fields = Fields(bytes);
        if fields.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(Header {
            flags: fields.u16()?,
            kind: fields.u16()?,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            length: fields.u32()?,
        })
    }

    /// Number of bytes of payload after the header, which the client sends even if the request
    /// is refused.
    pub(crate) fn payload(&self) -> u32 {
        if self.kind == command::WRITE { self.length } else { 0 }
    }

    /// The command, if it is valid under `terms`.
    pub(crate) fn command(&self, terms: &Terms) -> Result<Command, Refusal> {
        let invalid = |why| Err(Refusal(Code::Invalid, why));
        // The specification allows clients to send FUA with any command.
        let (allowed, command) = match self.kind {
            command::READ => (if terms.structured { flag::DF } else { 0 }, Command::Read),
            command::WRITE => (0, Command::Write { fua: self.has(flag::FUA) }),
            command::FLUSH => (0, Command::Flush),
            command::TRIM => (0, Command::Trim { fua: self.has(flag::FUA) }),
            command::CACHE => (0, Command::Cache),
            command::WRITE_ZEROES => {
                let may_free = !self.has(flag::NO_HOLE);
                let (fast, fua) = (self.has(flag::FAST_ZERO), self.has(flag::FUA));
                (flag::NO_HOLE | flag::FAST_ZERO, Command::WriteZeroes { may_free, fast, fua })
            }
            command::BLOCK_STATUS => {
                (flag::REQ_ONE, Command::BlockStatus { one: self.has(flag::REQ_ONE) })
            }
            _ => return invalid("unknown command"),
        };
        if self.flags & !(allowed | flag::FUA) != 0 {
            return invalid("a flag that the command does not have");
        }
        if command == Command::Flush {
            return match (self.offset, self.length) {
                (0, 0) => Ok(command),
                _ => invalid("FLUSH has no offset and no length"),
            };
        }
        if let Command::BlockStatus { .. } = command
            && !terms.allocation
        {
            return invalid("BLOCK_STATUS without a context: none was set for this export");
        }
        self.check_range(command, terms)?;
        Ok(command)
    }

    fn check_range(&self, command: Command, terms: &Terms) -> Result<(), Refusal> {
        use Command::{BlockStatus, Cache, Read, Trim, Write, WriteZeroes};
        let writes = match command {
            Write { .. } | Trim { .. } | WriteZeroes { .. } => true,
            Read | Cache | BlockStatus { .. } | Command::Flush => false,
        };
        if writes && terms.read_only {
            return Err(Refusal(Code::Permission, "the export is read-only"));
        }
        if self.length == 0 {
            return Err(Refusal(Code::Invalid, "a length of 0"));
        }
        let end = self.offset.checked_add(u64::from(self.length));
        if end.is_none_or(|end| end > terms.size) {
            let grows = matches!(command, Write { .. } | WriteZeroes { .. });
            let code = if grows { Code::NoSpace } else { Code::Invalid };
            return Err(Refusal(code, "past the end of the export"));
        }
        if matches!(command, Read | Write { .. }) && self.length > PAYLOAD_MAX {
            return Err(Refusal(Code::Invalid, "more than 32 MiB in one request"));
        }
        Ok(())
    }

    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// The blocks that the request touches, wholly or partly.
    pub(crate) fn blocks(&self) -> std::ops::Range<u64> {
        let end = self.offset + u64::from(self.length);
        self.offset / BLOCK..end.div_ceil(BLOCK)
    }

    /// Whether the request begins and ends at block boundaries.
    pub(crate) fn is_whole(&self) -> bool {
        self.offset.is_multiple_of(BLOCK) && u64::from(self.length).is_multiple_of(BLOCK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms =
        Terms { size: 1 << 20, read_only: false, structured: true, allocation: true };

    fn ask(kind: u16, flags: u16, offset: u64, length: u32) -> Header {
        Header { flags, kind, cookie: 1, offset, length }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_right_code() {
        let size = TERMS.size;
        for (header, code) in [
            (ask(9, 0, 0, 1), Code::Invalid),
            (ask(command::READ, flag::NO_HOLE, 0, 1), Code::Invalid),
            (ask(command::WRITE, 1 << 5, 0, 1), Code::Invalid),
            (ask(command::TRIM, flag::FAST_ZERO, 0, 1), Code::Invalid),
            (ask(command::FLUSH, 0, 1, 0), Code::Invalid),
            (ask(command::FLUSH, 0, 0, 1), Code::Invalid),
            (ask(command::READ, 0, 0, 0), Code::Invalid),
            (ask(command::READ, 0, size - 1, 2), Code::Invalid),
            (ask(command::READ, 0, u64::MAX, u32::MAX), Code::Invalid),
            (ask(command::TRIM, 0, size, 1), Code::Invalid),
            (ask(command::CACHE, 0, size, 1), Code::Invalid),
            (ask(command::BLOCK_STATUS, 0, size, 1), Code::Invalid),
            (ask(command::WRITE, 0, size - 1, 2), Code::NoSpace),
            (ask(command::WRITE_ZEROES, 0, u64::MAX, 2), Code::NoSpace),
        ] {
            assert_eq!(header.command(&TERMS).unwrap_err().0, code, "{header:?}");
        }
        let large = Terms { size: 1 << 40, ..TERMS };
        for kind in [command::READ, command::WRITE] {
            assert!(ask(kind, 0, 0, PAYLOAD_MAX).command(&large).is_ok());
            assert!(ask(kind, 0, 0, PAYLOAD_MAX + 1).command(&large).is_err());
        }
        assert!(ask(command::TRIM, 0, 0, u32::MAX).command(&large).is_ok());
    }

    #[test]
    fn flags_and_terms_decide() {
        let zeroes = ask(command::WRITE_ZEROES, flag::FUA | flag::NO_HOLE | flag::FAST_ZERO, 0, 1);
        let all = Command::WriteZeroes { may_free: false, fast: true, fua: true };
        assert_eq!(zeroes.command(&TERMS), Ok(all));
        assert_eq!(
            ask(command::READ, flag::FUA | flag::DF, 0, 1).command(&TERMS),
            Ok(Command::Read)
        );
        let plain = Terms { structured: false, allocation: false, ..TERMS };
        assert!(ask(command::READ, flag::DF, 0, 1).command(&plain).is_err());
        assert!(ask(command::BLOCK_STATUS, 0, 0, 1).command(&plain).is_err());
        let closed = Terms { read_only: true, ..TERMS };
        for kind in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            let refused = ask(kind, 0, 0, 1).command(&closed).unwrap_err();
            assert_eq!(refused.0, Code::Permission);
        }
        for kind in [command::READ, command::CACHE] {
            assert!(ask(kind, 0, 0, 1).command(&closed).is_ok());
        }
        assert!(ask(command::FLUSH, 0, 0, 0).command(&closed).is_ok());
    }

    #[test]
    fn a_header_begins_with_its_magic() {
        let mut bytes = [0; 28];
        assert_eq!(Header::parse(&bytes), None);
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[7] = 1;
        bytes[27] = 9;
        let header = Header::parse(&bytes).unwrap();
        assert_eq!((header.kind, header.payload(), header.blocks()), (1, 9, 0..1));
        assert_eq!(Header::parse(&bytes[..27]), None);
    }
}
