//! Counts of the commands and bytes that a drive was given.

use furrow_zone::{Action, Command, Geometry, Target, ZoneId};

/// Numbers of commands that a drive was given, and of their bytes. A command is counted when
/// it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Number of writes to conventional zones.
    pub conventional_writes: u64,
    /// Bytes written to conventional zones.
    pub conventional_bytes: u64,
    /// Number of writes to sequential zones.
    pub writes: u64,
    /// Appends.
    pub appends: u64,
    /// Bytes written and appended to sequential zones.
    pub sequential_bytes: u64,
    /// Writes and appends with FUA (durable when answered), which are also counted above.
    pub fua: u64,
    /// Flushes.
    pub flushes: u64,
    /// Number of resets of one zone or of all zones.
    pub resets: u64,
    /// Finishes.
    pub finishes: u64,
    /// Other actions on zones.
    pub other: u64,
    /// Number of commands that the drive had refused when the last command began.
    pub failed: u64,
}

impl Counts {
    /// Counts that are made field by field: `of` gets the accessor of a field and returns the value
    /// of that field.
    pub fn by_field(of: impl Fn(fn(&Counts) -> u64) -> u64) -> Counts {
        Counts {
            reads: of(|counts| counts.reads),
            read_bytes: of(|counts| counts.read_bytes),
            conventional_writes: of(|counts| counts.conventional_writes),
            conventional_bytes: of(|counts| counts.conventional_bytes),
            writes: of(|counts| counts.writes),
            appends: of(|counts| counts.appends),
            sequential_bytes: of(|counts| counts.sequential_bytes),
            fua: of(|counts| counts.fua),
            flushes: of(|counts| counts.flushes),
            resets: of(|counts| counts.resets),
            finishes: of(|counts| counts.finishes),
            other: of(|counts| counts.other),
            failed: of(|counts| counts.failed),
        }
    }

    /// The difference between these counts and the earlier counts `before`.
    #[must_use]
    pub fn since(&self, before: &Counts) -> Counts {
        Counts::by_field(|field| field(self) - field(before))
    }

    /// Counts a command to a drive of `geometry`.
    pub fn count(&mut self, geometry: &Geometry, command: &Command, fua: bool) {
        match *command {
            Command::Read { blocks, .. } => {
                self.reads += 1;
                self.read_bytes += geometry.bytes(blocks).0;
            }
            Command::Write { blocks, .. } | Command::Append { blocks, .. } => {
                let bytes = geometry.bytes(blocks).0;
                let zone = zone_of(geometry, command);
                if zone.is_some_and(|zone| geometry.is_conventional(zone)) {
                    self.conventional_writes += 1;
                    self.conventional_bytes += bytes;
                } else {
                    let append = matches!(command, Command::Append { .. });
                    *if append { &mut self.appends } else { &mut self.writes } += 1;
                    self.sequential_bytes += bytes;
                }
                self.fua += u64::from(fua);
            }
            Command::Flush => self.flushes += 1,
            Command::Manage { action: Action::Reset, target: Target::Zone(_) | Target::All } => {
                self.resets += 1;
            }
            Command::Manage { action: Action::Finish, .. } => self.finishes += 1,
            Command::Manage { .. } => self.other += 1,
        }
    }
}

/// The zone that a command changes; `None` for a read, a flush or an action on all zones.
fn zone_of(geometry: &Geometry, command: &Command) -> Option<ZoneId> {
    match *command {
        Command::Write { lba, .. }
        | Command::Append { zone_start: lba, .. }
        | Command::Manage { target: Target::Zone(lba), .. } => {
            geometry.locate(lba).map(|(zone, _)| zone)
        }
        _ => None,
    }
}
