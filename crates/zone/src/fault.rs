//! Faults that can be injected into a drive, and the interface for injecting them: the emulated
//! drive implements it, a real drive does not.
//!
//! | fault | what happens | what must survive it, and how |
//! |---|---|---|
//! | [`PowerCut`] | each command in flight done, torn or not started; see 1 | engine: 2 |
//! | [`ReadError`] | 281h, no data | engine: that read fails, others continue |
//! | [`WriteError`] | 280h, nothing written, write pointer as before | ordered writer: 3 |
//! | [`WriteTorn`] | 280h, write pointer anywhere in the write's range | ordered writer: 3 |
//! | [`ZoneReadOnly`] | the zone can be read, never written (1BAh) | pool: retires it, moves out |
//! | [`ZoneOffline`] | the zone is gone with its blocks (1BBh) | engine: other files continue |
//! | [`ZoneFull`] | the drive finishes the zone (Zone Active Excursion) | ordered writer: 4 |
//! | [`Disappear`] | every command answers 006h, for a while or for good | engine: 5 |
//! | [`Slow`] | done at once, answered late; a read reads late | all: rely on no order of answers |
//! | [`ReorderAppends`] | appends in flight to a zone swap places | appender: uses the answer |
//! | [`BitFlip`] | one bit of a stored block changes, without an error | readers: 6 |
//!
//! 1. Unflushed blocks survive or are lost, depending on [`Geometry::volatile_cache`]; the drive
//!    answers every command with an error until [`power_on`].
//! 2. The next mount finds all flushed data.
//! 3. Waits for its writes in flight, asks where the write pointer is, writes elsewhere,
//!    then acknowledges.
//! 4. Continues in another zone; the budget gets its permit back.
//! 5. Becomes read-only with an error; when the drive is back, it must be mounted again.
//! 6. Find it by the CRC32C in the pointer. Cleaning moves the CRC with the block, so a flip in a
//!    moved block is still found.
//!
//! Where the file system has no other place to write (checkpoints, tables), it stops writing
//! instead, and loses nothing that it has acknowledged: docs/inside/design/file-system.md, "When
//! the drive fails".
//!
//! [`Geometry::volatile_cache`]: crate::Geometry::volatile_cache
//! [`power_on`]: FaultInjection::power_on
//! [`PowerCut`]: FaultKind::PowerCut
//! [`ReadError`]: FaultKind::ReadError
//! [`WriteError`]: FaultKind::WriteError
//! [`WriteTorn`]: FaultKind::WriteTorn
//! [`ZoneReadOnly`]: FaultKind::ZoneReadOnly
//! [`ZoneOffline`]: FaultKind::ZoneOffline
//! [`ZoneFull`]: FaultKind::ZoneFull
//! [`Disappear`]: FaultKind::Disappear
//! [`Slow`]: FaultKind::Slow
//! [`ReorderAppends`]: FaultKind::ReorderAppends
//! [`BitFlip`]: FaultKind::BitFlip
//!
//! A fault has a place (anywhere, a range of blocks, a zone), a moment among the commands that
//! touch that place (always, the Nth, every Kth, one in N by the seed) and a number of times. Some
//! faults need no command, and happen when they are injected: a zone-state fault of one zone and a
//! bit flip of given blocks, each with the moment *always*.
//!
//! Not covered: misdirected writes, and writes that the drive loses after an acknowledged flush.
//! Only replicas protect against these two faults, and Furrow does not claim to survive them.

use crate::{BlockCount, Lba, Result, ZoneId};
use furrow_rt::Rng;

/// Maximum number of faults that one drive can hold.
pub const MAX_FAULTS: usize = 256;

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The power fails before the command; the fates of commands in flight are drawn from the seed.
    PowerCut,
    /// A read answers Unrecovered Read Error.
    ReadError,
    /// A write or append answers Write Fault and writes nothing.
    WriteError,
    /// A write or append answers Write Fault after writing some of its first blocks.
    WriteTorn,
    /// The zone becomes read-only.
    ZoneReadOnly,
    /// The zone goes offline.
    ZoneOffline,
    /// An active zone becomes full.
    ZoneFull,
    /// The drive is gone for `commands` commands, including this one; if that is `None`,
    /// until [`power_on`](FaultInjection::power_on).
    Disappear {
        /// Number of commands that the drive refuses.
        commands: Option<u64>,
    },
    /// The answer is delayed by both amounts. The command's changes take effect at once; a read
    /// returns the content of the blocks at the time of its answer.
    Slow {
        /// Number of turns of the executor, counted only while no other work is ready.
        polls: u32,
        /// Delay in nanoseconds of the executor's clock.
        nanoseconds: u64,
    },
    /// An append overtakes other appends to its zone.
    ReorderAppends,
    /// A bit in a block of the command flips: after a write, before a read.
    BitFlip,
}

/// The commands to which a fault applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// All commands.
    Anywhere,
    /// Commands that touch one of these blocks.
    Blocks {
        /// First block.
        first: Lba,
        /// Number of blocks, at least 1.
        blocks: BlockCount,
    },
    /// Commands for this zone.
    Zone(ZoneId),
}

/// Selects the commands at which a fault strikes, among those at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Every command.
    Always,
    /// The Nth command, counted from 1.
    Nth(u64),
    /// Every Kth command, K ≥ 1.
    Every(u64),
    /// One command in N, drawn from the drive's seed, N ≥ 1.
    OneIn(u64),
}

/// A fault of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Kind of the fault.
    pub kind: FaultKind,
    /// The commands to which the fault applies.
    pub place: Place,
    /// Selects the commands at which the fault strikes, among those to which it applies.
    pub when: When,
    /// Number of times that the fault will still strike; `None`: no limit. At 0 the fault has
    /// ended, and the drive drops it.
    pub times: Option<u64>,
    /// Number of commands so far to which the fault has applied.
    pub seen: u64,
}

/// The blocks that a command touches: all that faults depend on.
#[derive(Clone, Copy, Debug)]
pub struct Touch {
    /// Zone of the command.
    pub zone: ZoneId,
    /// First block of the command.
    pub first: Lba,
    /// Number of blocks.
    pub blocks: u64,
}

/// An interface with which tests inject faults into a drive; see
/// [`ZonedDevice::fault_injection`](crate::ZonedDevice::fault_injection).
pub trait FaultInjection {
    /// The pending faults.
    fn faults(&self) -> Vec<Fault>;

    /// Injects a fault. A fault that needs no command (see the module's text) happens now.
    ///
    /// # Errors
    /// If the fault names a zone or blocks that the drive does not have, or cannot happen to that
    /// zone; if there are too many faults already; or if the fault cannot be stored.
    fn inject(&self, fault: Fault) -> Result<()>;

    /// Removes fault number `index` (as in [`FaultInjection::faults`]), or all faults if `None`.
    ///
    /// # Errors
    /// If there is no such fault, or the change cannot be stored.
    fn clear_faults(&self, index: Option<usize>) -> Result<()>;

    /// Cuts the drive's power now: commands in flight get fates drawn from `seed`.
    fn power_cut(&self, seed: u64);

    /// Whether the drive answers: false after a power cut or a disappearance.
    fn is_on(&self) -> bool;

    /// Makes the drive answer again, after a power cut or a disappearance.
    fn power_on(&self);
}

impl Fault {
    /// Creates a fault that strikes at every command to which it applies. Kinds with a lasting
    /// effect (power cuts, disappearances, zone states, bit flips) strike once, the others
    /// without limit.
    pub fn new(kind: FaultKind) -> Fault {
        let lasting = matches!(
            kind,
            FaultKind::ReadError
                | FaultKind::WriteError
                | FaultKind::WriteTorn
                | FaultKind::Slow { .. }
                | FaultKind::ReorderAppends
        );
        let times = if lasting { None } else { Some(1) };
        Fault { kind, place: Place::Anywhere, when: When::Always, times, seen: 0 }
    }

    /// Limits the fault to commands for `zone`.
    #[must_use]
    pub fn at_zone(self, zone: ZoneId) -> Fault {
        Fault { place: Place::Zone(zone), ..self }
    }

    /// Limits the fault to commands that touch one of `blocks` blocks from `first` on.
    #[must_use]
    pub fn at_blocks(self, first: Lba, blocks: BlockCount) -> Fault {
        Fault { place: Place::Blocks { first, blocks }, ..self }
    }

    /// Selects the commands at which the fault strikes, among those to which it applies.
    #[must_use]
    pub fn when(self, when: When) -> Fault {
        Fault { when, ..self }
    }

    /// Limits the fault to `times` strikes.
    #[must_use]
    pub fn times(self, times: u64) -> Fault {
        Fault { times: Some(times), ..self }
    }

    /// True if the fault strikes without a command: see the module's text.
    pub fn is_immediate(&self) -> bool {
        let victim = match self.kind {
            FaultKind::ZoneReadOnly | FaultKind::ZoneOffline | FaultKind::ZoneFull => {
                matches!(self.place, Place::Zone(_))
            }
            FaultKind::BitFlip => matches!(self.place, Place::Blocks { .. }),
            _ => false,
        };
        victim && self.when == When::Always
    }

    /// Counts a command; true if the fault strikes at it.
    pub fn strikes(&mut self, touch: Option<Touch>, rng: &mut Rng) -> bool {
        if self.times == Some(0) || !self.place.covers(touch) {
            return false;
        }
        self.seen += 1;
        let strikes = match self.when {
            When::Always => true,
            When::Nth(n) => self.seen == n,
            When::Every(k) => self.seen.is_multiple_of(k.max(1)),
            When::OneIn(n) => rng.one_in(n.max(1)),
        };
        if strikes && let Some(times) = &mut self.times {
            *times -= 1;
        }
        strikes
    }

    /// True if the fault will never strike again.
    pub fn is_over(&self) -> bool {
        self.times == Some(0) || matches!(self.when, When::Nth(n) if self.seen >= n)
    }
}

impl Place {
    fn covers(&self, touch: Option<Touch>) -> bool {
        match (*self, touch) {
            (Place::Anywhere, _) => true,
            (_, None) => false,
            (Place::Zone(zone), Some(touch)) => touch.zone == zone,
            (Place::Blocks { first, blocks }, Some(touch)) => {
                touch.first.0 < first.0.saturating_add(blocks.0)
                    && first.0 < touch.first.0.saturating_add(touch.blocks)
            }
        }
    }
}

impl FaultKind {
    /// The drive takes commands and answers none for ten years.
    pub const HANG: FaultKind =
        FaultKind::Slow { polls: 0, nanoseconds: 10 * 365 * 86_400 * 1_000_000_000 };
}

impl std::fmt::Display for FaultKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self {
            FaultKind::PowerCut => "power-cut",
            FaultKind::ReadError => "read-error",
            FaultKind::WriteError => "write-error",
            FaultKind::WriteTorn => "write-torn",
            FaultKind::ZoneReadOnly => "zone-read-only",
            FaultKind::ZoneOffline => "zone-offline",
            FaultKind::ZoneFull => "zone-full",
            FaultKind::Disappear { .. } => "disappear",
            hang if *hang == FaultKind::HANG => return f.write_str("hang"),
            FaultKind::Slow { .. } => "slow",
            FaultKind::ReorderAppends => "reorder-appends",
            FaultKind::BitFlip => "bit-flip",
        };
        f.write_str(name)?;
        match self {
            FaultKind::Disappear { commands: Some(n) } => write!(f, " for {n} commands"),
            FaultKind::Slow { polls: 0, nanoseconds } => {
                write!(f, " by {} us", *nanoseconds as f64 / 1000.0)
            }
            FaultKind::Slow { polls, nanoseconds } => {
                write!(f, " by {polls} polls and {} us", *nanoseconds as f64 / 1000.0)
            }
            _ => Ok(()),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Anywhere => f.write_str("anywhere"),
            Place::Blocks { first, blocks } => write!(f, "blocks {first}+{blocks}"),
            Place::Zone(zone) => write!(f, "zone {zone}"),
        }
    }
}

impl std::fmt::Display for When {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            When::Always => f.write_str("every command"),
            When::Nth(n) => write!(f, "command {n}"),
            When::Every(k) => write!(f, "one command in every {k}"),
            When::OneIn(n) => write!(f, "one command in {n} at random"),
        }
    }
}
