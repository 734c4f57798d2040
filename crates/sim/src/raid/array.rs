//! An array on parts of one drive: its shape by seed, the drive of each member, and assembly.

use crate::crash::Case;
use crate::fs::crash::in_sectors;
use crate::limits::fewer_open;
use crate::raid::part::Part;
use furrow_policy::{Lifetimes, RaidDefect, RaidVariant};
use furrow_raid::{Config, DriveOptions, Level, Options, Placement, Shape, Volume};
use furrow_raid::{assemble, examine};
use furrow_rt::{Rng, Rt};
use furrow_zone::{Error, Geometry, ZonedDevice};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Mixed into the seed to decide whether drives have an out-of-band area. Seeds that failed before
/// this choice existed keep drives with such an area.
const BARE: u64 = 0xba7e_072c;

/// Mixed into the seed for a separate generator, which decides whether logical blocks are smaller
/// than 4 KiB. So the main generator still draws what it drew before this choice existed.
const SECTORED: u64 = 0x512_4a1d;

/// Number of additional drives, for replacements.
pub const SPARES: u32 = 2;

/// Levels and numbers of drives of the crash sweep.
pub const SHAPES: [(Level, u32); 8] = [
    (Level::Raid5, 4),
    (Level::Raid5, 3),
    (Level::Raid6, 4),
    (Level::Raid01, 4),
    (Level::Raid4, 3),
    (Level::Raid5, 2),
    (Level::Raid6, 5),
    (Level::Raid0, 2),
];

/// The shape of an array and how it is run.
#[derive(Clone, Debug)]
pub struct Array {
    /// RAID level.
    pub level: Level,
    /// Number of members.
    pub drives: u32,
    /// Parameters with which the array is made.
    pub config: Config,
    /// Parameters with which the array runs.
    pub options: Options,
    /// Geometry of each drive.
    pub geometry: Geometry,
    /// Parts that were set back to older images.
    pub older: BTreeSet<u32>,
}

impl Array {
    /// The array of a case.
    pub fn draw(case: Case, rng: &mut Rng, defect: Option<RaidDefect>) -> Array {
        let (level, drives) = SHAPES[rng.below(SHAPES.len() as u64) as usize];
        // In one case of six, the map of blocks does not fit its memory, and is read and written
        // all the time. A separate random generator decides this, so that seeds that once failed
        // keep their runs.
        let bounded = Rng::new(case.seed ^ 0x6d_a9).one_in(6);
        // Only a footer of more than one block can be torn.
        let tall = rng.one_in(8) || bounded;
        let capacity = if tall { 88 + rng.below(8) } else { 20 + rng.below(20) };
        let permits = 6 + rng.below(3) as u32;
        let zones = if bounded { 36 } else { 12 } + rng.below(4) as u32;
        let size = capacity + rng.below(4);
        let geometry = Geometry {
            oob_bytes: 48 + 16 * rng.below(2) as u16,
            max_open: Some(permits),
            max_active: Some(permits),
            unwritten_reads_fail: rng.one_in(2),
            volatile_cache: case.volatile,
            ..Geometry::unlimited(zones, size, capacity)
        };
        // Uses a separate random generator, so that seeds that once failed keep their runs.
        let sectored = Rng::new(case.seed ^ SECTORED).one_in(3);
        let geometry = if sectored { in_sectors(&geometry, case.seed % 8) } else { geometry };
        let geometry = fewer_open(geometry, case.seed);
        let config = Config {
            small: 1 + rng.below(2) as u32,
            large: rng.below(2) as u32,
            chunk_large: 2,
            group: [1, 4, 8][rng.below(3) as usize],
            reserve: 25,
            ..Config::new(level, &geometry)
        };
        // Seeds that failed before this choice existed fall into the last case, and keep
        // their runs.
        let lifetimes = match case.seed % 8 {
            2 | 3 => Lifetimes::Always,
            _ => Lifetimes::Apart,
        };
        let options = Options {
            drive: DriveOptions { queues: 2, depth: 1 + rng.below(6) as u32 },
            depth: 1 + rng.below(6) as u32,
            checkpoint_blocks: 20 + rng.below(200),
            map_memory: u64::from(bounded),
            rebuild_pause: [0, 0, 30_000, 300_000][rng.below(4) as usize],
            variant: RaidVariant { defect, lifetimes, ..RaidVariant::default() },
            ..Options::default()
        };
        let mut array = Array { level, drives, config, options, geometry, older: BTreeSet::new() };
        // Uses a separate random generator, so that seeds that once failed keep their runs.
        let mut apart = Rng::new(case.seed ^ BARE);
        if apart.one_in(3) {
            array.lay_bare(&mut apart);
        }
        array
    }

    /// Removes the drives' out-of-band area, or leaves too little of it.
    fn lay_bare(&mut self, rng: &mut Rng) {
        let sectors = 4096 / self.geometry.block_size.0;
        self.geometry.oob_bytes = 16 / sectors as u16 * u16::from(rng.one_in(4));
        self.config.group = 1;
        // Segments get either more than one window, or few stripes, just enough for cleaning.
        let more = if rng.one_in(2) { 80 } else { 16 };
        self.geometry.zone_capacity.0 += more * sectors;
        self.geometry.zone_size.0 += more * sectors;
    }

    /// Chooses another level, and a number of drives from 2 to 8 that it allows.
    pub fn any_shape(&mut self, rng: &mut Rng) {
        loop {
            let level = Level::ALL[rng.below(Level::ALL.len() as u64) as usize];
            let drives = 2 + rng.below(7) as u32;
            let made = Config { level, ..self.config.clone() };
            let geometries = vec![&self.geometry; drives as usize];
            if Shape::new(&made, &geometries).is_ok() {
                (self.level, self.drives, self.config) = (level, drives, made);
                return;
            }
        }
    }

    /// Number of members that may fail at once.
    pub fn tolerates(&self) -> u32 {
        Placement::new(self.level, self.drives).map_or(0, |placement| placement.tolerates())
    }

    /// Number of parts into which the emulated drive is split: one for each member and each
    /// additional drive.
    pub fn parts(&self) -> u32 {
        self.drives + SPARES
    }

    /// The geometry of the drive that all parts share.
    pub fn whole(&self) -> Geometry {
        let parts = self.parts();
        Geometry {
            zones: self.geometry.zones * parts,
            max_open: self.geometry.max_open.map(|open| open * parts),
            max_active: self.geometry.max_active.map(|active| active * parts),
            ..self.geometry.clone()
        }
    }

    /// Assembles the array from the parts that are not in `without`. Like a user who gives all
    /// drives, it leaves out the drives that are refused as stale or foreign, and adds them to
    /// `without`. After drives were replaced, an older image may look like one half of a split
    /// array. Then the parts in `older` are left out too: the user knows which drives came from
    /// a backup.
    ///
    /// # Errors
    /// Any other error.
    pub async fn open(
        &self,
        rt: &Rt,
        parts: &[Rc<Part>],
        without: &mut Vec<u32>,
    ) -> Result<Volume, Error> {
        loop {
            match assemble(rt, devices(parts, without), &self.options).await {
                Ok(volume) => return Ok(volume),
                Err(error) if error.to_string().starts_with("the array is split") => {
                    let given = without.len();
                    without.extend(&self.older);
                    without.sort_unstable();
                    without.dedup();
                    if without.len() == given {
                        return Err(error);
                    }
                }
                Err(error) => match refused(&error, parts, without) {
                    Some(part) => without.push(part),
                    None => return Err(error),
                },
            }
        }
    }
}

/// All parts except those in `without`.
pub fn devices(parts: &[Rc<Part>], without: &[u32]) -> Vec<Rc<dyn ZonedDevice>> {
    (0..)
        .zip(parts)
        .filter(|(index, _)| !without.contains(index))
        .map(|(_, part)| part.clone() as Rc<dyn ZonedDevice>)
        .collect()
}

/// Returns the part that `error` refuses because it is stale, was replaced, or belongs to no array.
/// A part belongs to no array if it is unused, or if a crash interrupted its promotion.
fn refused(error: &Error, parts: &[Rc<Part>], without: &[u32]) -> Option<u32> {
    let text = error.to_string();
    let ends = [" is stale", " was a member", ": not a member of"];
    // A crash may have torn the first record of a drive that was about to become a member.
    let torn = ": damaged record of a Furrow array member";
    let named = |index: &u32| {
        let starts =
            |end: &str| text.starts_with(&format!("{}{end}", parts[*index as usize].name()));
        ends.iter().any(|end| starts(end)) || starts(torn) && text.ends_with(": leave it out")
    };
    (0..parts.len() as u32).filter(|index| !without.contains(index)).find(named)
}

/// The part of each member, among the parts that are not in `without`.
pub async fn seats(volume: &Volume, parts: &[Rc<Part>], without: &[u32]) -> Vec<Option<u32>> {
    let mut seats = vec![None; volume.members().len()];
    for (index, part) in (0..).zip(parts) {
        if without.contains(&index) {
            continue;
        }
        let Ok(examined) = examine(&**part).await else { continue };
        let of = volume.members().iter().position(|(uuid, ..)| *uuid == examined.device);
        if let Some(member) = of {
            seats[member] = Some(index);
        }
    }
    seats
}

/// Lets a spare replace a failed member: a spare that a crash left, otherwise `part`. Returns a
/// text for the figures, which says which of the two drives was taken.
///
/// # Errors
/// If the spare is refused.
pub async fn promote(
    volume: &Volume,
    parts: &[Rc<Part>],
    member: u32,
    part: u32,
) -> Result<&'static str, Error> {
    let mut waiting = None;
    for part in parts {
        if let Ok(examined) = examine(&**part).await
            && volume.spares().contains(&examined.device)
        {
            waiting = Some(part.clone());
        }
    }
    let (what, device) = match waiting {
        Some(part) => ("a spare there was taken after a reopening", part),
        None => {
            let device = parts[part as usize].clone();
            volume.add_spare(device.clone(), true).await?;
            ("a new spare taken after a reopening", device)
        }
    };
    volume.take_spare(member, device).await?;
    Ok(what)
}
