//! Power cuts in a recording: where, with which fates, and the resulting drive.
//!
//! A cut is named by the recording, a seed and a number. A third of the cuts come right after the
//! workload was told that something is durable, the others before or after any command.

use crate::oracle::Progress;
use crate::recording::{Event, Recording};
use crate::replay::Replay;
use crate::workload::History;
use furrow_emu::{Fates, Snapshot, Unflushed};
use furrow_rt::Rng;
use furrow_zone::{Command, Error, Geometry, Request, ZoneId};
use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Arc;

/// The mark between the creation of a file system and the workload.
pub const START: &str = "start";

/// The mark between the workload and the unmount.
pub const END: &str = "end";

/// The mark set before call `call` begins.
pub fn begun(call: usize) -> String {
    format!("b {call}")
}

/// The mark set after call `call`, an fsync or sync, has succeeded.
pub fn ended(call: usize) -> String {
    format!("e {call}")
}

/// The mark set after call `call`, an fsync or sync, has failed with an error that leaves the file
/// system usable. Such a call promises nothing.
pub fn refused(call: usize) -> String {
    format!("x {call}")
}

/// A deliberate fault of the drive, to test that the oracle notices it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Flushes after the start of the workload have no effect, and unflushed blocks are lost.
    IgnoredFlushes,
}

/// One power cut.
#[derive(Clone, Debug)]
pub struct Cut {
    /// Number of the cut.
    pub number: u64,
    /// Number of events of the recording before the cut.
    pub at: usize,
    /// The fates of commands in flight and of unflushed blocks.
    pub fates: Fates,
    /// The only zone that loses its unflushed blocks: the drive has written out the unflushed
    /// blocks of all other zones. `None`: `fates` decides for all zones.
    pub only_in: Option<ZoneId>,
}

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (number, at) = (self.number, self.at);
        match self.only_in {
            Some(zone) => write!(f, "{number} (after {at} events, zone {} lost)", zone.0),
            None => write!(f, "{number} (after {at} events, {:?})", self.fates.unflushed),
        }
    }
}

/// The events of a recording.
pub struct Events {
    geometry: Geometry,
    events: Vec<Event>,
    /// Index of the event of [`START`].
    start: usize,
}

impl Events {
    /// Reads a recording.
    ///
    /// # Errors
    /// If the recording is damaged, or the workload has not begun in it.
    pub fn read(input: impl Read) -> Result<Events, Error> {
        let mut recording = Recording::open(input)?;
        let geometry = recording.geometry().clone();
        let mut events = Vec::new();
        while let Some(event) = recording.next_event()? {
            events.push(event);
        }
        let is_start = |event: &Event| matches!(event, Event::Mark(text) if text == START);
        let start = events.iter().position(is_start).ok_or_else(|| {
            Error::new(furrow_zone::ErrorKind::Corrupt, "the workload has not begun in it")
        })?;
        Ok(Events { geometry, events, start })
    }

    /// The number of events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// True if the recording has no events.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The marks.
    pub fn marks(&self) -> impl Iterator<Item = &str> {
        self.events.iter().filter_map(|event| match event {
            Event::Mark(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// The geometry of the drive.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The events, and the number of events before the workload begins.
    pub fn all(&self) -> (&[Event], usize) {
        (&self.events, self.start)
    }

    /// The progress of the workload after `at` events.
    pub fn progress(&self, at: usize) -> Progress {
        let mut progress = Progress::default();
        for event in &self.events[..at.min(self.events.len())] {
            let Event::Mark(text) = event else { continue };
            match text.split_once(' ').map(|(kind, call)| (kind, call.parse::<usize>())) {
                Some(("b", Ok(call))) => progress = Progress { begun: call + 1, ended: call },
                Some(("e", Ok(call))) => progress.ended = call + 1,
                _ => {}
            }
        }
        progress
    }

    /// Calls that promise nothing because they ended with an error.
    pub fn refused(&self) -> BTreeSet<usize> {
        let marks = self.events.iter().filter_map(|event| match event {
            Event::Mark(text) => text.strip_prefix("x "),
            _ => None,
        });
        marks.filter_map(|call| call.parse().ok()).collect()
    }

    /// Calls that promised durability too early: the last flush before the promise was sent
    /// while a write of the same call was not answered yet, so the drive need not have made that
    /// write durable.
    pub fn hasty(&self) -> BTreeSet<usize> {
        let mut hasty = BTreeSet::new();
        let mut writes = BTreeSet::new();
        let (mut call, mut last_flush) = (None::<usize>, false);
        for event in &self.events[self.start..] {
            match event {
                Event::Submitted { number, command, fua, .. } => match command {
                    Command::Write { .. } | Command::Append { .. } => {
                        writes.insert((*number, *fua));
                    }
                    Command::Flush => last_flush = writes.iter().any(|(_, durable)| !durable),
                    _ => {}
                },
                Event::Answered { number, .. } => {
                    writes.retain(|(other, _)| other != number);
                }
                Event::Mark(text) => match text.split_once(' ') {
                    Some(("b", number)) => {
                        (call, last_flush) = (number.parse().ok(), false);
                        writes.clear();
                    }
                    Some(("e", _)) if last_flush => hasty.extend(call),
                    _ => {}
                },
            }
        }
        hasty
    }

    /// Two copies of `history`: the first without the promises of refused calls, the second without
    /// the promises of refused and of hasty calls.
    pub fn promised(&self, history: &History) -> Arc<[History; 2]> {
        let all = history.without_promises(&self.refused());
        let rest = all.without_promises(&self.hasty());
        Arc::new([all, rest])
    }

    /// Draws cut `number` of `seed`.
    pub fn cut(&self, seed: u64, number: u64) -> Cut {
        let mut rng = Rng::new(seed.rotate_left(17) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let after = |wanted: fn(&Event) -> bool| -> Vec<usize> {
            let events = self.events.iter().enumerate().skip(self.start);
            events.filter(|(_, event)| wanted(event)).map(|(at, _)| at + 1).collect()
        };
        let told = after(|event| matches!(event, Event::Mark(text) if text.starts_with("e ")));
        let any = after(|event| match event {
            Event::Submitted { command, .. } => !matches!(command, Command::Read { .. }),
            Event::Answered { .. } => true,
            Event::Mark(_) => false,
        });
        let places = if rng.one_in(3) && !told.is_empty() { &told } else { &any };
        let at = match places.len() {
            0 => self.start + 1,
            count => places[rng.below(count as u64) as usize],
        };
        let unflushed = match rng.below(5) {
            0 | 1 => Unflushed::Lost,
            2 | 3 => Unflushed::Seeded,
            _ => Unflushed::Kept,
        };
        let fates = Fates { commands: None, unflushed, seed: rng.next() >> 32 };
        Cut { number, at, fates, only_in: None }
    }

    /// All cuts from call `from` to the end of the last call: one after each answer and each
    /// promise. No command in flight has started. The first cut at a place keeps every answered
    /// block. Each further cut at that place loses the unflushed blocks of one zone and keeps all
    /// other blocks.
    ///
    /// # Errors
    /// If no drive can have done what is recorded.
    pub fn each_cut(&self, from: usize) -> Result<Vec<Cut>, Error> {
        let begun = begun(from);
        let is_begun = |event: &Event| matches!(event, Event::Mark(text) if *text == begun);
        let from = self.events.iter().position(is_begun).unwrap_or(self.events.len());
        let mut replay = Replay::new(&self.geometry)?;
        let (mut cuts, mut reads) = (Vec::new(), BTreeSet::new());
        for (at, event) in self.events.iter().enumerate() {
            if matches!(event, Event::Mark(text) if text == END) {
                break;
            }
            apply(&mut replay, event)?;
            let differs = match event {
                Event::Submitted { number, command: Command::Read { .. }, .. } => {
                    reads.insert(*number);
                    false
                }
                Event::Submitted { .. } => false,
                Event::Answered { number, .. } => !reads.remove(number),
                Event::Mark(text) => text == &begun || text.starts_with("e "),
            };
            if at < from || !differs {
                continue;
            }
            let zones = replay.snapshot().unflushed().into_iter().map(Some);
            for only_in in std::iter::once(None).chain(zones) {
                let unflushed = if only_in.is_some() { Unflushed::Lost } else { Unflushed::Kept };
                let fates = Fates { commands: Some(Vec::new()), unflushed, seed: 0 };
                cuts.push(Cut { number: cuts.len() as u64, at: at + 1, fates, only_in });
            }
        }
        Ok(cuts)
    }

    /// The drives after each of `cuts`, which must be in the order of their places.
    pub fn after<'a>(&'a self, cuts: &'a [Cut], defect: Option<Defect>) -> After<'a> {
        After { events: self, cuts, defect, replay: None, at: 0, next: 0 }
    }
}

/// Replays a recording on a drive, and cuts the power at given events.
pub struct After<'a> {
    events: &'a Events,
    cuts: &'a [Cut],
    defect: Option<Defect>,
    replay: Option<Replay>,
    at: usize,
    next: usize,
}

impl Iterator for After<'_> {
    /// The cut, the drive after it, and the number of commands in flight.
    type Item = Result<(Cut, Snapshot, usize), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let cut = self.cuts.get(self.next)?.clone();
        self.next += 1;
        Some(self.lead(&cut).map(|(after, in_flight)| (cut, after, in_flight)))
    }
}

impl After<'_> {
    fn lead(&mut self, cut: &Cut) -> Result<(Snapshot, usize), Error> {
        if self.replay.is_none() || cut.at < self.at {
            (self.replay, self.at) = (Some(Replay::new(&self.events.geometry)?), 0);
        }
        let replay = self.replay.as_mut().expect("invariant: it was made above");
        while self.at < cut.at.min(self.events.len()) {
            if self.at == self.events.start && self.defect.is_some() {
                replay.ignore_flushes();
            }
            apply(replay, &self.events.events[self.at])?;
            self.at += 1;
        }
        let mut fates = cut.fates.clone();
        if self.defect.is_some() {
            fates.unflushed = Unflushed::Lost;
        }
        let mut drive = replay.snapshot();
        if let Some(zone) = cut.only_in {
            drive.write_out_but(zone);
        }
        Ok((drive.power_cut(&fates), replay.in_flight_len()))
    }
}

fn apply(replay: &mut Replay, event: &Event) -> Result<(), Error> {
    match event {
        Event::Submitted { number, command, data, fua } => {
            let request = Request::with_data(*command, data.clone());
            replay.submitted(*number, Request { fua: *fua, ..request });
        }
        Event::Answered { number, done, lba } => replay.answered(*number, *done, *lba)?,
        Event::Mark(_) => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Name, Op};
    use furrow_rt::{PAGE_SIZE, Page, Pages};
    use furrow_ublk::recording::Recorder;
    use furrow_zone::{BlockCount, Lba, Outcome, Status};
    use std::cell::RefCell;
    use std::io::Write;
    use std::rc::Rc;

    #[derive(Clone, Default)]
    struct Shared(Rc<RefCell<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.borrow_mut().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Records calls that each write a block to zone 1, flush it and set their marks.
    fn recorded(calls: usize) -> Events {
        let mut geometry = Geometry::unlimited(4, 64, 64);
        geometry.volatile_cache = true;
        let file = Shared::default();
        let recorder = Recorder::new(&geometry, Box::new(file.clone())).unwrap();
        let carry_out = |command, data| {
            let number = recorder.submitted(&command, &data, false);
            let outcome = Outcome {
                status: Status::Success,
                lba: Lba(0),
                data: Pages::new(),
                oob: Vec::new(),
            };
            recorder.answered(number, &outcome);
        };
        recorder.mark(START).unwrap();
        for call in 0..calls {
            recorder.mark(&begun(call)).unwrap();
            let data = Pages::from_iter([Page::from_slice(&[call as u8; PAGE_SIZE])]);
            let command = Command::Write { lba: Lba(64 + call as u64), blocks: BlockCount(1) };
            carry_out(command, data);
            carry_out(Command::Flush, Pages::new());
            recorder.mark(&ended(call)).unwrap();
        }
        Events::read(&file.0.borrow()[..]).unwrap()
    }

    #[test]
    fn a_flush_that_does_not_wait_for_the_write_is_noticed() {
        let events = |waits: bool| {
            let file = Shared::default();
            let geometry = Geometry::unlimited(4, 64, 64);
            let recorder = Recorder::new(&geometry, Box::new(file.clone())).unwrap();
            let outcome = Outcome {
                status: Status::Success,
                lba: Lba(0),
                data: Pages::new(),
                oob: Vec::new(),
            };
            recorder.mark(START).unwrap();
            recorder.mark(&begun(4)).unwrap();
            let data = Pages::from_iter([Page::zeroed()]);
            let command = Command::Write { lba: Lba(64), blocks: BlockCount(1) };
            let write = recorder.submitted(&command, &data, false);
            if waits {
                recorder.answered(write, &outcome);
            }
            let flush = recorder.submitted(&Command::Flush, &Pages::new(), false);
            if !waits {
                recorder.answered(write, &outcome);
            }
            recorder.answered(flush, &outcome);
            recorder.mark(&ended(4)).unwrap();
            Events::read(&file.0.borrow()[..]).unwrap()
        };
        assert_eq!(events(true).hasty(), BTreeSet::new());
        assert_eq!(events(false).hasty(), BTreeSet::from([4]));
    }

    #[test]
    fn a_call_that_ends_with_an_error_promises_nothing() {
        let file = Shared::default();
        let geometry = Geometry::unlimited(4, 64, 64);
        let recorder = Recorder::new(&geometry, Box::new(file.clone())).unwrap();
        for mark in [START.into(), begun(1), refused(1), begun(2), ended(2)] {
            recorder.mark(&mark).unwrap();
        }
        let events = Events::read(&file.0.borrow()[..]).unwrap();
        assert_eq!(events.refused(), BTreeSet::from([1]));
        let name = Name { directory: 0, number: 0 };
        let mut history = History::default();
        for op in [Op::Create(name), Op::Fsync(name), Op::Fsync(name)] {
            history.apply(op);
        }
        assert_eq!(history.files[0].syncs, [1, 2]);
        let promised = events.promised(&history);
        assert_eq!(promised.each_ref().map(|kept| kept.files[0].syncs.clone()), [[2], [2]]);
    }

    /// For each of 200 cuts: number of calls ended, number of calls begun, number of blocks left.
    fn tried(defect: Option<Defect>) -> Vec<(usize, usize, u64)> {
        let events = recorded(20);
        let mut cuts: Vec<Cut> = (0..200).map(|number| events.cut(7, number)).collect();
        cuts.sort_by_key(|cut| cut.at);
        let after = events.after(&cuts, defect);
        after
            .map(|tried| {
                let (cut, drive, _) = tried.unwrap();
                let progress = events.progress(cut.at);
                (progress.ended, progress.begun, drive.report()[1].write_pointer.0)
            })
            .collect()
    }

    #[test]
    fn what_was_flushed_before_a_cut_is_there_after_it() {
        let tried = tried(None);
        for &(ended, begun, left) in &tried {
            assert!((ended as u64..=begun as u64).contains(&left), "{ended} {begun} {left}");
        }
        let places: std::collections::BTreeSet<_> = tried.iter().collect();
        assert!(places.len() > 20, "{places:?}");
        assert!(tried.iter().any(|(ended, begun, _)| ended == begun));
    }

    #[test]
    fn a_drive_that_ignores_flushes_loses_what_was_promised() {
        let tried = tried(Some(Defect::IgnoredFlushes));
        assert!(tried.iter().any(|(ended, _, left)| (*ended as u64) > *left));
    }

    #[test]
    fn each_cut_of_a_call_is_enumerated() {
        let events = recorded(3);
        let cuts = events.each_cut(2).unwrap();
        let left = |at: usize, only_in| {
            let cut = cuts.iter().find(|cut| (cut.at, cut.only_in) == (at, only_in)).unwrap();
            events.after(std::slice::from_ref(cut), None).next().unwrap().unwrap().1.report()[1]
                .write_pointer
                .0
        };
        // The first event is the start. Each call has six: its first mark, the write, its answer,
        // the flush, its answer, its last mark.
        let places: Vec<_> = cuts.iter().map(|cut| (cut.at, cut.only_in)).collect();
        let zone = Some(ZoneId(1));
        assert_eq!(places, [(14, None), (16, None), (16, zone), (18, None), (19, None)]);
        assert_eq!([left(14, None), left(16, None), left(16, zone)], [2, 3, 2]);
        assert_eq!([left(18, None), left(19, None)], [3, 3]);
    }

    #[test]
    fn a_cut_is_the_same_by_its_number() {
        let events = recorded(20);
        let text = |number| format!("{:?}", events.cut(3, number));
        assert_eq!(text(5), text(5));
        assert_ne!(text(5), text(6));
        assert_ne!(text(5), format!("{:?}", events.cut(4, 5)));
        let progress = events.progress(events.len());
        assert_eq!(progress, Progress { begun: 20, ended: 20 });
        assert!(Events::read(&b"nonsense"[..]).is_err());
    }
}
