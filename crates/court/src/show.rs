//! A recording as text, an event per line.

use crate::cuts::Events;
use crate::recording::Event;
use crate::workload::Op;
use furrow_zone::{Command, Lba, Target};
use std::collections::BTreeSet;

/// Turns events into lines, in their order.
pub struct Lines<'a> {
    events: &'a Events,
    calls: &'a [Op],
    /// `None` if reads are shown; otherwise the reads that were hidden and are not answered yet.
    hidden: Option<BTreeSet<u64>>,
}

impl<'a> Lines<'a> {
    /// The lines that show `events`. `calls` are the calls during which the events were recorded.
    /// Reads are shown only if `reads`.
    pub fn new(events: &'a Events, calls: &'a [Op], reads: bool) -> Lines<'a> {
        Lines { events, calls, hidden: (!reads).then(BTreeSet::new) }
    }

    /// The line of the event at `at`, if it is shown.
    pub fn line(&mut self, at: usize) -> Option<String> {
        let event = self.events.all().0.get(at)?;
        let line = match event {
            Event::Submitted { number, command: command @ Command::Read { .. }, .. } => {
                match &mut self.hidden {
                    Some(hidden) => {
                        hidden.insert(*number);
                        return None;
                    }
                    None => format!("#{number} {}", self.command(command)),
                }
            }
            Event::Submitted { number, command, fua, .. } => {
                let durable = if *fua { ", durable" } else { "" };
                format!("#{number} {}{durable}", self.command(command))
            }
            Event::Answered { number, done, .. } => {
                if self.hidden.as_mut().is_some_and(|hidden| hidden.remove(number)) {
                    return None;
                }
                format!("#{number} {}", if *done { "done" } else { "failed" })
            }
            Event::Mark(text) => {
                let call = text.split_once(' ').and_then(|(_, call)| call.parse::<usize>().ok());
                match call.and_then(|call| self.calls.get(call)) {
                    Some(op) => format!("-- {text}: {op:?}"),
                    None => format!("-- {text}"),
                }
            }
        };
        Some(format!("{:>6} {line}", at + 1))
    }

    fn command(&self, command: &Command) -> String {
        let geometry = self.events.geometry();
        let place = |lba: Lba| match geometry.locate(lba) {
            Some((zone, offset)) => format!("zone {} + {}", zone.0, offset.0),
            None => "nowhere".to_owned(),
        };
        match *command {
            Command::Read { lba, blocks } => format!("read {blocks} at {}", place(lba)),
            Command::Write { lba, blocks } => format!("write {blocks} at {}", place(lba)),
            Command::Append { zone_start, blocks } => {
                format!("append {blocks} to {}", place(zone_start))
            }
            Command::Flush => "flush".to_owned(),
            Command::Manage { target: Target::Zone(lba), action } => {
                format!("{action:?} {}", place(lba))
            }
            Command::Manage { target: Target::All, action } => format!("{action:?} all"),
        }
    }
}
