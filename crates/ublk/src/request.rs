//! The kernel's requests, and the checks that refuse some before a backend sees them.

use crate::abi::{Descriptor, SECTOR, flag, op};
use crate::backend::Properties;
use furrow_zone::Action;
use rustix::io::Errno;

/// The operation that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read.
    Read,
    /// Write; in a sequential zone, at the write pointer.
    Write,
    /// Append to the zone that starts at the request's sector.
    Append,
    /// Make all answered writes durable.
    Flush,
    /// Drop content that is not needed any more.
    Discard,
    /// Make the content read as zeroes.
    WriteZeroes {
        /// True if the space of the content may be freed.
        may_free: bool,
    },
    /// Change the state of the zone that starts at the request's sector.
    Manage(Action),
    /// Reset all zones.
    ResetAll,
    /// Report zones; the request's `sectors` is the number of zones.
    Report,
}

/// A request of the kernel, in sectors of 512 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation that the request asks for.
    pub operation: Operation,
    /// First sector.
    pub sector: u64,
    /// Number of sectors; for a report, number of zones.
    pub sectors: u32,
    /// True if the request is durable when answered.
    pub fua: bool,
}

impl Request {
    /// The request in `descriptor`, checked for a device with `properties`.
    ///
    /// # Errors
    /// `OPNOTSUPP` for an operation that the device does not offer, `ROFS` for a change of a
    /// read-only device, `INVAL` for a request that is misaligned, empty, too long or beyond
    /// the end.
    pub(crate) fn parse(descriptor: Descriptor, properties: &Properties) -> Result<Request, Errno> {
        let Descriptor { op_flags, sectors, sector, .. } = descriptor;
        let operation = match op_flags & 0xff {
            op::READ => Operation::Read,
            op::WRITE => Operation::Write,
            op::FLUSH => Operation::Flush,
            op::DISCARD => Operation::Discard,
            op::WRITE_ZEROES => Operation::WriteZeroes { may_free: op_flags & flag::NO_UNMAP == 0 },
            op::ZONE_OPEN => Operation::Manage(Action::Open),
            op::ZONE_CLOSE => Operation::Manage(Action::Close),
            op::ZONE_FINISH => Operation::Manage(Action::Finish),
            op::ZONE_RESET => Operation::Manage(Action::Reset),
            op::ZONE_RESET_ALL => Operation::ResetAll,
            op::ZONE_APPEND => Operation::Append,
            op::REPORT_ZONES => Operation::Report,
            _ => return Err(Errno::OPNOTSUPP),
        };
        let request = Request { operation, sector, sectors, fua: op_flags & flag::FUA != 0 };
        request.check(properties)?;
        Ok(request)
    }

    fn check(&self, properties: &Properties) -> Result<(), Errno> {
        use Operation::{
            Append, Discard, Flush, Manage, Read, Report, ResetAll, Write, WriteZeroes,
        };
        let zones = properties.zones;
        match self.operation {
            Discard | WriteZeroes { .. } if !properties.discards => return Err(Errno::OPNOTSUPP),
            Append | Manage(_) | ResetAll | Report if zones.is_none() => {
                return Err(Errno::OPNOTSUPP);
            }
            _ => {}
        }
        if properties.read_only && !matches!(self.operation, Read | Flush | Report) {
            return Err(Errno::ROFS);
        }
        let block = u64::from(properties.block_bytes) / SECTOR;
        let length = u64::from(self.sectors);
        let is_whole = |number: u64| number.is_multiple_of(block);
        let fits = match self.operation {
            Flush | ResetAll => true,
            Report | Manage(_) => self.sector < properties.sectors,
            Read | Write | Append | Discard | WriteZeroes { .. } => {
                let end = self.sector.checked_add(length);
                length > 0
                    && is_whole(self.sector)
                    && is_whole(length)
                    && end.is_some_and(|end| end <= properties.sectors)
            }
        };
        let is_transfer = matches!(self.operation, Read | Write | Append);
        let is_short = !is_transfer || length * SECTOR <= u64::from(properties.transfer_bytes);
        let starts_zone = match (self.operation, zones) {
            (Append | Manage(_) | Report, Some(zones)) => {
                self.sector.is_multiple_of(u64::from(zones.sectors))
            }
            _ => true,
        };
        if fits && is_short && starts_zone { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// Bytes of payload that the kernel sends or expects; 0 for none.
    pub(crate) fn bytes(&self) -> usize {
        match self.operation {
            Operation::Read | Operation::Write | Operation::Append => {
                self.sectors as usize * SECTOR as usize
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ZoneLimits;

    fn properties() -> Properties {
        let zones = ZoneLimits { sectors: 1024, max_open: 0, max_active: 0, max_append: 256 };
        Properties {
            block_bytes: 4096,
            sectors: 4 * 1024,
            transfer_bytes: 128 << 10,
            read_only: false,
            volatile_cache: false,
            discards: false,
            zones: Some(zones),
        }
    }

    fn parse(properties: &Properties, op_flags: u32, sector: u64, sectors: u32) -> Option<Errno> {
        let descriptor = Descriptor { op_flags, sectors, sector, address: 0 };
        Request::parse(descriptor, properties).err()
    }

    const FINE: Option<Errno> = None;
    const INVALID: Option<Errno> = Some(Errno::INVAL);

    #[test]
    fn odd_requests_get_an_errno() {
        let zoned = properties();
        let ask = |op, sector, sectors| parse(&zoned, op, sector, sectors);
        for op in [op::READ, op::WRITE] {
            assert_eq!(ask(op, 8, 8), FINE);
            assert_eq!(ask(op, 4096 - 8, 8), FINE, "the last block");
            assert_eq!(ask(op, 4096 - 8, 16), INVALID, "beyond the end");
            assert_eq!(ask(op, 4096, 8), INVALID, "behind the end");
            assert_eq!(ask(op, u64::MAX - 7, 8), INVALID, "a sum that overflows");
            assert_eq!(ask(op, 8, 0), INVALID, "empty");
            assert_eq!(ask(op, 1, 8), INVALID, "misaligned");
            assert_eq!(ask(op, 8, 9), INVALID, "no whole block");
            assert_eq!(ask(op, 0, 264), INVALID, "too long");
            assert_eq!(ask(op, 0, u32::MAX - 7), INVALID, "much too long");
        }
        assert_eq!(ask(op::ZONE_APPEND, 1024, 8), FINE);
        assert_eq!(ask(op::ZONE_APPEND, 1032, 8), INVALID, "not at the start of a zone");
        for op in [op::ZONE_OPEN, op::ZONE_CLOSE, op::ZONE_FINISH, op::ZONE_RESET] {
            assert_eq!(ask(op, 3072, 1024), FINE);
            assert_eq!(ask(op, 3080, 0), INVALID);
            assert_eq!(ask(op, 4096, 0), INVALID);
        }
        assert_eq!(ask(op::REPORT_ZONES, 0, u32::MAX), FINE, "fewer are reported");
        assert_eq!(ask(op::REPORT_ZONES, 4096, 1), INVALID);
        assert_eq!(ask(op::FLUSH, u64::MAX, u32::MAX), FINE, "a flush has no place");
        assert_eq!(ask(op::DISCARD, 0, 8), Some(Errno::OPNOTSUPP));
        for unknown in [4, 6, 9, 16, 17, 19, 255] {
            assert_eq!(ask(unknown, 0, 8), Some(Errno::OPNOTSUPP));
        }
    }

    #[test]
    fn a_device_without_zones_refuses_their_commands() {
        let plain = Properties { zones: None, discards: true, ..properties() };
        for op in [op::ZONE_OPEN, op::ZONE_APPEND, op::ZONE_RESET_ALL, op::REPORT_ZONES] {
            assert_eq!(parse(&plain, op, 0, 8), Some(Errno::OPNOTSUPP));
        }
        assert_eq!(parse(&plain, op::DISCARD, 0, 4096), FINE, "longer than a transfer");
        assert_eq!(parse(&plain, op::DISCARD, 8, 4096), INVALID);
        let read_only = Properties { read_only: true, ..plain };
        assert_eq!(parse(&read_only, op::WRITE, 0, 8), Some(Errno::ROFS));
        assert_eq!(parse(&read_only, op::DISCARD, 0, 8), Some(Errno::ROFS));
        assert_eq!(parse(&read_only, op::READ, 0, 8), FINE);
        assert_eq!(parse(&read_only, op::FLUSH, 0, 0), FINE);
    }

    #[test]
    fn flags_are_understood() {
        let plain = Properties { zones: None, discards: true, ..properties() };
        let parse = |op_flags| {
            let descriptor = Descriptor { op_flags, sectors: 8, sector: 16, address: 0 };
            Request::parse(descriptor, &plain).expect("a right request")
        };
        let request = parse(op::WRITE | flag::FUA | 1 << 8 | 1 << 11);
        assert_eq!((request.operation, request.fua), (Operation::Write, true));
        assert_eq!((request.sector, request.sectors, request.bytes()), (16, 8, 4096));
        let zeroes = |may_free| Operation::WriteZeroes { may_free };
        assert_eq!(parse(op::WRITE_ZEROES).operation, zeroes(true));
        assert_eq!(parse(op::WRITE_ZEROES | flag::NO_UNMAP).operation, zeroes(false));
        assert_eq!(parse(op::WRITE_ZEROES).bytes(), 0);
    }
}
