//! Damaged images: the test that `furrow-sim damage` runs for hours, for a few seconds.

#![allow(clippy::unwrap_used, reason = "a test")]

use furrow_sim::fs::damage::damaged;
use furrow_sim::fs::repair::repaired;
use furrow_sim::image::Image;

#[test]
fn mount_fsck_and_dump_survive_damaged_images() {
    let (mut mounted, mut found) = (0, 0);
    for base in 1..4 {
        let image = Image::make(base).unwrap();
        for seed in base * 200..base * 200 + 150 {
            let summary = damaged(&image, seed).unwrap();
            mounted += u32::from(summary.mounted);
            found += u32::from(summary.findings.is_some_and(|findings| findings > 0));
        }
    }
    // Some images are refused and some are not: the code behind the checksums is reached.
    assert!((50..400).contains(&mounted), "{mounted} of 450 mounted");
    assert!(found > 100, "fsck found something in {found} of 450");
}

/// Images that once caused a panic or a hang.
#[test]
fn what_failed_once_holds() {
    for seed in [10_302, 21_266, 31_658] {
        damaged(&Image::make(seed / 200).unwrap(), seed).unwrap();
    }
}

#[test]
fn a_repair_makes_nothing_worse() {
    let (mut sound, mut untouched, mut cut, mut files) = (0, 0, 0, 0);
    for base in 1..4 {
        let image = Image::make(base).unwrap();
        for seed in base * 200..base * 200 + 60 {
            let done = repaired(&image, seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            sound += u32::from(done.sound);
            untouched += u32::from(done.untouched);
            cut += u32::from(done.cut);
            files += done.files;
        }
    }
    assert!(sound > 30 && untouched > 0 && cut > 5, "{sound} {untouched} {cut}");
    assert!(files > 100, "{files}");
}

/// An image whose repair once ended in a panic. The repair could not take out a block of a
/// directory that had a copy of its own, counted such copies twice, and after a power cut had too
/// many active zones.
#[test]
fn a_repair_that_failed_once_ends() {
    let seed = 5_801;
    repaired(&Image::make(seed / 200).unwrap(), seed).unwrap();
}
