//! The suite for real drives tests the emulated drive against the rules of zones.

#[path = "common/conformance.rs"]
mod conformance;

use furrow_rt::{Config, Rt};
use furrow_zone::Access;

/// Specs of drives with and without space in a zone beyond its capacity, limits, conventional
/// zones, small blocks, out-of-band bytes, and a volatile cache.
const DRIVES: [&str; 5] = [
    "mem:zones=12,zone-size=16MiB,zone-capacity=12MiB,max-open=4,max-active=6",
    "mem:zones=12,zone-size=1MiB",
    "mem:zones=16,zone-size=4MiB,conventional=3,max-open=2,max-active=2",
    "mem:zones=12,zone-size=1MiB,block=512,max-active=5,volatile-cache=off",
    "mem:zones=12,zone-size=1MiB,oob=64",
];

#[test]
fn the_emulated_drive_keeps_the_rules_of_zones() {
    for drive in DRIVES {
        for seed in 1..=3 {
            let rt = Rt::new(Config::simulated(seed));
            let spec = drive.parse().expect(drive);
            let device = furrow_emu::open(&rt, &spec, Access::ReadWrite).expect(drive);
            let found = rt.block_on(async move { conformance::run(&*device, seed, 1500, 1).await });
            rt.clear();
            let found = found.unwrap_or_else(|what| panic!("{drive}, seed {seed}: {what}"));
            let (cases, differ) = found.cases();
            assert_eq!(differ, 0, "{drive}, seed {seed}: {:#?}", found.table());
            // A walk with too few cases or commands proves nothing.
            assert!(cases > 40 && found.commands() > 1500, "{drive}, seed {seed}: {cases} cases");
        }
    }
}
