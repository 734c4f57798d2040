//! `furrow scrub`: reads and verifies everything of a mounted file system, or of a file store.

mod all;

use crate::findings::groups;
use crate::kv::{self, running};
use crate::show;
use crate::target::{Target, source_name};
use anyhow::{Context as _, Result, bail};
use furrow_control::store::Request;
use furrow_fuse::report::{self, Scrub, ScrubDamage};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{IsTerminal as _, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Version of the JSON document.
const VERSION: u32 = 1;
/// Interval between two queries of the progress.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Interval between two lines of progress without a terminal.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// Longest time that a store may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Read and verify everything in use, without interrupting its use
///
/// In a mounted file system, verifies all nodes and all content of files against the checksums in
/// their pointers, and the structures that a mount needs: both superblocks, checkpoint, tables,
/// delta logs, sync log. In a file store, verifies the record ring, and all content against its
/// checksums; if no program uses the store, this command reads the drive itself. Each damaged file
/// is named, with the range of bytes. The scrub runs in the background, at low priority: it pauses
/// while requests are served. Without other options this command waits for the end of the scrub;
/// interrupting the command does not end the scrub. Needs root for a mount, and the user of the
/// program for a store.
///
/// Exit status: 0 if no damage is left, 1 if some is, or if the scrub ended early.
#[derive(clap::Args)]
pub struct Args {
    /// Mount point, the device of a mount, or the drive of a file store
    #[arg(value_name = "DIR|DEVICE|STORE", required_unless_present = "all")]
    target: Option<OsString>,
    /// Scrub every array, mount and store that runs on this machine, one after the other, and wait
    /// for the end; the exit status is 1 if one of them has damage left, could not be scrubbed, or
    /// is an array with a member that was not checked
    #[arg(long, conflicts_with_all = ["target", "wait", "background", "status"])]
    #[arg(conflicts_with_all = ["pause", "resume", "stop", "json"])]
    all: bool,
    /// Rewrite damaged structures that are still known: blocks that are in memory, tables and
    /// checkpoints, the record ring. Damaged content that only the drive had is never changed
    #[arg(short, long)]
    repair: bool,
    /// Show the progress until the scrub ends, and the findings. This is the default for a new
    /// scrub; the option also follows one that already runs
    #[arg(short, long)]
    wait: bool,
    /// Begin a scrub and return
    #[arg(short, long, conflicts_with = "wait")]
    background: bool,
    /// Show the running scrub, or the last one
    #[arg(long, conflicts_with_all = ["repair", "wait", "background"])]
    status: bool,
    /// Pause the running scrub
    #[arg(long, conflicts_with_all = ["repair", "wait", "background", "status"])]
    pause: bool,
    /// Resume a paused scrub
    #[arg(long, conflicts_with_all = ["repair", "background", "status", "pause"])]
    resume: bool,
    /// Stop the running scrub
    #[arg(short, long, visible_alias = "cancel")]
    #[arg(conflicts_with_all = ["repair", "wait", "background", "status", "pause", "resume"])]
    stop: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The file system or store that is scrubbed.
enum Place {
    Mount(PathBuf),
    /// The control socket of the program that uses the store.
    Store(PathBuf),
}

impl Place {
    /// Sends `order`; without an order, only asks. Returns the running scrub, or the last one.
    fn ask(&self, order: Option<&str>) -> Result<Option<Scrub>> {
        match self {
            Place::Mount(directory) => report::ask_scrub(directory, order),
            Place::Store(socket) => {
                let request = Request::Scrub { order: order.map(str::to_owned) };
                let answer = running::ask(socket, &request, PATIENCE)?;
                let scrub = serde_json::from_value(answer["scrub"].clone());
                scrub.context("a scrub of another version")
            }
        }
    }

    /// Sends an order to the file system or store that the user calls `name`.
    fn tell(&self, name: &str, order: &str) -> Result<Option<Scrub>> {
        let told = self.ask(Some(order));
        match self {
            // Errors of a mount already name the mount.
            Place::Mount(_) => told,
            Place::Store(_) => told.with_context(|| name.to_owned()),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// An error if the target cannot be scrubbed, or if the state of its scrub does not allow
/// the order.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<u8> {
    let Some(target) = args.target.as_ref().filter(|_| !args.all) else {
        return all::run(args.repair, out);
    };
    let name = target.to_string_lossy().into_owned();
    let place = match Target::find(target)? {
        Target::Mounted(directory) => Place::Mount(directory),
        Target::Device(device) => match running::socket_of(&device)? {
            Some(socket) => Place::Store(socket),
            None => return of_closed(args, &device, out),
        },
    };
    let asked = [(args.pause, "pause"), (args.resume, "resume"), (args.stop, "stop")];
    if let Some((_, order)) = asked.into_iter().find(|(asked, _)| *asked) {
        let scrub = place.tell(&name, order)?;
        if !(args.resume && args.wait) {
            let said = match order {
                "pause" => "the scrub rests",
                "resume" => "the scrub resumes",
                _ => "the scrub stops",
            };
            return answer(args.json, out, (&name, scrub), said);
        }
    } else if args.status {
        let mut scrub = place.ask(None)?;
        if let (Place::Mount(directory), Some(scrub)) = (&place, &mut scrub) {
            name_files(directory, &mut scrub.findings);
        }
        let said = if scrub.is_none() { "no scrub was begun since it was opened" } else { "" };
        let left = scrub.as_ref().is_some_and(is_bad);
        answer(args.json, out, (&name, scrub), said)?;
        return Ok(u8::from(left));
    } else {
        let begun = begin(&place, &name, args.repair, args.wait && !args.repair)?;
        if args.background {
            return answer(args.json, out, (&name, begun), "a scrub begins");
        }
    }
    finish(&place, &name, args.json, out)
}

/// Begins a scrub. With `joins`, returns `None` if a scrub runs already, which then continues.
fn begin(place: &Place, name: &str, repair: bool, joins: bool) -> Result<Option<Scrub>> {
    if joins && place.ask(None)?.is_some_and(|scrub| scrub.is_under_way()) {
        return Ok(None);
    }
    let order = if repair { "repair" } else { "start" };
    place.tell(name, order)
}

/// Waits for the end of the scrub, and prints its findings.
fn finish(place: &Place, name: &str, json: bool, out: &mut dyn Write) -> Result<u8> {
    let mut scrub = wait(place, name, json)?;
    if let Place::Mount(directory) = place {
        name_files(directory, &mut scrub.findings);
    }
    let bad = is_bad(&scrub);
    answer(json, out, (name, Some(scrub)), "")?;
    Ok(u8::from(bad))
}

/// Scrubs everything and waits for the end. If a scrub runs already, waits for that one.
fn scrub_to_the_end(place: &Place, name: &str, repair: bool, out: &mut dyn Write) -> Result<u8> {
    begin(place, name, repair, true)?;
    finish(place, name, false, out)
}

/// Whether damage is left, or not everything was read.
fn is_bad(scrub: &Scrub) -> bool {
    scrub.damaged > scrub.repaired || matches!(scrub.state.as_str(), "failed" | "stopped")
}

/// Asks the program behind a store's control socket to scrub the store, and waits for the end. If a
/// scrub runs already, its end is waited for.
///
/// # Errors
/// An error if the program does not begin the scrub or does not report it.
pub fn of_store_in_use(socket: &Path, name: &str, quiet: bool) -> Result<Scrub> {
    let place = Place::Store(socket.to_owned());
    if place.ask(None)?.is_none_or(|scrub| scrub.state != "running") {
        place.ask(Some("start")).with_context(|| name.to_owned())?;
    }
    wait(&place, name, quiet)
}

/// Scrubs a store that no program uses: this process reads its drive.
fn of_closed(args: &Args, device: &str, out: &mut dyn Write) -> Result<u8> {
    if args.status || args.pause || args.resume || args.stop || args.background {
        bail!("{device}: no program uses the store: no scrub runs");
    }
    let scrub = kv::scrub_closed(device, args.repair, args.json)?;
    let bad = is_bad(&scrub);
    answer(args.json, out, (&source_name(device), Some(scrub)), "")?;
    Ok(u8::from(bad))
}

/// Prints the answer: a JSON document, or the text `said` and the state of the scrub.
fn answer(
    json: bool,
    out: &mut dyn Write,
    (name, scrub): (&str, Option<Scrub>),
    said: &str,
) -> Result<u8> {
    if json {
        let scrub = scrub.map_or(Ok(Value::Null), serde_json::to_value)?;
        show::json(out, &json!({ "version": VERSION, "target": name, "scrub": scrub }))?;
        return Ok(0);
    }
    if !said.is_empty() {
        writeln!(out, "{name}: {said}")?;
        return Ok(0);
    }
    let Some(scrub) = scrub else { return Ok(0) };
    print_damage(out, &format!("{name}: "), &scrub.findings)?;
    if scrub.more_findings > 0 {
        let files = match scrub.more_files {
            0 => String::new(),
            files => format!(", in {} more that furrow fsck names", show::count(files, "file")),
        };
        let more = show::count(scrub.more_findings, "more finding");
        writeln!(out, "{name}: and {more}{files}")?;
    }
    writeln!(out, "{name}: {}", describe(&scrub))?;
    Ok(0)
}

/// Shows the progress until the scrub ends.
fn wait(place: &Place, name: &str, quiet: bool) -> Result<Scrub> {
    let terminal = std::io::stderr().is_terminal();
    let mut said: Option<Instant> = None;
    loop {
        let Some(scrub) = place.ask(None)? else { bail!("{name}: no scrub was begun") };
        if !scrub.is_under_way() {
            if terminal && said.is_some() {
                show::redraw("", true);
            }
            return Ok(scrub);
        }
        if !quiet && (terminal || said.is_none_or(|at| at.elapsed() >= SAY_EVERY)) {
            let line = format!("{} {name}: scrub {}", show::bar(scrub.percent), describe(&scrub));
            // Without a terminal the first line is left out: a short scrub needs none.
            if terminal || said.is_some() {
                show::redraw(&line, terminal);
            }
            said = Some(Instant::now());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The state of a scrub as text.
pub fn describe(scrub: &Scrub) -> String {
    if scrub.is_under_way() {
        let (done, of) = (show::bytes(scrub.blocks_done * 4096), show::bytes(scrub.blocks * 4096));
        let left = scrub.seconds_left().filter(|_| scrub.state == "running");
        let left = left.map_or_else(String::new, |seconds| format!(", {seconds:.0} s to go"));
        let found = match scrub.damaged {
            0 => String::new(),
            some => format!(", {some} damaged"),
        };
        return format!("{}: {done} of {of}{found}{left}", scrub.state);
    }
    let damaged = match (scrub.damaged, scrub.repaired, scrub.repair) {
        (0, ..) => "nothing damaged".to_owned(),
        (some, 0, false) => format!("{some} DAMAGED"),
        (some, mended, _) if mended == some => format!("{some} damaged and mended"),
        (some, mended, _) => format!("{some} DAMAGED, {mended} of them mended"),
    };
    let read = format!(
        "{} and {} read in {:.1} s",
        show::count(scrub.blocks_done, "block"),
        show::count(scrub.records, "record"),
        scrub.seconds
    );
    match (scrub.state.as_str(), &scrub.error) {
        (_, Some(error)) => format!("ended early: {error}: {read}, {damaged}"),
        ("stopped", _) => format!("stopped: {read}, {damaged}"),
        _ => format!("{read}, {damaged}"),
    }
}

/// Prints the damage, each line after `prefix`: for each file the first place, and the number of
/// other places.
///
/// # Errors
/// An error if writing fails.
pub fn print_damage(
    out: &mut dyn Write,
    prefix: &str,
    findings: &[ScrubDamage],
) -> std::io::Result<()> {
    let file = |damage: &'_ ScrubDamage| {
        let named = damage.path.clone().or(damage.inode.map(|inode| inode.to_string()))?;
        Some((damage.structure.clone(), damage.repaired, named))
    };
    for group in groups(findings, file) {
        writeln!(out, "{prefix}{}", show::printable(&describe_damage(group[0])))?;
        if group.len() > 1 {
            let more = show::count(group.len() as u64 - 1, "more damaged place");
            writeln!(out, "{prefix}and {more} of the same file (--json lists each)")?;
        }
    }
    Ok(())
}

/// Names the damaged structure, and the damage.
pub fn describe_damage(damage: &ScrubDamage) -> String {
    let file = match (&damage.path, damage.inode) {
        (Some(path), _) => format!("{path}: "),
        (None, Some(inode)) => format!("inode {inode}: "),
        (None, None) => String::new(),
    };
    let range = match (damage.offset, damage.bytes) {
        (Some(offset), Some(bytes)) => format!("bytes {offset} to {}, ", offset + bytes - 1),
        _ => String::new(),
    };
    let mended = if damage.repaired { ", mended" } else { "" };
    let (structure, place, what) = (&damage.structure, &damage.place, &damage.what);
    format!("{structure}: {file}{range}{place}: {what}{mended}")
}

/// Finds paths of damaged files in the mount.
pub fn name_files(directory: &Path, findings: &mut [ScrubDamage]) {
    let wanted: BTreeSet<u32> = findings.iter().filter_map(|damage| damage.inode).collect();
    let Ok(root) = std::fs::metadata(directory) else { return };
    let mut paths: BTreeMap<u64, PathBuf> = BTreeMap::new();
    let mut folders = vec![directory.to_owned()];
    if wanted.contains(&(root.ino() as u32)) {
        paths.insert(root.ino(), directory.to_owned());
    }
    while let Some(folder) = folders.pop() {
        if paths.len() == wanted.len() {
            break;
        }
        // A damaged directory cannot be listed, so the files in it are named by their
        // inode numbers.
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.filter_map(Result::ok) {
            // The inode number comes from the directory entry, because stat(2) fails on a file
            // whose node is damaged.
            let inode = std::os::unix::fs::DirEntryExt::ino(&entry);
            if u32::try_from(inode).is_ok_and(|inode| wanted.contains(&inode)) {
                paths.entry(inode).or_insert_with(|| entry.path());
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir())
                && entry.metadata().is_ok_and(|found| found.dev() == root.dev())
            {
                folders.push(entry.path());
            }
        }
    }
    for damage in findings {
        let path = damage.inode.and_then(|inode| paths.get(&u64::from(inode)));
        damage.path = path.map(|path| path.display().to_string());
    }
}
