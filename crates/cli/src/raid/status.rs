//! `furrow raid status`, and the daemon's description of its array.

use super::client::{self, Seen, Silent};
use super::notice::Notice;
use crate::daemon::utc;
use crate::live::Live;
use crate::show;
use anyhow::Result;
use furrow_console::fit::Column;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

/// Version of the JSON document.
pub const VERSION: u32 = 2;

/// Interval of --watch.
const WATCH_EVERY: Duration = Duration::from_secs(2);

/// Show the state of running arrays
///
/// Shows state, members and their errors, the progress of a rebuild or scrub, and advice. Exit
/// status 0 if all is well, 1 if an array is degraded, has failed, has no space, is being stopped,
/// has lost or damaged data, or gives no answer.
#[derive(clap::Args)]
pub struct Args {
    /// Arrays: names, UUIDs, or control sockets (default: all that run)
    arrays: Vec<String>,
    /// Repeat after this many seconds, until q or Ctrl-C; with --json one document per line
    #[arg(long, value_name = "SECONDS", value_parser = show::interval)]
    #[arg(alias = "interval", short_alias = 'i')]
    every: Option<Duration>,
    // The same as `--every 2`, for compatibility with earlier versions.
    #[arg(short = 'w', long, hide = true)]
    watch: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A running array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of this document.
    pub version: u32,
    /// Name of the array.
    pub array: String,
    /// UUID of the array.
    pub uuid: String,
    /// The daemon's process id.
    pub pid: u32,
    /// RAID level: 0, 01, 4, 5 or 6.
    pub level: String,
    /// State: online, damaged (data is lost or damaged), degraded (a member is missing or
    /// incomplete), full (no space is left to write to), failed (nothing can be written),
    /// or stopping.
    pub state: String,
    /// The reason why the array failed.
    pub error: Option<String>,
    /// The reason why there is no space to write to, if space has run out.
    #[serde(default)]
    pub out_of_space: Option<String>,
    /// The problem, as text.
    pub problem: Option<String>,
    /// Advice on the problem.
    pub action: Option<String>,
    /// When the array was assembled, in seconds since 1970.
    #[serde(default)]
    pub started: u64,
    /// Time since which errors are counted and lost or damaged blocks are known (the assembly, or
    /// the last `raid clear`), in seconds since 1970.
    #[serde(default)]
    pub known_since: u64,
    /// Bytes of the volume.
    pub size_bytes: u64,
    /// Bytes of the volume that are mapped.
    pub used_bytes: u64,
    /// Bytes of the daemon's memory that the map takes.
    pub map_memory_bytes: u64,
    /// The limit of the map's memory, including copies for checkpoints, if there is one.
    #[serde(default)]
    pub map_memory_limit_bytes: Option<u64>,
    /// Bytes of the daemon's memory that the stripe tables take.
    pub table_memory_bytes: u64,
    /// Number of blocks of the volume that are lost, and were neither written since nor cleared.
    #[serde(default)]
    pub lost_blocks: u64,
    /// The first ranges of lost blocks.
    #[serde(default)]
    pub lost: Vec<LostRange>,
    /// Number of damaged blocks of the drives that the last scrub found and did not repair.
    #[serde(default)]
    pub damaged_blocks: u64,
    /// Number of further drives that may fail, in any combination.
    pub may_fail: u32,
    /// Whether clients may only read.
    pub read_only: bool,
    /// Addresses of the server.
    pub listening: Vec<String>,
    /// NBD connections.
    pub clients: u64,
    /// The members, in order.
    pub members: Vec<Member>,
    /// Spare drives.
    pub spares: Vec<String>,
    /// The rebuild that runs or can be resumed.
    pub rebuild: Option<Rebuild>,
    /// Outcome of the last rebuild that ended since the array was assembled.
    #[serde(default)]
    pub last_rebuild: Option<LastRebuild>,
    /// The running scrub, or the last one.
    pub scrub: Option<Scrub>,
    /// Counters of the volume since it was assembled.
    pub counters: BTreeMap<String, u64>,
    /// Segments by state: free, open, sealed, truncated, releasing. A segment has a zone of
    /// every drive.
    #[serde(default)]
    pub segments: BTreeMap<String, u64>,
    /// Requests of clients by kind: read, write, flush.
    #[serde(default)]
    pub requests: BTreeMap<String, Requests>,
    /// The last events, oldest first.
    pub events: Vec<Notice>,
}

/// Requests of a kind since the array was assembled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Number of requests.
    pub count: u64,
    /// Total duration of the requests in nanoseconds.
    pub total_ns: u64,
}

/// A range of blocks of 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostRange {
    /// The first block.
    pub first: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// A member of an array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Number of the member.
    pub member: u32,
    /// UUID of the drive.
    pub uuid: String,
    /// The member's drive; none if it is missing.
    pub device: Option<String>,
    /// State: online, failed, missing or rebuilding.
    pub state: String,
    /// The reason why the array was assembled without the member, if that is why it still lacks it.
    #[serde(default)]
    pub absent: Option<String>,
    /// The drive that held this member at the assembly but was not named; it is stale since then.
    #[serde(default)]
    pub unnamed: Option<String>,
    /// The drive of this member that the assembly left out: the array had continued without it.
    #[serde(default)]
    pub stale: Option<String>,
    /// Number of reads that failed since errors are counted.
    pub read_errors: u64,
    /// Number of writes that failed.
    pub write_errors: u64,
    /// Number of blocks whose checksum did not match.
    pub checksum_errors: u64,
}

/// A rebuild.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rebuild {
    /// False if the rebuild ended early and waits for furrow raid rebuild.
    pub running: bool,
    /// Number of segments to rebuild.
    pub segments: u32,
    /// Number of segments rebuilt.
    pub segments_done: u32,
    /// Percent rebuilt.
    pub percent: f64,
    /// Seconds since the rebuild began.
    pub seconds: f64,
    /// Seconds left at the pace so far.
    pub seconds_left: Option<f64>,
    /// Microseconds that the rebuild pauses after every 32 rows.
    pub pause_us: u64,
}

/// The outcome of a rebuild.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRebuild {
    /// Whether everything was restored.
    pub ok: bool,
    /// The outcome as text, with the reason and the losses.
    pub text: String,
}

/// A scrub.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scrub {
    /// Whether the scrub is still running.
    pub running: bool,
    /// Whether the scrub repairs damaged blocks.
    pub repair: bool,
    /// Number of segments to check.
    pub segments: u32,
    /// Number of segments checked.
    pub segments_done: u32,
    /// Percent checked.
    pub percent: f64,
    /// Seconds since the scrub began.
    pub seconds: f64,
    /// Seconds left at the pace so far.
    pub seconds_left: Option<f64>,
    /// Number of blocks read, once the scrub has ended.
    pub blocks: u64,
    /// Number of damaged blocks found, once the scrub has ended.
    pub damaged: u64,
    /// Number of damaged blocks that the scrub repaired.
    #[serde(default)]
    pub repaired: u64,
    /// Number of damaged blocks that `--repair` can repair.
    #[serde(default)]
    pub mendable: u64,
    /// The first damaged blocks.
    pub findings: Vec<Damage>,
    /// Number of blocks of the volume that cannot be recovered.
    pub lost: u64,
    /// Whether the scrub was stopped before it had read everything.
    #[serde(default)]
    pub stopped: bool,
    /// Members that were not checked, or only in part, because they were not online all the time.
    #[serde(default)]
    pub unchecked: Vec<u32>,
    /// The reason why the scrub ended early.
    pub error: Option<String>,
}

/// A damaged block of a drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// Number of the member.
    pub member: u32,
    /// Drive of the member.
    pub device: Option<String>,
    /// Zone of the drive.
    pub zone: u32,
    /// Block of the zone.
    pub block: u32,
    /// Description of the damage.
    pub what: String,
    /// Whether the block's stripe was repaired.
    pub repaired: bool,
    /// Whether the block's stripe has too few whole blocks left to be repaired, so that blocks of
    /// the volume are lost.
    #[serde(default)]
    pub lost: bool,
}

/// The JSON document for all arrays.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    arrays: Vec<&'a Status>,
    /// Arrays whose daemon gives no answer, or has died.
    silent: Vec<Silent>,
}

/// Runs the command.
///
/// # Errors
/// An error if an array that is named does not run.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<u8> {
    let every = args.every.or(args.watch.then_some(WATCH_EVERY));
    let Some(every) = every else {
        return look(args, false, out);
    };
    let mut live = Live::begin(!args.json)?;
    loop {
        let mut text = Vec::new();
        look(args, true, &mut text)?;
        match args.json {
            true => out.write_all(&text).and_then(|()| out.flush())?,
            false => live.show_text(out, &text)?,
        }
        if !live.wait(every)? {
            return Ok(0);
        }
    }
}

/// Prints the present state of the arrays.
fn look(args: &Args, repeats: bool, out: &mut dyn Write) -> Result<u8> {
    let Seen { running, silent } = match args.arrays.is_empty() {
        true => client::visible()?,
        false => {
            let named = args.arrays.iter().map(|name| client::find(name));
            Seen { running: named.collect::<Result<_>>()?, silent: Vec::new() }
        }
    };
    let arrays: Vec<&Status> = running.iter().map(|array| &array.status).collect();
    let well = silent.is_empty() && arrays.iter().all(|status| status.state == "online");
    if args.json {
        let document = Document { version: VERSION, arrays, silent };
        match repeats {
            true => show::json_line(out, &document)?,
            false => show::json(out, &document)?,
        }
        return Ok(u8::from(!well));
    }
    if arrays.is_empty() && silent.is_empty() {
        writeln!(
            out,
            "no arrays run (looked in {})",
            furrow_control::place::directory().display()
        )?;
    }
    for (index, status) in arrays.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        print(status, out)?;
    }
    for (index, silent) in silent.iter().enumerate() {
        if index > 0 || !arrays.is_empty() {
            writeln!(out)?;
        }
        writeln!(out, "  array: {}", silent.name())?;
        writeln!(out, "  state: {}", silent.state())?;
        show::fact(out, " status: ", &format!("{:#}", silent.error()))?;
    }
    Ok(u8::from(!well))
}

/// The columns of members; on a narrow screen the columns of errors are left out.
const MEMBERS: [Column<'_>; 6] = [
    Column::word("member", 0),
    Column::word("state", 0),
    Column::amount("read", 2),
    Column::amount("write", 2),
    Column::amount("checksum", 2),
    Column::name("device", 0),
];

/// The cells of a member and its errors.
fn row(member: &Member) -> [String; 6] {
    [
        member.member.to_string(),
        member.state.to_uppercase(),
        member.read_errors.to_string(),
        member.write_errors.to_string(),
        member.checksum_errors.to_string(),
        member.device.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}

/// Prints one array as text.
///
/// # Errors
/// The error of writing.
pub fn print(status: &Status, out: &mut dyn Write) -> io::Result<()> {
    let mut line = |what: &str, text: String| show::fact(out, &format!("{what:>7}: "), &text);
    line("array", format!("{}, UUID {}", status.array, status.uuid))?;
    let (size, used) = (show::bytes(status.size_bytes), show::bytes(status.used_bytes));
    let drives = status.members.len();
    line("level", format!("RAID-{} of {drives} drives, {size}, {used} in use", status.level))?;
    let memory = (show::bytes(status.map_memory_bytes), show::bytes(status.table_memory_bytes));
    let limit = match status.map_memory_limit_bytes {
        Some(limit) => format!(" of {} at most", show::bytes(limit)),
        None => String::new(),
    };
    line("memory", format!("map {}{limit}, stripe tables {}", memory.0, memory.1))?;
    line("state", status.state.to_uppercase())?;
    for (what, text) in [("status", &status.problem), ("action", &status.action)] {
        if let Some(text) = text {
            line(what, text.clone())?;
        }
    }
    for member in &status.members {
        if let Some(why) = &member.absent {
            line(
                "absent",
                format!("member {}: when the array was assembled, {why}", member.member),
            )?;
        }
    }
    if let Some(rebuild) = &status.rebuild {
        line("rebuild", describe_rebuild(&status.array, rebuild))?;
    }
    match &status.scrub {
        Some(scrub) => {
            line("scrub", describe_scrub(&status.array, scrub))?;
            for damage in scrub.findings.iter().take(FINDINGS_SHOWN) {
                line("", describe_damage(damage))?;
            }
            let shown = scrub.findings.len().min(FINDINGS_SHOWN);
            if let Some(more) = describe_more(&status.array, scrub, shown) {
                line("", more)?;
            }
        }
        None if status.error.is_none() && status.known_since > 0 => {
            line("scrub", describe_ignorance(status))?;
        }
        None => {}
    }
    if status.lost_blocks > 0 {
        line("lost", describe_lost(status))?;
    }
    if !status.spares.is_empty() {
        line("spares", status.spares.join(" "))?;
    }
    let read_only = if status.read_only { ", read-only" } else { "" };
    let clients = match status.clients {
        0 => "no clients".to_owned(),
        some => show::count(some, "client"),
    };
    line("served", format!("{}, {clients}{read_only}", status.listening.join(" ")))?;
    writeln!(out)?;
    show::rows(out, &MEMBERS, status.members.iter().map(row))?;
    if !status.events.is_empty() {
        writeln!(out)?;
    }
    for notice in status.events.iter().rev().take(EVENTS_SHOWN).rev() {
        writeln!(out, "{} {}", utc(notice.time), notice.text)?;
    }
    Ok(())
}

/// Maximum number of events shown.
const EVENTS_SHOWN: usize = 5;
/// Maximum number of damaged blocks shown.
const FINDINGS_SHOWN: usize = 20;

/// Says what remains unknown until a scrub has read everything, since losses are remembered in
/// memory only.
fn describe_ignorance(status: &Status) -> String {
    let since = match status.known_since == status.started {
        true => "the start",
        false => "the errors were cleared",
    };
    format!(
        "none since {since} ({}), and losses from before that are not remembered (to find them: \
         furrow raid scrub {})",
        utc(status.known_since),
        status.array
    )
}

/// Says what will be forgotten when the daemon ends; `None` if no losses are known.
pub fn describe_forgotten(lost_blocks: u64) -> Option<String> {
    let lost = show::count(lost_blocks, "block");
    (lost_blocks > 0)
        .then(|| format!("{lost} of the volume LOST; the array keeps no record of this"))
}

/// The number of damaged blocks beyond the `shown` ones, as text; `None` if there are no more.
pub fn describe_more(array: &str, scrub: &Scrub, shown: usize) -> Option<String> {
    let more = scrub.damaged.saturating_sub(shown as u64);
    let known = scrub.findings.len();
    let rest = match known as u64 {
        known if known == scrub.damaged => "all".to_owned(),
        known => format!("the first {known}"),
    };
    let tells = match known > shown {
        true => format!(" ({rest}: furrow raid status {array} --json)"),
        false => String::new(),
    };
    (more > 0).then(|| format!("and {more} more{tells}"))
}

/// Describes which blocks of the volume are lost.
fn describe_lost(status: &Status) -> String {
    let ranges: Vec<_> =
        status.lost.iter().map(|lost| lost.first..lost.first + lost.blocks).collect();
    let shown = furrow_raid::show_ranges(&ranges);
    let more = if shown.ends_with("...") { " (--json has more)" } else { "" };
    format!("{} of 4 KiB: {shown}{more}", show::count(status.lost_blocks, "block"))
}

/// Describes the progress of a rebuild of `array`.
pub fn describe_rebuild(array: &str, rebuild: &Rebuild) -> String {
    if !rebuild.running {
        return format!(
            "ended early at {:.2}%, {} of {} segments (to continue: furrow raid rebuild {array})",
            rebuild.percent, rebuild.segments_done, rebuild.segments
        );
    }
    let paused = match rebuild.pause_us {
        0 => String::new(),
        pause => format!(", pausing {pause} us after every 32 rows"),
    };
    format!(
        "{}{paused}",
        describe_progress(
            (rebuild.segments_done, rebuild.segments),
            rebuild.percent,
            rebuild.seconds_left,
        )
    )
}

/// Describes the progress or result of a scrub of `array`, with the command that repairs
/// the damage.
pub fn describe_scrub(array: &str, scrub: &Scrub) -> String {
    if scrub.running {
        let done = (scrub.segments_done, scrub.segments);
        let mends = if scrub.repair { ", mends what it finds" } else { "" };
        return describe_progress(done, scrub.percent, scrub.seconds_left) + mends;
    }
    if let Some(error) = &scrub.error {
        return format!("ended early: {error}");
    }
    let Scrub { damaged, repaired, mendable, repair, .. } = *scrub;
    let damaged = match damaged {
        0 => "nothing damaged".to_owned(),
        some if some == repaired => format!("{some} damaged and mended"),
        // Blocks that are damaged after a repair are lost for good, or there was no space to
        // rewrite them.
        some if repair && repaired > 0 => format!("{some} damaged, {repaired} of them mended"),
        some if repair || mendable == 0 => format!("{some} damaged"),
        some => {
            let them = match (some, some == mendable) {
                (1, _) => "it".to_owned(),
                (_, true) => "them".to_owned(),
                _ => format!("{mendable} of them"),
            };
            format!("{some} damaged (to mend {them}: furrow raid scrub {array} --repair)")
        }
    };
    let lost = match scrub.lost {
        0 => String::new(),
        some => format!(", {} of the volume LOST", show::count(some, "block")),
    };
    let unchecked = match &scrub.unchecked[..] {
        [] => String::new(),
        unchecked => {
            let s = if unchecked.len() == 1 { "" } else { "s" };
            let members = unchecked.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            format!(
                ", member{s} {members} not checked, or only in part (when the array is whole: \
                 furrow raid scrub {array})"
            )
        }
    };
    let stopped = if scrub.stopped { "stopped: " } else { "" };
    let read = show::count(scrub.blocks, "block");
    format!("{stopped}{read} read in {:.1} s, {damaged}{lost}{unchecked}", scrub.seconds)
}

/// Describes a damaged block: which block it is, and what is wrong with it.
pub fn describe_damage(damage: &Damage) -> String {
    let drive = damage.device.as_deref().unwrap_or("-");
    let mended = match (damage.repaired, damage.lost) {
        (true, _) => ", mended",
        (_, true) => ", lost: too little of its stripe is left",
        _ => "",
    };
    format!(
        "member {} ({drive}), zone {}, block {}: {}{mended}",
        damage.member, damage.zone, damage.block, damage.what
    )
}

fn describe_progress((done, of): (u32, u32), percent: f64, left: Option<f64>) -> String {
    if of == 0 {
        return "begins".to_owned();
    }
    let left = match left {
        Some(seconds) => {
            let s = seconds.ceil() as u64;
            format!("{:02}:{:02}:{:02} to go", s / 3600, s / 60 % 60, s % 60)
        }
        None => "time to go not known yet".to_owned(),
    };
    format!("{percent:.2}%, {done} of {of} segments, {left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_with_its_end() {
        assert_eq!(
            describe_progress((3, 12), 25.0, Some(3723.2)),
            "25.00%, 3 of 12 segments, 01:02:04 to go"
        );
        assert!(describe_progress((0, 12), 0.0, None).ends_with("not known yet"));
    }

    #[test]
    fn a_scrub_says_what_is_left_damaged() {
        let damage = Damage {
            member: 2,
            device: Some("/d".into()),
            zone: 3,
            block: 4,
            what: "damaged".into(),
            repaired: true,
            lost: false,
        };
        let findings = vec![damage];
        let mut scrub = Scrub { blocks: 9, damaged: 1, repaired: 1, findings, ..Scrub::default() };
        let said = |scrub: &Scrub| describe_scrub("a", scrub);
        assert!(said(&scrub).contains("1 damaged and mended"));
        (scrub.repaired, scrub.mendable) = (0, 1);
        assert!(said(&scrub).ends_with("1 damaged (to mend it: furrow raid scrub a --repair)"));
        scrub.damaged = 3;
        assert!(said(&scrub).contains("(to mend 1 of them: furrow raid scrub a --repair)"));
        // Lost blocks cannot be repaired, so no command is recommended for them.
        scrub.mendable = 0;
        assert!(said(&scrub).ends_with("3 damaged"), "{}", said(&scrub));
        (scrub.repaired, scrub.repair) = (2, true);
        assert!(said(&scrub).ends_with("3 damaged, 2 of them mended"));
        scrub.unchecked = vec![0, 2];
        assert!(said(&scrub).contains(", members 0, 2 not checked, or"), "{}", said(&scrub));
        scrub.lost = 5;
        assert!(said(&scrub).contains("5 blocks of the volume LOST"));
        let text = describe_damage(&scrub.findings[0]);
        assert_eq!(text, "member 2 (/d), zone 3, block 4: damaged, mended");
        (scrub.findings[0].repaired, scrub.findings[0].lost) = (false, true);
        assert!(describe_damage(&scrub.findings[0]).contains("damaged, lost: "));
    }

    #[test]
    fn what_a_list_leaves_out_is_counted() {
        let damage = Damage {
            member: 0,
            device: None,
            zone: 0,
            block: 0,
            what: String::new(),
            repaired: false,
            lost: false,
        };
        let scrub = |damaged, known| Scrub {
            damaged,
            findings: vec![damage.clone(); known],
            ..Scrub::default()
        };
        let more = |damaged, known, shown| describe_more("a", &scrub(damaged, known), shown);
        assert_eq!(more(20, 20, 20), None);
        let all = "and 5 more (all: furrow raid status a --json)";
        assert_eq!(more(25, 25, 20).as_deref(), Some(all));
        let first = "and 1980 more (the first 1000: furrow raid status a --json)";
        assert_eq!(more(2000, 1000, 20).as_deref(), Some(first));
        assert_eq!(more(2000, 1000, 1000).as_deref(), Some("and 1000 more"));
    }
}
