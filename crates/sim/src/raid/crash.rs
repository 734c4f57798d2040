//! The RAID volume under the crash harness.
//!
//! Clients write and trim; the volume is small, so it cleans and checkpoints often. In many runs,
//! members fail meanwhile: a drive is pulled, or a command takes the member out. Later, fresh
//! drives take their places, and are rebuilt while the clients continue. The promise: each block
//! has the content of its last acknowledged write or trim, or of a later one in progress. The level
//! says how many drives may be gone, in any combination. A failed member counts as gone until its
//! rebuild has ended.
//!
//! After each reopening, the volume is written to, and failed members are replaced. Some are
//! replaced by spares, which a crash may leave unused or half taken. The rebuild may run to
//! its end. Then everything is read once more with drives left out. Each of these steps may be
//! cut again.

use crate::crash::{Case, Subject, Tally};
use crate::raid::array::{Array, devices, promote, seats};
use crate::raid::coverage::{AT_END, WITH_POWER, coverage, told_lost};
use crate::raid::oracle::{AFTER, Blocks, TRIM, page};
use crate::raid::part::{Part, own_caches};
use furrow_emu::Emulator;
use furrow_policy::RaidDefect;
use furrow_raid::{Examined, Level, MemberState, Volume, create, examine};
use furrow_rt::{Notify, Pages, Rng, Rt};
use furrow_zone::{Geometry, ZonedDevice};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const CLIENTS: u64 = 3;

/// An event of a run.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// An operation gives blocks a version; a version from [`TRIM`] on is a trim.
    Began {
        /// Number of the operation.
        operation: u64,
        /// First block of the operation.
        block: u64,
        /// Number of blocks.
        count: u64,
        /// Version that the blocks get.
        version: u64,
    },
    /// An operation was acknowledged.
    Acknowledged(u64),
    /// A member is about to fail.
    Fails {
        /// Number of the member.
        member: u32,
        /// Whether the member's drive was pulled.
        pulled: bool,
    },
    /// A drive is about to replace the drive of a member.
    Seated {
        /// Number of the member.
        member: u32,
        /// The part that becomes the member's drive.
        part: u32,
    },
    /// The rebuild of a member has ended.
    Rebuilt(u32),
}

/// The events of a run, in order.
#[derive(Clone, Debug, Default)]
pub struct History(Vec<Event>);

/// What must hold after a crash.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    blocks: Blocks,
    /// For each member whose drive was replaced, the part that is its drive now.
    seats: BTreeMap<u32, u32>,
    /// Members that failed and were not rebuilt: each may be anything from whole to stale.
    doubtful: BTreeSet<u32>,
    /// Numbers of the drives that were pulled.
    pulled: BTreeSet<u32>,
    /// Whether a reopening was interrupted, so what it did to members is unknown.
    again: bool,
    tally: Rc<RefCell<Tally>>,
}

impl Expected {
    fn after(history: &[Event]) -> Expected {
        let mut expected = Expected::default();
        for event in history {
            match *event {
                Event::Began { operation, block, count, version } => {
                    expected.blocks.began(operation, (block, count, version));
                }
                Event::Acknowledged(operation) => expected.blocks.acknowledged(operation),
                Event::Fails { member, pulled } => {
                    expected.doubtful.insert(member);
                    if pulled {
                        expected.pulled.insert(expected.seat(member));
                    }
                }
                Event::Seated { member, part } => {
                    expected.seats.insert(member, part);
                    expected.pulled.remove(&part);
                }
                Event::Rebuilt(member) => {
                    expected.doubtful.remove(&member);
                }
            }
        }
        expected
    }

    fn seat(&self, member: u32) -> u32 {
        self.seats.get(&member).copied().unwrap_or(member)
    }

    fn count(&self, what: impl Into<String>) {
        *self.tally.borrow_mut().entry(what.into()).or_default() += 1;
    }
}

/// The volume, with or without a built-in defect.
#[derive(Clone, Copy, Debug, Default)]
pub struct RaidSubject {
    /// The defect built in, if any.
    pub defect: Option<RaidDefect>,
}

/// A failure of members in a run, and their replacement.
#[derive(Clone, Debug)]
struct Round {
    /// Operation before which the members fail.
    at: u64,
    members: Vec<u32>,
    /// Whether the members' drives are pulled; otherwise a command takes the members out.
    pulled: bool,
    /// Number of further operations after which the members are replaced; `None`: never.
    replaced: Option<u64>,
    /// Whether the failed drive itself, wiped, is the replacement.
    same: bool,
}

/// The setup of a case.
struct Setup {
    array: Array,
    rounds: Vec<Round>,
    operations: u64,
    /// Whether the last rebuild ends before the volume is stopped.
    patient: bool,
    /// Whether the drives have a volatile cache, and clients flush some of their writes later.
    lazy: bool,
}

fn setup(case: Case, defect: Option<RaidDefect>) -> Setup {
    let mut rng = Rng::new(case.seed ^ 0x7a1d);
    let array = Array::draw(case, &mut rng, defect);
    let operations = 40 + rng.below(160);
    let mut rounds = Vec::new();
    let tolerated = array.tolerates();
    let (mut at, count) = (0, [0, 1, 1, 2][rng.below(4) as usize]);
    for _ in 0..if tolerated == 0 { 0 } else { count } {
        at += 1 + rng.below(operations / 2);
        let mut members: Vec<u32> = (0..array.drives).collect();
        let fail = 1 + rng.below(tolerated.into());
        while members.len() as u64 > fail {
            members.remove(rng.below(members.len() as u64) as usize);
        }
        let replaced = (!rng.one_in(4)).then(|| rng.below(operations / 4));
        let (pulled, same) = (!rng.one_in(3), rng.one_in(3));
        rounds.push(Round { at, members, pulled, replaced, same });
    }
    // Uses a separate random generator, so that seeds that once failed keep their runs.
    let lazy = case.volatile && Rng::new(case.seed ^ 0xf1_a54).one_in(2);
    Setup { array, rounds, operations, patient: rng.one_in(2), lazy }
}

/// State shared by the tasks of a run.
#[derive(Clone)]
struct Work {
    rt: Rt,
    volume: Volume,
    volatile: bool,
    lazy: bool,
    /// Operations that have ended but are not flushed.
    unflushed: Rc<RefCell<Vec<u64>>>,
    history: Rc<RefCell<History>>,
    parts: Vec<Rc<Part>>,
    /// Number of operations begun.
    begun: Rc<Cell<u64>>,
    ticks: Rc<Notify>,
    /// Set once no further operation may begin.
    over: Rc<Cell<bool>>,
    /// Whether the volume is stopped only after rebuilds have ended.
    patient: bool,
}

impl Work {
    fn tell(&self, event: Event) {
        self.history.borrow_mut().0.push(event);
    }

    /// Performs one client's operations.
    async fn client(self, number: u64, share: u64, mut rng: Rng) -> Result<(), String> {
        let volume = &self.volume;
        let mut flushes = Rng::new(number ^ share << 8);
        for step in 0..share {
            let operation = step * CLIENTS + number + 1;
            let count = 1 + rng.below(5).min(volume.blocks() - 1);
            // Half of the writes go to a few blocks, so that some data dies early.
            let span = if rng.one_in(2) { volume.blocks() } else { volume.blocks().min(16) };
            let block = rng.below(span.saturating_sub(count).max(1));
            let trim = rng.one_in(8);
            let version = if trim { TRIM + operation } else { operation };
            let fua = self.volatile && !(self.lazy && flushes.one_in(2));
            self.tell(Event::Began { operation, block, count, version });
            self.begun.set(self.begun.get() + 1);
            self.ticks.notify_all();
            let result = if trim {
                volume.trim(block, count, fua).await
            } else {
                let pages: Pages =
                    (block..block + count).map(|block| page(block, version)).collect();
                volume.write(block, pages, fua).await
            };
            result.map_err(|error| format!("operation {operation}: {error}"))?;
            audited(volume)?;
            match fua || !self.volatile {
                true => self.tell(Event::Acknowledged(operation)),
                false => self.unflushed.borrow_mut().push(operation),
            }
            if self.lazy && flushes.one_in(4) {
                self.flush().await.map_err(|error| format!("flush: {error}"))?;
            }
        }
        Ok(())
    }

    /// Flushes: operations that ended before the flush are durable after it.
    async fn flush(&self) -> furrow_zone::Result<()> {
        let over = self.unflushed.take();
        self.volume.flush().await?;
        over.into_iter().for_each(|operation| self.tell(Event::Acknowledged(operation)));
        Ok(())
    }

    /// Waits until this many operations have begun. False if the run ends with fewer.
    async fn until(&self, operations: u64) -> bool {
        while self.begun.get() < operations && !self.over.get() {
            self.ticks.wait().await;
        }
        !self.over.get()
    }

    /// Makes members fail during a run, and replaces them.
    async fn operator(self, rounds: Vec<Round>) -> Result<(), String> {
        let mut seats: Vec<u32> = (0..self.volume.members().len() as u32).collect();
        for round in rounds {
            if !self.until(round.at).await {
                return Ok(());
            }
            for member in &round.members {
                self.fail(*member, seats[*member as usize], round.pulled).await?;
                audited(&self.volume)?;
            }
            let Some(later) = round.replaced else { return Ok(()) };
            if !self.until(self.begun.get() + later).await {
                return Ok(());
            }
            for member in &round.members {
                let fresh = (0..self.parts.len() as u32).rfind(|part| !seats.contains(part));
                if let Some(fresh) = fresh.filter(|_| !round.same) {
                    seats[*member as usize] = fresh;
                }
            }
            if !self.replace(&round.members, &seats).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn state(&self, member: u32) -> MemberState {
        self.volume.members()[member as usize].1
    }

    async fn fail(&self, member: u32, part: u32, pulled: bool) -> Result<(), String> {
        self.tell(Event::Fails { member, pulled });
        if pulled {
            self.parts[part as usize].set_gone(true);
            return Ok(());
        }
        self.volume.fail(member).await.map_err(|error| format!("fail {member}: {error}"))
    }

    /// Replaces failed members and waits for their rebuild. False if the volume is stopped before
    /// that.
    async fn replace(&self, members: &[u32], seats: &[u32]) -> Result<bool, String> {
        for member in members {
            // Only the next write to a pulled drive notices that it is missing.
            while self.state(*member) != MemberState::Failed {
                if !self.until(self.begun.get() + 1).await {
                    return Ok(false);
                }
            }
            let part = seats[*member as usize];
            self.tell(Event::Seated { member: *member, part });
            let device = self.parts[part as usize].clone();
            device.set_gone(false);
            match self.volume.replace(*member, device, true).await {
                Err(_) if self.over.get() && !self.patient => return Ok(false),
                done => done.map_err(|error| format!("replace {member}: {error}"))?,
            }
            audited(&self.volume)?;
        }
        while self.volume.rebuilding().is_some() {
            self.rt.sleep(10_000).await;
            audited(&self.volume)?;
        }
        for member in members {
            if self.state(*member) != MemberState::Active {
                return match self.state(*member) {
                    _ if self.over.get() && !self.patient => Ok(false),
                    state => Err(format!("member {member} is {state:?} after its rebuild")),
                };
            }
            self.tell(Event::Rebuilt(*member));
        }
        Ok(true)
    }
}

impl Subject for RaidSubject {
    type History = History;
    type Expected = Expected;

    fn name(&self) -> String {
        match self.defect {
            None => "raid".to_owned(),
            Some(defect) => format!("raid:{defect:?}"),
        }
    }

    fn drive(&self, case: Case) -> Geometry {
        setup(case, None).array.whole()
    }

    fn prepare(&self, rt: &Rt, device: Rc<dyn ZonedDevice>, case: Case) -> Result<(), String> {
        let Setup { array, .. } = setup(case, self.defect);
        let parts = Part::split(rt, &device, array.parts());
        let rt2 = rt.clone();
        rt.block_on(async move {
            let all = devices(&parts[..array.drives as usize], &[]);
            let made = create(&rt2, all, &array.config, &array.options, false).await;
            let volume = made.map_err(|error| error.to_string())?;
            volume.stop().await.map_err(|error| error.to_string())
        })
    }

    fn provoke(&self, drive: &Emulator, case: Case) {
        own_caches(drive, setup(case, self.defect).array.parts());
    }

    fn run(
        &self,
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        case: Case,
        history: Rc<RefCell<History>>,
    ) -> Result<(), String> {
        let Setup { array, rounds, operations, patient, lazy } = setup(case, self.defect);
        let parts = Part::split(rt, &device, array.parts());
        let rt2 = rt.clone();
        rt.block_on(async move {
            let volume = array.open(&rt2, &parts, &mut Vec::new()).await;
            let volume = volume.map_err(|error| error.to_string())?;
            audited(&volume)?;
            let work = Work {
                rt: rt2.clone(),
                volume: volume.clone(),
                volatile: case.volatile,
                lazy,
                unflushed: Rc::default(),
                history,
                parts,
                begun: Rc::default(),
                ticks: Rc::new(Notify::new()),
                over: Rc::default(),
                patient,
            };
            let mut rng = Rng::new(case.seed ^ 0xc11e);
            let clients: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let (share, rng) = (operations / CLIENTS, Rng::new(rng.next()));
                    rt2.spawn(work.clone().client(number, share, rng))
                })
                .collect();
            let operator = rt2.spawn(work.clone().operator(rounds));
            for client in clients {
                client.await?;
            }
            work.over.set(true);
            work.ticks.notify_all();
            if patient {
                operator.await?;
                return volume.stop().await.map_err(|error| error.to_string());
            }
            volume.stop().await.map_err(|error| error.to_string())?;
            operator.await
        })
    }

    fn mark(history: &History) -> usize {
        history.0.len()
    }

    fn expect(&self, history: &History, mark: usize) -> Expected {
        Expected::after(&history.0[..mark])
    }

    fn again(&self, expected: &mut Expected) {
        expected.again = true;
    }

    fn reached(&self, expected: &Expected) -> Tally {
        std::mem::take(&mut *expected.tally.borrow_mut())
    }

    fn coverage(&self, reached: &Tally) -> Vec<String> {
        coverage(reached)
    }

    fn reopen(
        &self,
        rt: &Rt,
        drive: &Emulator,
        case: Case,
        expected: &Expected,
    ) -> Result<(), String> {
        let Setup { array, .. } = setup(case, self.defect);
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        let expected = expected.clone();
        let reopening = Reopening { rt: rt.clone(), device, array, case, expected };
        rt.block_on(reopening.all())
    }
}

/// A crashed array that is reopened.
struct Reopening {
    rt: Rt,
    device: Rc<dyn ZonedDevice>,
    array: Array,
    case: Case,
    expected: Expected,
}

/// Audits the volume's accounts.
///
/// # Errors
/// Names the account that is wrong.
pub fn audited(volume: &Volume) -> Result<(), String> {
    volume.audit().map_err(told)
}

fn told(error: furrow_zone::Error) -> String {
    error.to_string()
}

/// Prefixes a failure with the step in which it occurred.
fn when(what: &str) -> impl Fn(String) -> String {
    move |why| format!("{what}: {why}")
}

impl Reopening {
    fn parts(&self) -> Vec<Rc<Part>> {
        Part::split(&self.rt, &self.device, self.array.parts())
    }

    async fn all(self) -> Result<(), String> {
        let drawn = self.case.seed ^ self.rt.random();
        let mut rng = Rng::new(drawn);
        let parts = self.parts();
        if self.lose_another(&parts, &mut rng).await? {
            return Ok(());
        }
        let lost = self.choose_lost(&mut rng);
        // A pulled drive stays away or returns. A returned drive is stale, unless the array has not
        // changed since it was pulled.
        let mut without: Vec<u32> = lost.iter().map(|member| self.expected.seat(*member)).collect();
        without.extend(self.lose_again(&parts, drawn).await);
        if !self.expected.again && rng.one_in(2) {
            without.extend(&self.expected.pulled);
        }
        let volume = self.array.open(&self.rt, &parts, &mut without).await.map_err(told)?;
        audited(&volume)?;
        self.check_members(&volume, &lost)?;
        let found = self.expected.blocks.compare(&volume).await.map_err(when("recovered"))?;
        met(&volume, |what| self.expected.count(what));
        let mut now = Blocks::found(found);
        // The array must be usable, and must keep the content that was found.
        self.write_on(&volume, &mut now, &mut rng, 4).await?;
        self.mend(&volume, &parts, &without, &mut now, &mut rng).await?;
        audited(&volume)?;
        now.compare(&volume).await.map_err(when("mended"))?;
        worked(&volume, |what| self.expected.count(what));
        let whole: Vec<u32> = if volume.rebuilding().is_some() {
            // Members whose rebuild has ended in memory may still be incomplete on the drives.
            Vec::new()
        } else {
            let states = volume.members().into_iter().map(|(_, state, _)| state);
            let whole = (0..).zip(states).filter(|(_, state)| *state == MemberState::Active);
            whole.map(|(member, _)| member).collect()
        };
        let seats = seats(&volume, &parts, &[]).await;
        if rng.one_in(2) {
            volume.stop().await.map_err(told)?;
        }
        drop(volume);
        // Background work ends here as in a crash; the next assembly gets fresh handles of
        // all drives.
        parts.iter().for_each(|part| part.set_gone(true));
        self.rt.sleep(1_000_000_000).await;
        let parts = self.parts();
        let mut without = self.leave_out(&whole, &seats, &mut rng)?;
        let volume = self.array.open(&self.rt, &parts, &mut without).await.map_err(told)?;
        audited(&volume)?;
        let told = format!("put together again without {without:?}");
        now.compare(&volume).await.map_err(when(&told))?;
        audited(&volume)
    }

    /// Chooses members whose drives are lost together with the power: at most as many as the level
    /// still tolerates. One member that never failed stays: otherwise no drive might know which
    /// members had failed.
    fn choose_lost(&self, rng: &mut Rng) -> Vec<u32> {
        let expected = &self.expected;
        if expected.again {
            return Vec::new();
        }
        let budget = self.array.tolerates().saturating_sub(expected.doubtful.len() as u32);
        let whole: Vec<u32> =
            (0..self.array.drives).filter(|m| !expected.doubtful.contains(m)).collect();
        let most = budget.min(whole.len() as u32 - 1);
        let lost = draw(&whole, rng.below(u64::from(most) + 1), rng);
        if !lost.is_empty() {
            expected.count(self.told_lost(WITH_POWER, &lost));
        }
        lost
    }

    /// Chooses drives that are lost with the power when a reopening was cut. They are drives of
    /// members that are whole in the newest state record. Together with the members that are not
    /// whole, these are at most as many as the level tolerates. Chooses none if the remaining
    /// drives would not know which members are whole.
    async fn lose_again(&self, parts: &[Rc<Part>], drawn: u64) -> Vec<u32> {
        // Uses a separate random generator, so that seeds that once failed keep their runs.
        let mut rng = Rng::new(drawn ^ 0x10_5e);
        if !self.expected.again || rng.one_in(2) {
            return Vec::new();
        }
        let mut known: Vec<(u32, Examined)> = Vec::new();
        for (index, part) in (0u32..).zip(parts) {
            if let Ok(examined) = examine(&**part).await
                && examined.member.is_some()
            {
                known.push((index, examined));
            }
        }
        let whole = |known: &[(u32, Examined)]| {
            // This repeats the rule of `furrow_raid::newest` instead of calling that function.
            // Otherwise, a defect of the function would also choose the drives that are lost, and
            // so hide itself.
            let rank = |(_, one): &(u32, Examined)| (one.events, one.record);
            let best = known.iter().map(rank).max()?;
            let active = |(_, one): &(u32, Examined)| {
                let active = one.members.iter().filter(|(_, state)| *state == MemberState::Active);
                active.map(|(uuid, _)| *uuid).collect::<BTreeSet<_>>()
            };
            let mut newest = known.iter().filter(|one| rank(one) == best).map(active);
            let first = newest.next()?;
            // Two halves that continued without each other may have counted the same number of
            // events. Then their records have the same rank, and this rule cannot choose between
            // the halves.
            newest.all(|other| other == first).then_some(first)
        };
        let Some(before) = whole(&known) else { return Vec::new() };
        let gone = self.array.drives.saturating_sub(before.len() as u32);
        let budget = self.array.tolerates().saturating_sub(gone);
        let seats: Vec<u32> = known
            .iter()
            .filter(|(_, examined)| before.contains(&examined.device))
            .map(|(index, _)| *index)
            .collect();
        let most = budget.min((seats.len() as u32).saturating_sub(1));
        let lost = draw(&seats, rng.below(u64::from(most) + 1), &mut rng);
        known.retain(|(index, _)| !lost.contains(index));
        if lost.is_empty() || whole(&known).is_none_or(|left| left != before) {
            return Vec::new();
        }
        self.expected.count("drives lost after a cut in a reopening");
        lost
    }

    fn told_lost(&self, when: &str, lost: &[u32]) -> String {
        told_lost(when, (self.array.level, self.array.drives), lost)
    }

    /// Leaves out one drive more than the level tolerates. The array may then be refused. If it can
    /// be assembled, nothing was written after the earlier failures, so every block must be right.
    /// Returns true if the array could be assembled. Does nothing if only one drive has never
    /// failed, since no other drive would know of the failures.
    async fn lose_another(&self, parts: &[Rc<Part>], rng: &mut Rng) -> Result<bool, String> {
        let expected = &self.expected;
        let doubtful = expected.doubtful.len() as u32;
        let whole: Vec<u32> =
            (0..self.array.drives).filter(|m| !expected.doubtful.contains(m)).collect();
        let fit = doubtful > 0 && doubtful == self.array.tolerates() && whole.len() > 1;
        if expected.again || !fit || !rng.one_in(4) {
            return Ok(false);
        }
        let lost = draw(&whole, 1, rng);
        let mut without = vec![expected.seat(lost[0])];
        match self.array.open(&self.rt, parts, &mut without).await {
            Ok(volume) => {
                expected.count("one more lost than is redundant, nothing had gone on");
                let read = expected.blocks.compare(&volume).await;
                read.map(|_| true).map_err(when("one more lost than is redundant"))
            }
            Err(error) if error.to_string().contains("cannot do without") => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Checks that members that never failed are in service, except those in `lost`.
    fn check_members(&self, volume: &Volume, lost: &[u32]) -> Result<(), String> {
        let expected = &self.expected;
        for (member, (_, state, _)) in (0u32..).zip(volume.members()) {
            if state == MemberState::Rebuilding {
                expected.count("cut in a rebuild");
            }
            let sure = !expected.again && !expected.doubtful.contains(&member);
            let wanted =
                if lost.contains(&member) { MemberState::Failed } else { MemberState::Active };
            if sure && state != wanted {
                return Err(format!("member {member} is {state:?}, not {wanted:?}"));
            }
        }
        Ok(())
    }

    async fn write_on(
        &self,
        volume: &Volume,
        now: &mut Blocks,
        rng: &mut Rng,
        count: u64,
    ) -> Result<(), String> {
        for step in 0..count {
            let block = rng.below(volume.blocks());
            let version = AFTER + (rng.next() % (1 << 19)) + step;
            let pages = [page(block, version)].into_iter().collect();
            volume.write(block, pages, true).await.map_err(told)?;
            audited(volume)?;
            now.set(block, version);
        }
        Ok(())
    }

    /// Replaces all or some failed members, and may wait for the rebuild.
    async fn mend(
        &self,
        volume: &Volume,
        parts: &[Rc<Part>],
        without: &[u32],
        now: &mut Blocks,
        rng: &mut Rng,
    ) -> Result<(), String> {
        let failed = |volume: &Volume| {
            let states = volume.members().into_iter().map(|(_, state, _)| state);
            let failed = (0u32..).zip(states).filter(|(_, state)| *state == MemberState::Failed);
            failed.map(|(member, _)| member).collect::<Vec<u32>>()
        };
        let mut unused: Vec<u32> = without.to_vec();
        for member in failed(volume) {
            if rng.one_in(3) || unused.is_empty() {
                continue;
            }
            let part = unused.swap_remove(rng.below(unused.len() as u64) as usize);
            // Uses a separate random generator, so that seeds that once failed keep their runs.
            let spare = Rng::new(rng.clone().next() ^ 0x59_a7e).one_in(2);
            if spare {
                self.expected.count(promote(volume, parts, member, part).await.map_err(told)?);
            } else {
                let device = parts[part as usize].clone();
                volume.replace(member, device, true).await.map_err(told)?;
            }
            self.expected.count("replaced after a reopening");
        }
        let began = volume.rebuilding().is_some();
        if !began || rng.one_in(3) {
            return Ok(());
        }
        let mut turns = 0;
        while volume.rebuilding().is_some() {
            if rng.one_in(4) {
                self.write_on(volume, now, rng, 1).await?;
            }
            self.rt.sleep(50_000).await;
            turns += 1;
            if turns > 10_000 {
                return Err("a rebuild does not come to its end".to_owned());
            }
        }
        if volume.members().iter().any(|(_, state, _)| *state == MemberState::Rebuilding) {
            return Err("a rebuild ended before its end".to_owned());
        }
        self.expected.count("rebuilt after a reopening");
        Ok(())
    }

    /// Draws drives to leave out at the end: mostly as many as the level still tolerates.
    fn leave_out(
        &self,
        whole: &[u32],
        seats: &[Option<u32>],
        rng: &mut Rng,
    ) -> Result<Vec<u32>, String> {
        let gone = self.array.drives - whole.len() as u32;
        let budget = self.array.tolerates().saturating_sub(gone);
        let most = budget.min((whole.len() as u32).saturating_sub(1));
        let most = if self.array.level == Level::Raid0 { 0 } else { most };
        let count = if rng.one_in(4) { rng.below(u64::from(most) + 1) } else { most.into() };
        let lost = draw(whole, count, rng);
        if !lost.is_empty() {
            self.expected.count(self.told_lost(AT_END, &lost));
        }
        let seat = |member: &u32| {
            seats[*member as usize].ok_or_else(|| format!("member {member} sits nowhere"))
        };
        lost.iter().map(seat).collect()
    }
}

/// Draws a random selection of `count`, in order.
fn draw(of: &[u32], count: u64, rng: &mut Rng) -> Vec<u32> {
    let mut drawn = of.to_vec();
    while drawn.len() as u64 > count {
        drawn.remove(rng.below(drawn.len() as u64) as usize);
    }
    drawn
}

/// Calls `count` with each situation that the recovery found, or that reads found after it.
pub fn met(volume: &Volume, mut count: impl FnMut(&'static str)) {
    let recovered = volume.recovered();
    let all = [
        (recovered.closed, "recovery found closed zones"),
        (recovered.read_only, "recovery found read-only zones"),
        (recovered.offline, "recovery found offline zones"),
        (recovered.torn_footers, "recovery found a torn footer"),
        (recovered.torn_blocks, "recovery found a stripe that lacks a chunk"),
        (recovered.unbuilt, "recovery found a zone that was being rebuilt"),
        (recovered.narrow, "recovery continued without a zone that is to be rebuilt"),
        (recovered.early, "recovery had to reset segments to have space"),
        (volume.counters().map_evictions, "parts of the map evicted"),
    ];
    named(&all, &mut count);
}

fn named(all: &[(u64, &'static str)], count: &mut dyn FnMut(&'static str)) {
    all.iter().filter(|(times, _)| *times > 0).for_each(|(_, what)| count(what));
}

/// Calls `count` with each kind of background work that a volume has done since its assembly.
pub fn worked(volume: &Volume, mut count: impl FnMut(&'static str)) {
    let counters = volume.counters();
    let all = [
        (counters.moved, "blocks moved by cleaning"),
        (counters.cleaned, "segments cleaned"),
        (counters.rebuilt, "zones rebuilt"),
        (counters.rewritten, "stripes rewritten"),
        (counters.repaired, "blocks repaired"),
    ];
    named(&all, &mut count);
}
