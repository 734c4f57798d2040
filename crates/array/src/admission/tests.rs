//! Tests of the rules that decide which state records count.

use super::*;
use crate::level::Level;
use crate::placement::Placement;
use proptest::prelude::*;

/// Levels and numbers of drives; in some of these shapes, an array can split into two parts that
/// both continue alone.
const SHAPES: [(Level, u32); 10] = [
    (Level::Raid4, 2),
    (Level::Raid5, 2),
    (Level::Raid5, 3),
    (Level::Raid5, 4),
    (Level::Raid01, 4),
    (Level::Raid01, 6),
    (Level::Raid6, 3),
    (Level::Raid6, 4),
    (Level::Raid6, 5),
    (Level::Raid0, 2),
];

/// Drives that have replaced others have UUIDs with higher numbers than this.
const FRESH: u8 = 100;

/// A drive: its newest record, and the writes whose acknowledgement it took part in.
#[derive(Clone, Debug)]
struct Model {
    says: Examined,
    deeds: BTreeSet<u32>,
}

struct World {
    placement: Placement,
    drives: Vec<Model>,
    deeds: u32,
    fresh: u8,
}

/// An assembly of some of the drives, and what happens while the array runs.
#[derive(Clone, Debug)]
struct Step {
    given: Vec<bool>,
    /// A member that fails while the array runs.
    fails: Option<usize>,
    /// The number of members that get the record of a failure, or of missing drives, before a
    /// crash; `None` without a crash.
    told: Option<usize>,
    /// Whether a failed member is replaced.
    replaces: bool,
}

/// Notes that members in service have seen every event.
fn serve(says: &mut Examined) {
    for ((_, state), served) in says.members.iter().zip(&mut says.served) {
        if *state != MemberState::Failed {
            *served = says.events;
        }
    }
}

fn uuid(number: u8) -> Uuid {
    Uuid([number; 16])
}

impl World {
    fn new(level: Level, drives: u32) -> World {
        let members: Vec<_> =
            (0..drives).map(|m| (uuid(m as u8 + 1), MemberState::Active)).collect();
        let one = |member: u32| Model {
            says: Examined::sample(uuid(0), level, members.clone(), member),
            deeds: BTreeSet::new(),
        };
        World {
            placement: Placement::new(level, drives).unwrap(),
            drives: (0..drives).map(one).collect(),
            deeds: 0,
            fresh: FRESH,
        }
    }

    fn survives(&self, members: &[(Uuid, MemberState)]) -> bool {
        self.placement.recoverable(|chunk| {
            members[self.placement.drive(0, chunk) as usize].1 == MemberState::Active
        })
    }

    /// Gives a record to the members in service, or only to the first `told` of them; in that case
    /// nothing is acknowledged with the record. Returns whether all have it.
    fn record(&mut self, says: &Examined, told: Option<usize>) -> bool {
        let in_service = |index: &usize| {
            let device = self.drives[*index].says.device;
            let mut of = says.members.iter();
            of.any(|(uuid, state)| *uuid == device && *state != MemberState::Failed)
        };
        let all: Vec<usize> = (0..self.drives.len()).filter(in_service).collect();
        let count = told.map_or(all.len(), |told| told.min(all.len()));
        for index in &all[..count] {
            let own = &self.drives[*index].says;
            let (device, member) = (own.device, own.member);
            self.drives[*index].says = Examined { device, member, ..says.clone() };
        }
        count == all.len()
    }

    /// Assembles the array like a user who gives exactly these drives and leaves out those that are
    /// refused as old. A split is refused and changes nothing.
    fn step(&mut self, step: &Step) {
        let given: Vec<usize> =
            (0..self.drives.len()).filter(|i| step.given.get(*i) == Some(&true)).collect();
        let says: Vec<Examined> = given.iter().map(|i| self.drives[*i].says.clone()).collect();
        let Some(judged) = judge(&says).filter(|judged| judged.split.is_empty()) else { return };
        let mut state = says[judged.newest].clone();
        let there = |uuid: &Uuid| {
            let standings = judged.standings.iter().zip(&says);
            standings.clone().any(|(standing, one)| {
                one.device == *uuid && matches!(standing, Standing::Member(_))
            })
        };
        let mut lost = false;
        for (uuid, member) in &mut state.members {
            if *member != MemberState::Failed && !there(uuid) {
                *member = MemberState::Failed;
                lost = true;
            }
        }
        if !self.survives(&state.members) {
            return;
        }
        state.epoch += 1;
        state.record += 1;
        state.events += u64::from(lost);
        serve(&mut state);
        let told = step.told.filter(|_| step.fails.is_none());
        if !self.record(&state, told) {
            return;
        }
        self.acknowledge(&state);
        if let Some(fails) = step.fails {
            let seat = fails % state.members.len();
            state.members[seat].1 = MemberState::Failed;
            if !self.survives(&state.members) {
                return;
            }
            state.events += 1;
            state.record += 1;
            serve(&mut state);
            if !self.record(&state, step.told) {
                return;
            }
            self.acknowledge(&state);
        }
        let failed = state.members.iter().position(|(_, s)| *s == MemberState::Failed);
        if let Some(seat) = failed.filter(|_| step.replaces) {
            self.fresh += 1;
            state.members[seat] = (uuid(self.fresh), MemberState::Active);
            (state.events, state.record) = (state.events + 1, state.record + 1);
            serve(&mut state);
            let (fresh, in_service) =
                (uuid(self.fresh), |(_, s): &&(_, MemberState)| *s != MemberState::Failed);
            let with = state.members.iter().filter(in_service).map(|(uuid, _)| *uuid);
            let with = with.clone().find(|uuid| *uuid != fresh);
            let of = self.drives.iter().find(|drive| Some(drive.says.device) == with);
            let deeds = of.map_or(BTreeSet::new(), |drive| drive.deeds.clone());
            let member = Some(seat as u32);
            let says = Examined { device: uuid(self.fresh), member, ..state.clone() };
            self.drives.push(Model { says, deeds });
            self.record(&state, None);
            self.acknowledge(&state);
        }
    }

    /// Lets the members in service acknowledge a write together.
    fn acknowledge(&mut self, says: &Examined) {
        self.deeds += 1;
        for drive in &mut self.drives {
            let mut of = says.members.iter();
            if of.any(|(uuid, state)| *uuid == drive.says.device && *state != MemberState::Failed) {
                drive.deeds.insert(self.deeds);
            }
        }
    }
}

fn a_step() -> impl Strategy<Value = Step> {
    let told = prop_oneof![3 => Just(None), 1 => (0usize..4).prop_map(Some)];
    let fails = prop_oneof![2 => Just(None), 1 => (0usize..6).prop_map(Some)];
    (prop::collection::vec(any::<bool>(), 12), fails, told, prop::bool::weighted(0.2))
        .prop_map(|(given, fails, told, replaces)| Step { given, fails, told, replaces })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// In any history, a drive that took part in an acknowledged write is not passed over for a
    /// state without the write, unless a split is reported. A split is reported only if there
    /// is one.
    #[test]
    fn no_acknowledged_write_is_passed_over(
        shape in 0..SHAPES.len(),
        steps in prop::collection::vec(a_step(), 1..6),
        given in prop::collection::vec(any::<bool>(), 12),
        all in any::<bool>(),
    ) {
        let (level, drives) = SHAPES[shape];
        let mut world = World::new(level, drives);
        steps.iter().for_each(|step| world.step(step));
        let given: Vec<&Model> = world
            .drives
            .iter()
            .enumerate()
            .filter(|(index, _)| all || given.get(*index) == Some(&true))
            .map(|(_, drive)| drive)
            .collect();
        let says: Vec<Examined> = given.iter().map(|drive| drive.says.clone()).collect();
        let Some(judged) = judge(&says) else { return Ok(()) };
        if judged.split.is_empty() {
            let newest = &given[judged.newest].deeds;
            // An array is not started from a state if too many of the state's members are missing.
            let best = &given[judged.newest].says;
            let up = |seat: u32| {
                let (device, state) = best.members[seat as usize];
                let mut all = given.iter().zip(&judged.standings);
                state == MemberState::Active
                    && all.any(|(drive, standing)| {
                        drive.says.device == device && matches!(standing, Standing::Member(_))
                    })
            };
            let placement = world.placement;
            if !placement.recoverable(|chunk| up(placement.drive(0, chunk))) {
                return Ok(());
            }
            for drive in &given {
                // A drive that was replaced after a split looks like one replaced before the split,
                // if the other drives of its part are not given.
                let replaced = !all && world.fresh > FRESH;
                prop_assert!(
                    replaced || drive.deeds.is_subset(newest),
                    "{:?} has {:?}, the newest {:?} has {newest:?}",
                    drive.says, drive.deeds, given[judged.newest].says
                );
            }
        } else if all {
            let apart = |one: &&Model, other: &&Model| {
                !one.deeds.is_subset(&other.deeds) && !other.deeds.is_subset(&one.deeds)
            };
            let real = given.iter().any(|one| given.iter().any(|other| apart(one, other)));
            prop_assert!(real, "no split: {says:?}");
            for part in &judged.split {
                let one: Vec<_> = part.iter().map(|index| given[*index]).collect();
                let torn = one.iter().any(|a| one.iter().any(|b| apart(a, b)));
                prop_assert!(!torn, "one part holds two histories: {:?}", judged.split);
            }
        }
        // The decision does not depend on the order in which the drives are named.
        let mut turned = says.clone();
        turned.reverse();
        let other = judge(&turned).unwrap();
        prop_assert_eq!(other.split.is_empty(), judged.split.is_empty());
        if judged.split.is_empty() {
            let same = other.newest == says.len() - 1 - judged.newest;
            let deeds = &given[says.len() - 1 - other.newest].deeds;
            prop_assert!(same || !all || deeds == &given[judged.newest].deeds);
        }
    }
}

fn assemble(given: &[usize], count: usize) -> Step {
    let given = (0..count).map(|index| given.contains(&index)).collect();
    Step { given, fails: None, told: None, replaces: false }
}

/// Two halves that continued one after the other are a split, for every shape with such halves.
#[test]
fn two_halves_that_went_on_alone_are_a_split() {
    for (level, count, one, other) in [
        (Level::Raid5, 2, &[0][..], &[1][..]),
        (Level::Raid4, 2, &[1], &[0]),
        (Level::Raid01, 4, &[0, 2], &[1, 3]),
        (Level::Raid01, 4, &[0, 3], &[1, 2]),
        (Level::Raid6, 4, &[0, 1], &[2, 3]),
        (Level::Raid6, 3, &[0], &[1, 2]),
    ] {
        let mut world = World::new(level, count);
        for half in [one, other] {
            world.step(&assemble(half, count as usize));
        }
        let says: Vec<Examined> = world.drives.iter().map(|drive| drive.says.clone()).collect();
        let mut parts = vec![one.to_vec(), other.to_vec()];
        parts.sort();
        assert_eq!(judge(&says).unwrap().split, parts, "{level} {count}");
        let names: Vec<String> = (0..count).map(|index| format!("d{index}")).collect();
        let text = split_refusal(&says, &names, &parts, |_| String::new());
        assert!(text.contains("each gone on without the other"), "{text}");
        assert!(text.contains("--choose") && !text.contains("replace"), "{text}");
        // The first half continues alone once more: it still knows nothing of the second half.
        world.step(&assemble(one, count as usize));
        let says: Vec<Examined> = world.drives.iter().map(|drive| drive.says.clone()).collect();
        assert_eq!(judge(&says).unwrap().split, parts, "{level} {count}");
    }
}

/// Two successive records reached only some of their drives, so nothing was acknowledged with them.
/// The half that has them does not make a split.
#[test]
fn a_half_that_was_cut_off_twice_is_no_part() {
    let mut world = World::new(Level::Raid01, 4);
    world.step(&Step { told: Some(2), ..assemble(&[1, 2, 3], 4) });
    world.step(&Step { told: Some(1), ..assemble(&[1, 2], 4) });
    world.step(&assemble(&[0, 3], 4));
    let says: Vec<Examined> = world.drives.iter().map(|drive| drive.says.clone()).collect();
    let judged = judge(&says).unwrap();
    assert_eq!(judged.split, Vec::<Vec<usize>>::new());
    assert!([0, 3].contains(&judged.newest), "{}", judged.newest);
}

/// A replaced drive is started alone after the other drives have recorded each other as failed. The
/// writes that the other drives acknowledged together still count: the array is split.
#[test]
fn what_drives_did_together_before_they_fell_out_counts() {
    let mut world = World::new(Level::Raid6, 3);
    world.step(&Step { replaces: true, ..assemble(&[0, 2], 3) });
    world.step(&Step { told: Some(1), ..assemble(&[0, 2], 4) });
    world.step(&Step { told: Some(1), ..assemble(&[2, 3], 4) });
    world.step(&assemble(&[1], 4));
    let says: Vec<Examined> = world.drives.iter().map(|drive| drive.says.clone()).collect();
    assert_eq!(judge(&says).unwrap().split, [[1], [3]]);
}

/// If only one member has the record of a failure when the array ends, nothing was acknowledged
/// with that record.
#[test]
fn who_was_told_of_a_failure_alone_is_stale() {
    let mut world = World::new(Level::Raid6, 4);
    let mut step = assemble(&[0, 1, 3], 4);
    world.step(&step);
    // Only drive 3 gets the record that drive 0 has failed; drives 0 and 1 then continue without
    // drive 3.
    let mut says = world.drives[3].says.clone();
    says.members[0].1 = MemberState::Failed;
    (says.events, says.record) = (says.events + 1, says.record + 1);
    world.drives[3].says = says;
    step = assemble(&[0, 1], 4);
    world.step(&step);
    let says: Vec<Examined> = world.drives.iter().map(|drive| drive.says.clone()).collect();
    let judged = judge(&says).unwrap();
    assert!(judged.split.is_empty(), "{judged:?}");
    assert_eq!(judged.standings[3], Standing::TakenOut(3));
}

/// Member 0 recorded member 1 as failed; the new drive of member 1 then recorded member 0 as
/// failed. An older image of member 0, made while member 0 was alone, is stale: the record of the
/// new drive names a later record of member 0.
#[test]
fn an_older_image_of_a_drive_that_was_alone_is_no_split() {
    let mut world = World::new(Level::Raid5, 2);
    world.step(&Step { replaces: true, ..assemble(&[0], 2) });
    let mut before = World::new(Level::Raid5, 2);
    before.step(&assemble(&[0], 2));
    world.step(&assemble(&[2], 3));
    let mut says = vec![before.drives[0].says.clone(), world.drives[2].says.clone()];
    let parts = judge(&says).unwrap().split;
    assert_eq!(parts, [[0], [1]], "without knowing its record: a split");
    let (seat, record) = (says[0].member.unwrap() as usize, says[0].record);
    says[1].known[seat] = record;
    assert_eq!(judge(&says).unwrap().split.len(), 2, "it may have gone on after that record");
    says[1].known[seat] = record + 1;
    let judged = judge(&says).unwrap();
    assert!(judged.split.is_empty(), "{judged:?}");
    assert_eq!(judged.standings, [Standing::TakenOut(0), Standing::Member(1)]);
}

/// A member with a damaged newest record, or without a whole record, is not taken for an
/// older image.
#[test]
fn damage_of_a_record_is_no_older_image() {
    let world = World::new(Level::Raid5, 3);
    let mut says: Vec<Examined> = world.drives.iter().map(|drive| drive.says.clone()).collect();
    for one in &mut says {
        (one.record, one.known) = (9, vec![8; 3]);
    }
    says[1].record = 7;
    let old = Standing::Behind { member: 1, record: 7, least: 8 };
    assert_eq!(judge(&says).unwrap().standings[1], old);
    for (number, counts) in [(0, true), (8, true), (9, true), (7, false), (1, true), (2, false)] {
        says[1].damaged = Some(number);
        let standing = judge(&says).unwrap().standings[1];
        assert_eq!(standing == Standing::Member(1), counts, "{number}: {standing:?}");
    }
    let damaged = crate::examine::Damaged { signs: vec![(uuid(0), says[1].device)] };
    says[1] = damaged.stand_in(&says[0]).unwrap();
    let judged = judge(&says).unwrap();
    assert_eq!((judged.newest == 1, judged.standings[1]), (false, Standing::Member(1)));
    let foreign = crate::examine::Damaged { signs: vec![(uuid(7), says[1].device)] };
    assert!(foreign.stand_in(&says[0]).is_none());
}
