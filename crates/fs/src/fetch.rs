//! Blocks on their way from the drive into the cache.
//!
//! The blocks an operation lacks are read, neighbours in one command, and stay until the operation
//! is applied. A block that is being read already is waited for, not read again. Readers that
//! advance together all lack the same leaf of pointers, which is on one die: with a read for each
//! of ten readers, the last would get the leaf only when the die has sensed it ten times.

use crate::blocked::Fetch;
use crate::core::Inner;
use crate::tree::cache::Ticket;
use furrow_log::address::{BlockAddr, read_blocks};
use furrow_rt::{Notified, Notify, Pages};
use furrow_zone::{Error, ErrorKind, QueueId, Result};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Number of times an operation waits for the reads of others. Their blocks can be evicted before
/// the operation runs, so in the end it reads for itself.
const JOINS: u32 = 16;

/// Runs of blocks that are being read, by first address: their length, and the operations that
/// wait.
#[derive(Default)]
pub(crate) struct Fetches(RefCell<BTreeMap<u32, (u32, Notify)>>);

/// A run that is being read, until this is dropped.
struct Run<'a> {
    fetches: &'a Fetches,
    start: u32,
}

impl Fetches {
    /// The first addresses of the runs that are being read.
    pub(crate) fn starts(&self) -> Vec<u32> {
        self.0.borrow().keys().copied().collect()
    }

    /// From now on other operations wait for `blocks` blocks from `start`, none of which is being
    /// read yet.
    fn begin(&self, start: u32, blocks: u32) -> Run<'_> {
        self.0.borrow_mut().insert(start, (blocks, Notify::new()));
        Run { fetches: self, start }
    }

    /// Removes those of `fetches` that are being read already; returns the reads to wait for
    /// instead.
    fn join(&self, fetches: &mut SmallVec<[Fetch; 4]>) -> Option<Joined> {
        let under_way = self.0.borrow();
        let mut joined = Joined::default();
        fetches.retain(|fetch| {
            let addr = fetch.pointer.addr.get();
            match under_way.range(..=addr).next_back() {
                Some((start, (blocks, over))) if addr - start < *blocks => {
                    joined.over.entry(*start).or_insert_with(|| over.wait());
                    joined.fetches.push(*fetch);
                    false
                }
                _ => true,
            }
        });
        (!joined.fetches.is_empty()).then_some(joined)
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if let Some((_, over)) = self.fetches.0.borrow_mut().remove(&self.start) {
            over.notify_all();
        }
    }
}

/// Blocks that other operations read.
#[derive(Default)]
struct Joined {
    fetches: Vec<Fetch>,
    over: BTreeMap<u32, Notified>,
}

/// Pages pinned for an operation that waits.
pub(crate) struct Pins {
    inner: Rc<Inner>,
    tickets: Vec<Ticket>,
    /// Number of times it has waited for the reads of others.
    joins: u32,
}

impl Pins {
    pub(crate) fn new(inner: &Rc<Inner>) -> Pins {
        Pins { inner: inner.clone(), tickets: Vec::new(), joins: 0 }
    }

    /// Pins those blocks of `fetches` that are in the cache.
    fn hold(&mut self, fetches: &[Fetch]) {
        let mut core = self.inner.core.borrow_mut();
        let tickets = fetches.iter().filter_map(|fetch| core.cache.pin(&fetch.key));
        self.tickets.extend(tickets);
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        // An operation is never dropped while it is applied; if the whole engine is, nothing is
        // left to evict from.
        if let Ok(mut core) = self.inner.core.try_borrow_mut() {
            for ticket in self.tickets.drain(..) {
                core.cache.unpin(ticket);
            }
        }
    }
}

impl Inner {
    /// Reads blocks into the cache.
    pub(crate) async fn load(
        self: &Rc<Self>,
        mut fetches: SmallVec<[Fetch; 4]>,
        pins: &mut Pins,
    ) -> Result<()> {
        fetches.sort_by_key(|fetch| fetch.pointer.addr.get());
        fetches.dedup_by_key(|fetch| fetch.pointer.addr.get());
        let alone = pins.joins == JOINS;
        let joined = if alone { None } else { self.fetches.join(&mut fetches) };
        // First the blocks that nobody reads: so no operation waits for one that waits for others.
        self.read(&fetches, !alone, pins).await?;
        if let Some(joined) = joined {
            pins.joins += 1;
            for over in joined.over.into_values() {
                over.await;
            }
            pins.hold(&joined.fetches);
        }
        Ok(())
    }

    /// Reads blocks, in order of their addresses. Others may wait for them if they are `shared`.
    async fn read(self: &Rc<Self>, fetches: &[Fetch], shared: bool, pins: &mut Pins) -> Result<()> {
        let (device, geometry, zones) = {
            let core = self.core.borrow();
            (core.env.device.clone(), core.env.geometry.clone(), core.alloc.zones().clone())
        };
        let mut flights = Vec::new();
        let mut runs = Vec::new();
        let mut rest = fetches;
        while let Some(first) = rest.first() {
            let start = BlockAddr(first.pointer.addr.get());
            let Some((zone, _)) = start.locate(&geometry) else {
                let message = format!("{}: block address {start} out of range", device.name());
                return Err(Error::new(ErrorKind::Corrupt, message));
            };
            let run = rest
                .iter()
                .enumerate()
                .take_while(|(i, f)| {
                    let addr = BlockAddr(f.pointer.addr.get());
                    addr.0 == start.0 + *i as u32
                        && addr.locate(&geometry).is_some_and(|(z, _)| z == zone)
                })
                .count();
            let (now, later) = rest.split_at(run);
            let pin = zones.pin(zone);
            let (device, pages) = (device.clone(), self.pages.clone());
            let (queue, key) = (QueueId(0), first.key);
            let read = async move {
                let pages = read_blocks(&*device, queue, start, run as u32, &pages).await;
                drop(pin);
                pages.map_err(|error| error.at(key.owner()))
            };
            if shared {
                runs.push(self.fetches.begin(start.0, run as u32));
            }
            flights.push((now, read));
            rest = later;
        }
        if let [_] = flights[..] {
            let (now, read) = flights.pop().expect("invariant: one flight");
            return self.insert_all_fetched(now, read.await?, pins);
        }
        // Several runs: all in flight at once.
        let tasks: Vec<_> =
            flights.into_iter().map(|(now, read)| (now, self.rt.spawn(read))).collect();
        for (now, task) in tasks {
            self.insert_all_fetched(now, task.await?, pins)?;
        }
        Ok(())
    }

    fn insert_all_fetched(&self, fetches: &[Fetch], pages: Pages, pins: &mut Pins) -> Result<()> {
        for (fetch, page) in fetches.iter().zip(pages) {
            self.core.borrow_mut().insert_fetched(fetch, page)?;
            pins.hold(std::slice::from_ref(fetch));
        }
        Ok(())
    }
}
