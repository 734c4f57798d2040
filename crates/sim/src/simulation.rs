//! What the simulations of all subjects share: an executor for each life, and figures that are
//! summed up over the lives.

use furrow_rt::{Config, Rt};
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;

/// Figures of a simulation.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Hash over the events of all lives.
    pub hash: u64,
    /// Number of lives, that is, of attempts to mount.
    pub lives: u64,
    /// Number of lives that ended by a power cut or a fault.
    pub crashes: u64,
    /// Number of operations submitted.
    pub operations: u64,
    /// Number of commands that the drive executed.
    pub commands: u64,
    /// Number of Zone Appends, already counted in `commands`.
    pub appends: u64,
    /// For each situation, the number of lives that reached it.
    pub reached: BTreeMap<&'static str, u64>,
    /// For each shape of an array (level, drives, stripes per group) and each set of lost drives (a
    /// bit mask): how often everything was read back without them.
    pub lost: BTreeMap<(u8, u32, u32), BTreeMap<u32, u64>>,
}

impl Summary {
    /// Adds the figures of another simulation.
    pub fn add(&mut self, other: &Summary) {
        self.hash = self.hash.rotate_left(7) ^ other.hash;
        self.lives += other.lives;
        self.crashes += other.crashes;
        self.operations += other.operations;
        self.commands += other.commands;
        self.appends += other.appends;
        for (what, count) in &other.reached {
            *self.reached.entry(what).or_default() += count;
        }
        for (shape, sets) in &other.lost {
            let known = self.lost.entry(*shape).or_default();
            sets.iter().for_each(|(set, count)| *known.entry(*set).or_default() += count);
        }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Summary { hash, lives, crashes, operations, commands, appends, .. } = self;
        write!(
            f,
            "hash {hash:016x}  lives {lives:>2}  crashes {crashes:>2}  operations {operations:>5}  \
             commands {commands:>6}  appends {appends:>5}"
        )
    }
}

/// Receives a line per event.
pub type Sink<'a> = &'a mut dyn FnMut(&str);

/// Runs a task on an executor of its own, which is always cleared afterwards.
pub(crate) fn on_executor<T>(
    seed: u64,
    summary: &mut Summary,
    work: impl FnOnce(&Rt) -> Result<T, String>,
) -> Result<T, String> {
    let config =
        if seed.is_multiple_of(2) { Config::shuffled(seed) } else { Config::simulated(seed) };
    let rt = Rt::new(config);
    let done = std::panic::catch_unwind(AssertUnwindSafe(|| work(&rt)));
    let (hash, _) = rt.event_hash();
    summary.hash = summary.hash.rotate_left(7).wrapping_mul(31) ^ hash;
    let cleared = std::panic::catch_unwind(AssertUnwindSafe(|| rt.clear()));
    match (done, cleared) {
        (Ok(done), Ok(())) => done,
        (Err(panic), _) | (_, Err(panic)) => Err(crate::crash::panic_text(&*panic)),
    }
}
