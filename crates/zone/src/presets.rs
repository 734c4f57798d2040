//! Geometries of known drives, by name.
//!
//! A preset gives the *shape* of a drive; the emulator's timing model says how long commands take.
//! Every number below is marked: **measured** (read from such a drive, or published with it),
//! **inferred** (from a drive's behaviour) or **assumed** (unpublished; chosen so that it does not
//! limit anything). None is confirmed by a vendor. A device spec ([`spec`](crate::spec)) can change
//! each value by its key.
//!
//! Assumed of all zoned drives: no conventional zones, no read across zones, unwritten blocks read
//! as zeros, a write cache that power-loss protection keeps (`volatile_cache` false).

use crate::{BlockCount, Geometry};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// Names of all presets, in the order in which documents list them.
pub const NAMES: &[&str] =
    &["pm1731a", "zn540-1t", "zn540-4t", "j5100", "confzns", "femu-zapraid", "cns"];

/// The geometry of the preset called `name`; `None` if there is no such preset.
pub fn preset(name: &str) -> Option<Geometry> {
    Some(match name {
        "pm1731a" => pm1731a(),
        "zn540-1t" => zn540_1t(),
        "zn540-4t" => zn540_4t(),
        "j5100" => j5100(),
        "confzns" => confzns(),
        "femu-zapraid" => femu_zapraid(),
        "cns" => cns(),
        _ => return None,
    })
}

/// Describes the preset called `name` in one line; `None` if there is no such preset.
pub fn describe(name: &str) -> Option<&'static str> {
    Some(match name {
        "pm1731a" => "small zones: 40,704 × 96 MiB, one die each, 384 active",
        "zn540-1t" => "large zones: 904 × 2 GiB holding 1,077 MiB, 14 active",
        "zn540-4t" => {
            "large zones: 3,690 × 2 GiB holding 1,077 MiB, 14 active, 64 B out-of-band per block"
        }
        "j5100" => "huge zones: 413 × 32 GiB holding 16,899 MiB, 15 active",
        "confzns" => "an emulator's drive: 64 × 1 GiB, 14 active",
        "femu-zapraid" => "an emulator's drive for arrays: 64 × 1 GiB, 64 B out-of-band per block",
        "cns" => "a conventional drive for baselines: 4 TiB, written anywhere",
        _ => return None,
    })
}

/// The base of a device spec without a preset: 256 zones of 16 MiB, small enough for tests, with a
/// volatile write cache, so that tests notice a missing flush.
pub fn plain() -> Geometry {
    Geometry {
        max_open: Some(32),
        max_active: Some(32),
        volatile_cache: true,
        channels: Some(4),
        dies: Some(8),
        ..zoned(256, 16 * MIB, 16 * MIB)
    }
}

/// A zoned drive of 4 KiB blocks without limits on zones; sizes are in bytes. Assumed: appends up
/// to 128 KiB, transfers up to 2 MiB.
fn zoned(zones: u32, zone_size: u64, zone_capacity: u64) -> Geometry {
    Geometry {
        max_append: Some(BlockCount(128 * KIB / BLOCK)),
        max_transfer: Some(BlockCount(2 * MIB / BLOCK)),
        ..Geometry::unlimited(zones, zone_size / BLOCK, zone_capacity / BLOCK)
    }
}

/// "PM1731a class". Measured: zones, size (published as 96 MB, taken as MiB: that makes 4.10 TB,
/// published as 3.92), 384 active (256 in another report), 2 MiB requests. Inferred: capacity =
/// size; one zone on one die; zone i on channel i mod 16 and die i mod 128. Assumed: as many open
/// zones as active ones.
fn pm1731a() -> Geometry {
    Geometry {
        max_open: Some(384),
        max_active: Some(384),
        channels: Some(16),
        dies: Some(128),
        ..zoned(40_704, 96 * MIB, 96 * MIB)
    }
}

/// ZN540 1 TB. Measured: zones, size, capacity, 14 open and active. Inferred: all zones share all
/// dies, which count as one here. Assumed: formatted without out-of-band bytes.
fn zn540_1t() -> Geometry {
    Geometry {
        max_open: Some(14),
        max_active: Some(14),
        dies: Some(1),
        ..zoned(904, 2048 * MIB, 1077 * MIB)
    }
}

/// ZN540 4 TB. Measured: zones, size, capacity, 14 open and active, 64 out-of-band bytes.
/// Inferred: zone i on die group i mod 4; a group of 16 dies counts as one die here.
fn zn540_4t() -> Geometry {
    Geometry {
        max_open: Some(14),
        max_active: Some(14),
        oob_bytes: 64,
        dies: Some(4),
        ..zoned(3_690, 2048 * MIB, 1077 * MIB)
    }
}

/// "J5100 class". Measured: zones, capacity (17.72 GB, here 16,899 MiB), 15 active. Inferred: all
/// zones share all dies. Assumed: a size of 32 GiB, 15 open. The published total of 12.91 TB is not
/// zones × capacity (7.32 TB); the preset keeps the numbers of the zones.
fn j5100() -> Geometry {
    Geometry {
        max_open: Some(15),
        max_active: Some(15),
        dies: Some(1),
        ..zoned(413, 32_768 * MIB, 16_899 * MIB)
    }
}

/// The emulated 64 GB drive of the Same-Victim GC measurements. Published: 1,024 MiB zones, 64 of
/// them; a zone spans 8 of 16 channels, so zones alternate between two halves (inferred), which
/// count as two dies here. Assumed: 14 open and active as a ZN540 has.
fn confzns() -> Geometry {
    Geometry {
        max_open: Some(14),
        max_active: Some(14),
        dies: Some(2),
        ..zoned(64, 1024 * MIB, 1024 * MIB)
    }
}

/// The emulated drive of the ZapRAID measurements with more than four drives. Published: its speed
/// (446 MiB/s per zone). Assumed: everything here, out-of-band bytes and limits as a ZN540 has.
fn femu_zapraid() -> Geometry {
    Geometry {
        max_open: Some(14),
        max_active: Some(14),
        oob_bytes: 64,
        ..zoned(64, 1024 * MIB, 1024 * MIB)
    }
}

/// A conventional drive, for baselines. Everything is assumed: 4 TiB, and reads across its "zones",
/// which are only numbered pieces of 1 GiB.
fn cns() -> Geometry {
    Geometry {
        conventional_zones: 4096,
        max_append: None,
        read_across_zones: true,
        ..zoned(4096, 1024 * MIB, 1024 * MIB)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_possible_drive_and_described() {
        for name in NAMES {
            let geometry = preset(name).unwrap();
            geometry.validate().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(describe(name).is_some(), "{name}");
        }
        plain().validate().unwrap();
        assert!(preset("zn540").is_none() && describe("zn540").is_none());
    }

    #[test]
    fn capacities_are_as_documented() {
        let tb = |name| preset(name).unwrap().capacity().0 as f64 / 1e12;
        assert!((tb("pm1731a") - 4.10).abs() < 0.01, "{}", tb("pm1731a"));
        assert!((tb("zn540-1t") - 1.02).abs() < 0.01, "{}", tb("zn540-1t"));
        assert!((tb("zn540-4t") - 4.17).abs() < 0.01, "{}", tb("zn540-4t"));
        let j5100 = preset("j5100").unwrap();
        let zone = j5100.bytes(j5100.zone_capacity).0 as f64 / 1e9;
        assert!((zone - 17.72).abs() < 0.005, "{zone}");
    }
}
