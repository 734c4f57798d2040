//! Cleaning: moves the valid blocks out of a superzone, so that its zones can be reset.
//!
//! A victim's summaries name the possible owners of its blocks. Ownership is confirmed through the
//! node: a block moves only if the pointer, or the NAT entry, still names its address. The block is
//! read, verified against the CRC in that pointer, and written verbatim with *the same* CRC:
//! content damaged on the drive never gets a new checksum. A block that cannot be read or does not
//! verify stays where it is and is reported; its superzone is not released and not chosen again.
//! Blocks whose pages are dirty in the cache are not copied: dirty data is simply written, and
//! dirty nodes are left to the next checkpoint.
//!
//! As in F2FS, moved data goes to the cold stream (it has outlived its neighbours), while nodes
//! keep their stream, which depends on their kind.
//!
//! **Crash safety.** Cleaning does the same as write-back: it writes blocks to new places and
//! changes pointers in memory. The old places stay valid on the drive until a *durable* checkpoint
//! shows no valid block in the victim. Before that, recovery finds every block at its old place, or
//! at the new place if an fsync has logged the moved node. Moved blocks stay in the cache until
//! they are on the drive.
//!
//! **Space.** Before a victim is touched, space for its valid blocks and for every node that
//! will change is set aside ([`crate::alloc::space`]), so that a cleaning never runs out of
//! space halfway.

mod background;
pub(crate) mod options;
mod owners;
mod step;

use crate::core::{Core, Inner};
use crate::tree::cache::Key;
use furrow_log::pool::{SuperzoneId, SuperzoneState};
use furrow_log::victim::{self, Candidate, Policy, Worth};
use furrow_rt::Boxed;
use furrow_zone::{Result, ZoneReport, ZoneState};
pub use options::{CleanOptions, CleanReport, GcOptions};
pub(crate) use owners::{Item, Owner};
use std::collections::BTreeSet;
use std::rc::Rc;
pub(crate) use step::Confirmed;
use step::Moved;

/// Largest number of victims considered in a cleaning round.
const LOOKS_MAX: usize = 16;
/// Largest number of victims cleaned in a round, which ends with a checkpoint.
const ROUND_MAX: u32 = 4;
/// Largest number of messages about damaged blocks that are kept for a report.
const FAILURES_MAX: usize = 32;

/// The reason for cleaning, which decides how victims are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// No request waits for space. Fields: the policy, and the minimum garbage of a victim,
    /// in thousandths.
    Background(Policy, u32),
    /// A request waits for space.
    Waiting,
    /// A request waits, and all other ways to gain space were tried.
    Last,
}

impl Urgency {
    fn policy(self) -> Policy {
        match self {
            Urgency::Background(policy, _) => policy,
            // Prefer the victim that needs the least copying.
            Urgency::Waiting | Urgency::Last => Policy::Greedy,
        }
    }

    fn garbage_permille(self) -> u32 {
        match self {
            Urgency::Background(_, permille) => permille,
            Urgency::Waiting => 100,
            // May copy a whole superzone to gain about a hundredth of it: there is no better
            // choice left.
            Urgency::Last => 8,
        }
    }
}

/// The result of a cleaning step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// There is more space than before.
    Gained,
    /// A superzone was emptied, but the changed nodes took as much space as that freed.
    Moved,
    /// No victim is worth cleaning.
    Nothing,
}

/// A victim, with the cost and the gain of cleaning it.
struct Plan {
    victim: SuperzoneId,
    items: Vec<Item>,
    /// Number of blocks moved at a time.
    batch: usize,
    /// True if nodes are written after each batch, to limit the number of dirty nodes.
    by_batch: bool,
    /// Largest number of blocks that the cleaning writes: the valid blocks and the nodes that point
    /// to them.
    needed: u32,
    /// Number of blocks gained; negative if the cleaning writes more nodes than it frees blocks.
    gain: i64,
}

impl Core {
    /// Superzones that could be cleaned.
    fn candidates(&self, policy: Policy) -> Vec<Candidate> {
        let now = self.alloc.seconds();
        let mut list = Vec::new();
        for (index, valid) in self.alloc.valid_by_superzone() {
            let id = SuperzoneId(index);
            let known = self.clean.stuck.get(&id.0) == Some(&self.alloc.zones().generation(id));
            if valid == 0 || known || self.alloc.zones().state(id) != SuperzoneState::Full {
                continue;
            }
            let capacity = self.alloc.payload_of(id);
            let age = match policy {
                Policy::Greedy => 0,
                Policy::CostBenefit => self.age_of(id, now),
            };
            let group = self.alloc.zones().group(id);
            list.push(Candidate { id: id.0, valid, capacity, age, group });
        }
        list
    }

    /// Time since the valid blocks of a superzone changed, in seconds, on average over
    /// its segments.
    fn age_of(&self, id: SuperzoneId, now: u32) -> u64 {
        let first = id.0 * self.env.layout.segments;
        let used = (first..first + self.env.layout.segments).map(|s| self.alloc.sit().get(s));
        let ages = used
            .filter(|entry| entry.valid.get() > 0)
            .map(|entry| u64::from(now.saturating_sub(entry.changed.get())));
        let (sum, count) = ages.fold((0, 0), |(sum, count), age| (sum + age, count + 1));
        sum / u64::max(count, 1)
    }

    /// Number of free superzones of each interference group.
    fn free_by_group(&self) -> Vec<u32> {
        let mut free = Vec::new();
        for id in (0..self.alloc.zones().total()).map(SuperzoneId) {
            if self.alloc.zones().state(id) == SuperzoneState::Free {
                let group = self.alloc.zones().group(id) as usize;
                if free.len() <= group {
                    free.resize(group + 1, 0);
                }
                free[group] += 1;
            }
        }
        free
    }

    /// Chooses the next victim that is not in `tried`; `None` if no superzone is worth cleaning.
    fn choose_victim(&self, urgency: Urgency, tried: &BTreeSet<u32>) -> Option<SuperzoneId> {
        let policy = urgency.policy();
        let mut candidates = self.candidates(policy);
        candidates.retain(|candidate| !tried.contains(&candidate.id));
        let worth = Worth {
            garbage_permille: urgency.garbage_permille(),
            valid_max: self.spare().min(u64::from(u32::MAX)) as u32,
        };
        let chosen = victim::choose(&candidates, &self.free_by_group(), policy, worth)?;
        Some(SuperzoneId(candidates[chosen].id))
    }

    /// Chooses an open superzone that has more garbage than valid blocks, and more garbage
    /// than `others`, the garbage of the best full victim. Closing the open superzone loses
    /// its unwritten rest until cleaning has emptied it, so there must be enough space without
    /// that rest.
    fn choose_open(&self, urgency: Urgency, others: u32, tried: &BTreeSet<u32>) -> Option<u32> {
        let mut best: Option<(u32, u32)> = None;
        for (superzone, left) in self.alloc.open_superzones() {
            let id = SuperzoneId(superzone);
            let valid = self.alloc.valid_in(superzone);
            let whole = self.alloc.payload_of(id);
            let garbage = self.less("garbage", whole, left + valid);
            let worth = u64::from(garbage) * 1000
                >= u64::from(whole) * u64::from(urgency.garbage_permille());
            let needs = u64::from(left) + 2 * u64::from(valid) + self.recovery_needs();
            if garbage > others.max(valid)
                && worth
                && needs <= self.spare()
                && !tried.contains(&superzone)
                && best.is_none_or(|(most, _)| garbage > most)
            {
                best = Some((garbage, superzone));
            }
        }
        best.map(|(_, superzone)| superzone)
    }

    /// At mount, notes the superzones with zones that the drive reports read-only or offline. Once
    /// such a superzone is emptied, the pool leaves these zones out of it. The blocks of an offline
    /// zone are lost. The blocks of the superzone's other zones move too, because one of the other
    /// zones may fail next.
    pub(crate) fn note_closed_zones(&mut self, reports: &[ZoneReport]) {
        for report in reports {
            let closed = matches!(report.state, ZoneState::ReadOnly | ZoneState::Offline);
            let Some(owner) = self.alloc.zones().owner(report.zone).filter(|_| closed) else {
                continue;
            };
            if self.alloc.zones().state(owner) == SuperzoneState::Full {
                self.clean.closed.insert(owner.0, self.alloc.zones().generation(owner));
            }
        }
    }

    /// Takes the next superzone that is to be emptied because its zones cannot be relied on.
    fn next_closed(&mut self) -> Option<SuperzoneId> {
        while let Some((index, generation)) = self.clean.closed.pop_first() {
            let id = SuperzoneId(index);
            let same = self.alloc.zones().generation(id) == generation;
            if same && self.alloc.zones().state(id) == SuperzoneState::Full {
                return Some(id);
            }
        }
        None
    }

    /// Messages for [`crate::Fs::damaged_blocks`].
    pub(crate) fn damaged_blocks(&self) -> &[String] {
        &self.clean.failures
    }

    /// Keeps a message about a damaged block for a later report.
    pub(crate) fn note_damaged_block(&mut self, what: String) {
        if self.clean.failures.contains(&what) {
            return;
        }
        if self.clean.failures.len() == FAILURES_MAX {
            self.clean.failures.remove(0);
        }
        self.clean.failures.push(what);
    }
}

impl Inner {
    /// Empties the superzones whose zones cannot be relied on, as far as there is space.
    async fn evacuate(self: &Rc<Self>) -> Result<()> {
        let mut report = CleanReport::default();
        while !self.closing.get() {
            let Some(id) = self.core.borrow_mut().next_closed() else { break };
            let generation = self.core.borrow().alloc.zones().generation(id);
            match self.empty_closed(id, &mut report).await {
                Ok(false) => {}
                Ok(true) => self.core.borrow_mut().stats.counters.superzones_evacuated += 1,
                Err(error) => {
                    // If the drive comes back, the superzone is emptied after all.
                    if error.is_gone() {
                        self.core.borrow_mut().clean.closed.insert(id.0, generation);
                    }
                    return Err(error);
                }
            }
        }
        if report.data_blocks + report.node_blocks > 0 {
            self.checkpoint(false).await
        } else {
            Ok(())
        }
    }

    /// Empties a superzone if there is space; false if it stays.
    async fn empty_closed(
        self: &Rc<Self>,
        id: SuperzoneId,
        report: &mut CleanReport,
    ) -> Result<bool> {
        let plan = self.plan(id).await?;
        if u64::from(plan.needed) > self.core.borrow().spare() {
            return Ok(false);
        }
        self.carry_out(plan, Urgency::Background(Policy::Greedy, 0), report).await
    }

    /// Cleans some superzones and writes a checkpoint, so that they are free. If a cleaning is
    /// already under way, waits for its end instead.
    #[inline(never)]
    pub(crate) fn clean_some(self: &Rc<Self>, urgency: Urgency) -> Boxed<'_, Result<Outcome>> {
        Box::pin(async move {
            if self.clean_lock.available() == 0 {
                drop(self.clean_lock.acquire(1).await);
                return Ok(Outcome::Gained);
            }
            let inner = self.clone();
            // Run in a task of its own, which runs to completion even if the caller is dropped.
            let task = self.rt.spawn(async move {
                let _one = inner.clean_lock.acquire(1).await;
                inner.clean_durably(urgency, ROUND_MAX, &mut CleanReport::default()).await
            });
            task.await
        })
    }

    /// Cleans up to `most` victims, and writes the checkpoint that releases them.
    async fn clean_durably(
        self: &Rc<Self>,
        urgency: Urgency,
        most: u32,
        report: &mut CleanReport,
    ) -> Result<Outcome> {
        let outcome = self.clean_round(urgency, most, report).await?;
        if outcome != Outcome::Nothing {
            self.checkpoint(false).await?;
            let core = &mut *self.core.borrow_mut();
            let zones = core.alloc.zones().clone();
            let same = |id: &u32, was: &mut u32| zones.generation(SuperzoneId(*id)) == *was;
            core.clean.stuck.retain(same);
        }
        Ok(outcome)
    }

    /// Cleans the best victims that there is space for, one after the other. Only [`Urgency::Last`]
    /// may begin with a victim that gains nothing: other victims that share its changed nodes may
    /// then gain.
    async fn clean_round(
        self: &Rc<Self>,
        urgency: Urgency,
        most: u32,
        report: &mut CleanReport,
    ) -> Result<Outcome> {
        let (mut gained, mut emptied) = (0, 0);
        let mut tried = BTreeSet::new();
        let mut best: Option<Plan> = None;
        while !self.closing.get() && emptied < most {
            let victim = self.choose(urgency, &mut tried).await?;
            let plan = match victim.filter(|_| tried.len() < LOOKS_MAX) {
                Some(victim) => {
                    tried.insert(victim.0);
                    let plan = self.plan(victim).await?;
                    let fits = {
                        let core = self.core.borrow();
                        u64::from(plan.needed) + core.recovery_needs() <= core.spare()
                    };
                    if !fits {
                        continue;
                    }
                    if plan.gain <= 0 {
                        if best.as_ref().is_none_or(|best| plan.gain > best.gain) {
                            best = Some(plan);
                        }
                        continue;
                    }
                    plan
                }
                None => {
                    let last_resort = urgency == Urgency::Last && emptied == 0;
                    let Some(plan) = best.take().filter(|_| last_resort) else { break };
                    tried.clear();
                    tried.insert(plan.victim.0);
                    plan
                }
            };
            let gain = plan.gain;
            if self.carry_out(plan, urgency, report).await? {
                gained += gain;
                emptied += 1;
            }
        }
        Ok(match (emptied, gained) {
            (0, _) => Outcome::Nothing,
            (_, 1..) => Outcome::Gained,
            _ => Outcome::Moved,
        })
    }

    /// Chooses the next victim. If a request waits, this may be an open superzone, which is
    /// closed first.
    async fn choose(
        self: &Rc<Self>,
        urgency: Urgency,
        tried: &mut BTreeSet<u32>,
    ) -> Result<Option<SuperzoneId>> {
        let (victim, open) = {
            let core = self.core.borrow();
            let victim = core.choose_victim(urgency, tried);
            let garbage = |id: SuperzoneId| {
                let valid = core.alloc.valid_in(id.0);
                core.less("garbage", core.alloc.payload_of(id), valid)
            };
            let waiting = !matches!(urgency, Urgency::Background(..));
            let others = victim.map_or(0, garbage);
            (victim, core.choose_open(urgency, others, tried).filter(|_| waiting))
        };
        let Some(open) = open.filter(|_| tried.len() < LOOKS_MAX).map(SuperzoneId) else {
            return Ok(victim);
        };
        self.leave_head(open).await?;
        let core = self.core.borrow();
        if core.alloc.zones().state(open) == SuperzoneState::Full {
            return Ok(Some(open));
        }
        tried.insert(open.0);
        Ok(victim)
    }

    /// Computes the cost and the gain of cleaning `victim`.
    async fn plan(self: &Rc<Self>, victim: SuperzoneId) -> Result<Plan> {
        let items = self.owners(victim).await?;
        let core = self.core.borrow();
        let batch = core.clean_batch();
        let parents = |items: &[Item]| {
            let nodes: BTreeSet<u32> = items.iter().filter_map(Item::parent).collect();
            // Dirty nodes are written in any case, so they cost nothing here.
            nodes.into_iter().filter(|nid| !core.is_dirty(Key::Node(*nid))).count() as u32
        };
        // Changed nodes are written once at the end or, if there are many, after each batch.
        let all = parents(&items);
        let by_batch = all as usize >= batch;
        let nodes = if by_batch { items.chunks(batch).map(parents).sum() } else { all };
        let moved = items.len() as u32;
        let gain = i64::from(core.alloc.payload_of(victim)) - i64::from(moved) - i64::from(nodes);
        Ok(Plan { victim, items, batch, by_batch, needed: moved + nodes, gain })
    }

    /// Moves all valid blocks out of `victim`, even if that gains nothing, and makes the moves
    /// durable; false if a block could not be moved.
    pub(crate) async fn empty(
        self: &Rc<Self>,
        victim: SuperzoneId,
        urgency: Urgency,
    ) -> Result<bool> {
        let _one = self.clean_lock.acquire(1).await;
        let plan = self.plan(victim).await?;
        let emptied = self.carry_out(plan, urgency, &mut CleanReport::default()).await?;
        self.checkpoint(false).await?;
        Ok(emptied)
    }

    /// Moves the valid blocks of a victim; true if the victim is then empty.
    async fn carry_out(
        self: &Rc<Self>,
        plan: Plan,
        urgency: Urgency,
        report: &mut CleanReport,
    ) -> Result<bool> {
        {
            let mut core = self.core.borrow_mut();
            core.may_write().map_err(crate::blocked::error_of)?;
            core.alloc.keep_for_cleaning(plan.needed);
        }
        let mut moved = Moved::default();
        let done = self.move_all(&plan, urgency, &mut moved, &mut report.failures).await;
        let mut core = self.core.borrow_mut();
        core.alloc.keep_for_cleaning(0);
        report.data_blocks += moved.data;
        report.node_blocks += moved.nodes;
        report.failed_blocks += moved.failed;
        report.failures.truncate(FAILURES_MAX);
        if !done? {
            return Ok(false);
        }
        if moved.failed > 0 {
            let generation = core.alloc.zones().generation(plan.victim);
            core.clean.stuck.insert(plan.victim.0, generation);
            return Ok(false);
        }
        report.superzones += 1;
        core.stats.counters.clean_victims += 1;
        Ok(true)
    }

    /// Moves all batches of a plan; false if the cleaning stopped early.
    async fn move_all(
        self: &Rc<Self>,
        plan: &Plan,
        urgency: Urgency,
        moved: &mut Moved,
        failures: &mut Vec<String>,
    ) -> Result<bool> {
        let mut left = plan.needed;
        for items in plan.items.chunks(plan.batch) {
            if self.closing.get() {
                return Ok(false);
            }
            let began = self.rt.now();
            let now = self.clean_step(items, failures).await?;
            moved.add(&now);
            if now.no_room {
                return Ok(false);
            }
            if plan.by_batch {
                self.flush_nodes(items).await?;
            }
            // The nodes that the batch changed are now dirty, and space is promised to them. There
            // may be more such nodes than planned, because a node that was dirty when the plan was
            // made may have been written since.
            left = left.saturating_sub(items.len() as u32 + now.parents);
            self.core.borrow_mut().alloc.keep_for_cleaning(left);
            self.pace(urgency, began).await;
        }
        Ok(true)
    }

    /// See [`crate::Fs::clean`].
    #[inline(never)]
    pub(crate) fn clean(self: &Rc<Self>, options: CleanOptions) -> Boxed<'_, Result<CleanReport>> {
        Box::pin(async move {
            let inner = self.clone();
            let task = self.rt.spawn(async move {
                let _one = inner.clean_lock.acquire(1).await;
                let mut report = CleanReport::default();
                // Writing dirty pages makes garbage, so write them before cleaning rather than
                // during it.
                inner.checkpoint(false).await?;
                let permille = u32::from(options.garbage_percent) * 10;
                let urgency = Urgency::Background(options.policy, permille);
                loop {
                    let most = ROUND_MAX.min(options.superzones - report.superzones);
                    if inner.clean_durably(urgency, most, &mut report).await? != Outcome::Gained {
                        break;
                    }
                }
                Ok(report)
            });
            task.await
        })
    }

    /// Stops cleaning for good: no batch begins from now on, and on return the last one has ended.
    pub(crate) async fn stop_cleaning(&self) {
        self.closing.set(true);
        drop(self.clean_lock.acquire(1).await);
    }
}
