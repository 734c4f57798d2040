//! Spares: drives that wait for a member to fail, and stay spares until they are used, through
//! assemblies and crashes.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::common::{Array, check, churn, config, devices, geometry};
use furrow_emu::{Emulator, Fates, Fault, FaultKind};
use furrow_raid::{Level, MemberState, Options, Volume, assemble, create, examine};
use furrow_rt::{Rng, Rt};
use furrow_zone::{ErrorKind, ZonedDevice};
use std::collections::BTreeMap;
use std::rc::Rc;

async fn again(rt: &Rt, drives: &[Rc<Emulator>]) -> furrow_zone::Result<Volume> {
    assemble(rt, devices(drives), &Options::default()).await
}

async fn rebuilt(rt: &Rt, volume: &Volume) {
    while volume.rebuilding().is_some() {
        rt.sleep(1_000_000).await;
    }
    assert!(volume.members().iter().all(|(_, state, _)| *state == MemberState::Active));
}

#[test]
fn a_spare_is_one_in_every_assembly_until_it_is_taken() {
    Array::new(Level::Raid5, 3).others(3).simulated(5).run(async move |rt, all, volume| {
        let (config, options) = (config(Level::Raid5, all[0].geometry()), Options::default());
        let foreign = create(&rt, devices(&all[4..]), &config, &options, false).await.unwrap();
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(8));
        churn(&volume, &mut model, &mut rng, 100).await;
        let full = volume.add_spare(all[1].clone(), false).await.unwrap_err();
        assert_eq!(full.kind(), ErrorKind::Exists, "{full}");
        assert!(examine(&*all[3]).await.is_err_and(|e| e.kind() == ErrorKind::NotFound));
        let uuid = volume.add_spare(all[3].clone(), false).await.unwrap();
        assert_eq!(volume.add_spare(all[3].clone(), false).await.unwrap(), uuid, "it is one");
        assert_eq!(volume.spares(), [uuid]);
        let said = examine(&*all[3]).await.unwrap();
        assert_eq!((said.array, said.device, said.member), (volume.uuid(), uuid, None));
        assert_eq!((said.drives, said.level, said.blocks), (3, Level::Raid5, volume.blocks()));
        // Other arrays do not take the spare.
        let taken = foreign.add_spare(all[3].clone(), false).await.unwrap_err();
        let text = taken.to_string();
        assert!(text.contains("a spare of the array") && text.contains("--force"), "{text}");
        foreign.fail(0).await.unwrap();
        let taken = foreign.take_spare(0, all[3].clone()).await.unwrap_err();
        assert!(taken.to_string().contains("is no spare of this array"), "{taken}");
        let taken = foreign.replace(0, all[3].clone(), false).await.unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::Exists, "{taken}");
        let busy = volume.take_spare(1, all[3].clone()).await.unwrap_err();
        assert!(busy.to_string().contains("in service"), "{busy}");
        volume.stop().await.unwrap();
        drop(volume);

        let given = |order: &[usize]| order.iter().map(|i| all[*i].clone()).collect::<Vec<_>>();
        let only = again(&rt, &given(&[3])).await.unwrap_err();
        assert!(only.to_string().contains("only spares are given"), "{only}");
        let twice = again(&rt, &given(&[0, 1, 3, 2, 3])).await.unwrap_err();
        assert!(twice.to_string().contains("drive3 is a second copy of a spare"), "{twice}");
        drop(foreign);
        let other = again(&rt, &given(&[3, 5])).await.unwrap_err();
        assert!(other.to_string().contains("drive3 is a spare of array"), "{other}");
        for order in [[3, 2, 0, 1], [1, 3, 0, 2]] {
            let volume = again(&rt, &given(&order)).await.unwrap();
            assert_eq!(volume.spares(), [uuid]);
            check(&volume, &model).await;
            volume.stop().await.unwrap();
        }
        // The array is complete without the spare, and the spare stays a spare.
        let volume = again(&rt, &given(&[0, 1, 2])).await.unwrap();
        assert!(volume.spares().is_empty());
        volume.fail(1).await.unwrap();
        churn(&volume, &mut model, &mut rng, 50).await;
        volume.stop().await.unwrap();
        drop(volume);
        let volume = again(&rt, &given(&[3, 0, 2])).await.unwrap();
        assert_eq!(volume.spares(), [uuid]);
        volume.take_spare(1, all[3].clone()).await.unwrap();
        assert!(volume.spares().is_empty());
        rebuilt(&rt, &volume).await;
        assert_eq!(volume.members()[1].0, uuid);
        assert_eq!(examine(&*all[3]).await.unwrap().member, Some(1));
        volume.fail(0).await.unwrap();
        check(&volume, &model).await;
        // The failed drive may become the next spare, if its content may be lost.
        let refused = volume.add_spare(all[1].clone(), false).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Exists, "{refused}");
        let next = volume.add_spare(all[1].clone(), true).await.unwrap();
        volume.take_spare(0, all[1].clone()).await.unwrap();
        rebuilt(&rt, &volume).await;
        volume.stop().await.unwrap();
        drop(volume);
        let volume = again(&rt, &given(&[1, 2, 3])).await.unwrap();
        assert_eq!(volume.members()[0].0, next);
        volume.fail(2).await.unwrap();
        check(&volume, &model).await;
    });
}

/// At whatever point power is cut, the drive is afterwards either a spare or a member: the records
/// of the other members decide.
#[test]
fn the_power_goes_while_a_spare_becomes_a_member() {
    let (mut waits, mut between, mut member, mut over) = (0, 0, 0, false);
    let mut step = 0;
    while !over {
        step += 1;
        let volatile = step % 2 == 0;
        let geometry = furrow_zone::Geometry { volatile_cache: volatile, ..geometry(16, 80) };
        let array = Array::of(geometry, Level::Raid5, 3).others(1).shuffled(step);
        let (found, ended) = array.run(async move |rt, all, volume| {
            let (mut model, mut rng) = (BTreeMap::new(), Rng::new(step));
            churn(&volume, &mut model, &mut rng, 60).await;
            let uuid = volume.add_spare(all[3].clone(), false).await.unwrap();
            volume.fail(1).await.unwrap();
            churn(&volume, &mut model, &mut rng, 20).await;
            volume.flush().await.unwrap();
            let late = Fault::new(FaultKind::Slow { polls: 0, nanoseconds: 1000 });
            all.iter().for_each(|drive| drive.inject(late).unwrap());
            let (taker, spare) = (volume.clone(), all[3].clone());
            let ended = Rc::new(std::cell::Cell::new(false));
            let told = ended.clone();
            let taking = rt.spawn(async move {
                let done = taker.take_spare(1, spare).await;
                told.set(done.is_ok());
            });
            rt.sleep(step * 500).await;
            let ended = ended.get();
            all.iter().for_each(|drive| drive.power_cut(&Fates::seeded(step)));
            taking.await;
            drop(volume);
            rt.sleep(1_000_000_000).await;
            all.iter().for_each(|drive| drive.power_on());
            let said = examine(&*all[3]).await.unwrap();
            let known = examine(&*all[0]).await.unwrap().members[1];
            let found = (said.member, known == (uuid, MemberState::Rebuilding));
            let given: Vec<_> = [3, 2, 0].map(|index| all[index].clone()).into();
            let volume = again(&rt, &given).await.unwrap();
            check(&volume, &model).await;
            if volume.members()[1].1 == MemberState::Failed {
                assert_eq!(volume.spares(), [uuid], "step {step}: {found:?}");
                volume.take_spare(1, all[3].clone()).await.unwrap();
            } else {
                assert!(volume.spares().is_empty(), "step {step}");
            }
            assert_eq!(volume.members()[1].0, uuid);
            churn(&volume, &mut model, &mut rng, 20).await;
            volume.start_rebuild();
            rebuilt(&rt, &volume).await;
            volume.fail(0).await.unwrap();
            check(&volume, &model).await;
            volume.stop().await.unwrap();
            (found, ended)
        });
        match found {
            (None, false) => waits += 1,
            (None, true) => between += 1,
            (Some(at), _) => {
                assert_eq!(at, 1);
                member += 1;
            }
        }
        over = ended && member > 2;
        assert!(step < 1000, "it never ends");
    }
    assert!(waits > 0 && between > 0 && member > 0, "{waits} {between} {member} in {step}");
}

#[test]
fn of_two_drives_for_one_place_one_becomes_the_member() {
    for delay in [0, 100_000, 1_000_000, 5_000_000] {
        Array::new(Level::Raid5, 3).others(2).simulated(7).run(async move |rt, all, volume| {
            let (mut model, mut rng) = (BTreeMap::new(), Rng::new(9));
            churn(&volume, &mut model, &mut rng, 100).await;
            let uuid = volume.add_spare(all[3].clone(), false).await.unwrap();
            volume.fail(1).await.unwrap();
            let (other, drive) = (volume.clone(), all[4].clone());
            let replacing = rt.spawn(async move { other.replace(1, drive, false).await });
            rt.sleep(delay).await;
            let spared = volume.take_spare(1, all[3].clone()).await;
            let replaced = replacing.await;
            let (late, is_spare) = match (&spared, &replaced) {
                (Ok(()), Err(error)) => (error, false),
                (Err(error), Ok(())) => (error, true),
                both => panic!("{both:?}"),
            };
            assert!(late.to_string().contains("in service"), "{late}");
            assert_eq!(volume.spares().contains(&uuid), is_spare, "a spare stays one");
            rebuilt(&rt, &volume).await;
            check(&volume, &model).await;
            volume.stop().await.unwrap();
        });
    }
}
