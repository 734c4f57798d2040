//! Commands that wait to be carried out, and the choice of the next one.
//!
//! Without shuffling, there is one line for all queues, in the order of arrival. If the order
//! across queues is shuffled, each queue has its own line, and the next command is the first of a
//! line drawn at random.

use crate::cache::Barrier;
use furrow_rt::{Rng, Ticket};
use furrow_zone::{Command, Lba, QueueId, Request};
use std::collections::VecDeque;

/// A command in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandInfo {
    /// Number of the command, from 0 in order of submission.
    pub sequence: u64,
    /// The queue to which the command was submitted.
    pub queue: QueueId,
    /// The command itself.
    pub command: Command,
    /// True if the command is durable when it is answered.
    pub fua: bool,
}

/// A command that was submitted and waits to be carried out.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub ticket: Ticket,
    pub request: Request,
    pub sequence: u64,
    pub queue: QueueId,
    pub barrier: Option<Barrier>,
}

impl Waiting {
    pub fn info(&self) -> CommandInfo {
        CommandInfo {
            sequence: self.sequence,
            queue: self.queue,
            command: self.request.command,
            fua: self.request.fua,
        }
    }
}

/// The position of a waiting command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    line: usize,
    at: usize,
}

/// All waiting commands of a drive.
#[derive(Debug)]
pub(crate) struct Queues {
    lines: Vec<VecDeque<Waiting>>,
    /// For each queue, by its number, the index of its line plus 1; 0 if the queue has no line yet.
    line_of: Vec<u32>,
    /// Indices of the lines that are not empty.
    busy: Vec<u32>,
    waiting: usize,
    sequence: u64,
    shuffle: bool,
}

impl Queues {
    pub fn new(shuffle: bool) -> Queues {
        let lines = if shuffle { Vec::new() } else { vec![VecDeque::new()] };
        Queues { lines, line_of: Vec::new(), busy: Vec::new(), waiting: 0, sequence: 0, shuffle }
    }

    pub fn len(&self) -> usize {
        self.waiting
    }

    #[inline]
    pub fn push(
        &mut self,
        queue: QueueId,
        ticket: Ticket,
        request: Request,
        barrier: Option<Barrier>,
    ) {
        let line = if self.shuffle { self.line(queue) } else { 0 };
        let sequence = self.sequence;
        self.sequence += 1;
        self.waiting += 1;
        if self.lines[line].is_empty() {
            self.busy.push(line as u32);
        }
        self.lines[line].push_back(Waiting { ticket, request, sequence, queue, barrier });
    }

    fn line(&mut self, queue: QueueId) -> usize {
        let index = usize::from(queue.0);
        if self.line_of.len() <= index {
            self.line_of.resize(index + 1, 0);
        }
        if self.line_of[index] == 0 {
            self.lines.push(VecDeque::new());
            self.line_of[index] = self.lines.len() as u32;
        }
        self.line_of[index] as usize - 1
    }

    /// The position of the command to carry out next, if any waits.
    #[inline]
    pub fn next(&self, rng: &mut Rng) -> Option<Position> {
        let line = match self.busy.as_slice() {
            [] => return None,
            [line] => *line,
            many => many[rng.below(many.len() as u64) as usize],
        };
        Some(Position { line: line as usize, at: 0 })
    }

    pub fn get(&self, position: Position) -> Option<&Waiting> {
        self.lines.get(position.line)?.get(position.at)
    }

    /// Removes and returns the command at `position`.
    #[inline]
    pub fn take(&mut self, position: Position) -> Option<Waiting> {
        let line = self.lines.get_mut(position.line)?;
        let taken = if position.at == 0 { line.pop_front() } else { line.remove(position.at) };
        self.waiting -= usize::from(taken.is_some());
        if line.is_empty()
            && let Some(index) = self.busy.iter().position(|busy| *busy as usize == position.line)
        {
            self.busy.swap_remove(index);
        }
        taken
    }

    /// Removes and returns all commands, in order, if they are in one line. The caller returns the
    /// emptied line, so that its memory is reused.
    #[inline]
    pub fn take_line(&mut self) -> Option<VecDeque<Waiting>> {
        let [line] = self.busy[..] else { return None };
        self.busy.clear();
        self.waiting = 0;
        Some(std::mem::take(&mut self.lines[line as usize]))
    }

    /// Takes back the emptied line of [`Queues::take_line`] for reuse.
    pub fn give_back(&mut self, emptied: VecDeque<Waiting>) {
        if let Some(line) = self.lines.iter_mut().find(|line| line.capacity() == 0) {
            *line = emptied;
        }
    }

    /// The positions of the append at `first` and of the waiting appends to its zone that may
    /// overtake it: those of the same line with only appends before them.
    pub fn appends(&self, first: Position) -> Vec<Position> {
        let zone = |waiting: &Waiting| -> Option<Lba> {
            match waiting.request.command {
                Command::Append { zone_start, .. } => Some(zone_start),
                _ => None,
            }
        };
        let Some(wanted) = self.get(first).and_then(zone) else { return Vec::new() };
        self.lines[first.line]
            .iter()
            .enumerate()
            .skip(first.at)
            .map_while(|(at, waiting)| zone(waiting).map(|zone| (at, zone)))
            .filter(|(_, zone)| *zone == wanted)
            .map(|(at, _)| Position { line: first.line, at })
            .collect()
    }

    /// All waiting commands, in order of submission.
    pub fn in_order(&self) -> Vec<&Waiting> {
        let mut all: Vec<&Waiting> = self.lines.iter().flatten().collect();
        all.sort_by_key(|waiting| waiting.sequence);
        all
    }

    /// Removes all waiting commands, in order of submission.
    pub fn drain(&mut self) -> Vec<Waiting> {
        let mut all: Vec<Waiting> = self.lines.iter_mut().flat_map(|line| line.drain(..)).collect();
        all.sort_by_key(|waiting| waiting.sequence);
        self.busy.clear();
        self.waiting = 0;
        all
    }
}
