//! Branches: experiments on copies of the array between two of its lives (see the parent module).

use super::lost::pick;
use super::ruin::What;
use super::{Action, Plan, World, draw, live, quiet};
use crate::raid::array::Array;
use crate::raid::oracle::{Blocks, TRIM, page};
use crate::raid::part::Part;
use crate::simulation::{Sink, Summary, on_executor};
use furrow_emu::Emulator;
use furrow_raid::{MemberState, Volume};
use furrow_rt::{Nanos, Pages, Rng, Rt};
use furrow_zone::ZonedDevice;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// More commands than this in a branch mean an endless loop.
const COMMANDS: u64 = 2_000_000;

fn count(summary: &mut Summary, what: &'static str) {
    *summary.reached.entry(what).or_default() += 1;
}

/// Runs experiments on copies of the array: losses of drives, and one of the other kinds
/// of branches.
pub(super) fn grow(
    world: &World,
    rng: &mut Rng,
    sink: Sink<'_>,
    summary: &mut Summary,
) -> Result<(), String> {
    let mut lost = Rng::new(rng.next());
    for _ in 0..2 {
        world.lose(&mut lost, summary)?;
    }
    let (kind, mut rng) = (rng.below(10), Rng::new(rng.next()));
    let world = World { branch: true, ..world.clone() };
    let told = |what: &'static str| move |why: String| format!("{what}: {why}");
    match kind {
        0 | 1 => older(world, &mut rng, sink, summary).map_err(told("older")),
        2 => too_old(world, &mut rng, sink, summary).map_err(told("too many older")),
        3 | 4 => ruined(world, &mut rng, sink, summary).map_err(told("ruined")),
        5 => too_ruined(world, &mut rng, sink, summary).map_err(told("too much ruined")),
        6 | 7 => spared(world, &mut rng, sink, summary).map_err(told("spares")),
        8 => unrecorded(world, &mut rng, sink, summary).map_err(told("records ruined")),
        _ => Ok(()),
    }
}

/// Draws whole members to damage, at most as many as the level tolerates.
fn victims(world: &World, rng: &mut Rng) -> Vec<u32> {
    let (whole, most) = (world.whole.iter().copied().collect::<Vec<_>>(), world.budget());
    let count = if most == 0 { 0 } else { 1 + rng.below(most as u64) };
    pick(&whole, count as usize, rng)
}

/// Runs three more lives after members were damaged: one with the plan `first`, one in which failed
/// members are replaced, and a quiet one. After each life, everything is read back without as many
/// drives as may then be lost.
fn go_on(
    world: &mut World,
    first: Plan,
    rng: &mut Rng,
    sink: Sink<'_>,
    summary: &mut Summary,
) -> Result<(), String> {
    let mut mend = quiet();
    mend.actions.push((0, Action::Replace));
    mend.stop = rng.one_in(2);
    for (life, plan) in [first, mend, quiet()].into_iter().enumerate() {
        sink(&format!("  branch life {life}: {plan:?}"));
        live(world, rng.next(), &plan, summary)
            .map_err(|why| format!("life {life} of the branch ({plan:?}): {why}"))?;
        world.lose(rng, summary).map_err(|why| format!("after life {life} of it: {why}"))?;
    }
    Ok(())
}

/// Lets at most as many members as the level tolerates return with an older state.
fn older(
    mut world: World,
    rng: &mut Rng,
    sink: Sink<'_>,
    summary: &mut Summary,
) -> Result<(), String> {
    let members = victims(&world, rng);
    let backs = members.iter().filter_map(|member| world.draw_image(*member, false, rng));
    let backs: Vec<_> = backs.collect();
    if backs.is_empty() {
        return Ok(());
    }
    let told: Vec<_> = backs.iter().map(|back| (back.member, back.part, back.stale)).collect();
    sink(&format!("  older (member, part, must be refused): {told:?}"));
    world.put_back(&backs, rng.next(), summary)?;
    let mut plan = draw(&world, rng, &mut Rng::new(rng.clone().next() ^ 1));
    if rng.one_in(4) {
        plan.draw_absences(&world, rng);
    }
    plan.refused = backs.iter().filter(|back| back.stale).map(|back| back.part).collect();
    count(summary, "members that came back older");
    go_on(&mut world, plan, rng, sink, summary).map_err(|why| format!("{told:?}: {why}"))?;
    if backs.iter().all(|back| world.whole.contains(&back.member)) {
        count(summary, "members that came back older whole in the end");
    }
    Ok(())
}

/// Lets more members than the level tolerates return with an older state, from before the
/// last assembly.
fn too_old(
    mut world: World,
    rng: &mut Rng,
    sink: Sink<'_>,
    summary: &mut Summary,
) -> Result<(), String> {
    let Some(stays) = pick(&world.whole.iter().copied().collect::<Vec<_>>(), 1, rng).pop() else {
        return Ok(());
    };
    let others: Vec<u32> = (0..world.array.drives).filter(|member| *member != stays).collect();
    let least = world.budget() + 1;
    if others.len() < least {
        return Ok(());
    }
    let members = pick(&others, least + rng.below((others.len() - least + 1) as u64) as usize, rng);
    let backs = members.iter().filter_map(|member| world.draw_image(*member, true, rng));
    let backs: Vec<_> = backs.collect();
    if backs.len() < least {
        return Ok(());
    }
    let told: Vec<_> = backs.iter().map(|back| (back.member, back.part)).collect();
    sink(&format!("  too many older (member, part): {told:?}"));
    world.put_back(&backs, rng.next(), summary)?;
    let old = backs.iter().map(|back| back.part).collect();
    let met = survive(&world, old, rng, summary).map_err(|why| format!("{told:?}: {why}"))?;
    count(
        summary,
        match met {
            Met::Refused => "arrays of too many older members refused",
            Met::Lost => "arrays of too many older members that lost blocks",
            Met::Whole => "arrays of too many older members whole",
        },
    );
    Ok(())
}

/// Damages metadata blocks on at most as many members as the level tolerates.
fn ruined(
    mut world: World,
    rng: &mut Rng,
    sink: Sink<'_>,
    summary: &mut Summary,
) -> Result<(), String> {
    let members = victims(&world, rng);
    let kinds = [What::Mapping, What::Stripes, What::Headers, What::Footers, What::Windows];
    let bare = furrow_raid::is_bare(&world.array.geometry);
    let what = kinds[rng.below(if bare { 5 } else { 4 }) as usize];
    let blocks = world.ruin(&members, what, rng, summary)?;
    if blocks == 0 {
        return Ok(());
    }
    let told = format!("{blocks} {what:?} of members {members:?}");
    sink(&format!("  ruined: {told}"));
    world.doubt(&members, rng.next(), summary)?;
    let plan = draw(&world, rng, &mut Rng::new(rng.clone().next() ^ 1));
    count(
        summary,
        match what {
            What::Mapping => "mapping blocks ruined",
            What::Stripes => "stripes with mapping blocks ruined",
            What::Headers => "headers of segments ruined",
            What::Footers => "footers of segments ruined",
            What::Windows => "listings of windows ruined",
            What::Records => "state records ruined",
        },
    );
    go_on(&mut world, plan, rng, sink, summary).map_err(|why| format!("{told}: {why}"))?;
    if members.iter().all(|member| world.whole.contains(member)) {
        count(summary, "members with ruined blocks whole in the end");
    }
    Ok(())
}

/// Damages the state records of some members, but not of all: the remaining records replace the
/// damaged ones, and nothing is lost.
fn unrecorded(
    mut world: World,
    rng: &mut Rng,
    sink: Sink<'_>,
    summary: &mut Summary,
) -> Result<(), String> {
    live(&mut world, rng.next(), &quiet(), summary)?;
    let whole: Vec<u32> = world.whole.iter().copied().collect();
    if whole.len() < 2 {
        return Ok(());
    }
    let members = pick(&whole, 1 + rng.below(whole.len() as u64 - 1) as usize, rng);
    let blocks = world.ruin(&members, What::Records, rng, summary)?;
    if blocks == 0 {
        return Ok(());
    }
    let told = format!("{blocks} {:?} of members {members:?}", What::Records);
    sink(&format!("  ruined: {told}"));
    world.speaker = whole.iter().find(|member| !members.contains(member)).copied();
    let plan = draw(&world, rng, &mut Rng::new(rng.clone().next() ^ 1));
    count(summary, "state records ruined");
    go_on(&mut world, plan, rng, sink, summary).map_err(|why| format!("{told}: {why}"))
}

/// Damages mapping blocks on more members than the level tolerates.
fn too_ruined(
    mut world: World,
    rng: &mut Rng,
    sink: Sink<'_>,
    summary: &mut Summary,
) -> Result<(), String> {
    if furrow_raid::is_bare(&world.array.geometry) {
        // This life ends with a new state record. Without that record, a window's metadata block
        // that is damaged beyond the redundancy would look as if a crash had come before the last
        // data was listed.
        live(&mut world, rng.next(), &quiet(), summary)?;
    }
    let all: Vec<u32> = (0..world.array.drives).collect();
    let least = (world.array.tolerates() as usize + 1).min(all.len());
    let members = pick(&all, least + rng.below((all.len() - least + 1) as u64) as usize, rng);
    let what = if rng.one_in(3) { What::Mapping } else { What::Stripes };
    let blocks = world.ruin(&members, what, rng, summary)?;
    if blocks == 0 {
        return Ok(());
    }
    let told = format!("{blocks} {what:?} of members {members:?}");
    sink(&format!("  too much ruined: {told}"));
    let met =
        survive(&world, BTreeSet::new(), rng, summary).map_err(|why| format!("{told}: {why}"))?;
    count(
        summary,
        match met {
            Met::Refused => "arrays with too much ruined refused",
            Met::Lost => "arrays with too much ruined that lost blocks",
            Met::Whole => "arrays with too much ruined that nobody needed",
        },
    );
    Ok(())
}

/// Lets spares replace members that fail.
fn spared(
    mut world: World,
    rng: &mut Rng,
    sink: Sink<'_>,
    summary: &mut Summary,
) -> Result<(), String> {
    for life in 0..3 {
        let plan = if life == 2 { quiet() } else { world.draw_guarded(rng) };
        if life == 0 && plan.guard.is_none() {
            return Ok(());
        }
        sink(&format!("  branch life {life}: {plan:?}"));
        live(&mut world, rng.next(), &plan, summary)
            .map_err(|why| format!("life {life} of the branch ({plan:?}): {why}"))?;
        world.lose(rng, summary).map_err(|why| format!("after life {life} of it: {why}"))?;
    }
    count(summary, "arrays with spares");
    Ok(())
}

/// The outcome for an array that was damaged beyond its redundancy.
enum Met {
    Refused,
    Lost,
    Whole,
}

/// Assembles, reads, writes, scrubs and stops an array and reads it again, although too much of it
/// is missing. Each request must end, and none may return wrong data. Members with an older state,
/// on the drives `old`, must not be in service.
fn survive(
    world: &World,
    old: BTreeSet<u32>,
    rng: &mut Rng,
    summary: &mut Summary,
) -> Result<Met, String> {
    let mut draw = Rng::new(rng.next());
    on_executor(rng.next(), summary, |rt| {
        let emulator = world.emulator(rt)?;
        let (commands, device) = (Cell::new(0u64), Rc::new(emulator.clone()));
        emulator.set_observer(Rc::new(move |_: &Emulator, _: &_| {
            commands.set(commands.get() + 1);
            assert!(commands.get() < COMMANDS, "it comes to no end");
        }));
        let device: Rc<dyn ZonedDevice> = device;
        let hurt = Hurt { rt: rt.clone(), array: world.array.clone(), device, old };
        let (mut blocks, mut version) = (world.blocks.clone(), world.version);
        rt.block_on(async move {
            let parts = hurt.parts();
            let Some(volume) = hurt.open(&parts).await? else { return Ok(Met::Refused) };
            let lost = hurt.read(&volume, &blocks).await?;
            hurt.write(&volume, &mut blocks, &mut version, &mut draw).await;
            hurt.read(&volume, &blocks).await?;
            let _ = volume.scrub(draw.one_in(2), |_, _| {}).await;
            hurt.read(&volume, &blocks).await?;
            let _ = volume.stop().await;
            drop(volume);
            parts.iter().for_each(|part| part.set_gone(true));
            hurt.rt.sleep(Nanos::SECOND).await;
            if let Some(volume) = hurt.open(&hurt.parts()).await? {
                hurt.read(&volume, &blocks).await?;
            }
            Ok(if lost > 0 { Met::Lost } else { Met::Whole })
        })
    })
}

struct Hurt {
    rt: Rt,
    array: Array,
    device: Rc<dyn ZonedDevice>,
    old: BTreeSet<u32>,
}

impl Hurt {
    fn parts(&self) -> Vec<Rc<Part>> {
        Part::split(&self.rt, &self.device, self.array.parts())
    }

    /// Assembles the array; `None` if it is refused.
    async fn open(&self, parts: &[Rc<Part>]) -> Result<Option<Volume>, String> {
        let mut without = Vec::new();
        let volume = match self.array.open(&self.rt, parts, &mut without).await {
            Ok(volume) => volume,
            Err(error) => {
                let text = error.to_string();
                let named = self.old.iter().any(|part| {
                    without.contains(part) || text.starts_with(&format!("part {part} "))
                });
                return match self.old.is_empty() || named {
                    true => Ok(None),
                    false => Err(format!("refused, and no older drive is named: {text}")),
                };
            }
        };
        let seats = crate::raid::array::seats(&volume, parts, &without).await;
        for (seat, (_, state, _)) in seats.iter().zip(volume.members()) {
            if seat.is_some_and(|seat| self.old.contains(&seat)) && state == MemberState::Active {
                return Err(format!("{seat:?} is older than it was, and in service"));
            }
        }
        Ok(Some(volume))
    }

    /// Reads block by block: each block is right or an error. Returns how many are errors.
    async fn read(&self, volume: &Volume, blocks: &Blocks) -> Result<u64, String> {
        let mut lost = 0;
        for block in 0..volume.blocks() {
            match volume.read(block, 1).await {
                Ok(pages) => drop(blocks.check(block, &pages[0])?),
                Err(_) => lost += 1,
            }
        }
        Ok(lost)
    }

    async fn write(&self, volume: &Volume, blocks: &mut Blocks, version: &mut u64, rng: &mut Rng) {
        for operation in 0..12 {
            let count = 1 + rng.below(5).min(volume.blocks() - 1);
            let block = rng.below(volume.blocks() - count);
            *version += 1;
            let trim = rng.one_in(4);
            let version = if trim { TRIM + *version } else { *version };
            blocks.began(operation, (block, count, version));
            let done = if trim {
                volume.trim(block, count, true).await
            } else {
                let pages: Pages =
                    (block..block + count).map(|block| page(block, version)).collect();
                volume.write(block, pages, true).await
            };
            if done.is_ok() {
                blocks.acknowledged(operation);
            }
        }
    }
}
