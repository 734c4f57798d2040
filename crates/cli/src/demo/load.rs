//! The load that runs when the daemon is killed, and the check of what survived.
//!
//! Writers step through the files of a [`Plan`]. After each fsync that returned, a line goes to the
//! journal, a file outside of the file system under test, before the writer does anything else. The
//! check afterwards compares every file with the durability contract: each block and the size have
//! the fsynced version or a later one, the file has one name and not two, and it shows no content
//! of other files.

use super::files::{Files, OpenFile};
use super::plan::{BLOCK, Block, FileId, Follow, Plan, State, Step};
use anyhow::{Context, bail};
use furrow_rt::buf::is_zero;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of files on which a writer works at the same time, so that at the fsync of one file the
/// others are dirty.
const FILES_IN_HAND: usize = 6;

/// Number of bytes by which the writers may be ahead of [`Load::rate_max`].
const BURST: f64 = 1_048_576.0;

/// A load on a folder that exists and is empty.
pub struct Load<'a> {
    pub files: &'a dyn Files,
    pub folder: String,
    pub plan: Plan,
    pub writers: u32,
    /// Maximum number of bytes per second that all writers together write.
    pub rate_max: u64,
}

/// A file in the middle of its steps.
struct Living<'a> {
    file: FileId,
    state: State,
    open: Box<dyn OpenFile + 'a>,
    /// True if the file was renamed since its last fsync.
    renamed_since_sync: bool,
}

/// Limits the rate of a load: counts the bytes that its writers have written since it began.
struct Throttle {
    bytes: AtomicU64,
    since: Instant,
}

impl Throttle {
    /// Waits while the load is ahead of `rate_max` bytes per second.
    fn wait(&self, rate_max: u64) {
        let allowed = || self.since.elapsed().as_secs_f64() * rate_max as f64;
        while self.bytes.load(Ordering::Relaxed) as f64 > allowed() + BURST {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Load<'_> {
    /// Runs until `stop` is set or the file system fails.
    ///
    /// # Errors
    /// The first error of the file system, with the operation that failed. Such an error is
    /// expected when the process is killed.
    pub fn run(&self, journal: &mut (dyn Write + Send), stop: &AtomicBool) -> anyhow::Result<()> {
        let journal = Mutex::new(journal);
        let written = Throttle { bytes: AtomicU64::new(0), since: Instant::now() };
        let writer = |number| {
            let result = self.write(number, &journal, &written, stop);
            if result.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            result
        };
        let writer = &writer;
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..self.writers).map(|number| scope.spawn(move || writer(number))).collect();
            let results = threads.into_iter().map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            results.collect()
        })
    }

    fn write(
        &self,
        writer: u32,
        journal: &Mutex<&mut (dyn Write + Send)>,
        written: &Throttle,
        stop: &AtomicBool,
    ) -> anyhow::Result<()> {
        let folder = format!("{}/w{writer}", self.folder);
        self.files.make_folder(&folder, 0o755).with_context(|| format!("mkdir {folder}"))?;
        let mut in_hand: Vec<Living<'_>> = Vec::new();
        let mut index = 0;
        loop {
            while in_hand.len() < FILES_IN_HAND {
                in_hand.push(self.create(FileId { writer, index })?);
                index += 1;
            }
            for living in &mut in_hand {
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                written.wait(self.rate_max);
                if self.advance(living, written)? {
                    let line = format!("{writer} {} {}\n", living.file.index, living.state.steps);
                    let mut journal =
                        journal.lock().map_err(|_| io::Error::other("a writer died"))?;
                    journal.write_all(line.as_bytes()).context("writing the journal")?;
                }
            }
            in_hand.retain(|living| {
                living.state.steps < self.plan.life(living.file) && living.state.size.is_some()
            });
        }
    }

    fn path(&self, file: FileId, renamed: bool) -> String {
        format!("{}/{}", self.folder, self.plan.name(file, renamed))
    }

    fn create(&self, file: FileId) -> anyhow::Result<Living<'_>> {
        let path = self.path(file, false);
        let open = self.files.open(&path, true).with_context(|| format!("creating {path}"))?;
        Ok(Living { file, state: State::created(), open, renamed_since_sync: false })
    }

    /// Does the next step of a file. Returns true if an fsync followed and was acknowledged.
    fn advance(&self, living: &mut Living<'_>, written: &Throttle) -> anyhow::Result<bool> {
        let Living { file, state, open, renamed_since_sync } = living;
        let path = self.path(*file, state.renamed);
        let step = self.plan.step(*file, state);
        let what = || format!("{step:?} of {path}");
        match step {
            Step::Write { first, length } => {
                let data = self.plan.payload(*file, state.steps + 1, first, length);
                open.write_at(first * BLOCK as u64, &data).with_context(what)?;
                written.bytes.fetch_add(length, Ordering::Relaxed);
            }
            Step::Truncate { size } => open.truncate(size).with_context(what)?,
            Step::Rename => {
                let to = self.path(*file, !state.renamed);
                self.files.rename(&path, &to).with_context(what)?;
                *renamed_since_sync = true;
            }
            Step::Remove => self.files.remove(&path).with_context(what)?,
        }
        state.apply(step);
        let follow = self.plan.follow(*file, state.steps, step, *renamed_since_sync);
        let what = || format!("{follow:?} of {path}");
        match follow {
            Follow::Nothing => return Ok(false),
            Follow::Sync => open.sync().with_context(what)?,
            Follow::SyncData => open.sync_data().with_context(what)?,
            Follow::SyncFolder => {
                let folder = format!("{}/w{}", self.folder, file.writer);
                self.files.sync_folder(&folder).with_context(what)?;
            }
        }
        *renamed_since_sync = false;
        Ok(true)
    }

    /// Compares the folder's content with a journal.
    ///
    /// # Errors
    /// An error if the journal is malformed, or a listing fails. Faults of the file system are in
    /// the report and do not count as errors.
    pub fn check(&self, journal: &str) -> anyhow::Result<Report> {
        let (mut report, mut acknowledged) = (Report::default(), BTreeMap::new());
        for line in journal.lines() {
            let (file, steps) = parse_line(line)?;
            report.fsyncs += 1;
            let last = acknowledged.entry(file).or_insert(steps);
            *last = steps.max(*last);
        }
        let mut found = BTreeSet::new();
        for writer in 0..self.writers {
            let folder = format!("{}/w{writer}", self.folder);
            // If no fsync of a file in the folder was acknowledged, the folder need not
            // have survived.
            if acknowledged.keys().all(|file| file.writer != writer)
                && self.files.attributes(&folder).is_err()
            {
                continue;
            }
            for name in self.files.list(&folder).with_context(|| format!("listing {folder}"))? {
                match self.parse_name(writer, &name) {
                    Some(file) => drop(found.insert(file)),
                    None => report.problems.push(format!("{folder}/{name}: nobody made it")),
                }
            }
        }
        for file in acknowledged.keys().chain(&found).collect::<BTreeSet<_>>() {
            let steps = acknowledged.get(file).copied();
            report.files += u64::from(steps.is_some());
            report.unsynced_files += u64::from(steps.is_none());
            if let Err(problem) = self.check_file(*file, steps, &mut report.blocks) {
                report.problems.push(format!("{problem:#}"));
            }
        }
        Ok(report)
    }

    fn parse_name(&self, writer: u32, name: &str) -> Option<FileId> {
        let digits = name.strip_prefix('f')?;
        let index = digits.strip_suffix(".renamed").unwrap_or(digits).parse().ok()?;
        let file = FileId { writer, index };
        let names = [false, true].map(|renamed| self.plan.name(file, renamed));
        names.contains(&format!("w{writer}/{name}")).then_some(file)
    }

    /// The states in which a file may be. The first is the state at the last acknowledged fsync.
    /// The others are the states after each later step, until the next fsync, which was
    /// not acknowledged.
    fn allowed(&self, file: FileId, acknowledged: u64) -> Vec<State> {
        let (mut state, mut renamed_since_sync) = (State::created(), false);
        let mut states = Vec::new();
        loop {
            if state.steps >= acknowledged {
                states.push(state.clone());
            }
            if state.steps >= self.plan.life(file) || state.size.is_none() {
                return states;
            }
            let step = self.plan.step(file, &state);
            renamed_since_sync |= step == Step::Rename;
            state.apply(step);
            if self.plan.follow(file, state.steps, step, renamed_since_sync) != Follow::Nothing {
                renamed_since_sync = false;
                if state.steps > acknowledged {
                    states.push(state);
                    return states;
                }
            }
        }
    }

    fn check_file(
        &self,
        file: FileId,
        acknowledged: Option<u64>,
        blocks: &mut u64,
    ) -> anyhow::Result<()> {
        let allowed = self.allowed(file, acknowledged.unwrap_or(0));
        let path = self.path(file, false);
        let since = match acknowledged {
            Some(steps) => format!("fsynced at step {steps}"),
            None => "never fsynced".to_owned(),
        };
        let mut present = Vec::new();
        for renamed in [false, true] {
            match self.files.attributes(&self.path(file, renamed)) {
                Ok(attributes) => present.push((renamed, attributes.size)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => bail!("{path}: {error}"),
            }
        }
        let (renamed, size) = match present[..] {
            [] if acknowledged.is_none() || allowed.iter().any(|s| s.size.is_none()) => {
                return Ok(());
            }
            [] => bail!("{path}: lost, {since}"),
            [one] => one,
            _ => bail!("{path}: there under its old and its new name, {since}"),
        };
        let lives: Vec<&State> = allowed.iter().filter(|state| state.size.is_some()).collect();
        if lives.is_empty() {
            bail!("{path}: still there, though its removal was fsynced");
        }
        if !lives.iter().any(|state| state.renamed == renamed) {
            bail!("{}: wrong name, {since}", self.path(file, renamed));
        }
        if !lives.iter().any(|state| state.size == Some(size)) {
            let sizes: BTreeSet<_> = lives.iter().filter_map(|state| state.size).collect();
            bail!("{path}: {size} bytes, may be {sizes:?}, {since}");
        }
        self.check_content(file, renamed, size, &lives, blocks).with_context(|| since)
    }

    fn check_content(
        &self,
        file: FileId,
        renamed: bool,
        size: u64,
        lives: &[&State],
        blocks: &mut u64,
    ) -> anyhow::Result<()> {
        let path = self.path(file, renamed);
        let open = self.files.open(&path, false).with_context(|| format!("opening {path}"))?;
        let mut data = vec![0; size as usize];
        let count = open.read_at(0, &mut data).with_context(|| format!("reading {path}"))?;
        if count != data.len() {
            bail!("{path}: read {count} of {size} bytes");
        }
        for (number, found) in data.chunks(BLOCK).enumerate() {
            *blocks += 1;
            let mut candidates: Vec<Option<Block>> = Vec::new();
            for state in lives {
                let block = state.blocks.get(number).copied().flatten();
                if !candidates.contains(&block) {
                    candidates.push(block);
                }
            }
            let fits = |block: &Option<Block>| {
                let mut expected = [0; BLOCK];
                if let Some(Block { version, length }) = *block {
                    self.plan.content(file, number as u64, version, &mut expected);
                    expected[length..].fill(0);
                }
                *found == expected[..found.len()]
            };
            if !candidates.iter().any(fits) {
                let zeros = if is_zero(found) { " (zeros)" } else { "" };
                bail!("{path}: block {number}{zeros} is none of {candidates:?}");
            }
        }
        Ok(())
    }
}

/// The result of a check.
#[derive(Debug, Default)]
pub struct Report {
    /// Number of acknowledged fsyncs in the journal; each is checked through the state of its file.
    pub fsyncs: u64,
    /// Number of files with an acknowledged fsync.
    pub files: u64,
    /// Number of files found although they were never fsynced; their content was checked too.
    pub unsynced_files: u64,
    /// Number of blocks compared.
    pub blocks: u64,
    /// Faults, a line each.
    pub problems: Vec<String>,
}

/// Parses a line of the journal: writer, index, steps.
fn parse_line(line: &str) -> anyhow::Result<(FileId, u64)> {
    let numbers: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
    match numbers.as_deref() {
        Ok(&[writer, index, steps]) => {
            let (writer, index) = (u32::try_from(writer)?, u32::try_from(index)?);
            Ok((FileId { writer, index }, steps))
        }
        _ => bail!("'{line}' is not a line of a journal"),
    }
}
