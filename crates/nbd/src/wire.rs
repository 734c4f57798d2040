//! Numbers and layouts of the protocol, named as in its specification (`doc/proto.md` of the `nbd`
//! project). All numbers are big-endian.

use furrow_zone::ErrorKind;

/// Largest payload of a request or reply, in bytes. The specification lets clients send this much
/// unless the server says otherwise.
pub(crate) const PAYLOAD_MAX: u32 = 32 << 20;
/// Longest string in the protocol, in bytes.
pub(crate) const STRING_MAX: usize = 4096;

/// The first bytes that a server sends: two words of eight bytes.
pub(crate) const GREETING: &[u8; 16] = b"NBDMAGICIHAVEOPT";
/// The magic number before each option.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The magic number before each reply to an option.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(crate) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Size in bytes of an option's header: magic, option, length.
pub(crate) const OPTION_HEADER: usize = 16;
/// Size in bytes of a request's header: magic, flags, type, cookie, offset, length.
pub(crate) const REQUEST_HEADER: usize = 28;

/// Flags that both sides send in the handshake.
pub(crate) mod handshake {
    pub(crate) const FIXED_NEWSTYLE: u16 = 1;
    pub(crate) const NO_ZEROES: u16 = 1 << 1;
}

/// Options of the handshake.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options.
pub(crate) mod option_reply {
    const ERROR: u32 = 1 << 31;
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const UNSUPPORTED: u32 = ERROR + 1;
    pub(crate) const POLICY: u32 = ERROR + 2;
    pub(crate) const INVALID: u32 = ERROR + 3;
    pub(crate) const TLS_REQUIRED: u32 = ERROR + 5;
    pub(crate) const UNKNOWN: u32 = ERROR + 6;
    pub(crate) const TOO_BIG: u32 = ERROR + 9;
}

/// Kinds of information in replies to INFO and GO.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags.
pub(crate) mod transmission {
    pub(crate) const HAS_FLAGS: u16 = 1;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const FLUSH: u16 = 1 << 2;
    pub(crate) const FUA: u16 = 1 << 3;
    pub(crate) const TRIM: u16 = 1 << 5;
    pub(crate) const WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const DF: u16 = 1 << 7;
    pub(crate) const MULTI_CONN: u16 = 1 << 8;
    pub(crate) const CACHE: u16 = 1 << 10;
    pub(crate) const FAST_ZERO: u16 = 1 << 11;
}

/// Commands.
pub(crate) mod command {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISCONNECT: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const CACHE: u16 = 5;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub(crate) mod flag {
    pub(crate) const FUA: u16 = 1;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const DF: u16 = 1 << 2;
    pub(crate) const REQ_ONE: u16 = 1 << 3;
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
}

/// Types of structured reply chunks.
pub(crate) mod chunk {
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const ERROR: u16 = (1 << 15) + 1;
    /// Flag of a chunk that is the last of its reply.
    pub(crate) const DONE: u16 = 1;
}

/// Flags of an extent in `base:allocation`.
pub(crate) mod state {
    pub(crate) const HOLE: u32 = 1;
    pub(crate) const ZERO: u32 = 1 << 1;
}

/// The only metadata context that the server offers.
pub(crate) const ALLOCATION: &[u8] = b"base:allocation";
/// The number that stands for the metadata context in replies.
pub(crate) const ALLOCATION_ID: u32 = 1;

/// The protocol's error codes for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Code {
    /// The operation is not permitted.
    Permission = 1,
    /// The volume failed.
    Io = 5,
    /// The request is invalid.
    Invalid = 22,
    /// There is no space, or a write goes past the end.
    NoSpace = 28,
    /// The request is not supported, or not fast enough.
    Unsupported = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

impl From<ErrorKind> for Code {
    fn from(kind: ErrorKind) -> Code {
        match kind {
            ErrorKind::NoSpace => Code::NoSpace,
            ErrorKind::ReadOnly | ErrorKind::Denied => Code::Permission,
            ErrorKind::Unsupported => Code::Unsupported,
            ErrorKind::Invalid | ErrorKind::TooLarge => Code::Invalid,
            // All other errors are internal to the volume; a client could not react to them.
            _ => Code::Io,
        }
    }
}

/// Parses big-endian numbers from the front of a message.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    /// The next `count` bytes; `None` if fewer are left.
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string that follows its length in 32 bits.
    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.bytes(length as usize)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_that_lies_takes_nothing() {
        let mut fields = Fields(&[0, 0, 0, 9, b'a']);
        assert_eq!(fields.string(), None);
        let mut fields = Fields(&[0, 0, 0, 1, b'a', 0xff, 0xff]);
        assert_eq!(fields.string(), Some(&b"a"[..]));
        assert_eq!((fields.u32(), fields.u16(), fields.u16()), (None, Some(0xffff), None));
        assert!(fields.is_empty());
        assert_eq!(GREETING[8..], OPTION_MAGIC.to_be_bytes());
    }

    #[test]
    fn every_kind_of_error_has_a_code() {
        for (kind, code) in [
            (ErrorKind::NoSpace, Code::NoSpace),
            (ErrorKind::ReadOnly, Code::Permission),
            (ErrorKind::Denied, Code::Permission),
            (ErrorKind::Invalid, Code::Invalid),
            (ErrorKind::TooLarge, Code::Invalid),
            (ErrorKind::Unsupported, Code::Unsupported),
            (ErrorKind::Io, Code::Io),
            (ErrorKind::Corrupt, Code::Io),
            (ErrorKind::Busy, Code::Io),
            (ErrorKind::NotFound, Code::Io),
        ] {
            assert_eq!(Code::from(kind), code, "{kind:?}");
        }
    }
}
