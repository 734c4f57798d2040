//! The interface of a backend, which carries out the requests of a block device.

use crate::abi::{self, SECTOR, ZoneDescriptor, attribute, group};
use crate::request::Request;
use furrow_rt::Pages;
use rustix::io::Errno;
use std::future::Future;

/// The properties of a device. Lengths are in the kernel's sectors of 512 bytes, unless
/// stated otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Bytes of a block: 512 or 4096.
    pub block_bytes: u32,
    /// Size of the device.
    pub sectors: u64,
    /// Largest transfer in bytes, at most 32 MiB.
    pub transfer_bytes: u32,
    /// True if the device takes no writes.
    pub read_only: bool,
    /// True if written data is durable only after a flush.
    pub volatile_cache: bool,
    /// True if the device takes discards and writes of zeroes.
    pub discards: bool,
    /// The zones, if the device is zoned.
    pub zones: Option<ZoneLimits>,
}

/// The size of a device's zones, and how many of them may be in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneLimits {
    /// Sectors of each zone: a power of two.
    pub sectors: u32,
    /// Maximum number of open zones; 0 for no limit.
    pub max_open: u32,
    /// Maximum number of active zones; 0 for no limit.
    pub max_active: u32,
    /// Largest append in sectors, at least a block.
    pub max_append: u32,
}

/// Largest discard, in sectors (1 GiB).
const DISCARD: u32 = 1 << 21;

impl Properties {
    /// The properties in the kernel's form.
    pub(crate) fn parameters(&self) -> abi::Parameters {
        let attributes = [
            (self.read_only, attribute::READ_ONLY),
            (self.volatile_cache, attribute::VOLATILE_CACHE | attribute::FUA),
        ];
        let attributes = attributes.iter().filter(|(is, _)| *is).map(|(_, bit)| bit).sum();
        let shift = self.block_bytes.ilog2() as u8;
        let mut parameters = abi::Parameters {
            length: size_of::<abi::Parameters>() as u32,
            groups: group::BASIC,
            basic: abi::Basic {
                attributes,
                logical_shift: shift,
                physical_shift: shift,
                optimal_shift: shift,
                minimal_shift: shift,
                largest: self.transfer_bytes / SECTOR as u32,
                chunk: self.zones.map_or(0, |zones| zones.sectors),
                sectors: self.sectors,
                boundary_mask: 0,
            },
            ..Default::default()
        };
        if self.discards {
            parameters.groups |= group::DISCARD;
            parameters.discard = abi::Discard {
                granularity: self.block_bytes,
                largest: DISCARD,
                largest_zeroes: DISCARD,
                segments: 1,
                ..Default::default()
            };
        }
        if let Some(zones) = self.zones {
            parameters.groups |= group::ZONED;
            parameters.zoned = abi::ZonedLimits {
                max_open: zones.max_open,
                max_active: zones.max_active,
                max_append: zones.max_append,
                ..Default::default()
            };
        }
        parameters
    }
}

/// The result of a request.
#[derive(Debug)]
pub enum Done {
    /// The request was a command without payload, or a write.
    Plain,
    /// The request was a read: the blocks read.
    Read(Pages),
    /// The request was an append: the first sector written.
    Appended(u64),
    /// The request was a report: descriptors of zones in the kernel's form (`struct blk_zone`), 64
    /// bytes each.
    Report(Vec<u8>),
}

impl Done {
    pub(crate) fn report(zones: &[ZoneDescriptor]) -> Done {
        use zerocopy::IntoBytes as _;
        Done::Report(zones.as_bytes().to_vec())
    }
}

/// Carries out the requests of a block device.
///
/// A backend gets only requests that suit its [`Properties`]: whole blocks within the device, of at
/// most the largest transfer; zone commands at the start of a zone, and only if the device has
/// zones; writes only if it takes them.
pub trait Backend: 'static {
    /// The properties of the device, which do not change.
    fn properties(&self) -> Properties;

    /// Carries out `request`; `data` is the payload of a write or append. Many requests are in
    /// flight at once, and may be answered in any order.
    fn carry_out(&self, request: Request, data: Pages)
    -> impl Future<Output = Result<Done, Errno>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_the_properties() {
        let zones = ZoneLimits { sectors: 32768, max_open: 14, max_active: 28, max_append: 2048 };
        let zoned = Properties {
            block_bytes: 4096,
            sectors: 64 * 32768,
            transfer_bytes: 1 << 20,
            read_only: true,
            volatile_cache: true,
            discards: false,
            zones: Some(zones),
        };
        let parameters = zoned.parameters();
        assert_eq!((parameters.length, parameters.groups), (112, 1 | 8));
        assert_eq!(parameters.basic.attributes, 1 | 4 | 8);
        assert_eq!((parameters.basic.logical_shift, parameters.basic.largest), (12, 2048));
        assert_eq!((parameters.basic.chunk, parameters.basic.sectors), (32768, 64 * 32768));
        let limits = parameters.zoned;
        assert_eq!((limits.max_open, limits.max_active, limits.max_append), (14, 28, 2048));
        let plain = Properties { zones: None, discards: true, read_only: false, ..zoned };
        let parameters = plain.parameters();
        assert_eq!((parameters.groups, parameters.basic.chunk), (1 | 2, 0));
        assert_eq!((parameters.discard.granularity, parameters.discard.segments), (4096, 1));
    }
}
