//! The steps of recovery, in order: a table of those that only read, which inspection runs too, and
//! a table of those that write.
//!
//! Each step has an audit, which debug builds run after it. The state that was found is written to
//! a new half of the ring before any zone of content is written or reset.

use super::Opened;
use crate::extent::{Extent, Lifetime};
use crate::mkfs::check_drive;
use crate::namespace::paths::Node;
use crate::ring_scan::find;
use crate::store::{Options, Store};
use crate::zone_allocator::Use;
use furrow_log::audit::{equal, holds};
use furrow_log::budget::Class;
use furrow_log::pool::ZonePool;
use furrow_log::ring::empty_zone;
use furrow_log::survey;
use furrow_log::writer::{Order, Writer};
use furrow_policy::{StoreDefect, StoreVariant};
use furrow_rt::{Boxed, Pool, Rt};
use furrow_zone::{Error, ErrorKind, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice};
use std::pin::Pin;
use std::rc::Rc;

type Running<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// A step of recovery.
pub(crate) struct Step<S> {
    name: &'static str,
    run: for<'a> fn(&'a mut S) -> Running<'a>,
    audit: fn(&S) -> Result<()>,
}

/// Runs steps in their order.
///
/// # Errors
/// The error of the first step or audit that fails.
pub(crate) async fn run<S>(steps: &[Step<S>], state: &mut S) -> Result<()> {
    for Step { name, run, audit } in steps {
        run(state).await?;
        if cfg!(debug_assertions) {
            audit(state).map_err(|error| error.at(format!("recovery, after '{name}'")))?;
        }
    }
    Ok(())
}

/// A store that is being read, without writing.
pub(crate) struct Reading {
    device: Rc<dyn ZonedDevice>,
    pages: Pool,
    variant: StoreVariant,
    accept_loss: bool,
    reports: Vec<ZoneReport>,
    found: Option<Opened>,
}

/// The steps that only read.
pub(crate) const READ: [Step<Reading>; 3] = [
    Step {
        name: "survey the zones",
        run: |reading| Box::pin(reading.survey()),
        audit: |reading| {
            let (zones, reports) = (reading.device.geometry().zones, reading.reports.len());
            equal("reports of zones", zones as usize, reports)
        },
    },
    Step {
        name: "find the newest half of the record ring",
        run: |reading| Box::pin(reading.find_half()),
        audit: |reading| {
            let Opened { half, ring, failed, .. } = reading.opened()?;
            let fit = half.iter().all(|zone| ring.has(*zone) && !failed.contains(zone));
            holds("newest half", fit && !half.is_empty(), || {
                format!("expected zones of {ring:?} without {failed:?}, found {half:?}")
            })
        },
    },
    Step {
        name: "roll back what the last commit lacks",
        run: |reading| Box::pin(reading.roll_back()),
        audit: |reading| {
            let replay = &reading.opened()?.replay;
            equal("files of the last commit", 0, replay.before.len())?;
            let named = |id| replay.nodes.values().any(|node| *node == Node::File(id));
            let unnamed = replay.files.keys().find(|id| !named(**id));
            equal("files without a name", None, unnamed)
        },
    },
];

/// The error that a step ran before one it depends on: the table of steps is wrong.
fn out_of_order() -> Error {
    Error::new(ErrorKind::Invalid, "steps of recovery are out of order")
}

impl Reading {
    /// Reads the store on a drive.
    ///
    /// # Errors
    /// The errors of [`Store::open`], except errors of writing.
    pub(crate) async fn all(
        device: Rc<dyn ZonedDevice>,
        pages: Pool,
        variant: StoreVariant,
        accept_loss: bool,
    ) -> Result<Reading> {
        let (reports, found) = (Vec::new(), None);
        let mut reading = Reading { device, pages, variant, accept_loss, reports, found };
        run(&READ, &mut reading).await?;
        Ok(reading)
    }

    /// Returns the zone reports and the opened half.
    ///
    /// # Errors
    /// `Invalid` if the steps of [`READ`] have not run.
    pub(crate) fn into_parts(self) -> Result<(Vec<ZoneReport>, Opened)> {
        Ok((self.reports, self.found.ok_or_else(out_of_order)?))
    }

    fn opened(&self) -> Result<&Opened> {
        self.found.as_ref().ok_or_else(out_of_order)
    }

    async fn survey(&mut self) -> Result<()> {
        self.reports = survey::reports(&*self.device).await?;
        Ok(())
    }

    async fn find_half(&mut self) -> Result<()> {
        let older = self.variant.has(StoreDefect::StaleRingHalf);
        let found = find(&*self.device, &self.reports, &self.pages, older).await?;
        check_drive(self.device.geometry(), found.ring)
            .map_err(|error| error.at(self.device.name()))?;
        self.found = Some(found);
        Ok(())
    }

    async fn roll_back(&mut self) -> Result<()> {
        let trusting = self.variant.has(StoreDefect::UncheckedCommit);
        let found = self.found.as_mut().ok_or_else(out_of_order)?;
        let ring = (found.ring, trusting);
        let device = &*self.device;
        let decided = found.replay.decide_last_commit(device, &self.reports, &self.pages, ring);
        found.rolled_back = decided.await?;
        match found.damage.is_empty() || self.accept_loss {
            true => Ok(()),
            false => Err(found.refusal(&self.device.name())),
        }
    }
}

/// A store that is being opened.
pub(crate) struct Opening {
    rt: Rt,
    device: Rc<dyn ZonedDevice>,
    pages: Pool,
    options: Options,
    writer: Writer,
    reports: Vec<ZoneReport>,
    found: Option<Opened>,
    store: Option<Store>,
    /// The zone written last in the half that was found, if records can follow there.
    last: Option<ZoneId>,
    /// Whether the half's records add up to the state that is now in memory.
    same: bool,
}

/// The steps that write.
pub(crate) const WRITE: [Step<Opening>; 5] = [
    Step {
        // These zones hold older snapshots, or one that a crash truncated.
        name: "empty the other zones of the record ring",
        run: |opening| Box::pin(opening.empty_others()),
        audit: |opening| {
            let found = opening.found.as_ref().ok_or_else(out_of_order)?;
            let both = found.half.iter().find(|zone| found.failed.contains(zone));
            equal("zones of the newest half that failed", None, both)
        },
    },
    Step {
        name: "finish stray zones",
        run: |opening| Box::pin(opening.finish_strays()),
        audit: |opening| {
            let most = opening.most_active();
            let active = opening.active().count();
            holds("active zones", active < most, || {
                format!("expected fewer than {most}, found {active}")
            })
        },
    },
    Step {
        name: "build the state in memory",
        run: |opening| Box::pin(opening.build()),
        audit: |opening| opening.store()?.audit(),
    },
    Step {
        name: "write what was found to another half",
        run: |opening| Box::pin(opening.write_down()),
        audit: |opening| opening.store()?.audit(),
    },
    Step {
        name: "take up open zones, and reset empty ones",
        run: |opening| Box::pin(opening.take_up_zones()),
        audit: |opening| opening.store()?.audit(),
    },
];

impl Opening {
    fn store(&self) -> Result<&Store> {
        self.store.as_ref().ok_or_else(out_of_order)
    }

    fn active(&self) -> impl Iterator<Item = &ZoneReport> {
        self.reports.iter().filter(|report| report.state.is_active())
    }

    fn most_active(&self) -> usize {
        self.writer.geometry().max_active.map_or(usize::MAX, |most| most as usize)
    }

    async fn empty_others(&mut self) -> Result<()> {
        let found = self.found.as_mut().ok_or_else(out_of_order)?;
        let pool = ZonePool::new(&self.writer, &[], 1)?;
        // If no power was lost, the half that was found may still be only in the drive's cache.
        let durable = pool.snapshot().flushed().await?;
        for zone in found.ring.zones().filter(|zone| !found.half.contains(zone)) {
            let fine = !found.failed.contains(&zone);
            if fine && !empty_zone(&pool, &*self.device, zone, &durable).await? {
                found.failed.insert(zone);
            }
        }
        Ok(())
    }

    /// Finishes active zones until the ring can begin a zone. More zones may be active than there
    /// are permits: a full zone holds no permit, but is active again if a power cut takes the
    /// zone's last blocks from the drive's cache.
    ///
    /// The step precedes all writes, and changes nothing that recovery decides, because content of
    /// a finished zone counts only if it is found there.
    async fn finish_strays(&mut self) -> Result<()> {
        self.reports = survey::reports(&*self.device).await?;
        let surplus = survey::surplus(self.writer.geometry(), &self.reports);
        if surplus == 0 {
            return Ok(());
        }
        let mut strays: Vec<ZoneReport> =
            survey::strays(&self.reports, |_| false).copied().collect();
        // Finishing the fullest zones wastes the least space.
        strays.sort_by_key(|report| std::cmp::Reverse(report.write_pointer));
        for report in strays.into_iter().take(surplus) {
            survey::finish(&self.writer, &report).await?;
            self.writer.forget(report.zone);
        }
        self.reports = survey::reports(&*self.device).await?;
        Ok(())
    }

    async fn build(&mut self) -> Result<()> {
        let found = self.found.take().ok_or_else(out_of_order)?;
        let (pages, options) = (self.pages.clone(), self.options.clone());
        let store = found.store(&self.rt, self.writer.clone(), &self.reports, pages, options)?;
        self.store = Some(store);
        Ok(())
    }

    async fn write_down(&mut self) -> Result<()> {
        let store = self.store()?;
        let round = store.0.commits.round();
        let bodies = store.0.snapshot(&[], round);
        let last = self.last.and_then(|zone| self.reports.get(zone.0 as usize));
        let marked = match last {
            Some(last) => store.mark_found(last, self.same).await?,
            None => false,
        };
        store.begin_half(bodies, marked).await.map(drop)
    }

    /// Takes up partly written zones, and resets zones without valid blocks.
    async fn take_up_zones(&mut self) -> Result<()> {
        let store = self.store()?;
        let zones = &store.0.zones;
        for report in &self.reports {
            let Some(id) = zones.pool.owner(report.zone) else { continue };
            if !report.state.is_active() || zones.valid(report.zone) == 0 {
                continue;
            }
            let permit = zones.budget.try_acquire(Class::User, 1);
            zones.writer.open_reported(report);
            // A damaged record may name blocks that were not written. No other file may
            // get these blocks.
            let fits = store.last_block_in(report.zone) <= zones.writer.position(report.zone);
            match permit {
                Some(permit) if fits && zones.writer.space_left(report.zone) > 0 => {
                    zones.writer.attach(report.zone, permit);
                    zones.pool.activate(id);
                    zones.adopt(report.zone, id, store.use_of(report.zone));
                }
                _ => zones.writer.finish(report.zone).await?,
            }
        }
        let durable = zones.pool.durable().ok_or_else(out_of_order)?;
        for zone in zones.full_zones() {
            zones.release(zone, &durable).await?;
        }
        Ok(())
    }
}

impl Store {
    /// Opens the store on a drive and repairs the traces of a crash.
    ///
    /// # Errors
    /// `WrongFormat` if the drive holds no store, or one of a newer version; `Unsupported` if no
    /// store can be on the drive; `Corrupt` if the store's records are damaged and the loss was not
    /// accepted, or contradict each other or the drive; `Io` if the drive does not answer, or a
    /// zone that may hold the newest records is offline.
    #[inline(never)]
    pub fn open(
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        options: Options,
    ) -> Boxed<'_, Result<Store>> {
        Box::pin(async move {
            let pages = Pool::new(options.pages_in_flight);
            let (variant, accept) = (options.variant, options.accept_loss);
            let reading = Reading::all(device.clone(), pages.clone(), variant, accept).await?;
            let (reports, found) = reading.into_parts()?;
            let writer = Writer::new(rt, device.clone(), Order::Queued, 8);
            let rt = rt.clone();
            let same = found.rolled_back == 0;
            let last = found.half.iter().rev().copied().find(|zone| {
                reports.get(zone.0 as usize).is_some_and(|report| report.state != ZoneState::Empty)
            });
            let last = last.filter(|_| found.sound && found.end.is_none());
            let (found, store) = (Some(found), None);
            let mut opening =
                Opening { rt, device, pages, options, writer, reports, found, store, last, same };
            run(&WRITE, &mut opening).await?;
            let store = opening.store.ok_or_else(out_of_order)?;
            store.start_cleaning();
            store.relieve_ring().await?;
            Ok(store)
        })
    }

    /// Returns the use of a zone, judged by a file in it.
    fn use_of(&self, zone: ZoneId) -> Use {
        let first = self.0.zones.files_in(zone).first().copied();
        let found = first.and_then(|id| self.with(id, |file| self.usage_of(file)).ok());
        found.unwrap_or(Use::Files(Lifetime::NotSet))
    }

    /// Returns the end of the last block that a file names in the zone.
    fn last_block_in(&self, zone: ZoneId) -> u32 {
        let files = self.0.files.borrow();
        let geometry = self.0.zones.writer.geometry();
        let all = files.values().flat_map(|file| &file.extents).flat_map(Extent::places);
        let here = all.filter(|(at, _)| at.zone(geometry) == zone);
        here.map(|(at, blocks)| at.offset(geometry) + blocks).max().unwrap_or(0)
    }
}
