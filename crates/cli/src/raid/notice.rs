//! Tells the operator what happens to an array: by a line in the daemon's log and in a file, and by
//! running a program.
//!
//! Separate threads do this: neither a full disk nor a program that hangs delays the engine.

use crate::daemon::{log, utc};
use anyhow::{Context as _, Result};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Maximum number of notices that wait for one recipient; further ones are not passed to it.
const WAITING: usize = 256;
/// Longest time that a hook may run.
const HOOK_PATIENCE: Duration = Duration::from_secs(60);

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Notice {
    /// Time of the event, in seconds since 1970.
    pub time: u64,
    /// The kind of event: one word, with dashes.
    pub event: String,
    /// Number of the member concerned, if any.
    pub member: Option<u32>,
    /// Description of the event, as text.
    pub text: String,
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Notice {
    /// A notice with the present time.
    pub fn new(event: &str, member: Option<u32>, text: String) -> Notice {
        Notice { time: now(), event: event.to_owned(), member, text }
    }
}

/// The recipients of notices.
pub struct Notices {
    tellers: Vec<(SyncSender<Notice>, JoinHandle<()>)>,
    /// The time at which a hook that still runs is killed; set by [`Notices::end`].
    until: Arc<OnceLock<Instant>>,
}

/// The threads that still have notices to deliver.
pub struct Ending(Vec<JoinHandle<()>>);

impl Ending {
    /// Whether all notices were delivered or given up.
    pub fn is_over(&self) -> bool {
        self.0.iter().all(JoinHandle::is_finished)
    }
}

impl Notices {
    /// Sends notices of the array `name` to the log, to `file` and to `hook`.
    ///
    /// # Errors
    /// An error if the file cannot be written, or no thread can be started.
    pub fn start(
        (name, uuid): (&str, &str),
        file: Option<&Path>,
        hook: Option<&Path>,
    ) -> Result<Notices> {
        let mut notices = Notices { tellers: Vec::new(), until: Arc::default() };
        let file = file.map(|path| append_to(path, name)).transpose()?;
        let array = name.to_owned();
        notices.add("events", move |notice| {
            log(&format!("{array}: {}", notice.text));
            if let Some(write) = &file {
                write(notice);
            }
        })?;
        if let Some(program) = hook {
            notices.add_hook(program, (name, uuid), HOOK_PATIENCE)?;
        }
        Ok(notices)
    }

    /// Also runs `program` for each notice; a run is killed after `patience`.
    fn add_hook(
        &mut self,
        program: &Path,
        (name, uuid): (&str, &str),
        patience: Duration,
    ) -> Result<()> {
        let (program, name, uuid) = (program.to_owned(), name.to_owned(), uuid.to_owned());
        let until = self.until.clone();
        self.add("hook", move |notice| {
            let late = || until.get().is_some_and(|until| Instant::now() >= *until);
            if late() {
                return log(&format!("hook {}: not told: {}", program.display(), notice.text));
            }
            let begun = Instant::now();
            let patient = || begun.elapsed() < patience && !late();
            run_hook(&program, (&name, &uuid), notice, patient);
        })
    }

    fn add(&mut self, name: &str, tell: impl Fn(&Notice) + Send + 'static) -> Result<()> {
        let (sender, receiver): (_, Receiver<Notice>) = sync_channel(WAITING);
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || receiver.iter().for_each(|notice| tell(&notice)));
        self.tellers.push((sender, thread.context("cannot start a thread for events")?));
        Ok(())
    }

    /// Sends a notice to all recipients; never blocks.
    pub fn tell(&self, notice: &Notice) {
        for (sender, _) in &self.tellers {
            match sender.try_send(notice.clone()) {
                Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
            }
        }
    }

    /// Takes no more notices. The waiting notices are delivered within `limit`; then a running hook
    /// is killed, and the remaining notices go only to the log.
    pub fn end(self, limit: Duration) -> Ending {
        let _ = self.until.set(Instant::now() + limit);
        Ending(self.tellers.into_iter().map(|(_, thread)| thread).collect())
    }
}

/// A function that appends lines to `path`: time, array, event, member and text, the first four
/// without blanks.
fn append_to(path: &Path, name: &str) -> Result<impl Fn(&Notice) + Send + 'static> {
    crate::text_file::check_append(path)?;
    let at = format!("{}: cannot keep events there", path.display());
    let file = OpenOptions::new().create(true).append(true).open(path).context(at)?;
    let (path, name): (PathBuf, String) = (path.to_owned(), name.to_owned());
    Ok(move |notice: &Notice| {
        let member = notice.member.map_or("-".to_owned(), |member| member.to_string());
        let Notice { time, event, text, .. } = notice;
        let line = format!("{} {name} {event} {member} {text}\n", utc(*time));
        if let Err(error) = (&file).write_all(line.as_bytes()) {
            log(&format!("{}: {error}", path.display()));
        }
    })
}

fn run_hook(
    program: &Path,
    (name, uuid): (&str, &str),
    notice: &Notice,
    patient: impl Fn() -> bool,
) {
    let member = notice.member.map_or(String::new(), |member| member.to_string());
    let child = Command::new(program)
        .args([&notice.event, name, &member, &notice.text])
        .env("FURROW_EVENT", &notice.event)
        .env("FURROW_ARRAY", name)
        .env("FURROW_UUID", uuid)
        .env("FURROW_MEMBER", &member)
        .env("FURROW_TEXT", &notice.text)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return log(&format!("hook {}: {error}", program.display())),
    };
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return,
            Ok(Some(status)) => return log(&format!("hook {}: {status}", program.display())),
            Ok(None) if patient() => {
                std::thread::sleep(Duration::from_millis(20));
            }
            _ => {
                log(&format!("hook {}: killed, because it did not end", program.display()));
                let _ = child.kill();
                let _ = child.wait();
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, Signal, kill_process, test_kill_process};
    use std::fs;

    /// Notices to the file `events` and a hook, in a folder for the test `test`. For the event
    /// `hangs`, the hook writes its process id to `hanging` and never ends; for other events it
    /// appends the event's name to `told`.
    fn told_to_a_hook(test: &str, patience: Duration) -> (PathBuf, Notices) {
        let folder = std::env::temp_dir().join(format!("furrow-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let hook = folder.join("hook");
        let script = "#!/bin/sh\ncd \"${0%/*}\"\n\
                      [ \"$1\" = hangs ] || { echo \"$1 $2 $FURROW_UUID\" >>told; exit; }\n\
                      echo $$ >pid; mv pid hanging\nexec sleep 100000\n";
        let source = folder.join("script");
        fs::write(&source, script).unwrap();
        // Another process makes the copy: a file that a forked process still has open for writing
        // cannot be executed.
        let copied = Command::new("install").args(["-m", "755"]).args([&source, &hook]).status();
        assert!(copied.unwrap().success());
        let events = folder.join("events");
        let mut notices = Notices::start(("a", "u"), Some(&events), None).unwrap();
        notices.add_hook(&hook, ("a", "u"), patience).unwrap();
        (folder, notices)
    }

    /// Waits until the hook for `hangs` runs, and returns its process id.
    fn hanging(folder: &Path) -> Pid {
        let text = wait_for(&folder.join("hanging"), 1);
        Pid::from_raw(text.trim().parse().unwrap()).unwrap()
    }

    /// Waits until a file has this many lines, and returns its content.
    fn wait_for(path: &Path, lines: usize) -> String {
        let begun = Instant::now();
        loop {
            let text = fs::read_to_string(path).unwrap_or_default();
            assert!(begun.elapsed() < Duration::from_secs(60), "{}: {text}", path.display());
            if text.lines().count() == lines && text.ends_with('\n') {
                return text;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn tell(notices: &Notices, event: &str) {
        notices.tell(&Notice::new(event, None, event.to_owned()));
    }

    /// Ends the notices and waits for their delivery.
    fn told(notices: Notices, limit: Duration) {
        let ending = notices.end(limit);
        while !ending.is_over() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn at_the_end_a_hook_has_a_limit_and_what_waits_is_only_logged() {
        let (folder, notices) = told_to_a_hook("hook-late", Duration::from_secs(100_000));
        ["hangs", "next"].iter().for_each(|event| tell(&notices, event));
        let process = hanging(&folder);
        told(notices, Duration::from_millis(200));
        assert!(test_kill_process(process).is_err(), "it is still there");
        assert!(!folder.join("told").exists());
        assert!(fs::read_to_string(folder.join("events")).unwrap().lines().count() == 2);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_hook_that_hangs_is_killed_and_the_next_event_has_its_own() {
        // Long enough for a hook that does not hang, even on a loaded machine.
        let (folder, notices) = told_to_a_hook("hook-killed", Duration::from_secs(3));
        ["hangs", "next"].iter().for_each(|event| tell(&notices, event));
        let process = hanging(&folder);
        told(notices, Duration::from_secs(600));
        assert!(test_kill_process(process).is_err(), "it is still there");
        assert_eq!(fs::read_to_string(folder.join("told")).unwrap(), "next a u\n");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_hook_that_runs_delays_the_next_and_nothing_else() {
        let (folder, notices) = told_to_a_hook("hook-runs", Duration::from_secs(100_000));
        tell(&notices, "hangs");
        let process = hanging(&folder);
        // These are more notices than can wait for the hook: the sender is not delayed, and the
        // file gets all of them.
        for number in 0..2 * WAITING {
            tell(&notices, &number.to_string());
            wait_for(&folder.join("events"), number + 2);
        }
        assert!(!folder.join("told").exists() && test_kill_process(process).is_ok());
        kill_process(process, Signal::KILL).unwrap();
        told(notices, Duration::from_secs(600));
        let told = fs::read_to_string(folder.join("told")).unwrap();
        let told: Vec<&str> = told.lines().collect();
        assert_eq!((told.len(), told[0]), (WAITING, "0 a u"), "the latest are not told");
        assert_eq!(told[WAITING - 1], format!("{} a u", WAITING - 1));
        fs::remove_dir_all(&folder).unwrap();
    }
}
