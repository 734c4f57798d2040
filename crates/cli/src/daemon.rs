//! A daemon and the command that starts it.
//!
//! A command starts itself again with `--foreground --ready`. It does not fork(2), which would copy
//! only the calling thread. The child writes one line to its standard output (a pipe), `ready
//! MESSAGE` or `failed STATUS MESSAGE`, and closes the pipe; the parent waits for that line. The
//! child inherits no open file of the program that started the command: an inherited lock or pipe
//! would stay in use.

use anyhow::{Context as _, Result};
use furrow_fuse::Signals;
use furrow_rt::Config;
use rustix::io::FdFlags;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

const JOURNAL: &str = "/run/systemd/journal/stdout";

/// Configuration with real time and an unpredictable seed.
pub fn config() -> Result<Config> {
    let mut seed = [0; 8];
    File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut seed))
        .context("/dev/urandom")?;
    Ok(Config { seed: u64::from_ne_bytes(seed), ..Config::real() })
}

/// True if the kernel refused to mark this process as an I/O flusher.
static NO_FLUSHER: AtomicBool = AtomicBool::new(false);

/// Prepares this process to serve the kernel: blocks the signals that end the server, lifts limits,
/// and tells the kernel that dirty pages are written through this process. Threads inherit all of
/// this, so this function is called before the first thread is started.
///
/// # Errors
/// An error if the signals cannot be blocked.
pub fn begin() -> Result<Signals> {
    // A daemon leads its own session, without a terminal that could hang up. To other daemons
    // SIGHUP means "read the configuration again"; here it must not end the process.
    let signals = Signals::block(!leads_session())?;
    crate::limits::lift();
    NO_FLUSHER.store(!furrow_rt::become_io_flusher(), Ordering::Relaxed);
    Ok(signals)
}

/// Whether this process leads a session. This function reads /proc instead of calling getsid(2): if
/// the session began outside the PID namespace of a container, getsid(2) returns 0, which rustix
/// takes for a process id.
fn leads_session() -> bool {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields of /proc/self/stat: process, name in parentheses, state, parent, group,
    // session (proc_pid_stat(5)).
    let process = stat.split(' ').next();
    let session = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(3));
    process.is_some() && process == session
}

/// Warns if the kernel refused a request of [`begin`]; called once the server serves.
pub fn warn_of_refusals() {
    if NO_FLUSHER.load(Ordering::Relaxed) {
        log("the kernel does not let this daemon run as an I/O flusher (it needs \
             CAP_SYS_RESOURCE): if memory runs short, or a memory limit covers the daemon and its \
             users, both may hang");
    }
}

/// Writes a line for the operator to standard error: a terminal, the log file, or the journal.
pub fn log(message: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let line = format!("{} furrow[{}]: {message}\n", utc(now), std::process::id());
    // If the log is gone, there is nowhere left to report that.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Formats `seconds` since 1970 as `2026-11-19T12:34:56Z`.
pub fn utc(seconds: u64) -> String {
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

/// Tells the parent that the daemon serves, with a message for the operator, and closes the pipe.
///
/// # Errors
/// An error if the parent is gone (the user gave up), or the working directory or standard output
/// cannot be changed.
pub fn say_ready(message: &str) -> Result<()> {
    // The directory is changed before the waiting command returns, so that the daemon does not keep
    // the file system of the command's directory busy.
    rustix::process::chdir("/").context("/")?;
    let null = OpenOptions::new().write(true).open("/dev/null").context("/dev/null")?;
    say(&format!("ready {}\n", message.replace('\n', END_OF_LINE)))
        .context("the command that started this daemon is gone")?;
    rustix::stdio::dup2_stdout(null).context("standard output")
}

/// Tells the parent why nothing is served.
pub fn say_failed(status: u8, message: &str) {
    // If the parent is gone, nobody needs the message.
    let _ = say(&format!("failed {status} {}\n", message.replace('\n', " ")));
}

/// ASCII's record separator, which occurs in no message. It stands for the line ends within a
/// message, since a message is one line in the pipe.
const END_OF_LINE: &str = "\u{1e}";

fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()
}

/// Starts the daemon with `arguments` and waits until it serves. Returns the exit status and a
/// message, which may be empty for status 0. `failure` is the status if the daemon dies before
/// it serves.
///
/// # Errors
/// An error if the daemon cannot be started.
pub fn start(arguments: &[OsString], log: Option<&Path>, failure: u8) -> Result<(u8, String)> {
    let program = std::env::current_exe().context("finding this program")?;
    keep_from_children().context("/proc/self/fd")?;
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
    if let Some(message) = line.strip_prefix("ready ").and_then(|line| line.strip_suffix('\n')) {
        return Ok((0, message.replace(END_OF_LINE, "\n")));
    }
    let status = child.wait().context("waiting for the daemon")?;
    let told = line.strip_prefix("failed ").and_then(|rest| {
        let (status, message) = rest.trim_end().split_once(' ')?;
        Some((status.parse().ok()?, message.to_owned()))
    });
    Ok(told.unwrap_or_else(|| (failure, format!("the daemon died before it served: {status}"))))
}

/// Marks every descriptor but the first three as close-on-exec, so that no child inherits it.
#[allow(unsafe_code, reason = "descriptors of others, which only /proc names")]
fn keep_from_children() -> std::io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        let Some(number) = number.filter(|number| *number > 2) else { continue };
        // SAFETY: the descriptor stays open meanwhile, since this program has only one thread here;
        // the descriptor of the listing itself is open until the end of the loop.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC)?;
    }
    Ok(())
}

/// The target of the daemon's messages: the given file, otherwise the journal if there is one,
/// otherwise nothing.
fn log_target(log: Option<&Path>) -> Result<Stdio> {
    if let Some(path) = log {
        crate::text_file::check_append(path)?;
        let file = OpenOptions::new().create(true).append(true).open(path);
        return Ok(file.with_context(|| format!("{}: cannot log there", path.display()))?.into());
    }
    Ok(journal().map_or_else(|_| Stdio::null(), Stdio::from))
}

/// Connects to the journal. The lines sent first are name, unit, priority (6, info) and
/// four switches.
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
