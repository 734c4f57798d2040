//! Spares in a life: a task that is notified of failed members gives them spare drives, as the
//! daemon does. Some of these drives fail themselves, vanish or hang, before or after they are
//! used. The handling of members that may lack something at the end of a life is here as well.

use super::{Action, Life, Plan, Shared, World, draw, of_part};
use crate::raid::array::seats;
use crate::raid::part::Absence;
use furrow_emu::{Fault, FaultKind, When};
use furrow_log::Uuid;
use furrow_raid::{Event, MemberState, Volume, examine};
use furrow_rt::{Nanos, Rng};
use furrow_zone::ZonedDevice;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

/// The spares of a life.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    /// Spares that wait for a member to fail.
    spares: Vec<u32>,
    /// Spares and members' drives that may have a fault.
    ailing: Vec<u32>,
    /// Whether the life ends only after everything replaceable has been replaced.
    patient: bool,
}

/// The state of the task that gives spares to failed members.
#[derive(Clone, Default)]
pub(super) struct Keeper {
    waiting: Rc<RefCell<VecDeque<u32>>>,
    /// Members that got a spare.
    taken: Rc<RefCell<BTreeSet<u32>>>,
    /// Spares that were given to a failed member.
    used: Rc<RefCell<Vec<u32>>>,
    busy: Rc<Cell<bool>>,
    wrong: Rc<RefCell<Option<String>>>,
    reached: Rc<RefCell<BTreeSet<&'static str>>>,
}

impl Keeper {
    /// Whether a drive is a waiting spare.
    pub(super) fn has(&self, part: u32) -> bool {
        self.waiting.borrow().contains(&part)
    }

    pub(super) fn has_taken(&self, member: u32) -> bool {
        self.taken.borrow().contains(&member) || self.busy.get()
    }

    fn met(&self, what: &'static str) {
        self.reached.borrow_mut().insert(what);
    }

    pub(super) fn reached(&self) -> Vec<&'static str> {
        self.reached.borrow().iter().copied().collect()
    }
}

impl World {
    /// Draws a life with spares, if there are drives for them.
    pub(super) fn draw_guarded(&mut self, rng: &mut Rng) -> Plan {
        let mut plan = draw(self, rng, &mut Rng::new(rng.clone().next() ^ 1));
        let unused =
            |part: &u32| !self.seats.contains(&Some(*part)) && !self.spoiled.contains(part);
        let mut spares: Vec<u32> = (0..self.array.parts()).filter(unused).collect();
        if rng.one_in(2) {
            spares.truncate(1);
        }
        if spares.is_empty() {
            return plan;
        }
        let patient = rng.one_in(2);
        if patient {
            plan.faults.retain(|fault| fault.kind != FaultKind::PowerCut);
        }
        let mut struck: Vec<u32> = plan.struck.clone();
        if struck.is_empty() && self.budget() > 0 {
            struck = super::lost::pick(&self.whole.iter().copied().collect::<Vec<_>>(), 1, rng);
            let seat = self.seats[struck[0] as usize].unwrap_or_default();
            let fail = if rng.one_in(2) { Action::Fail(struck[0]) } else { Action::Pull(seat) };
            plan.actions.push((rng.below(plan.operations), fail));
            plan.struck = struck;
        }
        if rng.one_in(2) {
            let member = rng.below(self.array.drives.into()) as u32;
            plan.actions.push((plan.operations, Action::Another(member)));
        }
        let mut ailing = Vec::new();
        for part in &spares {
            if rng.one_in(3) {
                plan.ail(self, *part, rng);
                ailing.push(*part);
            }
        }
        // A fault may also strike a member's drive while spares are being used.
        ailing.extend(plan.struck.iter().filter_map(|member| self.seats[*member as usize]));
        plan.actions.sort_by_key(|(at, _)| *at);
        plan.guard = Some(Guard { spares, ailing, patient });
        plan
    }
}

impl Plan {
    /// Lets a spare vanish, hang or fail.
    fn ail(&mut self, world: &mut World, part: u32, rng: &mut Rng) {
        let at = rng.below(self.operations + 20);
        let within = [5, 60, 400][rng.below(3) as usize];
        let nth = When::Nth(1 + rng.below(within));
        let zones = u64::from(world.array.geometry.zones);
        let fault = match rng.below(8) {
            0 | 1 => {
                self.actions.push((at, Action::Pull(part)));
                if rng.one_in(2) {
                    self.actions.push((at + rng.below(20), Action::PutBack(part)));
                }
                return;
            }
            2 => {
                self.actions.push((at, Action::Hang(part)));
                return;
            }
            3 => {
                let commands = 1 + rng.below(40);
                self.absent.push((part, Absence { at: rng.below(within), commands }));
                return;
            }
            4 => Fault::new(FaultKind::WriteError).when(When::OneIn(3)).times(1 + rng.below(60)),
            5 => Fault::new(FaultKind::ReadError).when(nth).times(1 + rng.below(3)),
            6 => {
                let often = When::OneIn(1 + rng.below(20));
                Fault::new(FaultKind::ZoneReadOnly).when(often).times(1 + rng.below(zones))
            }
            _ => {
                world.spoiled.insert(part);
                Fault::new(FaultKind::BitFlip).when(nth).times(1 + rng.below(5))
            }
        };
        self.faults.push(of_part(&world.array, part, fault, 0));
    }
}

impl Life {
    /// Checks that no drive that must be refused is in service.
    pub(super) fn check_refused(
        &self,
        volume: &Volume,
        before: &[Option<u32>],
    ) -> Result<(), String> {
        for (seat, (_, state, _)) in before.iter().zip(volume.members()) {
            let old = seat.is_some_and(|seat| self.plan.refused.contains(&seat));
            if old && state == MemberState::Active {
                return Err(format!("part {seat:?} is older than it was, and in service"));
            }
        }
        Ok(())
    }
}

impl Shared {
    /// Adds the spare drives to the array, and starts the task that gives them to failed members.
    pub(super) async fn keep_spares(&self) -> Result<(), String> {
        let Some(guard) = &self.life.plan.guard else { return Ok(()) };
        for part in &guard.spares {
            let device = self.parts[*part as usize].clone();
            let known = examine(&*device).await;
            if known.is_ok_and(|known| self.volume.spares().contains(&known.device)) {
                self.keeper.met("spares there before");
            }
            match self.volume.add_spare(device, true).await {
                Ok(_) => self.keeper.waiting.borrow_mut().push_back(*part),
                Err(_) if self.is_ailing(*part) => self.keeper.met("spares that could not be"),
                Err(error) => drop(self.excused::<()>("add a spare", Err(error)).await?),
            }
        }
        let keeper = self.clone();
        self.life.rt.spawn_detached(async move {
            loop {
                keeper.give_spares().await;
                while !matches!(keeper.volume.next_event().await, Event::MemberFailed { .. }) {}
            }
        });
        Ok(())
    }

    fn is_ailing(&self, part: u32) -> bool {
        let plan = &self.life.plan;
        plan.guard.as_ref().is_some_and(|guard| guard.ailing.contains(&part))
            || self.life.lost_zones(part) > 0
    }

    fn failed_members(&self) -> Vec<u32> {
        let members = (0u32..).zip(self.volume.members());
        members.filter(|(_, m)| m.1 == MemberState::Failed).map(|(member, _)| member).collect()
    }

    async fn give_spares(&self) {
        let keeper = &self.keeper;
        keeper.busy.set(true);
        for member in self.failed_members() {
            while self.volume.failed().is_none() && !self.life.is_off() {
                let Some(part) = keeper.waiting.borrow_mut().pop_front() else { break };
                let device = self.parts[part as usize].clone();
                match self.volume.take_spare(member, device).await {
                    Ok(()) => {
                        keeper.met("spares taken");
                        if !keeper.used.borrow().is_empty() {
                            keeper.met("second spares taken");
                        }
                        keeper.taken.borrow_mut().insert(member);
                        keeper.used.borrow_mut().push(part);
                        break;
                    }
                    Err(_) if self.is_ailing(part) => keeper.met("spares refused"),
                    Err(_) if self.volume.failed().is_some() || self.life.is_off() => {}
                    Err(error) if error.to_string().contains("in service") => {
                        // The member was replaced in another way, so the spare waits again.
                        keeper.waiting.borrow_mut().push_front(part);
                        break;
                    }
                    Err(error) => {
                        let why = format!("spare {part} for member {member}: {error}");
                        *keeper.wrong.borrow_mut() = Some(why);
                    }
                }
            }
        }
        keeper.busy.set(false);
    }

    /// Waits until the task that gives spares is idle.
    async fn given(&self) -> Result<(), String> {
        let mut turns = 0;
        loop {
            self.life.rt.sleep(Nanos::MILLI).await;
            if !self.keeper.busy.get() || self.life.is_off() {
                return Ok(());
            }
            turns += 1;
            if turns > 100_000 {
                return Err("a spare is never taken".to_owned());
            }
        }
    }

    /// Checks at the end of a life with spares that no spare waits while a member is out
    /// of service.
    pub(super) async fn spares_taken(&self) -> Result<(), String> {
        let Some(guard) = &self.life.plan.guard else { return Ok(()) };
        if guard.patient {
            self.given().await?;
            self.rebuilt().await?;
            self.given().await?;
        }
        if let Some(why) = self.keeper.wrong.take() {
            return Err(why);
        }
        if !guard.patient || self.life.is_off() || self.volume.failed().is_some() {
            return Ok(());
        }
        // A vanished drive is noticed only by a command to it, and is reported after that.
        for turn in 0.. {
            let waiting = self.keeper.waiting.borrow().front().copied();
            let (Some(member), Some(part)) = (self.failed_members().first().copied(), waiting)
            else {
                break;
            };
            if self.life.is_off() {
                return Ok(());
            }
            if turn > 1000 {
                return Err(format!("member {member} failed, and spare {part} waits"));
            }
            self.life.rt.sleep(Nanos::MILLI).await;
            self.given().await?;
        }
        let members = self.volume.members();
        let all = members.iter().all(|m| m.1 == MemberState::Active);
        let taken = self.keeper.taken.borrow();
        if all && !taken.is_empty() {
            self.keeper.met("members whole by spares");
        }
        Ok(())
    }

    /// Makes a drive hang, so that the drive no longer answers. The array does not watch a waiting
    /// spare, so in a life with spares the drive is given up after 100 s, as an examination of the
    /// drives would do.
    pub(super) fn hang(&self, part: u32) {
        let drive = self.parts[part as usize].clone();
        drive.hang();
        if self.life.plan.guard.is_some() {
            let rt = self.life.rt.clone();
            self.life.rt.spawn_detached(async move {
                rt.sleep(100 * Nanos::SECOND).await;
                if drive.hangs() {
                    drive.give_up();
                }
            });
        }
    }

    /// Lets the drive of a member vanish once all members are in service and whole.
    pub(super) async fn lose_another(&self, member: u32) {
        let waited = async {
            self.given().await?;
            self.rebuilt().await
        };
        if waited.await.is_err() || self.life.is_off() {
            return;
        }
        let all = seats(&self.volume, &self.parts, &[]).await;
        let whole = |(seat, (uuid, state, _)): (&Option<u32>, &(Uuid, MemberState, _))| {
            *state == MemberState::Active
                && !self.life.doubted.contains(uuid)
                && seat
                    .is_some_and(|seat| !self.life.spoiled.contains(&seat) && !self.is_ailing(seat))
        };
        let is_whole = all.iter().zip(&self.volume.members()).all(whole);
        if !is_whole || self.volume.rebuilding().is_some() || self.life.array.tolerates() == 0 {
            return;
        }
        if let Some(seat) = all[member as usize] {
            self.keeper.met("drives lost after a replacement");
            self.parts[seat as usize].set_gone(true);
        }
    }

    /// Scrubs the array, up to four times, until a scrub finds nothing. Returns the members that
    /// may still lack data: none after a clean scrub and a checkpoint, unless a drive has lost
    /// zones or the array lacks space.
    pub(super) async fn cleared(&self) -> Result<BTreeSet<Uuid>, String> {
        let mut doubted = self.life.doubted.clone();
        let seats = || seats(&self.volume, &self.parts, &[]);
        let in_service = |(uuid, state, _): &(Uuid, MemberState, _)| {
            *state == MemberState::Active && doubted.contains(uuid)
        };
        if doubted.is_empty() || !self.volume.members().iter().any(in_service) {
            return Ok(doubted);
        }
        self.rebuilt().await?;
        for _ in 0..4 {
            self.quiet().await;
            let done = self.volume.scrub(true, |_, _| {}).await;
            let Some(scrubbed) = self.excused("scrub", done).await? else { return Ok(doubted) };
            if self.life.is_off() {
                return Ok(doubted);
            }
            if scrubbed.lost > 0 {
                return Err(format!("a scrub lost blocks: {scrubbed:?}"));
            }
            if !scrubbed.findings.is_empty() {
                continue;
            }
            self.quiet().await;
            let noted = self.volume.checkpoint(false).await;
            let noted = self.excused("checkpoint", noted).await?.is_some();
            let worn = seats().await.iter().flatten().any(|seat| self.life.lost_zones(*seat) > 0);
            if noted && !worn && self.volume.out_of_space().is_none() && !self.life.is_off() {
                doubted.clear();
            }
            break;
        }
        Ok(doubted)
    }

    /// Waits until the array moves no more blocks in the background.
    async fn quiet(&self) {
        let at = || {
            let counters = self.volume.counters();
            (counters.moved, counters.cleaned, counters.rewritten, counters.checkpoints)
        };
        for _ in 0..100 {
            let before = at();
            self.life.rt.sleep(2 * Nanos::SECOND).await;
            if at() == before || self.life.is_off() {
                return;
            }
        }
    }
}
