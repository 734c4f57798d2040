//! `furrow device fault`: the faults that an image's drive will have when it is next used.

use super::{JSON_VERSION, open};
use crate::show::{self, print_table};
use anyhow::{anyhow, bail};
use clap::{Args, Subcommand, ValueEnum};
use furrow_console::fit::{Column, Table};
use furrow_console::program::misused;
use furrow_zone::fault::{Fault, FaultInjection, FaultKind, Place, When};
use furrow_zone::{Access, BlockCount, Lba, ZoneId, ZonedDevice};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::Write;

const AFTER_HELP: &str = "\
The image must not be in use. A fault is stored in the image, strikes when the image is used, and \
is kept until it is used up or cleared. Commands are counted from when the fault was added; a \
command that only reads an image (fsck, map, dump) counts none. Blocks that were never written \
cannot be read wrongly: 'furrow map' shows what was written.

Examples:
  furrow device fault add disk.zns zone-read-only --zone 7     at once
  furrow device fault add disk.zns read-error --lba 4096+8     whenever these blocks are read
  furrow device fault add disk.zns write-torn --one-in 500     now and then
  furrow device fault add disk.zns power-cut --nth 1000        at the 1000th command
  furrow device fault list disk.zns
  furrow device fault clear disk.zns 0";

/// Inject faults into an image's drive, list them, clear them
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct FaultArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Add(Box<Add>),
    /// List the pending faults
    List {
        #[arg(help = DEVICE)]
        device: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove faults
    Clear {
        #[arg(help = DEVICE)]
        device: String,
        /// Number of the fault, as 'list' shows it; without a number, all faults.
        number: Option<usize>,
        /// Print JSON: the remaining faults.
        #[arg(long)]
        json: bool,
    },
}

/// Help of the argument that names the drive with the faults.
const DEVICE: &str = "Image of an emulated drive (disk.zns)";

impl Action {
    /// The words that name an action.
    const VERBS: [&str; 3] = ["add", "list", "clear"];

    fn device(&self) -> &str {
        match self {
            Action::Add(add) => &add.device,
            Action::List { device, .. } | Action::Clear { device, .. } => device,
        }
    }
}

/// Turns a command line with the image before the verb (`device fault disk.zns add ...`), the order
/// of earlier versions, into today's order; any other command line stays as it is.
pub fn in_order(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let is_verb = |word: &OsString| Action::VERBS.iter().any(|verb| word == verb);
    if let [_, device, fault, image, verb, ..] = &*arguments
        && (device == "device" && fault == "fault" && !is_verb(image) && is_verb(verb))
    {
        arguments.swap(3, 4);
    }
    arguments
}

/// Add a fault
#[derive(Args)]
struct Add {
    #[arg(help = DEVICE)]
    device: String,
    /// The kind of fault.
    kind: Kind,
    /// Only for commands of this zone. A zone-... fault of a zone happens at once.
    #[arg(long, value_name = "ZONE", conflicts_with = "lba")]
    zone: Option<u32>,
    /// Only for commands that touch these blocks; one block without +COUNT. A bit-flip of blocks
    /// happens at once.
    #[arg(long, value_name = "FIRST[+COUNT]", value_parser = parse_range)]
    lba: Option<(u64, u64)>,
    /// Only at the Nth of the selected commands.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(conflicts_with_all = ["every", "one_in"])]
    nth: Option<u64>,
    /// Only at every Kth of the selected commands.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(conflicts_with = "one_in")]
    every: Option<u64>,
    /// Only at one in N of the selected commands, at random.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    one_in: Option<u64>,
    /// Maximum number of times (default: 1 for power cuts, zone states, disappearing and bit flips,
    /// no limit for the others).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    times: Option<u64>,
    /// disappear: for this number of commands (default: as long as the drive is in use).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    commands: Option<u64>,
    /// slow: delay of each answer, in microseconds.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 1000)]
    delay_us: u64,
    /// Print JSON: all pending faults.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// The power fails: commands in flight are done, torn or not started.
    PowerCut,
    /// Reads fail.
    ReadError,
    /// Writes fail and write nothing.
    WriteError,
    /// Writes fail somewhere in the middle.
    WriteTorn,
    /// The zone can be read, but not written any more.
    ZoneReadOnly,
    /// The zone is lost, with its content.
    ZoneOffline,
    /// The drive finishes an active zone on its own.
    ZoneFull,
    /// The drive answers every command with an error.
    Disappear,
    /// Answers come late.
    Slow,
    /// The drive takes commands and answers none.
    Hang,
    /// Appends to a zone are written in another order.
    ReorderAppends,
    /// A bit of a stored block changes, silently.
    BitFlip,
}

impl Add {
    fn fault(&self) -> anyhow::Result<Fault> {
        let kind = match self.kind {
            Kind::PowerCut => FaultKind::PowerCut,
            Kind::ReadError => FaultKind::ReadError,
            Kind::WriteError => FaultKind::WriteError,
            Kind::WriteTorn => FaultKind::WriteTorn,
            Kind::ZoneReadOnly => FaultKind::ZoneReadOnly,
            Kind::ZoneOffline => FaultKind::ZoneOffline,
            Kind::ZoneFull => FaultKind::ZoneFull,
            Kind::Disappear => FaultKind::Disappear { commands: self.commands },
            Kind::Slow => {
                FaultKind::Slow { polls: 0, nanoseconds: self.delay_us.saturating_mul(1000) }
            }
            Kind::Hang => FaultKind::HANG,
            Kind::ReorderAppends => FaultKind::ReorderAppends,
            Kind::BitFlip => FaultKind::BitFlip,
        };
        if self.commands.is_some() && self.kind != Kind::Disappear {
            return Err(misused("--commands applies to disappear only"));
        }
        let mut fault = Fault::new(kind);
        if let Some(zone) = self.zone {
            fault = fault.at_zone(ZoneId(zone));
        }
        if let Some((first, blocks)) = self.lba {
            fault = fault.at_blocks(Lba(first), BlockCount(blocks));
        }
        let when =
            [self.nth.map(When::Nth), self.every.map(When::Every), self.one_in.map(When::OneIn)];
        if let Some(when) = when.into_iter().flatten().next() {
            fault = fault.when(when);
        }
        Ok(match self.times {
            Some(times) => fault.times(times),
            None => fault,
        })
    }
}

/// Parses `FIRST` or `FIRST+COUNT`.
fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let (first, count) = text.split_once('+').unwrap_or((text, "1"));
    let number = |text: &str| {
        text.parse::<u64>()
            .map_err(|_| format!("`{text}` is not a block number: expected FIRST+COUNT"))
    };
    match (number(first)?, number(count)?) {
        (_, 0) => Err("a range of 0 blocks".to_owned()),
        range => Ok(range),
    }
}

pub(super) fn run(args: &FaultArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let access = match args.action {
        Action::List { .. } => Access::ReadOnly,
        _ => Access::ReadWrite,
    };
    let device = args.action.device();
    let opened = open(device, access)?;
    let Some(drive) = opened.emulated() else {
        bail!("{device}: a real drive: faults are injected into emulated ones");
    };
    if drive.with_image(|_| ()).is_none() {
        bail!("{device}: a drive in memory keeps no faults: name an image");
    }
    apply(&**drive, device, &args.action, out)
}

/// The arguments of `furrow device fault`, for a drive that is open elsewhere.
#[derive(clap::Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Words {
    #[command(subcommand)]
    action: Action,
}

/// Whether `words` are valid arguments of `furrow device fault`, without the device.
///
/// # Errors
/// One line that says what is wrong with them.
pub fn check_words(words: &[String]) -> anyhow::Result<()> {
    parse_words("-", words).map(drop)
}

/// Parses `words`, which lack the device's name; `name` takes its place.
fn parse_words(name: &str, words: &[String]) -> anyhow::Result<Words> {
    use clap::Parser as _;
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    if !words.is_empty() {
        words.insert(1, name);
    }
    Words::try_parse_from(words).map_err(|error| anyhow!(crate::usage_message(&error)))
}

/// Applies `words` to an open `drive` called `name`. A power cut without further conditions happens
/// at once, so that several drives can lose power at the same moment; the fates of commands in
/// flight are drawn from `seed`. A drive that had lost power or disappeared answers again when its
/// last fault is cleared.
///
/// # Errors
/// An error if the words are invalid, or the drive cannot inject faults or cannot store them.
pub fn apply_words(
    device: &dyn ZonedDevice,
    name: &str,
    words: &[String],
    seed: u64,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let action = parse_words(name, words)?.action;
    let Some(drive) = device.fault_injection() else {
        bail!("{name}: the drive cannot inject faults: only emulated drives can");
    };
    if let Action::Add(add) = &action
        && add.fault()? == Fault::new(FaultKind::PowerCut)
    {
        drive.power_cut(seed);
        writeln!(out, "{name}: power-cut: done")?;
        return Ok(());
    }
    apply(drive, name, &action, out)
}

fn apply(
    drive: &dyn FaultInjection,
    name: &str,
    action: &Action,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    match action {
        Action::Add(add) => {
            let fault = add.fault()?;
            let before = drive.faults().len();
            drive.inject(fault)?;
            let place = format!("{}, {}", fault.kind, fault.place);
            if add.json {
                list_json(drive, name, out)?;
            } else if drive.faults().len() == before {
                writeln!(out, "{}: {place}: done", name)?;
            } else {
                writeln!(out, "{}: fault {before}: {place}, {}", name, fault.when)?;
            }
        }
        Action::List { json: true, .. } => {
            list_json(drive, name, out)?;
        }
        Action::List { json: false, .. } => {
            list(&drive.faults(), name, out)?;
            say_if_off(drive, name, out)?;
        }
        Action::Clear { number, json, .. } => {
            let before = drive.faults().len();
            drive.clear_faults(*number)?;
            let left = drive.faults().len();
            let answers = if left == 0 && !drive.is_on() {
                drive.power_on();
                ", and it answers again"
            } else {
                ""
            };
            if *json {
                return list_json(drive, name, out);
            }
            writeln!(out, "{}: {} cleared, {left} left{answers}", name, before - left)?;
            say_if_off(drive, name, out)?;
        }
    }
    Ok(())
}

/// Says so if the drive is gone or without power.
fn say_if_off(drive: &dyn FaultInjection, name: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    if !drive.is_on() {
        let how = "clearing all faults makes it answer again";
        writeln!(out, "{name}: does not answer, after a fault that has struck: {how}")?;
    }
    Ok(())
}

fn list_json(drive: &dyn FaultInjection, name: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    let faults: Vec<Value> =
        drive.faults().iter().enumerate().map(|(n, fault)| as_json(n, fault)).collect();
    let answers = drive.is_on();
    let version = JSON_VERSION;
    show::json(
        out,
        &json!({ "version": version, "device": name, "answers": answers, "faults": faults }),
    )
}

fn list(faults: &[Fault], image: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    if faults.is_empty() {
        writeln!(out, "{image}: no faults")?;
        return Ok(());
    }
    let words = ["number", "fault", "place", "at"].map(|head| Column::word(head, 0));
    let amounts = ["strikes left", "commands seen"].map(|head| Column::amount(head, 0));
    let mut table = Table::new(&[&words[..], &amounts[..]].concat());
    for (number, fault) in faults.iter().enumerate() {
        table.add_row([
            number.to_string(),
            fault.kind.to_string(),
            fault.place.to_string(),
            fault.when.to_string(),
            fault.times.map_or("no limit".to_owned(), |times| times.to_string()),
            fault.seen.to_string(),
        ]);
    }
    Ok(print_table(out, &table)?)
}

fn as_json(number: usize, fault: &Fault) -> Value {
    let name = fault.kind.to_string();
    let (commands, delay) = match fault.kind {
        FaultKind::Disappear { commands } => (commands, None),
        FaultKind::Slow { nanoseconds, .. } => (None, Some(nanoseconds)),
        _ => (None, None),
    };
    let place = match fault.place {
        Place::Anywhere => Value::Null,
        Place::Zone(zone) => json!({ "zone": zone.0 }),
        Place::Blocks { first, blocks } => {
            json!({ "first_lba": first.0, "blocks": blocks.0 })
        }
    };
    let when = match fault.when {
        When::Always => json!("always"),
        When::Nth(n) => json!({ "nth": n }),
        When::Every(k) => json!({ "every": k }),
        When::OneIn(n) => json!({ "one_in": n }),
    };
    json!({
        "number": number,
        "kind": name.split(' ').next(),
        "commands": commands,
        "delay_ns": delay,
        "place": place,
        "when": when,
        "strikes_left": fault.times,
        "commands_seen": fault.seen,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::{Config, Rt};
    use furrow_zone::Overlay;

    #[test]
    fn the_image_may_come_before_the_verb() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let today = "furrow device fault add d.zns bit-flip --lba 8";
        let earlier = "furrow device fault d.zns add bit-flip --lba 8";
        assert_eq!(in_order(words(earlier)), words(today));
        for other in [today, "furrow device fault", "furrow device fault list clear"] {
            assert_eq!(in_order(words(other)), words(other));
        }
        let wrong = ["add", "bitflip"].map(str::to_owned);
        let error = check_words(&wrong).unwrap_err().to_string();
        assert!(error.contains("(did you mean 'bit-flip'?)"), "{error}");
        let wrong = ["ad", "bit-flip"].map(str::to_owned);
        let error = check_words(&wrong).unwrap_err().to_string();
        assert!(error.contains("(did you mean 'add'?)"), "{error}");
    }

    #[test]
    fn a_drive_without_fault_injection_says_so() {
        let rt = Rt::new(Config::simulated(0));
        let spec = "mem:zones=8,zone-size=1MiB".parse().unwrap();
        let drive = crate::holds::open(&rt, &spec, Access::ReadWrite).unwrap();
        let words = ["add", "read-error"].map(str::to_owned);
        let mut out = Vec::new();
        apply_words(&*drive, "d0", &words, 1, &mut out).unwrap();
        assert_eq!(drive.fault_injection().unwrap().faults().len(), 1);
        // A view of a drive cannot inject faults.
        let engine = rt.clone();
        let view = rt.block_on(async move { Overlay::new(&engine, drive).await }).unwrap();
        let error = apply_words(&view, "d0", &words, 1, &mut out).unwrap_err().to_string();
        assert_eq!(error, "d0: the drive cannot inject faults: only emulated drives can");
    }
}
