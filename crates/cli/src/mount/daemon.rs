//! The process that serves a mount, and the one that starts it.
//!
//! `furrow mount` starts itself again with `--foreground --ready`: no fork, so no thread is lost
//! halfway. The child says on its standard output (a pipe) how it went, in one line, `ready` or
//! `failed STATUS MESSAGE`, and lets it go; the parent waits for that line.

use super::metrics;
use super::options::Options;
use anyhow::{Context as _, Result, anyhow};
use furrow_emu::OpenMode;
use furrow_fs::Fs;
use furrow_fuse::{Face, Info, Session, Signals};
use furrow_rt::{Config, Pool, Port};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Error, ErrorKind};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const JOURNAL: &str = "/run/systemd/journal/stdout";
/// How long a device may stay locked by a daemon that is finishing its last checkpoint.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
const TRY_EVERY: Duration = Duration::from_millis(50);

/// A mount to be made.
pub struct Plan {
    /// The device, as given.
    pub device: String,
    /// What the mount table names as the source.
    pub source: String,
    /// Mount point.
    pub directory: PathBuf,
    /// What `-o` said.
    pub options: Options,
}

/// Serves the mount until it is unmounted. Calls `ready` once it works.
///
/// # Errors
/// If the device or the directory cannot be used, `ready` fails, or the last checkpoint does.
pub fn serve(plan: Plan, ready: impl FnOnce() -> Result<()>) -> Result<()> {
    // Before any other thread: they inherit it.
    let signals = Signals::block()?;
    let metrics = plan.options.metrics.as_ref().map(metrics::Service::prepare).transpose()?;
    let no_more_metrics = || plan.options.metrics.iter().for_each(metrics::end);
    let (port, pool, info) = start_engine(&plan).inspect_err(|_| no_more_metrics())?;
    let mut endpoint = plan.options.endpoint.clone();
    endpoint.source.clone_from(&plan.source);
    let face = Face::new(port.clone(), pool, plan.options.ttl, info, Box::new(log));
    let reporter = face.reporter();
    let served = Session::mount(face, &endpoint, &plan.directory)
        .and_then(|session| {
            signals.unmount_on_signal(session.directory().to_owned(), log)?;
            metrics.map_or(Ok(()), |service| service.start(reporter))?;
            ready()?;
            Ok(session)
        })
        .and_then(|session| {
            log(&format!("{} mounted on {}", plan.source, session.directory().display()));
            session.run()
        });
    let ended = stop_engine(port).with_context(|| format!("{}: unmount", plan.source));
    no_more_metrics();
    match (&served, &ended) {
        (Ok(()), Ok(())) => log(&format!("{} unmounted", plan.source)),
        // The first error is returned; what follows it must not be lost.
        (Err(_), Err(error)) => log(&format!("{error:#}")),
        _ => {}
    }
    served.and(ended)
}

fn start_engine(plan: &Plan) -> Result<(Port<Fs>, Pool, Info)> {
    let spec: DeviceSpec = plan.device.parse()?;
    let read_only = plan.options.engine.read_only;
    let mode = if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    let (sender, receiver) = channel();
    let (source, options) = (plan.source.clone(), plan.options.engine.clone());
    let port = Port::start(config()?, move |rt| {
        let device = open_device(rt, &spec, mode)?;
        let info = Info {
            device: source,
            pid: std::process::id(),
            read_only,
            zone_blocks: device.geometry().zone_capacity.0,
        };
        let engine = rt.clone();
        let fs = rt.block_on(async move { Fs::mount(&engine, device, options).await })?;
        // The other end waits for it below.
        let _ = sender.send((fs.pool().clone(), info));
        Ok::<Fs, Error>(fs)
    })?;
    let (pool, info) = receiver.recv().map_err(|_| anyhow!("the engine did not start"))?;
    Ok((port, pool, info))
}

/// Opens the device. One that is locked is waited for: the daemon of its last mount may still be
/// writing its last checkpoint, which umount(8) does not wait for.
fn open_device(
    rt: &furrow_rt::Rt,
    spec: &DeviceSpec,
    mode: OpenMode,
) -> Result<std::rc::Rc<dyn furrow_zone::ZonedDevice>, Error> {
    let mut waited = Duration::ZERO;
    loop {
        match furrow_emu::open(rt, spec, mode) {
            Err(error) if error.kind() == ErrorKind::Busy && waited < LOCK_PATIENCE => {
                std::thread::sleep(TRY_EVERY);
                waited += TRY_EVERY;
            }
            Ok(drive) => return Ok(drive),
            Err(error) => return Err(error),
        }
    }
}

fn stop_engine(port: Port<Fs>) -> Result<()> {
    let unmounted = port.try_stop(|_, fs| {
        let fs = fs.clone();
        async move { fs.unmount().await }
    });
    unmounted.context("no last checkpoint")??;
    Ok(())
}

/// Real time and an unpredictable seed.
pub fn config() -> Result<Config> {
    let mut seed = [0; 8];
    File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut seed))
        .context("/dev/urandom")?;
    Ok(Config { seed: u64::from_ne_bytes(seed), ..Config::real() })
}

/// A line for the operator, on standard error: a terminal, the log file, or the journal.
pub fn log(message: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let line = format!("{} furrow[{}]: {message}\n", utc(now), std::process::id());
    // Nowhere is left to say that the log is gone.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Seconds since 1970 as `2026-11-19T12:34:56Z`.
fn utc(seconds: u64) -> String {
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days count from 0000-03-01, so that the leap day ends a year.
    days += 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Tells the parent that the mount works, and lets go of the pipe.
///
/// # Errors
/// If the parent is gone: whoever asked for the mount gave up.
pub fn say_ready() -> Result<()> {
    say("ready\n").context("the command that started this daemon is gone")?;
    let null = OpenOptions::new().write(true).open("/dev/null").context("/dev/null")?;
    rustix::stdio::dup2_stdout(null).context("standard output")?;
    // Not to keep the file system busy that the command was run from.
    rustix::process::chdir("/").context("/")
}

/// Tells the parent why there is no mount.
pub fn say_failed(status: u8, message: &str) {
    // A parent that is gone does not want to know.
    let _ = say(&format!("failed {status} {}\n", message.replace('\n', " ")));
}

fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()
}

/// Starts the daemon with `arguments` and waits until the mount works. Returns the exit status,
/// and what to say if it is not 0.
///
/// # Errors
/// If the daemon cannot be started.
pub fn start(arguments: &[OsString], log: Option<&Path>) -> Result<(u8, String)> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log_target(log)?)
        .spawn()
        .context("cannot start the daemon")?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line).context("waiting for the daemon")?;
    }
    if line == "ready\n" {
        return Ok((0, String::new()));
    }
    let status = child.wait().context("waiting for the daemon")?;
    let told = line.strip_prefix("failed ").and_then(|rest| {
        let (status, message) = rest.trim_end().split_once(' ')?;
        Some((status.parse().ok()?, message.to_owned()))
    });
    Ok(told.unwrap_or_else(|| (32, format!("the daemon died before the mount worked: {status}"))))
}

/// Where the daemon's messages go: the file asked for, else the journal, else nowhere.
fn log_target(log: Option<&Path>) -> Result<Stdio> {
    if let Some(path) = log {
        let file = OpenOptions::new().create(true).append(true).open(path);
        return Ok(file.with_context(|| format!("{}: cannot log there", path.display()))?.into());
    }
    Ok(journal().map_or_else(|_| Stdio::null(), Stdio::from))
}

/// A stream whose lines the journal keeps: name, unit, priority (6, info), and four switches.
fn journal() -> std::io::Result<OwnedFd> {
    let mut stream = UnixStream::connect(JOURNAL)?;
    stream.write_all(b"furrow\n\n6\n0\n0\n0\n0\n")?;
    Ok(stream.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_day_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(config().unwrap().seed, config().unwrap().seed);
    }
}
