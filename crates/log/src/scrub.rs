//! The course of a scrub, for every engine: orders, pauses, pace, and the report.
//!
//! An engine reads in small batches. Between two batches it asks [`Scrub::may_continue`], and then
//! rests. The engine alone decides what it reads and repairs.

use furrow_rt::{Nanos, Notify, Rt};
use furrow_zone::{Error, ErrorKind, Result};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of findings in a report, which has to fit into an extended attribute; further
/// ones are only counted.
pub const SCRUB_FINDINGS_MAX: usize = 64;
/// While requests are served, a rest is this many times as long as the batch before it.
const REST: u64 = 3;

/// An order to a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubOrder {
    /// Begin a scrub; refused while one runs.
    Start {
        /// Whether to rewrite damaged data that has another copy.
        repair: bool,
    },
    /// Pause until told to resume.
    Pause,
    /// Resume after a pause.
    Resume,
    /// End the scrub early.
    Stop,
}

impl ScrubOrder {
    /// Parses an order: start, repair, pause, resume or stop.
    pub fn parse(word: &str) -> Option<ScrubOrder> {
        Some(match word {
            "start" => ScrubOrder::Start { repair: false },
            "repair" => ScrubOrder::Start { repair: true },
            "pause" => ScrubOrder::Pause,
            "resume" => ScrubOrder::Resume,
            "stop" => ScrubOrder::Stop,
            _ => return None,
        })
    }
}

/// The progress of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScrubState {
    /// The scrub runs.
    #[default]
    Running,
    /// The scrub is paused, by request.
    Paused,
    /// The scrub has read everything.
    Finished,
    /// The scrub was stopped, by request or because the engine ended.
    Stopped,
    /// The scrub ended with an error: see [`ScrubReport::error`].
    Failed,
}

impl ScrubState {
    /// Name of the state in reports.
    pub fn name(self) -> &'static str {
        match self {
            ScrubState::Running => "running",
            ScrubState::Paused => "paused",
            ScrubState::Finished => "finished",
            ScrubState::Stopped => "stopped",
            ScrubState::Failed => "failed",
        }
    }

    /// Whether the scrub has not ended.
    pub fn is_under_way(self) -> bool {
        matches!(self, ScrubState::Running | ScrubState::Paused)
    }
}

/// A damaged structure, or damaged blocks of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubFinding {
    /// The kind of the damaged structure, by its name in the format; `data` for content of files.
    pub structure: &'static str,
    /// Inode number of the file concerned.
    pub inode: Option<u32>,
    /// A path of the file concerned.
    pub path: Option<String>,
    /// The first damaged block of the file, if content is damaged.
    pub block: Option<u32>,
    /// Number of damaged blocks.
    pub blocks: u64,
    /// Place of the damage on the drive, for messages.
    pub place: String,
    /// Description of the damage, for messages.
    pub what: String,
    /// Whether the structure was rewritten from an intact copy.
    pub repaired: bool,
}

impl ScrubFinding {
    /// Identifies the file concerned, if there is one.
    fn file(&self) -> (Option<u32>, Option<String>) {
        (self.inode, self.path.clone())
    }

    /// Whether `next` is damaged content of the same file that directly follows.
    fn precedes(&self, next: &ScrubFinding) -> bool {
        let follows = |(first, then): (u32, u32)| u64::from(first) + self.blocks == then.into();
        self.block.zip(next.block).is_some_and(follows)
            && (self.inode, &self.path) == (next.inode, &next.path)
            && (self.structure, self.repaired) == (next.structure, next.repaired)
    }
}

/// A report on the running scrub, or on the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// The progress of the scrub.
    pub state: ScrubState,
    /// Whether the scrub repairs.
    pub repair: bool,
    /// When the scrub began, in seconds since 1970.
    pub begun: i64,
    /// When the scrub began, by the engine's clock.
    since: Nanos,
    /// Time that the scrub has run, including pauses, in nanoseconds.
    pub took: u64,
    /// Number of blocks of files to read, counted when the scrub began.
    pub total: u64,
    /// Number of blocks of files read and compared.
    pub done: u64,
    /// Number of blocks and records of the engine itself that were read and compared.
    pub records: u64,
    /// Number of damaged blocks and records.
    pub damaged: u64,
    /// Number of damaged blocks and records that were rewritten.
    pub repaired: u64,
    /// The first findings of each file; consecutive damaged blocks are one finding.
    pub findings: Vec<ScrubFinding>,
    /// Number of findings that are not in `findings`.
    pub more_findings: u64,
    /// Damaged files that have no finding in `findings`.
    unnamed: BTreeSet<(Option<u32>, Option<String>)>,
    /// The error that ended the scrub early.
    pub error: Option<String>,
}

impl ScrubReport {
    /// Percentage of the blocks of files that were read; 100 only once everything was read.
    pub fn percent(&self) -> f64 {
        match (self.state, self.total) {
            (ScrubState::Finished, _) => 100.0,
            (_, 0) => 0.0,
            (_, total) => (self.done as f64 * 100.0 / total as f64).min(99.9),
        }
    }

    /// Adds a finding, or only counts it if the report has no space for it.
    pub fn add(&mut self, finding: ScrubFinding) {
        self.damaged += finding.blocks;
        self.repaired += if finding.repaired { finding.blocks } else { 0 };
        if let Some(last) = self.findings.last_mut().filter(|last| last.precedes(&finding)) {
            last.blocks += finding.blocks;
            return;
        }
        if self.findings.len() >= SCRUB_FINDINGS_MAX {
            self.more_findings += 1;
            if self.findings.iter().any(|known| known.file() == finding.file()) {
                return;
            }
            let Some(surplus) = self.surplus() else {
                self.unnamed.insert(finding.file());
                return;
            };
            self.findings.remove(surplus);
        }
        self.findings.push(finding);
    }

    /// Returns the index of the last finding of the file with the most findings; `None` if no file
    /// has several. A finding of a file that has no finding here yet replaces the finding at this
    /// index.
    fn surplus(&self) -> Option<usize> {
        let mut of: BTreeMap<_, (u32, usize)> = BTreeMap::new();
        for (at, finding) in self.findings.iter().enumerate() {
            let (count, last) = of.entry(finding.file()).or_default();
            (*count, *last) = (*count + 1, at);
        }
        of.into_values().max().filter(|(count, _)| *count > 1).map(|(_, last)| last)
    }

    /// Number of damaged files that no finding names.
    pub fn more_files(&self) -> u64 {
        self.unnamed.len() as u64
    }
}

/// The scrub of an engine.
///
/// Invariant: at most one scrub runs, from an order to start until [`Scrub::end`].
#[derive(Default)]
pub struct Scrub {
    report: RefCell<Option<ScrubReport>>,
    stopping: Cell<bool>,
    /// Wakes a scrub that rests, and tasks that wait for the end of a scrub.
    changed: Notify,
}

impl Scrub {
    /// Gives an order. If the order begins a scrub of `total` blocks of files, returns whether the
    /// scrub repairs. The caller then starts the scrub's task, which must call [`Scrub::end`] when
    /// it ends.
    ///
    /// # Errors
    /// `Busy` for an order to start while a scrub runs, and for any other order while none runs.
    pub fn order(&self, rt: &Rt, order: ScrubOrder, total: u64) -> Result<Option<bool>> {
        let mut report = self.report.borrow_mut();
        let running = report.as_mut().filter(|report| report.state.is_under_way());
        let refuse = |what: &str| Err(Error::new(ErrorKind::Busy, what));
        match (order, running) {
            (ScrubOrder::Start { .. }, Some(_)) => return refuse("a scrub is running already"),
            (ScrubOrder::Start { repair }, None) => {
                *report = Some(ScrubReport {
                    repair,
                    begun: rt.wall().0,
                    since: rt.now(),
                    total,
                    ..ScrubReport::default()
                });
                self.stopping.set(false);
                return Ok(Some(repair));
            }
            (_, None) => return refuse("no scrub is running"),
            (ScrubOrder::Pause, Some(report)) => report.state = ScrubState::Paused,
            (ScrubOrder::Resume, Some(report)) => report.state = ScrubState::Running,
            (ScrubOrder::Stop, Some(_)) => self.stopping.set(true),
        }
        self.changed.notify_all();
        Ok(None)
    }

    /// Stops the scrub early, and returns once none runs.
    pub async fn stop(&self) {
        self.stopping.set(true);
        self.changed.notify_all();
        loop {
            let changed = self.changed.wait();
            let running = |report: &ScrubReport| report.state.is_under_way();
            if !self.report.borrow().as_ref().is_some_and(running) {
                return;
            }
            changed.await;
        }
    }

    /// Waits while the scrub is paused. Returns false if the scrub is to end.
    pub async fn may_continue(&self) -> bool {
        loop {
            let changed = self.changed.wait();
            if self.stopping.get() {
                return false;
            }
            let state = self.report.borrow().as_ref().map(|report| report.state);
            if state != Some(ScrubState::Paused) {
                return true;
            }
            changed.await;
        }
    }

    /// Rests after a batch that began at `began`: for a multiple of the batch's time if the engine
    /// is `busy`, otherwise only until other tasks have run.
    pub async fn rest(&self, rt: &Rt, began: Nanos, busy: bool) {
        match busy {
            true => rt.sleep(rt.now().since(began) * REST).await,
            false => rt.yield_now().await,
        }
    }

    /// Changes the report, if there is one.
    pub fn note(&self, change: impl FnOnce(&mut ScrubReport)) {
        if let Some(report) = &mut *self.report.borrow_mut() {
            change(report);
        }
    }

    /// Records the end of the scrub. `ended` is true if the scrub has read everything, false if it
    /// was stopped, or the error that ended it.
    pub fn end(&self, rt: &Rt, ended: Result<bool>) {
        let now = rt.now();
        self.note(|report| {
            report.took = now.since(report.since);
            report.state = match ended {
                Ok(true) => ScrubState::Finished,
                Ok(false) => ScrubState::Stopped,
                Err(error) => {
                    report.error = Some(error.to_string());
                    ScrubState::Failed
                }
            };
        });
        self.changed.notify_all();
    }

    /// Returns a report on the running scrub, or on the last one.
    pub fn report(&self, rt: &Rt) -> Option<ScrubReport> {
        let mut report = self.report.borrow().clone()?;
        if report.state.is_under_way() {
            report.took = rt.now().since(report.since);
        }
        Some(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_much_damage_hides_no_other() {
        let mut report = ScrubReport::default();
        let finding = |inode, block| ScrubFinding {
            structure: "data",
            inode: Some(inode),
            block: Some(block),
            blocks: 1,
            ..ScrubFinding::default()
        };
        (0..200).for_each(|n| report.add(finding(1, 2 * n)));
        (2..70).for_each(|inode| report.add(finding(inode, 0)));
        report.add(finding(69, 7));
        assert_eq!(report.findings.len(), SCRUB_FINDINGS_MAX);
        let named: BTreeSet<_> = report.findings.iter().filter_map(|f| f.inode).collect();
        assert_eq!(named, (1..65).collect());
        // Findings of the first file, and of five files for which there is no space.
        assert_eq!((report.more_findings, report.more_files()), (199 + 5 + 1, 5));
        assert_eq!(report.damaged, 200 + 68 + 1);
    }
}
