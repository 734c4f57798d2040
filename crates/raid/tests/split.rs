//! Halves of an array that each continued without the other.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::common::{Array, check, churn, devices};
use furrow_raid::{Level, Options, assemble, examine, judge};
use furrow_rt::Rng;
use furrow_zone::ErrorKind;
use std::collections::BTreeMap;

/// The halves run one after the other. All drives together are refused, in whatever order they are
/// given, and nothing is written. Each half alone still has the blocks that it acknowledged.
#[test]
fn an_array_whose_halves_went_on_alone_is_refused_whole() {
    for (level, count, one, other) in [
        (Level::Raid5, 2, &[0][..], &[1][..]),
        (Level::Raid4, 2, &[0], &[1]),
        (Level::Raid01, 4, &[0, 2], &[1, 3]),
        (Level::Raid6, 4, &[0, 1], &[2, 3]),
        (Level::Raid6, 3, &[2], &[0, 1]),
    ] {
        let told = format!("{level} of {count}");
        Array::new(level, count).zones(20, 80).run(async move |rt, all, volume| {
            let (mut model, mut rng) = (BTreeMap::new(), Rng::new(3));
            churn(&volume, &mut model, &mut rng, 20).await;
            volume.stop().await.unwrap();
            drop(volume);
            let mut models = Vec::new();
            let only = |half: &[usize]| {
                devices(&half.iter().map(|at| all[*at].clone()).collect::<Vec<_>>())
            };
            for half in [one, other] {
                let volume = assemble(&rt, only(half), &Options::default()).await.unwrap();
                let mut model = model.clone();
                churn(&volume, &mut model, &mut rng, 20).await;
                volume.stop().await.unwrap();
                models.push(model);
            }
            let mut orders = vec![devices(&all)];
            orders.push(devices(&all.iter().rev().cloned().collect::<Vec<_>>()));
            for given in orders {
                let error = assemble(&rt, given, &Options::default()).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Invalid, "{told}: {error}");
                let text = error.to_string();
                assert!(text.contains("each gone on without the other"), "{told}: {text}");
                assert!(!text.contains("raid replace"), "{told}: {text}");
            }
            let mut says = Vec::new();
            for drive in &all {
                says.push(examine(&**drive).await.unwrap());
            }
            assert_eq!(judge(&says).unwrap().split.len(), 2, "{told}");
            for (half, model) in [one, other].into_iter().zip(&models) {
                let volume = assemble(&rt, only(half), &Options::default()).await.unwrap();
                check(&volume, model).await;
                volume.stop().await.unwrap();
            }
        });
    }
}
