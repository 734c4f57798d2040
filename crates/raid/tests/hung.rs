//! Drives that neither answer nor fail.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::common::{self, Array, check, churn, devices, power_cycle, without_stale};
use furrow_emu::{Emulator, Fault, FaultKind, When};
use furrow_raid::{Event, Level, MemberState, Options, Volume, assemble};
use furrow_rt::{Nanos, Rng, Rt};
use std::collections::BTreeMap;
use std::rc::Rc;

const LIMIT: u64 = 30 * Nanos::SECOND;

fn options() -> Options {
    Options { drive_timeout: LIMIT, ..Options::default() }
}

/// From its `nth` command on, `drive` answers no command.
fn hang(drive: &Emulator, nth: u64) {
    drive.inject(Fault::new(FaultKind::HANG).when(When::Nth(nth))).unwrap();
}

/// The volume after a power cycle, assembled with a timeout for drives.
async fn watched(rt: &Rt, all: &[Rc<Emulator>], volume: Volume) -> Volume {
    power_cycle(rt, all, volume).await;
    assemble(rt, devices(all), &options()).await.unwrap()
}

#[test]
fn a_drive_that_hangs_is_taken_out_and_nobody_waits_for_longer() {
    for seed in 0..20 {
        Array::new(Level::Raid5, 4).shuffled(seed).run(async move |rt, all, volume| {
            let volume = watched(&rt, &all, volume).await;
            let (mut model, mut rng) = (BTreeMap::new(), Rng::new(seed));
            churn(&volume, &mut model, &mut rng, 30).await;
            hang(&all[2], 1 + seed);
            let began = rt.now();
            churn(&volume, &mut model, &mut rng, 30).await;
            let took = rt.now().since(began);
            assert!((LIMIT..LIMIT + LIMIT / 40).contains(&took), "seed {seed}: {took} ns");
            assert_eq!(volume.members()[2].1, MemberState::Failed);
            let event = volume.next_event().await;
            let told = matches!(&event, Event::MemberFailed { member: 2, why }
                if why.ends_with("no answer for 30 s"));
            assert!(told, "{event}");
            check(&volume, &model).await;
            volume.stop().await.unwrap();
            all[2].power_on();
            all[2].clear_faults(None).unwrap();
            let volume = without_stale(&rt, &all).await.unwrap();
            check(&volume, &model).await;
        });
    }
}

#[test]
fn an_array_is_put_together_without_a_drive_that_hangs() {
    for nth in (1..60).step_by(4) {
        Array::new(Level::Raid6, 4).shuffled(nth).run(async move |rt, all, volume| {
            let (mut model, mut rng) = (BTreeMap::new(), Rng::new(nth));
            churn(&volume, &mut model, &mut rng, 30).await;
            power_cycle(&rt, &all, volume).await;
            hang(&all[1], nth);
            let volume = assemble(&rt, devices(&all), &options()).await.unwrap();
            check(&volume, &model).await;
            churn(&volume, &mut model, &mut rng, 30).await;
            check(&volume, &model).await;
            assert_eq!(volume.members()[1].1, MemberState::Failed, "hung at {nth}");
        });
    }
}

/// If more drives hang than the level tolerates, requests get an error and a stop ends.
#[test]
fn who_waits_for_too_many_hung_drives_gets_an_error_and_a_stop_ends() {
    Array::new(Level::Raid5, 4).shuffled(3).run(async move |rt, all, volume| {
        let volume = watched(&rt, &all, volume).await;
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(3));
        churn(&volume, &mut model, &mut rng, 30).await;
        hang(&all[0], 1);
        hang(&all[3], 1);
        let (block, version) = model.first_key_value().unwrap();
        let pages = common::pages(*block, 1, version + 1);
        let began = rt.now();
        assert!(volume.write(*block, pages, true).await.is_err());
        let _ = volume.stop().await;
        assert!(rt.now().since(began) < 3 * LIMIT);
    });
}

/// A drive that is slow but answers is not taken for hung.
#[test]
fn a_slow_drive_is_left_alone() {
    Array::new(Level::Raid5, 4).shuffled(4).run(async move |rt, all, volume| {
        let volume = watched(&rt, &all, volume).await;
        let slow = FaultKind::Slow { polls: 0, nanoseconds: LIMIT / 2 };
        all[1].inject(Fault::new(slow).when(When::OneIn(4))).unwrap();
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(4));
        churn(&volume, &mut model, &mut rng, 60).await;
        check(&volume, &model).await;
        assert!(volume.members().iter().all(|member| member.1 == MemberState::Active));
    });
}
