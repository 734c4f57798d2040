//! The timing engine in a drive: its clock, and the answers that it delays.

use crate::timing::work::Work;
use crate::timing::{Engine, Model, Pace, TimingCounters};
use furrow_rt::{Nanos, Ticket};
use furrow_zone::{Outcome, QueueId};
use slab::Slab;
use std::rc::Rc;

/// Answers that are due, each with the ticket of its command.
type Over = Vec<(Ticket, Outcome)>;

/// The engine, and the answers that are not due yet.
pub(super) struct Timed {
    engine: Engine,
    model: Rc<Model>,
    seed: u64,
    /// Time scale, see [`Pace::scale`].
    scale: u64,
    /// The time of the executor's clock when the model's clock was 0.
    origin: Nanos,
    kept: Slab<(Ticket, Outcome)>,
    answered: Vec<usize>,
    spare: Over,
}

impl Timed {
    pub fn new(pace: &Pace, now: Nanos, seed: u64) -> Timed {
        let model = pace.model.clone();
        Timed {
            engine: Engine::new(model.clone(), seed),
            model,
            seed,
            scale: pace.scale.max(1),
            origin: now,
            kept: Slab::new(),
            answered: Vec::new(),
            spare: Vec::new(),
        }
    }

    pub fn counters(&self) -> TimingCounters {
        self.engine.counters()
    }

    /// The model's time at `now`, in nanoseconds.
    #[inline]
    fn model_time(&self, now: Nanos) -> u64 {
        let elapsed = now.since(self.origin);
        match self.scale {
            1_000 => elapsed,
            scale => (u128::from(elapsed) * 1_000 / u128::from(scale)) as u64,
        }
    }

    /// The first instant of the executor's clock at which the model's clock shows `time`.
    fn executor_time(&self, time: u64) -> Nanos {
        let elapsed = match self.scale {
            1_000 => time,
            scale => (u128::from(time) * u128::from(scale)).div_ceil(1_000) as u64,
        };
        self.origin.after(elapsed)
    }

    /// Starts a command that does `work`. The command takes the time that the timing model gives,
    /// and is then answered with `outcome`.
    #[inline]
    pub fn start(
        &mut self,
        now: Nanos,
        queue: QueueId,
        work: &Work,
        ticket: Ticket,
        outcome: Outcome,
    ) {
        let token = self.kept.insert((ticket, outcome));
        self.engine.start(self.model_time(now), token, queue, work);
    }

    /// The time of the next event, by the executor's clock.
    #[inline]
    pub fn next(&self) -> Option<Nanos> {
        self.engine.next().map(|time| self.executor_time(time))
    }

    /// The commands that have ended by `now`, in the order of their answers. The caller returns the
    /// list, once it is empty, for reuse.
    #[inline]
    pub fn advance(&mut self, now: Nanos) -> Over {
        let time = self.model_time(now);
        if self.engine.next().is_none_or(|next| next > time) {
            return Vec::new();
        }
        self.engine.advance(time, &mut self.answered);
        let mut over = std::mem::take(&mut self.spare);
        over.extend(self.answered.drain(..).map(|token| self.kept.remove(token)));
        over
    }

    /// Takes back the emptied list of [`Timed::advance`] for reuse.
    pub fn give_back(&mut self, emptied: Over) {
        if emptied.capacity() > self.spare.capacity() {
            self.spare = emptied;
        }
    }

    /// Drops all commands in flight, as a power cut does. Returns the tickets that were not
    /// answered.
    pub fn abandon(&mut self) -> Vec<Ticket> {
        let counters = self.engine.counters();
        self.engine = Engine::new(self.model.clone(), self.seed);
        self.engine.restore(counters);
        self.kept.drain().map(|(ticket, _)| ticket).collect()
    }
}
