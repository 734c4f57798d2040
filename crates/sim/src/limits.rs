//! Drives with uneven limits and zones: fewer zones may be open than active, or one zone answers
//! minutes late.
//!
//! Each choice has a random generator of its own, so that it changes nothing else in a run: seeds
//! that once failed still make the same run.

use furrow_emu::{Fault, FaultKind, When};
use furrow_rt::{Nanos, Rng};
use furrow_zone::{Geometry, ZoneId};

/// The drive of a case: in a quarter of the cases fewer zones can be open than active. Then the
/// drive closes an open zone when another is written.
#[must_use]
pub fn fewer_open(geometry: Geometry, seed: u64) -> Geometry {
    let mut rng = Rng::new(seed ^ 0x0fe2_0be7);
    match geometry.max_active {
        Some(active) if rng.one_in(4) => {
            Geometry { max_open: Some(1 + rng.below(active.into()) as u32), ..geometry }
        }
        _ => geometry,
    }
}

/// Draws a fault in an eighth of the cases: all or some commands to one zone are answered
/// minutes late.
pub fn late_zone(geometry: &Geometry, seed: u64) -> Option<Fault> {
    let mut rng = Rng::new(seed ^ 0x001a_7e0e);
    if !rng.one_in(8) {
        return None;
    }
    let zone = ZoneId(rng.below(geometry.zones.into()) as u32);
    let nanoseconds = (1 + rng.below(10)) * 60 * Nanos::SECOND;
    let late = Fault::new(FaultKind::Slow { polls: 0, nanoseconds }).at_zone(zone);
    Some(late.when(When::OneIn(1 + rng.below(3))))
}
