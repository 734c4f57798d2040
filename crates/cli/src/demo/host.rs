//! How the demo runs the file system: as a daemon behind a mount, or through the library. In both
//! cases another process is killed under load, with SIGKILL.

use super::Places;
use super::files::{Files, Mounted};
use super::library::Library;
use super::load::Load;
use anyhow::{Context, bail};
use furrow_fuse::endpoint::is_dead;
use furrow_fuse::report::{Info, Status, ask_status, status};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time limit for the load to reach its first fsync, and for the kernel to complete a kill.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);

/// Runs the file system.
pub trait Host {
    /// Makes the file system reachable, which includes recovery after a crash.
    fn start(&mut self) -> anyhow::Result<()>;
    /// The file system, while it is reachable.
    fn files(&self) -> anyhow::Result<&dyn Files>;
    /// Makes everything durable.
    fn sync(&self) -> anyhow::Result<()>;
    /// The file system's space, and its counters since the start.
    fn status(&self) -> anyhow::Result<Status>;
    /// Stops the file system cleanly.
    fn stop(&mut self) -> anyhow::Result<()>;
    /// Starts the load of `round`. When `after` has passed since the first acknowledged fsync,
    /// kills the process that serves the file system, and leaves the file system unreachable.
    fn kill_under_load(&mut self, round: &Round, after: Duration) -> anyhow::Result<()>;
}

/// One load and its journal.
pub struct Round<'a> {
    pub number: u32,
    pub journal: &'a Path,
    /// Makes the load for a file system.
    pub load: &'a dyn for<'b> Fn(&'b dyn Files) -> Load<'b>,
}

impl Round<'_> {
    /// Runs the load; its journal lies outside of the file system under test.
    pub fn run(&self, files: &dyn Files) -> anyhow::Result<()> {
        let mut journal = open_journal(self.journal)?;
        (self.load)(files).run(&mut journal, &AtomicBool::new(false))
    }

    /// Waits until an fsync was acknowledged. Returns false if `ended` reports that the load ended
    /// before any fsync was acknowledged.
    fn wait_for_fsync(&self, mut ended: impl FnMut() -> bool) -> anyhow::Result<bool> {
        let since = Instant::now();
        loop {
            if std::fs::metadata(self.journal).is_ok_and(|found| found.len() > 0) {
                return Ok(true);
            }
            if ended() {
                return Ok(false);
            }
            if since.elapsed() > PATIENCE {
                bail!("no fsync returned within {} s", PATIENCE.as_secs());
            }
            std::thread::sleep(POLL);
        }
    }
}

fn open_journal(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("{}: cannot write the journal", path.display()))
}

/// Runs a subcommand of this program and shows its output.
pub fn furrow(out: &mut dyn Write, arguments: &[&str]) -> anyhow::Result<()> {
    writeln!(out, "$ furrow {}", arguments.join(" "))?;
    out.flush()?;
    let result = command(arguments)?.output().context("cannot start furrow")?;
    out.write_all(&result.stdout)?;
    writeln!(out)?;
    if !result.status.success() {
        let message = String::from_utf8_lossy(&result.stderr);
        bail!("furrow {}: {}: {}", arguments.join(" "), result.status, message.trim_end());
    }
    Ok(())
}

fn command(arguments: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(arguments).stdin(Stdio::null());
    Ok(command)
}

/// A daemon behind a mount.
pub struct MountHost<'a> {
    places: &'a Places,
    files: Mounted,
}

impl<'a> MountHost<'a> {
    pub fn new(places: &'a Places) -> MountHost<'a> {
        MountHost { places, files: Mounted::at(places.mount_point.clone()) }
    }

    fn mount_point(&self) -> &'a str {
        &self.places.mount_name
    }

    /// Waits until the kernel has noticed the kill: a killed process still exists for a moment.
    fn wait_for_death(&self) -> anyhow::Result<()> {
        let since = Instant::now();
        while !is_dead(&self.places.mount_point) {
            if since.elapsed() > PATIENCE {
                bail!("the daemon survived SIGKILL for {} s", PATIENCE.as_secs());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn daemon(&self) -> anyhow::Result<Pid> {
        let pid = i32::try_from(self.status()?.info.pid).ok();
        pid.and_then(Pid::from_raw).context("the mount names no daemon")
    }
}

impl Host for MountHost<'_> {
    fn start(&mut self) -> anyhow::Result<()> {
        let log = self.places.daemon_log.as_str();
        let image = self.places.image_name.as_str();
        let options = self.places.options.as_str();
        let mount = ["mount", "--log", log, "-o", options, image, self.mount_point()];
        furrow(&mut io::sink(), &mount)
    }

    fn files(&self) -> anyhow::Result<&dyn Files> {
        Ok(&self.files)
    }

    fn sync(&self) -> anyhow::Result<()> {
        furrow(&mut io::sink(), &["sync", self.mount_point()])
    }

    fn status(&self) -> anyhow::Result<Status> {
        ask_status(&self.places.mount_point)
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        furrow(&mut io::sink(), &["umount", self.mount_point()])
    }

    fn kill_under_load(&mut self, round: &Round, after: Duration) -> anyhow::Result<()> {
        let daemon = self.daemon()?;
        let journal = open_journal(round.journal)?;
        let load = (round.load)(&self.files);
        let killed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                let mut journal = journal;
                let result = load.run(&mut journal, &AtomicBool::new(false));
                // After the kill, errors are expected.
                if killed.load(Ordering::SeqCst) { Ok(()) } else { result }
            });
            if round.wait_for_fsync(|| running.is_finished())? {
                std::thread::sleep(after);
            }
            if !running.is_finished() {
                killed.store(true, Ordering::SeqCst);
                kill_process(daemon, Signal::KILL).context("killing the daemon")?;
            }
            match running.join() {
                Ok(result) => result.context("the load failed before the daemon was killed")?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
            if !killed.load(Ordering::SeqCst) {
                bail!("the load ended before the daemon was killed");
            }
            Ok(())
        })?;
        self.wait_for_death()?;
        // Unmounts the dead mount.
        self.stop()
    }
}

/// Calls the library directly: in this process, and in a child process while the load runs.
pub struct LibraryHost<'a> {
    places: &'a Places,
    library: Option<Library>,
    /// Arguments that make this program run the load of a round in a child.
    child_arguments: &'a dyn Fn(u32) -> Vec<String>,
}

impl<'a> LibraryHost<'a> {
    pub fn new(
        places: &'a Places,
        child_arguments: &'a dyn Fn(u32) -> Vec<String>,
    ) -> LibraryHost<'a> {
        LibraryHost { places, library: None, child_arguments }
    }

    fn library(&self) -> anyhow::Result<&Library> {
        self.library.as_ref().context("the file system is closed")
    }
}

impl Host for LibraryHost<'_> {
    fn start(&mut self) -> anyhow::Result<()> {
        self.library = Some(Library::open(&self.places.image)?);
        Ok(())
    }

    fn files(&self) -> anyhow::Result<&dyn Files> {
        Ok(self.library()?)
    }

    fn sync(&self) -> anyhow::Result<()> {
        Ok(self.library()?.sync()?)
    }

    fn status(&self) -> anyhow::Result<Status> {
        let info = Info { device: self.places.image_name.clone(), ..Info::default() };
        Ok(self.library()?.look(move |fs| status(fs, &info))?)
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        self.library.take().map_or(Ok(()), Library::close)
    }

    fn kill_under_load(&mut self, round: &Round, after: Duration) -> anyhow::Result<()> {
        self.stop()?;
        let arguments = (self.child_arguments)(round.number);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut child = command(&arguments)?.spawn().context("starting the load")?;
        let waited = round.wait_for_fsync(|| has_ended(&mut child));
        if matches!(waited, Ok(true)) {
            std::thread::sleep(after);
        }
        let ended = has_ended(&mut child);
        child.kill().context("killing the load")?;
        child.wait().context("waiting for the load")?;
        waited?;
        if ended {
            bail!("the load ended before it was killed");
        }
        Ok(())
    }
}

fn has_ended(child: &mut Child) -> bool {
    !matches!(child.try_wait(), Ok(None))
}

/// The reason why nothing can be mounted here; `None` if mounts are possible.
pub fn mount_problem() -> Option<String> {
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        return Some(format!("/dev/fuse: {error}"));
    }
    if !rustix::process::geteuid().is_root() {
        return Some("mounting needs root".to_owned());
    }
    // Mounting needs CAP_SYS_ADMIN (bit 21), which root in a container may lack.
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let capabilities = u64::from_str_radix(line.trim(), 16).ok()?;
    (capabilities >> 21 & 1 == 0).then(|| "root lacks CAP_SYS_ADMIN here".to_owned())
}
