//! Converts the identify data of a zoned namespace to the limits that the block layer would
//! show. Pure.
//!
//! The structures are those of the NVM Express Base Specification 2.0 (Identify Controller), the
//! NVM Command Set Specification 1.0 (Identify Namespace) and the Zoned Namespace Command Set
//! Specification 1.1 (the I/O command set specific ones, 4.1.5).

use super::{CONTROLLER_PAGE, Namespace};
use crate::ioctl::SECTOR;
use crate::sysfs::{Limits, Model};

/// Size of each structure in bytes.
pub(super) const BYTES: usize = 4096;

/// The four identify structures: of the controller and of the namespace, each the general one and
/// the one of the zoned command set.
pub(super) struct Identity<'a> {
    pub controller: &'a [u8; BYTES],
    pub namespace: &'a [u8; BYTES],
    pub zoned_controller: &'a [u8; BYTES],
    pub zoned_namespace: &'a [u8; BYTES],
}

/// The facts about a namespace and its limits from the identify data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identified {
    pub namespace: Namespace,
    pub limits: Limits,
    /// Size of the largest append in bytes.
    pub append: u64,
    /// Whether reads may cross from one zone into the next (OZCS, bit 0).
    pub read_across: bool,
}

/// Interprets the identify data of the namespace `id`. `kernel` is the size in KiB, and the number
/// of memory pieces, of the largest command that the kernel accepts.
///
/// # Errors
/// A sentence that says why, if the namespace cannot be used.
pub(super) fn read(
    id: u32,
    identity: &Identity<'_>,
    kernel: (u64, u64),
) -> Result<Identified, String> {
    let Identity { controller, namespace, zoned_controller, zoned_namespace } = identity;
    let flbas = namespace[26];
    let format = usize::from(flbas & 0xf | (flbas >> 5 & 0x3) << 4);
    let oob =
        u64::from(u16::from_le_bytes([namespace[128 + 4 * format], namespace[129 + 4 * format]]));
    let shift = namespace[130 + 4 * format];
    if !matches!(shift, 9 | 12) {
        return Err(format!(
            "its format {format} has blocks of 2^{shift} bytes, but only 512 and 4096 can be used: \
             format it with such blocks (nvme format)"
        ));
    }
    if oob > 0 && flbas & 0x10 != 0 {
        return Err(format!(
            "its format {format} puts {oob} out-of-band bytes behind each block: format it with \
             separate ones (nvme format --ms=0), or with none"
        ));
    }
    if namespace[29] & 0x7 != 0 {
        return Err("it is formatted with protection information, which Furrow does not make: \
                    format it without (nvme format --pi=0)"
            .to_owned());
    }
    let word = |from: &[u8; BYTES], at: usize| {
        u32::from_le_bytes([from[at], from[at + 1], from[at + 2], from[at + 3]])
    };
    // The zoned structure has a zone format for each block format.
    let extension = 2816 + 16 * format;
    let mut size = [0; 8];
    size.copy_from_slice(&zoned_namespace[extension..extension + 8]);
    let zone_blocks = u64::from_le_bytes(size);
    let block = 1u64 << shift;
    let Some(zone_sectors) = zone_blocks.checked_mul(block / SECTOR).filter(|size| *size > 0)
    else {
        return Err(format!("it says that its zones have {zone_blocks} blocks"));
    };
    // Largest command: 2 to the power of the field, in pages; a field of 0 means no limit.
    let pages = |power: u8| match power {
        0 => u64::MAX,
        power => CONTROLLER_PAGE.checked_shl(u32::from(power)).unwrap_or(u64::MAX),
    };
    let transfer = pages(controller[77]);
    Ok(Identified {
        namespace: Namespace { id, block, oob, zone_blocks },
        limits: Limits {
            model: Model::HostManaged,
            zone_sectors,
            // These fields have 0 for one zone and all ones for no limit, which is 0 in `Limits`.
            max_active: word(zoned_namespace, 4).wrapping_add(1),
            max_open: word(zoned_namespace, 8).wrapping_add(1),
            logical_block: block,
            write_granularity: block,
            max_kib: kernel.0.min(transfer / 1024),
            max_segments: kernel.1,
            write_back: controller[525] & 1 != 0,
            read_only: namespace[99] & 1 != 0,
            streams: 0,
        },
        append: pages(zoned_controller[0]).min(transfer),
        read_across: zoned_namespace[2] & 1 != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Identify data of a drive with two formats. The second is in use: blocks of 4 KiB with 64
    /// separate out-of-band bytes, zones of 24,576 blocks, 14 open, 28 active.
    struct Example([[u8; BYTES]; 4]);

    impl Example {
        fn new() -> Example {
            let mut all = [[0; BYTES]; 4];
            let [controller, namespace, zoned_controller, zoned_namespace] = &mut all;
            (controller[77], controller[525]) = (7, 1);
            namespace[26] = 1;
            namespace[128..136].copy_from_slice(&[0, 0, 9, 0, 64, 0, 12, 0]);
            zoned_controller[0] = 5;
            zoned_namespace[4..12].copy_from_slice(&[27, 0, 0, 0, 13, 0, 0, 0]);
            zoned_namespace[2832..2840].copy_from_slice(&24_576u64.to_le_bytes());
            Example(all)
        }

        fn read(&self) -> Result<Identified, String> {
            let [controller, namespace, zoned_controller, zoned_namespace] = &self.0;
            let identity = Identity { controller, namespace, zoned_controller, zoned_namespace };
            read(1, &identity, (4096, 127))
        }
    }

    #[test]
    fn limits_are_those_of_the_specification() {
        let found = Example::new().read().expect("usable");
        let namespace = Namespace { id: 1, block: 4096, oob: 64, zone_blocks: 24_576 };
        assert_eq!(found.namespace, namespace);
        let limits = &found.limits;
        assert_eq!((limits.max_open, limits.max_active), (14, 28));
        assert_eq!((limits.max_kib, found.append), (512, 128 << 10));
        assert_eq!((limits.zone_sectors, limits.write_back), (24_576 * 8, true));
        assert!(!limits.read_only && !found.read_across);
    }

    #[test]
    fn what_is_without_limit_has_none_and_bits_are_read() {
        let mut example = Example::new();
        example.0[0][77] = 0;
        example.0[2][0] = 0;
        example.0[3][4..12].fill(0xff);
        example.0[3][2] = 1;
        example.0[1][99] = 1;
        let found = example.read().expect("usable");
        assert_eq!((found.limits.max_open, found.limits.max_active), (0, 0));
        assert_eq!(found.append, u64::MAX);
        assert!(found.read_across && found.limits.read_only);
    }

    #[test]
    fn formats_that_cannot_be_used_say_why() {
        let refusal = |change: &dyn Fn(&mut Example)| {
            let mut example = Example::new();
            change(&mut example);
            example.read().unwrap_err()
        };
        assert!(refusal(&|one| one.0[1][26] = 0x11).contains("64 out-of-band bytes behind"));
        assert!(refusal(&|one| one.0[1][29] = 1).contains("protection information"));
        assert!(refusal(&|one| one.0[1][134] = 14).contains("2^14 bytes"));
        assert!(refusal(&|one| one.0[3][2832..2840].fill(0)).contains("0 blocks"));
        assert!(refusal(&|one| one.0[3][2832..2840].fill(0xff)).contains("zones have"));
    }

    #[test]
    fn data_of_a_broken_drive_do_not_panic() {
        let mut rng = furrow_rt::Rng::new(7);
        for _ in 0..2000 {
            let mut example = Example::new();
            for table in &mut example.0 {
                for _ in 0..rng.below(400) {
                    table[rng.below(BYTES as u64) as usize] = rng.below(256) as u8;
                }
            }
            let _ = example.read();
        }
    }
}
