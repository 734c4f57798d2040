//! The effects of a power cut: the fates of the commands in flight, and of the blocks not flushed.
//!
//! Each command in flight is, independently, done, torn at a block, or not started. Commands are
//! carried out in order of submission within a queue. A write whose predecessor was not done finds
//! the write pointer at another block and is refused, so it counts as not started, too. So does an
//! append after a torn command of its zone: the drive had placed it behind all blocks of that
//! command, where the write pointer no longer is. Resets and finishes that were done stay done.
//!
//! A drive with a volatile cache then loses blocks. Each zone's write pointer falls back to a block
//! between the end of the durable blocks and the end of the written blocks. In conventional zones,
//! any of the blocks not flushed may survive. At last, the zones go through the power cycle of the
//! state machine.

use crate::cache::{Barrier, Unflushed};
use crate::core::Core;
use crate::medium::Medium;
use crate::queue::CommandInfo;
use furrow_rt::Rng;
use furrow_zone::{BlockCount, Command, QueueId, Request, Status, ZoneId};

/// Whether the drive answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    On,
    /// The drive fails this many further commands, and then answers again.
    Gone(u64),
    Off,
}

/// The fate of a command that was in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// The command has no effect at all.
    NotStarted,
    /// This number of blocks was written, from the first on. A command other than a write or append
    /// has no effect.
    Torn(u64),
    /// The command was done, but not answered.
    Done,
}

/// The outcome of a power cut.
#[derive(Clone, Debug)]
pub struct Fates {
    /// The fates of the commands in flight, in order of submission; commands past the end have not
    /// started. `None` draws the fates, and the order across queues, from the seed.
    pub commands: Option<Vec<Fate>>,
    /// The fate of the blocks not flushed.
    pub unflushed: Unflushed,
    /// Seed of all random choices.
    pub seed: u64,
}

impl Fates {
    /// Fates that are all drawn from `seed`.
    pub fn seeded(seed: u64) -> Fates {
        Fates { commands: None, unflushed: Unflushed::Seeded, seed }
    }

    /// The fates `commands`, in order of submission; the fate of blocks not flushed is drawn
    /// from `seed`.
    pub fn of(commands: Vec<Fate>, seed: u64) -> Fates {
        Fates { commands: Some(commands), unflushed: Unflushed::Seeded, seed }
    }

    /// The fates of a cut before any command in flight has started.
    pub fn nothing(seed: u64) -> Fates {
        Fates::of(Vec::new(), seed)
    }

    /// Every combination of fates for `in_flight`: each command done or not started, and each write
    /// of several blocks also torn at a block drawn from `seed`. That gives 3ⁿ combinations for n
    /// such writes, so it is meant for a few commands only.
    pub fn combinations(in_flight: &[CommandInfo], seed: u64) -> Vec<Fates> {
        let mut rng = Rng::new(seed);
        let mut all = vec![Vec::new()];
        for info in in_flight {
            let mut fates = vec![Fate::NotStarted];
            match info.command {
                Command::Write { blocks, .. } | Command::Append { blocks, .. } => {
                    if blocks.0 > 1 {
                        fates.push(Fate::Torn(1 + rng.below(blocks.0 - 1)));
                    }
                    fates.push(Fate::Done);
                }
                Command::Manage { .. } | Command::Flush => fates.push(Fate::Done),
                Command::Read { .. } => {}
            }
            all = all
                .iter()
                .flat_map(|head| {
                    fates.iter().map(move |fate| {
                        let mut next: Vec<Fate> = head.clone();
                        next.push(*fate);
                        next
                    })
                })
                .collect();
        }
        all.into_iter().map(|commands| Fates::of(commands, rng.next())).collect()
    }
}

/// A command in flight, as a snapshot stores it.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub info: CommandInfo,
    pub request: Request,
    pub barrier: Option<Barrier>,
}

impl Parcel {
    pub fn share(&self) -> Parcel {
        Parcel { info: self.info, request: share(&self.request), barrier: self.barrier.clone() }
    }
}

/// A copy of the request, which shares its pages.
pub(crate) fn share(request: &Request) -> Request {
    let Request { command, data, oob, fua } = request;
    Request { command: *command, data: data.clone(), oob: oob.clone(), fua: *fua }
}

/// Cuts the power while `parcels` are in flight (in order of submission), and turns it on again.
pub(crate) fn cut(core: &mut Core, parcels: &mut [Parcel], fates: &Fates) {
    let mut rng = Rng::new(fates.seed);
    let order = match fates.commands {
        Some(_) => (0..parcels.len()).collect(),
        None => interleave(parcels, &mut rng),
    };
    let mut torn = Vec::new();
    for index in order {
        let parcel = &mut parcels[index];
        let zone = zone_of(&parcel.request.command, core.machine.geometry());
        let fate = match &fates.commands {
            Some(commands) => commands.get(index).copied().unwrap_or(Fate::NotStarted),
            None => draw(&parcel.request.command, &mut rng),
        };
        match (fate, parcel.request.command) {
            (Fate::NotStarted, _) | (_, Command::Read { .. }) => {}
            (_, Command::Append { .. }) if torn.contains(&zone) => {}
            (Fate::Done, _) => {
                core.execute(&mut parcel.request, parcel.barrier.as_ref());
            }
            (Fate::Torn(done), _) => {
                if core.tear(&parcel.request, done) == Status::WriteFault {
                    torn.push(zone);
                }
            }
        }
    }
    if fates.unflushed == Unflushed::Cached {
        return;
    }
    let Some(mut cache) = core.cache.take() else {
        core.disturb(|machine| machine.power_cycle(|_, zone| zone.write_pointer));
        return;
    };
    let mut shrunk = Vec::new();
    let (zones, of_caches) = cache.fates(fates.unflushed, &mut rng);
    core.disturb(|machine| {
        machine.power_cycle(|id, zone| {
            let written = zone.write_pointer.0;
            let durable = cache.durable(id).min(written);
            let fate = of_caches.get((id.0 / zones) as usize).copied();
            let left = match fate.unwrap_or(fates.unflushed) {
                Unflushed::Lost => durable,
                Unflushed::Kept | Unflushed::Cached => written,
                Unflushed::Seeded => surviving(durable, written, &mut rng),
            };
            if left < written {
                shrunk.push((id, left));
            }
            BlockCount(left)
        });
    });
    for (zone, left) in shrunk {
        core.medium.truncate(zone, left);
    }
    if let Medium::Memory(memory) = &mut core.medium {
        for (zone, block, before) in cache.taken_back(fates.unflushed, &mut rng) {
            memory.set_back(zone.0 as usize, block as usize, before);
        }
    }
    cache.settle(&core.machine);
    core.cache = Some(cache);
}

fn surviving(durable: u64, written: u64, rng: &mut Rng) -> u64 {
    if durable == written {
        return written;
    }
    match rng.below(3) {
        0 => durable,
        1 => written,
        _ => durable + rng.below(written - durable + 1),
    }
}

fn draw(command: &Command, rng: &mut Rng) -> Fate {
    match (rng.below(3), *command) {
        (0, _) => Fate::NotStarted,
        (1, Command::Write { blocks, .. } | Command::Append { blocks, .. }) if blocks.0 > 1 => {
            Fate::Torn(1 + rng.below(blocks.0 - 1))
        }
        _ => Fate::Done,
    }
}

/// A random order of all commands that keeps the order of each queue.
fn interleave(parcels: &[Parcel], rng: &mut Rng) -> Vec<usize> {
    let mut queues: Vec<(QueueId, std::collections::VecDeque<usize>)> = Vec::new();
    for (index, parcel) in parcels.iter().enumerate() {
        match queues.iter_mut().find(|(queue, _)| *queue == parcel.info.queue) {
            Some((_, waiting)) => waiting.push_back(index),
            None => queues.push((parcel.info.queue, [index].into())),
        }
    }
    let mut order = Vec::with_capacity(parcels.len());
    while !queues.is_empty() {
        let pick = rng.below(queues.len() as u64) as usize;
        order.extend(queues[pick].1.pop_front());
        if queues[pick].1.is_empty() {
            queues.swap_remove(pick);
        }
    }
    order
}

/// The zone of a command, if the command has one.
pub(crate) fn zone_of(command: &Command, geometry: &furrow_zone::Geometry) -> Option<ZoneId> {
    let lba = match *command {
        Command::Read { lba, .. } | Command::Write { lba, .. } => lba,
        Command::Append { zone_start, .. } => zone_start,
        Command::Manage { target: furrow_zone::Target::Zone(lba), .. } => lba,
        Command::Flush | Command::Manage { .. } => return None,
    };
    geometry.locate(lba).map(|(zone, _)| zone)
}
