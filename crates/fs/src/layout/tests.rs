//! Tests of superblocks that mkfs would not write.

#![allow(clippy::unwrap_used, reason = "a test")]

use super::*;

fn geometry() -> Geometry {
    furrow_zone::spec::parse_geometry("zones=40,zone-size=1MiB,zone-capacity=256KiB,max-active=14")
        .unwrap()
}

fn decode(body: &SuperblockBody) -> Result<Layout> {
    Layout::decode(body, Uuid([1; 16]), Uuid([2; 16]), &geometry())
}

fn body() -> SuperblockBody {
    Layout::plan(&geometry(), &MkfsOptions::default()).unwrap().encode()
}

#[test]
fn areas_that_agree_with_each_other_must_not_leave_the_drive() {
    decode(&body()).unwrap();
    // All zones belong to logs, and the main area begins where the drive ends.
    let beyond = SuperblockBody {
        logs: 1.into(),
        ring_start: 0.into(),
        delta_start: 2.into(),
        delta_zones: 17.into(),
        table_start: 36.into(),
        table_zones: 2.into(),
        sync_start: 38.into(),
        sync_zones: 1.into(),
        main_start: 40.into(),
        superzones: 1.into(),
        width: 1.into(),
        ..body()
    };
    let error = decode(&beyond).unwrap_err().to_string();
    assert!(error.contains("end of the main area is 41, expected 1 to 40"), "{error}");
    // Logs that are longer than the drive.
    let long = SuperblockBody {
        delta_zones: 40.into(),
        table_start: 82.into(),
        sync_start: 84.into(),
        main_start: 86.into(),
        ..beyond
    };
    decode(&long).unwrap_err();
}

#[test]
fn a_label_that_is_no_text_fits_the_next_superblock() {
    let layout = decode(&SuperblockBody { label: [0xff; 64], ..body() }).unwrap();
    assert!(layout.label.len() <= 64 && !layout.label.is_empty());
    let again = decode(&layout.encode()).unwrap();
    assert_eq!(again.label, layout.label);
}
