//! Tests which request gets a zone, and in which order.

#![allow(clippy::unwrap_used, reason = "a test")]

use super::{Use, Want};
use crate::audit::tests::with_store;
use crate::{Claim, Lifetime, Policy};
use std::cell::RefCell;
use std::rc::Rc;

/// While a request waits for space, later requests of the same claim queue behind it, even if a
/// zone has space for them at the moment. Each gets its zone in the order of arrival.
#[test]
fn requests_short_of_space_queue_in_order() {
    with_store(Policy::Shared, |rt, store| async move {
        let usage = Use::Files(Lifetime::Medium);
        let want = Want { usage, file: None, claim: Claim::Others, content: false };
        let earlier = store.0.zones.queue(Claim::Others);
        let order: Rc<RefCell<Vec<u32>>> = Rc::default();
        for number in 0..4 {
            let (store, order) = (store.clone(), order.clone());
            rt.spawn_detached(async move {
                store.zone_for(want).await.unwrap();
                order.borrow_mut().push(number);
            });
        }
        rt.sleep(1_000_000).await;
        assert_eq!(*order.borrow(), [0; 0], "nobody passes the one who came earlier");
        // Requests with other claims have queues of their own, and cleaning never queues.
        store.zone_for(Want { claim: Claim::Compaction, ..want }).await.unwrap();
        store.zone_for(Want::moved(Use::Moved(0))).await.unwrap();
        store.audit().unwrap();
        drop(earlier);
        rt.sleep(1_000_000).await;
        assert_eq!(*order.borrow(), [0, 1, 2, 3]);
        assert_eq!(store.counters().waits, 4);
    });
}
