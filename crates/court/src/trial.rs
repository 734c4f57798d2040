//! Recording a workload on a file system, and trying power cuts in the recording.

use crate::cuts::{Cut, Defect, END, Events, START, begun, ended, refused};
use crate::host::{Used, serve};
use crate::kind::{Kind, kernel_said, run};
use crate::oracle::{Accusation, Found, Progress, Promise, judge};
use crate::workload::{DIRECTORIES, History, Name, Op, directory_path, pattern};
use anyhow::{Context as _, Result, bail, ensure};
use furrow_emu::{Emulator, Options, Snapshot};
use furrow_rt::{Nanos, Rng};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;

/// Time limit for mounting and checking after one cut, in nanoseconds.
const PATIENCE: u64 = 90 * Nanos::SECOND;

/// Directory at which file systems are mounted.
const PLACE: &str = "/mnt";

/// The drive: enough conventional zones for the file systems that need them, a volatile cache, and
/// space for a few rounds of cleaning.
pub const DRIVE: &str = "zones=88,zone-size=16MiB,conventional=24,max-open=16,max-active=32,\
                         volatile-cache=on";

/// A smaller drive with smaller zones, for workloads with churn.
pub const SMALL_DRIVE: &str = "zones=160,zone-size=4MiB,conventional=96,max-open=16,max-active=32,\
                               volatile-cache=on";

/// A workload on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The file system.
    pub kind: Kind,
    /// Seed of the workload.
    pub seed: u64,
    /// Number of calls of the workload.
    pub calls: usize,
}

impl Case {
    fn mark(&self) -> String {
        format!("workload {} {} {}", self.kind.name(), self.seed, self.calls)
    }

    /// The case that a mark names.
    pub fn parse(mark: &str) -> Option<Case> {
        let mut words = mark.strip_prefix("workload ")?.split(' ');
        let kind = <Kind as clap::ValueEnum>::from_str(words.next()?, false).ok()?;
        let (seed, calls) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Case { kind, seed, calls })
    }
}

/// A process that serves a drive and records its commands.
pub(crate) struct RecordingServer {
    process: Child,
    device: String,
    marks: BufReader<UnixStream>,
}

impl RecordingServer {
    pub fn start(drive: &str, recording: &Path) -> Result<RecordingServer> {
        let mut process = Command::new("furrow")
            .args(["device", "serve", drive, "--ublk", "--record"])
            .arg(recording)
            .stdout(Stdio::piped())
            .spawn()
            .context("furrow")?;
        let said = process.stdout.take().context("invariant: standard output is a pipe")?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        let device = line.split("served as ").nth(1).and_then(|rest| rest.split(',').next());
        let device = device.with_context(|| format!("no device is served: {line}"))?.to_owned();
        let mut socket = recording.as_os_str().to_owned();
        socket.push(".marks");
        let mut tries = 0;
        let marks = loop {
            match UnixStream::connect(&socket) {
                Ok(marks) => break marks,
                Err(error) if tries == 100 => return Err(error).context("the socket of marks"),
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(50)),
            }
            tries += 1;
        };
        Ok(RecordingServer { process, device, marks: BufReader::new(marks) })
    }

    /// Path of the block device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Sets a mark and waits until it is in the recording.
    pub fn mark(&mut self, text: &str) -> Result<()> {
        self.marks.get_mut().write_all(format!("{text}\n").as_bytes())?;
        let mut answer = String::new();
        self.marks.read_line(&mut answer)?;
        ensure!(answer == "\n", "mark {text}: {answer:?}");
        Ok(())
    }

    /// Ends the server. A server that is dropped without this is killed.
    pub fn end(mut self) -> Result<()> {
        let process = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(process, rustix::process::Signal::TERM)?;
        let status = self.process.wait()?;
        ensure!(status.success(), "the server: {status}");
        Ok(())
    }
}

impl Drop for RecordingServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the workload of `case` on a new file system and records its drive. With `churn`, another
/// file first takes that percentage of the free space. It is overwritten at random places between
/// the calls, so that zones are cleaned and reset; its content is not checked.
///
/// # Errors
/// If a call fails.
pub fn record(case: Case, churn: u64, recording: &Path) -> Result<()> {
    let ops = History::generate(case.seed, case.calls).ops;
    let churn = (churn > 0).then_some((churn, case.seed));
    let drive = if churn.is_some() { SMALL_DRIVE } else { DRIVE };
    record_calls(
        case.kind,
        &Setup { drive, ..Setup::default() },
        &case.mark(),
        &ops,
        churn,
        recording,
    )
}

/// The drive and the options of a file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup<'a> {
    /// Spec of the drive, which is in memory.
    pub drive: &'a str,
    /// Further arguments of the command that makes the file system.
    pub make: &'a [&'a str],
    /// Mount options, separated by commas.
    pub mount: &'a str,
}

/// Makes the calls `ops` on a new file system and records its drive, with `mark` first. `churn` is
/// the percentage and the seed, see [`record`].
///
/// # Errors
/// If a call fails.
pub fn record_calls(
    kind: Kind,
    setup: &Setup<'_>,
    mark: &str,
    ops: &[Op],
    churn: Option<(u64, u64)>,
    recording: &Path,
) -> Result<()> {
    let mut server = RecordingServer::start(&format!("mem:{}", setup.drive), recording)?;
    server.mark(mark)?;
    let device = server.device.clone();
    kind.make(&device, setup.make)?;
    kind.mount_with(&device, PLACE, setup.mount)?;
    let top = PathBuf::from(PLACE).join("w");
    std::fs::create_dir(&top)?;
    for directory in 1..DIRECTORIES {
        std::fs::create_dir(top.join(directory_path(directory)))?;
    }
    let mut filler = match churn {
        None => None,
        Some((percent, seed)) => Some(Filler::new(Path::new(PLACE), percent, seed, &|| {})?),
    };
    kind.sync(PLACE)?;
    server.mark(START)?;
    for (call, op) in ops.iter().enumerate() {
        server.mark(&begun(call))?;
        match perform(kind, &top, call, *op) {
            Ok(()) if op.promises() => server.mark(&ended(call))?,
            Ok(()) => {}
            Err(error) if op.promises() && asks_for_another_attempt(&error) => {
                server.mark(&refused(call))?;
            }
            Err(error) => return Err(error.context(format!("call {call}, {op:?}"))),
        }
        if let Some(filler) = &mut filler {
            filler.churn(call).context("churn")?;
        }
    }
    drop(filler);
    server.mark(END)?;
    kind.unmount(PLACE)?;
    server.end()
}

/// The file that causes churn.
pub(crate) struct Filler {
    file: File,
    /// Size in bytes, at least 1 MiB.
    size: u64,
    rng: Rng,
}

impl Filler {
    /// Makes a file that takes `percent` of the free space of the file system at `place`, and calls
    /// `step` after each MiB.
    pub fn new(place: &Path, percent: u64, seed: u64, step: &dyn Fn()) -> Result<Filler> {
        let file = File::create_new(place.join("filler"))?;
        let space = rustix::fs::statvfs(place)?;
        let size = (space.f_bavail * space.f_frsize * percent / 100) >> 20 << 20;
        ensure!(size > 0, "no room for churn");
        let mut filler = Filler { file, size, rng: Rng::new(seed ^ 0xf111) };
        for at in (0..size).step_by(1 << 20) {
            filler.write(at, 1 << 20)?;
            step();
        }
        filler.file.sync_all()?;
        Ok(filler)
    }

    fn write(&mut self, at: u64, bytes: u64) -> Result<()> {
        let data: Vec<u8> = (0..bytes / 8).flat_map(|_| self.rng.next().to_le_bytes()).collect();
        Ok(self.file.write_all_at(&data, at)?)
    }

    /// Overwrites 256 KiB in pieces of 16 KiB, and makes them durable at every eighth call.
    pub fn churn(&mut self, call: usize) -> Result<()> {
        for _ in 0..16 {
            let at = self.rng.below(self.size >> 14) << 14;
            self.write(at, 16 << 10)?;
        }
        if call.is_multiple_of(8) {
            self.file.sync_data()?;
        }
        Ok(())
    }
}

/// True for EAGAIN, which zoned btrfs returned from fdatasync while zones were cleaned.
pub(crate) fn asks_for_another_attempt(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// Makes one call.
fn perform(kind: Kind, top: &Path, call: usize, op: Op) -> Result<()> {
    let path = |name: Name| top.join(name.path());
    let open = |name: Name| OpenOptions::new().write(true).open(path(name));
    match op {
        Op::Create(name) => drop(File::create_new(path(name))?),
        Op::Write { name, offset, length } => {
            open(name)?.write_all_at(&pattern(call, offset, length), offset)?;
        }
        Op::Truncate { name, size } => open(name)?.set_len(size)?,
        Op::Fsync(name) => open(name)?.sync_all()?,
        Op::Fdatasync(name) => open(name)?.sync_data()?,
        Op::Rename(from, to) => std::fs::rename(path(from), path(to))?,
        Op::Unlink(name) => std::fs::remove_file(path(name))?,
        Op::FsyncDirectory(directory) => {
            File::open(top.join(directory_path(directory)))?.sync_all()?;
        }
        Op::Sync => kind.sync(PLACE)?,
    }
    Ok(())
}

/// Reads all files and directories below `top`.
fn look(top: &Path) -> Found {
    let mut found = Found::default();
    for directory in 0..DIRECTORIES {
        let path = top.join(directory_path(directory));
        let listed = std::fs::read_dir(&path)
            .and_then(|entries| entries.map(|entry| entry.map(|e| e.file_name())).collect());
        let names: Vec<_> = match listed {
            Ok(names) => names,
            Err(error) => {
                found.unreadable.push(format!("{}: {error}", path.display()));
                continue;
            }
        };
        for name in names {
            let text = name.to_string_lossy().into_owned();
            if directory == 0 && (1..DIRECTORIES).any(|d| format!("{text}/") == directory_path(d)) {
                continue;
            }
            let number = text.strip_prefix('f').and_then(|number| number.parse().ok());
            match number {
                Some(number) => {
                    let content = std::fs::read(path.join(&name)).map_err(|e| e.to_string());
                    found.names.insert(Name { directory, number }, content);
                }
                None => found.strange.push(format!("{}{text}", directory_path(directory))),
            }
        }
    }
    found
}

/// Makes and writes a new file, and makes it durable.
fn use_it(top: &Path) -> std::io::Result<()> {
    let file = File::create_new(top.join("after"))?;
    file.write_all_at(&[0x5a; 10_000], 0)?;
    file.sync_all()?;
    File::open(top)?.sync_all()
}

/// Mounts the file system on `device` after a power cut and compares it with the promises: with all
/// of them, and without those of hasty calls.
fn examine(
    kind: Kind,
    device: &str,
    options: &str,
    histories: &[History; 2],
    progress: Progress,
) -> [Vec<Accusation>; 2] {
    let accuse = |promise, what: String| Accusation { promise, what };
    if let Err(error) = kind.mount_with(device, PLACE, options) {
        let accusation = accuse(Promise::Mount, format!("{error:#}"));
        return [vec![accusation.clone()], vec![accusation]];
    }
    let top = PathBuf::from(PLACE).join("w");
    let found = look(&top);
    let [mut all, mut rest] = histories.each_ref().map(|history| judge(history, progress, &found));
    let read_only = options.split(',').any(|option| option == "ro");
    let more = use_and_unmount(kind, &top, read_only);
    all.extend_from_slice(&more);
    rest.extend(more);
    [all, rest]
}

fn use_and_unmount(kind: Kind, top: &Path, read_only: bool) -> Vec<Accusation> {
    let accuse = |promise, what: String| Accusation { promise, what };
    let mut accusations = Vec::new();
    if !read_only && let Err(error) = use_it(top) {
        accusations.push(accuse(Promise::Use, format!("a new file: {error}")));
    }
    for _ in 0..20 {
        match kind.unmount(PLACE) {
            Ok(()) => return accusations,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(100)),
        }
    }
    if let Err(error) = kind.unmount(PLACE) {
        accusations.push(accuse(Promise::Use, format!("{error:#}")));
    }
    accusations
}

/// The results of a number of cuts.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Number of calls of the workload that promise nothing, because they failed.
    pub refused_calls: usize,
    /// Number of calls of the workload that were hasty.
    pub hasty_calls: usize,
    /// Number of cuts tried.
    pub cuts: u64,
    /// Number of cuts with commands in flight.
    pub in_flight: u64,
    /// Number of cuts after which a promise was broken.
    pub guilty: u64,
    /// Number of guilty cuts that hasty calls explain, see [`Events::hasty`].
    pub hasty: u64,
    /// Number of cuts by the first promise that was broken.
    pub by_promise: BTreeMap<Promise, u64>,
}

/// Mounts the drive `left` with `options` and compares it with the promises of each of the two
/// `histories`. Returns the broken promises of each.
///
/// # Errors
/// If the drive cannot be served.
pub fn try_one(
    kind: Kind,
    left: &Snapshot,
    options: &str,
    histories: Arc<[History; 2]>,
    progress: Progress,
) -> Result<[Vec<Accusation>; 2]> {
    kernel_said(0);
    let options = options.to_owned();
    let used = serve(
        |rt| Ok(Rc::new(Emulator::from_snapshot(rt, left, Options::fast()))),
        PATIENCE,
        move |device| examine(kind, device, &options, &histories, progress),
    )?;
    Ok(match used {
        Used::Ended(both) => both,
        Used::Hung(said) => {
            let what = format!("it hangs: {}", said.join("\n    "));
            let accusation = Accusation { promise: Promise::Use, what };
            let _ = kind.unmount(PLACE);
            [vec![accusation.clone()], vec![accusation]]
        }
    })
}

/// Lets `btrfs restore` copy the files of the drive `left` without mounting it, and compares them
/// with the promises of the first of `histories`.
///
/// # Errors
/// If the drive cannot be served.
pub fn restored(
    left: &Snapshot,
    histories: Arc<[History; 2]>,
    progress: Progress,
) -> Result<Vec<Accusation>> {
    let used = serve(
        |rt| Ok(Rc::new(Emulator::from_snapshot(rt, left, Options::fast()))),
        PATIENCE,
        move |device| -> Result<Vec<Accusation>> {
            let place = std::env::temp_dir().join(format!("restored-{}", std::process::id()));
            std::fs::create_dir(&place)?;
            let done = run(&["btrfs", "restore", device, &place.to_string_lossy()]);
            let found = look(&place.join("w"));
            std::fs::remove_dir_all(&place)?;
            Ok(match done {
                Ok(()) => judge(&histories[0], progress, &found),
                Err(error) => {
                    vec![Accusation { promise: Promise::Readable, what: format!("{error:#}") }]
                }
            })
        },
    )?;
    match used {
        Used::Ended(accusations) => accusations,
        Used::Hung(said) => bail!("btrfs restore hangs: {}", said.join("\n")),
    }
}

/// Tries the cuts with these `numbers` of `seed` in a recording. `tell` gets the broken promises,
/// and whether hasty calls explain them.
///
/// # Errors
/// If the recording is damaged, or a drive cannot be served.
pub fn try_cuts(
    recording: &Path,
    seed: u64,
    numbers: std::ops::Range<u64>,
    defect: Option<Defect>,
    tell: &mut dyn FnMut(&Cut, &[Accusation], bool),
) -> Result<(Case, Verdict)> {
    let file = File::open(recording).with_context(|| recording.display().to_string())?;
    let events = Events::read(BufReader::with_capacity(1 << 20, file))?;
    let Some(case) = events.marks().find_map(Case::parse) else {
        bail!("{}: it names no workload", recording.display());
    };
    let histories = events.promised(&History::generate(case.seed, case.calls));
    let mut cuts: Vec<Cut> = numbers.map(|number| events.cut(seed, number)).collect();
    cuts.sort_by_key(|cut| cut.at);
    let mut verdict = Verdict {
        refused_calls: events.refused().len(),
        hasty_calls: events.hasty().len(),
        ..Verdict::default()
    };
    for after in events.after(&cuts, defect) {
        let (cut, left, in_flight) = after?;
        let (progress, histories) = (events.progress(cut.at), histories.clone());
        let [accusations, rest] = try_one(case.kind, &left, "", histories, progress)?;
        verdict.cuts += 1;
        verdict.in_flight += u64::from(in_flight > 0);
        if let Some(first) = accusations.first() {
            verdict.guilty += 1;
            verdict.hasty += u64::from(rest.is_empty());
            *verdict.by_promise.entry(first.promise).or_default() += 1;
            tell(&cut, if rest.is_empty() { &accusations } else { &rest }, rest.is_empty());
        }
    }
    Ok((case, verdict))
}
