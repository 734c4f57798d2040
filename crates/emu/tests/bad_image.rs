//! A damaged image, or a file that is not an image, is refused in one line that names the file and
//! says what to do, and nothing is written. No bytes cause a panic.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "images are files")]

use crate::common::*;
use furrow_emu::format::{self, Layout};
use furrow_emu::{Emulator, Fault, FaultKind, Identity, When, create_image_as, open};
use furrow_rt::{Config, Rt};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{
    Access, Action, BlockCount, ErrorKind, Geometry, Request, Result, ZoneId, ZoneState,
    ZonedDevice,
};
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn try_open(path: &Path) -> Result<(Rt, Emulator)> {
    let rt = Rt::new(Config::simulated(3));
    let spec: DeviceSpec = path.display().to_string().parse().expect("a plain path");
    let drive = open(&rt, &spec, Access::ReadWrite)?;
    Ok((rt, (*drive).clone()))
}

/// The bytes of an image with one zone written, one zone finished, and a fault.
fn image(path: &Path) -> Vec<u8> {
    let geometry = geometry();
    let identity = Identity { uuid: [7; 16], preset: "test".to_owned() };
    create_image_as(path, &geometry, &identity, true).expect("an image");
    let (rt, drive) = try_open(path).expect("a good image");
    for (lba, blocks) in [(0, 4), (4, 2), (64, 50), (128, 1)] {
        assert!(put(&rt, &drive, lba, blocks, lba).is_ok());
    }
    drive.inject(Fault::new(FaultKind::ReadError).when(When::Nth(1000))).expect("room");
    rt.clear();
    drop(drive);
    std::fs::read(path).expect("the image")
}

fn refusal(path: &Path, bytes: &[u8]) -> furrow_zone::Error {
    std::fs::write(path, bytes).expect("a scratch file");
    let error = try_open(path).err().expect("refused");
    let message = error.to_string();
    let name = path.file_name().expect("a name").to_string_lossy();
    assert!(!message.contains('\n') && message.contains(&*name), "{message}");
    assert!(bytes == std::fs::read(path).expect("still there"), "nothing is written");
    error
}

#[test]
fn each_refusal_says_what_is_wrong_and_what_to_do() {
    let path = scratch("bad.zns");
    let good = image(&path);
    let mut newer = good.clone();
    newer[8] = 9;
    let crc = format::crc32c(&newer[..4092]);
    newer[4092..4096].copy_from_slice(&crc.to_le_bytes());
    let mut flipped = good.clone();
    flipped[100] ^= 1;
    let mut table = good.clone();
    for at in [format::TABLE_AT, Layout::of(&geometry()).expect("a layout").table_b] {
        table[at as usize + 5] ^= 1;
    }
    // The header is gone, but the bytes behind it show that the file is an image.
    let mut headless = good.clone();
    headless[..4096].fill(0);
    let cases: [(&[u8], ErrorKind, &str); 8] = [
        (&headless, ErrorKind::Corrupt, "its zone table is there: restore the header from a copy"),
        (b"", ErrorKind::WrongFormat, "not an emulated drive's image"),
        (b"#!/bin/sh\necho hello\n", ErrorKind::WrongFormat, "furrow device create"),
        (&[0; 8192], ErrorKind::WrongFormat, "not an emulated drive's image"),
        (&newer, ErrorKind::WrongFormat, "version 9, but this program knows up to 1: use a newer"),
        (&flipped, ErrorKind::Corrupt, "header at offset 0 is damaged"),
        (&good[..good.len() - 1], ErrorKind::Corrupt, "truncated"),
        (&table, ErrorKind::Corrupt, "zone 0: both of its records are damaged"),
    ];
    for (bytes, kind, says) in cases {
        let error = refusal(&path, bytes);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn an_image_that_lost_only_its_magic_opens_and_gets_it_again() {
    let path = scratch("magic.zns");
    let good = image(&path);
    let mut damaged = good.clone();
    damaged[..7].copy_from_slice(b"garbage");
    std::fs::write(&path, &damaged).expect("a scratch file");
    let rt = Rt::new(Config::simulated(3));
    let spec: DeviceSpec = path.display().to_string().parse().expect("a plain path");
    let warned = |mode| {
        let drive = open(&rt, &spec, mode).expect("its checksum says that it is an image");
        let warnings = drive.warnings().join("\n");
        rt.clear();
        warnings
    };
    assert!(warned(Access::ReadOnly).contains("the first 8 bytes are damaged"));
    assert!(std::fs::read(&path).expect("the image") == damaged, "read-only writes nothing");
    assert!(warned(Access::ReadWrite).contains("they were written again"));
    assert!(std::fs::read(&path).expect("the image") == good, "it is whole again");
    assert_eq!(warned(Access::ReadOnly), "");
}

#[test]
fn missing_busy_and_existing_images_are_told_apart() {
    let path = scratch("busy.zns");
    image(&path);
    let missing = scratch("no-such.zns");
    let error = try_open(&missing).err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("furrow device create"), "{error}");
    let _open = try_open(&path).expect("a good image");
    let busy = "in use by this process: run this again when that process has ended";
    let identity = Identity { uuid: [7; 16], preset: String::new() };
    let create = |force| create_image_as(&path, &geometry(), &identity, force).expect_err("no");
    let before = std::fs::read(&path).expect("the image");
    for error in [try_open(&path).err().expect("refused"), create(true)] {
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().ends_with(busy), "{error}");
    }
    assert_eq!(create(false).kind(), ErrorKind::Exists);
    assert!(before == std::fs::read(&path).expect("the image"), "nothing is written");
}

#[test]
fn what_the_system_has_is_not_supported_yet() {
    let rt = Rt::new(Config::simulated(1));
    let spec: DeviceSpec = "/dev/nvme0n2".parse().expect("a spec");
    let error = open(&rt, &spec, Access::ReadWrite).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.to_string().contains("a drive of the system, but this command needs an emulated one")
    );
}

/// One damaged record means a torn write: the older record counts, and a warning says so.
#[test]
fn a_torn_zone_record_leaves_the_older_one() {
    let path = scratch("torn.zns");
    let mut bytes = image(&path);
    // Zone 0 was written twice: generation 3 is in table A, generation 2 in table B.
    bytes[format::TABLE_AT as usize + 20] ^= 0x40;
    std::fs::write(&path, &bytes).expect("a scratch file");
    let (rt, drive) = try_open(&path).expect("one record is left");
    assert_eq!(pointer(&drive, 0), 4);
    assert_eq!(drive.warnings().len(), 1);
    assert!(drive.warnings()[0].contains("zone 0"), "{:?}", drive.warnings());
    assert_eq!(get(&rt, &drive, 0, 4), Ok(image_of(&geometry(), 0, 4)));
    // The next write replaces the damaged record.
    assert!(put(&rt, &drive, 4, 3, 20).is_ok());
    rt.clear();
    drop(drive);
    let (rt, drive) = try_open(&path).expect("a good image again");
    assert_eq!((pointer(&drive, 0), drive.warnings().len()), (7, 0));
    rt.clear();
}

/// Blocks that a killed process had stored without their zone's record are not visible.
#[test]
fn blocks_above_the_write_pointer_never_show() {
    let geometry = geometry();
    let path = scratch("stale.zns");
    let mut bytes = image(&path);
    let layout = Layout::of(&geometry).expect("a layout");
    let at = layout.data as usize + 6 * 4096;
    bytes[at..at + 4 * 4096].fill(7);
    std::fs::write(&path, &bytes).expect("a scratch file");
    let (rt, drive) = try_open(&path).expect("a good image");
    let mut whole = image_of(&geometry, 0, 4);
    whole.extend(image_of(&geometry, 4, 2));
    whole.extend([0; 4 * 4096]);
    assert_eq!(get(&rt, &drive, 0, 10), Ok(whole.clone()));
    // After a finish the zone is full, and blocks that were not written still read as zeros.
    let finish = manage(0, Action::Finish, &geometry);
    assert!(run(&rt, &drive, Request::bare(finish)).status.is_ok());
    assert_eq!(get(&rt, &drive, 0, 10), Ok(whole));
    let report = drive.report_now(ZoneId(0), 1).expect("a drive that answers")[0];
    assert_eq!((report.state, report.write_pointer), (ZoneState::Full, BlockCount(50)));
    rt.clear();
}

/// Uses everything that an image can hold. No content of an image may cause a panic.
fn exercise(path: &Path) {
    let Ok((rt, drive)) = try_open(path) else { return };
    let geometry = drive.geometry().clone();
    for zone in 0..geometry.zones.min(8) {
        let lba = u64::from(zone) * geometry.zone_size.0;
        let _ = get(&rt, &drive, lba, geometry.zone_capacity.0.min(64));
        let _ = put(&rt, &drive, lba + pointer(&drive, zone), 1, 5);
        let reset = manage(zone, Action::Reset, &geometry);
        let _ = run(&rt, &drive, Request::bare(reset));
    }
    let _ = drive.faults();
    rt.clear();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..Default::default()
    })]
    #[test]
    fn no_bytes_make_it_panic(
        flips in prop::collection::vec((0usize..75_000, any::<u8>()), 1..6),
        cut in prop::option::of(0usize..80_000),
        fix in any::<bool>(),
    ) {
        static GOOD: LazyLock<Vec<u8>> = LazyLock::new(|| image(&scratch("fuzz-good.zns")));
        let path = scratch("fuzz.zns");
        let mut bytes = GOOD.clone();
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] ^= value;
        }
        if fix {
            // The checksum is corrected, so that the values themselves are checked.
            let crc = format::crc32c(&bytes[..4092]);
            bytes[4092..4096].copy_from_slice(&crc.to_le_bytes());
            for slot in bytes[format::TABLE_AT as usize..][..2 * 4096].chunks_mut(64) {
                if slot.iter().any(|byte| *byte != 0) {
                    let crc = format::crc32c(&slot[..60]);
                    slot[60..].copy_from_slice(&crc.to_le_bytes());
                }
            }
        }
        if let Some(cut) = cut {
            bytes.truncate(cut);
        }
        std::fs::write(&path, &bytes).expect("a scratch file");
        exercise(&path);
    }

    #[test]
    fn a_header_is_what_was_made_or_refused(
        values in any::<[u32; 6]>(),
        limits in any::<[Option<u32>; 2]>(),
        flags in any::<[bool; 4]>(),
    ) {
        let geometry = Geometry {
            zones: values[0] % 70_000,
            conventional_zones: values[1] % 4,
            oob_bytes: values[2] as u16,
            max_open: limits[0],
            max_active: limits[1],
            read_across_zones: flags[0],
            unwritten_reads_fail: flags[1],
            volatile_cache: flags[2],
            dies: flags[3].then_some(values[3] as u16),
            ..geometry()
        };
        let Some(layout) = Layout::of(&geometry) else { return Ok(()) };
        let header = format::Header::new(&geometry, &layout, [3; 16], "pm1731a");
        let bytes = zerocopy::IntoBytes::as_bytes(&header);
        match format::Header::parse(bytes) {
            Ok(header) => {
                prop_assert_eq!(header.geometry(), geometry);
                prop_assert_eq!(header.preset(), "pm1731a");
            }
            Err(_) => prop_assert!(geometry.validate().is_err()),
        }
    }
}
