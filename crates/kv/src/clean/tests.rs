//! Tests how cleaning treats zones that it could not empty.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::audit::tests::with_store;
use crate::{Lifetime, Node, Policy};
use furrow_zone::ZoneId;

const BLOCK: usize = 4096;

/// Cleaning leaves a zone as it is if no other zone has space for the zone's content, and does not
/// try that zone again until there is more space.
#[test]
fn a_zone_that_did_not_fit_is_cleaned_when_there_is_space() {
    with_store(Policy::Shared, |rt, store| async move {
        // Files 11 to 14 have at most 16 blocks and so no blocks of checksums. With such blocks,
        // cleaning would move the files together.
        for (name, blocks) in [("10", 30), ("11", 10), ("12", 10), ("13", 10), ("14", 10)] {
            let id = store.create(name, Lifetime::Medium).unwrap();
            store.append(id, &vec![7; blocks * BLOCK]).await.unwrap();
            store.close(id).await.unwrap();
        }
        store.sync_all().await.unwrap();
        store.remove("10").unwrap();
        store.sync_names().await.unwrap();
        let zones = &store.0.zones;
        let [victim] = zones.full_zones()[..] else { panic!("one zone is full") };
        let valid = zones.valid(victim);
        assert!((1..64).contains(&valid), "{valid} blocks are valid");

        // Another user of the zones takes all other space while the victim is being cleaned.
        let open = (0..40).map(ZoneId).find(|zone| zones.is_open(*zone)).unwrap();
        zones.abandon(open);
        let mut taken: Vec<_> = std::iter::from_fn(|| zones.pool.allocate(&[])).collect();
        store.clean_zone(victim).await.unwrap();
        zones.wanted.notify_all();
        rt.sleep(1_000_000).await;
        assert_eq!((zones.valid(victim), store.counters().cleaned), (valid, 0));

        // Give back some zones, few enough that cleaning is due.
        taken.drain(..10).for_each(|id| zones.pool.mark_full(id));
        for _ in 0..2 {
            // The first time, the zones given back are reset. The second time stands for a writer
            // that finds few free zones.
            zones.wanted.notify_all();
            rt.sleep(1_000_000_000).await;
        }
        assert_eq!((zones.valid(victim), zones.valid(open)), (0, 0));
        assert_eq!(store.counters().cleaned, 2);
        let Node::File(id) = store.stat("11").unwrap().node else { panic!("it is a file") };
        assert_eq!(store.read(id, 0, BLOCK).await.unwrap().to_vec(), [7; BLOCK]);
    });
}
