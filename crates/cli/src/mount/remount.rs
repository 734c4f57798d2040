//! `mount -o remount,...`: the kernel changes its own options. The daemon changes its options that
//! may change during a mount. If any other option would change, the request is refused and nothing
//! changes.
//!
//! mount(8) adds the options of fstab or of the mount table. Options that are in force already do
//! not count as a change.

use super::daemon::Plan;
use super::options::{self, Options, parse};
use anyhow::{Result, anyhow, bail};
use furrow_fs::Fs;
use furrow_fuse::report::{self, Remount};
use furrow_zone::{Error, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Options that may change while a file system is mounted, in their form without `no`.
const CHANGEABLE: [&str; 9] =
    ["commit", "errors", "gc", "gc_policy", "gc_start", "gc_urgent", "hot", "cold", "lazytime"];
/// Options for access times that may change. `noatime` is not among them: the mount table shows it
/// for every mount, and mount(8) repeats the options of the mount table.
const ACCESS_TIMES: [&str; 4] = ["relatime", "atime", "nostrictatime", "diratime"];
const NOT_TOLD: &str = "noatime";

/// The options of a running mount, for its daemon.
pub struct Running {
    options: Mutex<String>,
    /// The interval of `commit=` in nanoseconds.
    commit: Arc<AtomicU64>,
}

impl Running {
    /// The options of a mount with these texts after `-o`. A change of `commit=` is stored in
    /// `commit`, too.
    pub fn new(texts: &[String], commit: &Arc<AtomicU64>) -> Running {
        Running { options: Mutex::new(texts.join(",")), commit: commit.clone() }
    }
}

impl Remount for Running {
    fn options(&self) -> String {
        self.options.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, fs: &Fs, options: &str) -> std::result::Result<(), Error> {
        let mut now = self.options.lock().unwrap_or_else(PoisonError::into_inner);
        let invalid = |why: String| Error::new(ErrorKind::Invalid, why);
        let changes = changes(&now, options).map_err(invalid)?;
        let texts = [now.as_str(), &changes].into_iter().filter(|text| !text.is_empty());
        let text = texts.collect::<Vec<_>>().join(",");
        let engine = parse([&*text]).map_err(invalid)?.engine;
        self.commit.store(engine.commit_interval, Ordering::Relaxed);
        fs.reconfigure(&engine);
        *now = text;
        Ok(())
    }
}

/// Changes the mount at the plan's directory.
///
/// # Errors
/// An error if no Furrow file system is mounted there, the kernel refuses, or an option may
/// not change.
pub fn remount(plan: &Plan) -> Result<()> {
    let endpoint = &plan.options.endpoint;
    let wanted = plan.texts.join(",");
    // The kernel would show the mount as writable while the daemon refuses every change.
    if !endpoint.read_only
        && report::ask_options(&plan.directory).is_ok_and(|now| is_read_only(&now))
    {
        bail!(
            "{}: mounted with ro: to write to it, unmount it and mount it again; to change other \
             options, add ro",
            plan.directory.display()
        );
    }
    if own(&wanted).next().is_none() {
        return endpoint.remount(&plan.directory);
    }
    let changes = changes_of_mount(&plan.directory, &wanted)?;
    // Fails if the order is too long, before the kernel changes anything.
    report::remount_order(&changes)?;
    endpoint.remount(&plan.directory)?;
    match changes.is_empty() {
        true => Ok(()),
        false => report::ask_remount(&plan.directory, &changes),
    }
}

/// Whether a mount with these options is read-only.
fn is_read_only(options: &str) -> bool {
    parse([options]).is_ok_and(|options| options.endpoint.read_only)
}

fn changes_of_mount(directory: &Path, wanted: &str) -> Result<String> {
    // Fails if nothing is mounted there. The daemon of an earlier version can answer only
    // this request.
    report::ask_status(directory)?;
    let now = report::ask_options(directory).map_err(|_| {
        let own: Vec<&str> = own(wanted).collect();
        anyhow!(
            "{}: the daemon is of an earlier version, and cannot change {}: unmount, and mount \
             again",
            directory.display(),
            own.join(",")
        )
    })?;
    match changes(&now, wanted) {
        Ok(changes) => Ok(changes),
        Err(why) => bail!("{}: remount: {why}", directory.display()),
    }
}

/// The options in `text` that are Furrow's own; the others belong to the kernel, or have no effect.
fn own(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(|option| {
        let name = name(option);
        name != NOT_TOLD
            && (options::is_own(name) || is_changeable(name) || ACCESS_TIMES.contains(&name))
    })
}

fn name(option: &str) -> &str {
    option.split('=').next().unwrap_or(option)
}

fn is_changeable(name: &str) -> bool {
    let known = |name: &str| CHANGEABLE.contains(&name) || ACCESS_TIMES.contains(&name);
    known(name) || name.strip_prefix("no").is_some_and(known)
}

/// The options in `wanted` that would change a mount with the options `now`, separated by commas.
///
/// # Errors
/// The reason why one of them may not change.
fn changes(now: &str, wanted: &str) -> std::result::Result<String, String> {
    let running = parse([now])?;
    let mut changed: Vec<&str> = Vec::new();
    for option in own(wanted) {
        // The last option of a kind counts.
        changed.retain(|earlier| kind(earlier) != kind(option));
        let same = parse([now, option]).is_ok_and(|options| is_same(&options, &running));
        if same {
            continue;
        }
        let name = name(option);
        if !is_changeable(name) {
            return Err(format!(
                "mount option {option} cannot change while the file system is mounted: unmount, \
                 and mount again"
            ));
        }
        changed.push(option);
    }
    let changed = changed.join(",");
    // Parsing the old and new options together finds contradictions between them.
    parse([now, &changed])?;
    Ok(changed)
}

/// The kind of an option: options of one kind exclude each other.
fn kind(option: &str) -> &str {
    let name = name(option);
    match name.strip_prefix("no").unwrap_or(name) {
        "relatime" | "strictatime" => "atime",
        name => name,
    }
}

/// Whether two mounts have the same options.
fn is_same(one: &Options, other: &Options) -> bool {
    format!("{one:?}") == format!("{other:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_option_decides_whether_a_mount_is_read_only() {
        for (options, expected) in [
            ("", false),
            ("ro", true),
            ("commit=5,ro", true),
            ("ro,rw", false),
            ("rw,ro", true),
            ("ro,defaults", false),
            ("errors=remount-ro", false),
        ] {
            assert_eq!(is_read_only(options), expected, "{options}");
        }
    }

    #[test]
    fn only_what_changes_and_may_change_is_changed() {
        for (now, wanted, expected) in [
            ("rw", "remount,ro", ""),
            ("", "remount,commit=20", "commit=20"),
            ("commit=20", "remount,ro,commit=20", ""),
            ("commit=20", "remount,commit=20,commit=7", "commit=7"),
            ("commit=7", "remount,commit=20,commit=7", ""),
            ("cache=1GiB,metrics=/m", "remount,cache=1GiB,metrics=/m,gc=off", "gc=off"),
            ("gc_urgent=8", "gc_start=50,gc_urgent=40", "gc_start=50,gc_urgent=40"),
            ("", "lazytime,nolazytime", ""),
            // mount(8) adds options of its own, which change nothing.
            ("", "rw,noatime,user_id=0,group_id=0,default_permissions,remount", ""),
            ("noatime", "noatime,remount,relatime", "relatime"),
        ] {
            assert_eq!(changes(now, wanted).as_deref(), Ok(expected), "{now} {wanted}");
        }
        for (now, wanted, why) in [
            ("", "remount,cache=1GiB", "cache=1GiB cannot"),
            ("", "remount,commit=20,writeback_cache", "writeback_cache cannot"),
            ("noasync_dio", "remount,async_dio", "async_dio cannot"),
            ("order=append", "order=queued", "order=queued cannot"),
            ("", "gc_urgent=90", "before it starts"),
            ("", "attr_timeout=1", "attr_timeout=1 cannot"),
        ] {
            let error = changes(now, wanted).unwrap_err();
            assert!(error.contains(why), "{now} {wanted}: {error}");
        }
    }
}
