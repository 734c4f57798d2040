//! Tests that records fit the ring whenever it says that they do.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::format::{BLOCK_BODY, BLOCK_SIZE};
use crate::toy::{Toy, geometry};
use crate::writer::Order;
use furrow_rt::{Config, Rng, Rt};

/// Records for which the ring reports space can be appended, whatever is wasted at the ends
/// of zones.
#[test]
fn records_that_have_space_fit() {
    let id = RecordId { kind: 1, sequence: 1, ..RecordId::default() };
    let mut refused = 0;
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let rt = Rt::new(Config::shuffled(seed));
        let toy = Toy::on(&rt, geometry(13, 16), seed);
        let writer = Writer::new(&rt, toy, Order::Queued, 2);
        let zones = RingZones { start: 0, half: 1 + rng.below(4) as u32, spares: 1 };
        let nothing = (Vec::new(), BTreeSet::new());
        let mut ring = RecordRing::new(&writer, &Pool::new(64), zones, nothing, None);
        ring.turn(None, (1, 1)).unwrap();
        loop {
            let most = 1 + rng.below(ring.capacity().into()) as u32;
            let blocks: Vec<u32> =
                (0..1 + rng.below(6)).map(|_| 1 + rng.below(most.into()) as u32).collect();
            let all = (blocks.iter().sum(), *blocks.iter().max().unwrap());
            if !ring.has_space(all, 0) {
                // The half is not full: the bound was too cautious for these records.
                refused += u32::from(ring.space_left() > 0);
                break;
            }
            for blocks in blocks {
                let body = vec![1; (blocks as usize - 1) * BLOCK_SIZE + BLOCK_BODY];
                assert_eq!(blocks_for(body.len()), blocks);
                drop(ring.append(&id, 0, &body).unwrap());
                rt.run_ready();
            }
        }
        rt.clear();
    }
    assert!(refused > 100, "{refused}");
}
