//! A drive that repeats the recorded commands of another drive, one event at a time, so that its
//! power can be cut between any two events.
//!
//! A command is in flight from its submission to its recorded answer, and is carried out when it is
//! answered. So a flush covers the commands that were answered before it was submitted: the least
//! that a drive may make durable. An append goes to the place that the recorded drive reported. If
//! an earlier write to its zone is still in flight then, the recorded drive must have carried out
//! that write already, and so does this drive.

use furrow_emu::{CommandInfo, Snapshot};
use furrow_zone::{Command, Error, ErrorKind, Geometry, Lba, QueueId, Request, Result};
use std::collections::BTreeSet;

/// A drive in memory that repeats the commands of another drive.
#[derive(Debug)]
pub struct Replay {
    geometry: Geometry,
    drive: Snapshot,
    /// Numbers of commands that were carried out before their answer.
    early: BTreeSet<u64>,
    ignores_flushes: bool,
}

impl Replay {
    /// An empty drive of `geometry`.
    ///
    /// # Errors
    /// If the geometry is impossible.
    pub fn new(geometry: &Geometry) -> Result<Replay> {
        let (drive, geometry) = (Snapshot::empty(geometry)?, geometry.clone());
        Ok(Replay { geometry, drive, early: BTreeSet::new(), ignores_flushes: false })
    }

    /// Lets flushes and the FUA bit of writes have no effect from now on. With this defect, a test
    /// shows that an oracle notices lost writes.
    pub fn ignore_flushes(&mut self) {
        self.ignores_flushes = true;
    }

    /// Submits command `number` to the drive.
    pub fn submitted(&mut self, number: u64, mut request: Request) {
        request.fua &= !self.ignores_flushes;
        // Each command has its own queue, because its sender relies on no order among commands
        // in flight.
        self.drive.submit(number, QueueId(number as u16), request);
    }

    /// Answers command `number` as the recorded drive did. `lba` is where a write or append began.
    ///
    /// # Errors
    /// `Corrupt` if a drive that obeys the rules cannot have given this answer.
    pub fn answered(&mut self, number: u64, done: bool, lba: Lba) -> Result<()> {
        if self.early.remove(&number) {
            return Ok(());
        }
        let find = |info: &CommandInfo| (info.sequence == number).then_some(info.command);
        let command = self.drive.in_flight().iter().find_map(find);
        let command = command
            .ok_or_else(|| impossible(number, "it is answered and not in flight".to_owned()))?;
        if !done || matches!(command, Command::Flush) && self.ignores_flushes {
            self.drive.take(number, None);
            return Ok(());
        }
        let command = match command {
            Command::Append { zone_start, blocks } => {
                self.lead_to(number, zone_start, lba);
                Command::Write { lba, blocks }
            }
            Command::Write { lba, .. } => {
                self.lead_to(number, self.start_of(lba), lba);
                command
            }
            other => other,
        };
        self.carry_out(number, command)
    }

    /// The drive at this moment, including the commands in flight.
    pub fn snapshot(&self) -> Snapshot {
        self.drive.clone()
    }

    /// Number of commands in flight.
    pub fn in_flight_len(&self) -> usize {
        self.drive.in_flight().len()
    }

    fn carry_out(&mut self, number: u64, command: Command) -> Result<()> {
        let wanted = Some(command).filter(|command| !matches!(command, Command::Read { .. }));
        match self.drive.take(number, wanted) {
            Some(status) if !status.is_ok() => {
                Err(impossible(number, format!("{command:?} is refused here: {status}")))
            }
            _ => Ok(()),
        }
    }

    fn start_of(&self, lba: Lba) -> Lba {
        self.geometry.locate(lba).map_or(lba, |(zone, _)| self.geometry.start(zone))
    }

    /// Carries out commands in flight for the zone that starts at `start`, all but `number`, until
    /// the zone's write pointer is at `lba` or no command is left that could move it there.
    fn lead_to(&mut self, number: u64, start: Lba, lba: Lba) {
        let Some((zone, _)) = self.geometry.locate(start) else { return };
        if self.geometry.is_conventional(zone) {
            return;
        }
        loop {
            let written = self.drive.report()[zone.0 as usize].write_pointer;
            let pointer = Lba(start.0 + written.0);
            if pointer >= lba {
                return;
            }
            let next = |info: &CommandInfo| match info.command {
                Command::Write { lba, .. } => lba == pointer,
                Command::Append { zone_start, blocks } => {
                    zone_start == start && pointer.0 + blocks.0 <= lba.0
                }
                _ => false,
            };
            let in_flight = self.drive.in_flight();
            let next = in_flight.iter().find(|info| info.sequence != number && next(info));
            let Some((number, command)) = next.map(|info| (info.sequence, info.command)) else {
                return;
            };
            if self.carry_out(number, command).is_err() {
                return;
            }
            self.early.insert(number);
        }
    }
}

fn impossible(number: u64, what: String) -> Error {
    Error::new(ErrorKind::Corrupt, format!("command {number} of the recording: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_emu::{Emulator, Fate, Fates, Options, Unflushed};
    use furrow_rt::{Config, PAGE_SIZE, Page, Pages, Rt};
    use furrow_zone::{Action, BlockCount, Target, ZoneId, ZonedDevice};

    fn drive() -> Replay {
        let mut geometry = Geometry::unlimited(4, 16, 16);
        (geometry.volatile_cache, geometry.conventional_zones) = (true, 1);
        Replay::new(&geometry).unwrap()
    }

    fn write(lba: u64, byte: u8, blocks: u64) -> Request {
        let data = (0..blocks).map(|_| Page::from_slice(&[byte; PAGE_SIZE])).collect();
        Request::with_data(Command::Write { lba: Lba(lba), blocks: BlockCount(blocks) }, data)
    }

    fn fates(unflushed: Unflushed, seed: u64) -> Fates {
        Fates { commands: Some(Vec::new()), unflushed, seed }
    }

    /// The first byte of each of `blocks` blocks from `lba` on, after a power cut.
    fn left(replay: &Replay, fates: &Fates, lba: u64, blocks: u64) -> Vec<u8> {
        bytes(&replay.snapshot().power_cut(fates), lba, blocks)
    }

    /// The first byte of each of `blocks` blocks from `lba` on.
    fn bytes(after: &Snapshot, lba: u64, blocks: u64) -> Vec<u8> {
        let rt = Rt::new(Config::simulated(1));
        let drive = Emulator::from_snapshot(&rt, after, Options::simulated());
        let bytes = rt.block_on(async move {
            let pages: Pages = (0..blocks).map(|_| Page::zeroed()).collect();
            let command = Command::Read { lba: Lba(lba), blocks: BlockCount(blocks) };
            let outcome = drive.submit(QueueId(0), Request::with_data(command, pages)).await;
            outcome.data.iter().map(|page| page.bytes()[0]).collect()
        });
        rt.clear();
        bytes
    }

    #[test]
    fn a_flush_covers_what_was_answered_before_it_was_submitted() {
        let mut replay = drive();
        replay.submitted(0, write(16, 1, 1));
        replay.answered(0, true, Lba(16)).unwrap();
        replay.submitted(1, write(3, 2, 1));
        replay.submitted(2, Request::bare(Command::Flush));
        // This write is in flight when the flush is submitted, and is answered before the flush.
        replay.answered(1, true, Lba(3)).unwrap();
        replay.answered(2, true, Lba(0)).unwrap();
        let lost = fates(Unflushed::Lost, 1);
        assert_eq!((left(&replay, &lost, 16, 1), left(&replay, &lost, 3, 1)), (vec![1], vec![0]));
        let kept = fates(Unflushed::Kept, 1);
        assert_eq!((left(&replay, &kept, 16, 1), left(&replay, &kept, 3, 1)), (vec![1], vec![2]));
    }

    #[test]
    fn unflushed_blocks_survive_as_a_prefix_or_anywhere_by_kind_of_zone() {
        let mut replay = drive();
        replay.submitted(0, write(0, 7, 8));
        replay.submitted(1, write(16, 8, 8));
        replay.answered(0, true, Lba(0)).unwrap();
        replay.answered(1, true, Lba(16)).unwrap();
        let mut holes = 0;
        for seed in 0..60 {
            let fates = fates(Unflushed::Seeded, seed);
            let sequential = left(&replay, &fates, 16, 8);
            let length = sequential.iter().take_while(|byte| **byte == 8).count();
            assert!(sequential[length..].iter().all(|byte| *byte == 0), "{sequential:?}");
            let anywhere = left(&replay, &fates, 0, 8);
            assert!(anywhere.iter().all(|byte| [0, 7].contains(byte)));
            holes += u32::from(anywhere.windows(2).any(|two| two == [0, 7]));
        }
        assert!(holes > 0, "always a prefix");
    }

    #[test]
    fn a_drive_may_write_out_all_but_one_zone() {
        let mut replay = drive();
        for (number, (lba, byte)) in [(0, 1), (16, 2), (32, 3)].into_iter().enumerate() {
            replay.submitted(number as u64, write(lba, byte, 2));
            replay.answered(number as u64, true, Lba(lba)).unwrap();
        }
        replay.submitted(3, Request::bare(Command::Flush));
        replay.answered(3, true, Lba(0)).unwrap();
        assert!(replay.snapshot().unflushed().is_empty());
        for (number, (lba, byte)) in [(4, (1, 4)), (5, (18, 5)), (6, (34, 6))] {
            replay.submitted(number, write(lba, byte, 1));
            replay.answered(number, true, Lba(lba)).unwrap();
        }
        replay.submitted(7, Request { fua: true, ..write(0, 7, 1) });
        replay.answered(7, true, Lba(0)).unwrap();
        assert_eq!(replay.snapshot().unflushed(), [ZoneId(0), ZoneId(1), ZoneId(2)].into());
        let left = |zone| {
            let mut drive = replay.snapshot();
            drive.write_out_but(ZoneId(zone));
            let after = drive.power_cut(&fates(Unflushed::Lost, 1));
            [bytes(&after, 0, 2), bytes(&after, 16, 3), bytes(&after, 32, 3)].concat()
        };
        assert_eq!(left(0), [7, 1, 2, 2, 5, 3, 3, 6]);
        assert_eq!(left(1), [7, 4, 2, 2, 0, 3, 3, 6]);
        assert_eq!(left(2), [7, 4, 2, 2, 5, 3, 3, 0]);
    }

    #[test]
    fn a_durable_write_survives_and_an_ignored_flush_keeps_nothing() {
        let lost = fates(Unflushed::Lost, 1);
        for ignored in [false, true] {
            let mut replay = drive();
            if ignored {
                replay.ignore_flushes();
            }
            replay.submitted(0, Request { fua: true, ..write(0, 5, 1) });
            replay.submitted(1, Request { fua: true, ..write(16, 6, 1) });
            replay.answered(0, true, Lba(0)).unwrap();
            replay.answered(1, true, Lba(16)).unwrap();
            replay.submitted(2, write(1, 4, 1));
            replay.answered(2, true, Lba(1)).unwrap();
            replay.submitted(3, Request::bare(Command::Flush));
            replay.answered(3, true, Lba(0)).unwrap();
            let all = [left(&replay, &lost, 0, 2), left(&replay, &lost, 16, 1)].concat();
            assert_eq!(all, if ignored { [0, 0, 0] } else { [5, 4, 6] });
        }
    }

    #[test]
    fn appends_go_where_they_went_also_if_answered_in_another_order() {
        let append = |byte| {
            let command = Command::Append { zone_start: Lba(16), blocks: BlockCount(1) };
            Request { command, ..write(0, byte, 1) }
        };
        let mut replay = drive();
        replay.submitted(0, append(1));
        replay.submitted(1, append(2));
        replay.submitted(2, append(3));
        replay.answered(1, true, Lba(17)).unwrap();
        assert_eq!(replay.in_flight_len(), 1);
        replay.answered(0, true, Lba(16)).unwrap();
        replay.answered(2, true, Lba(18)).unwrap();
        let kept = fates(Unflushed::Kept, 1);
        assert_eq!(left(&replay, &kept, 16, 3), [1, 2, 3]);
        let reset = Command::Manage { target: Target::Zone(Lba(16)), action: Action::Reset };
        replay.submitted(3, Request::bare(reset));
        let done = Fates { commands: Some(vec![Fate::Done]), ..kept.clone() };
        assert_eq!((left(&replay, &kept, 16, 1), left(&replay, &done, 16, 1)), (vec![1], vec![0]));
        let error = replay.answered(9, true, Lba(0)).unwrap_err();
        assert!(error.to_string().contains("command 9"), "{error}");
        replay.submitted(10, write(40, 1, 1));
        assert!(replay.answered(10, true, Lba(40)).is_err(), "above the write pointer");
    }
}
