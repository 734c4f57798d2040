//! The commands that change a running array: each asks its daemon.

use super::client::{self, Running};
use super::devices;
use super::request::Request;
use super::status::{self, Status};
use crate::device::fault;
use crate::{in_use, show};
use anyhow::{Context as _, Result, bail};
use furrow_zone::spec::DeviceSpec;
use std::io::{IsTerminal as _, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Interval between two queries of progress.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Interval between two lines of progress without a terminal.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// Time that drives may stay locked after the daemon's end.
const UNLOCKED: Duration = Duration::from_secs(10);

/// Take a member out of service
///
/// Refused if the array needs the member. The drive is stale afterwards, and can only come back
/// with furrow raid replace.
#[derive(clap::Args)]
pub struct Fail {
    /// Name, UUID or control socket
    array: String,
    /// Number of the member, or its drive
    member: String,
}

/// Replace a failed member by an empty drive
///
/// A rebuild begins; furrow raid status shows its progress, and --wait waits for its end. A member
/// that is in service has to be taken out first, by furrow raid fail.
#[derive(clap::Args)]
pub struct Replace {
    /// Name, UUID or control socket
    array: String,
    /// Number of the member, or its drive
    member: String,
    /// The new drive
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Overwrite a drive that holds data
    #[arg(short, long)]
    force: bool,
    /// Show the progress of the rebuild until it ends
    #[arg(short, long)]
    wait: bool,
}

/// Keep a drive for the next member that fails
///
/// If a member has failed already, the drive replaces it at once. The drive is marked as a spare of
/// this array, and furrow raid assemble accepts it among the other drives.
#[derive(clap::Args)]
pub struct AddSpare {
    /// Name, UUID or control socket
    array: String,
    /// An empty drive
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Overwrite a drive that holds data
    #[arg(short, long)]
    force: bool,
}

/// Resume a rebuild, change its pace, or wait for it
#[derive(clap::Args)]
pub struct Rebuild {
    /// Name, UUID or control socket
    array: String,
    /// Microseconds to pause after every 32 rows, to leave time for clients; 0: no pause
    #[arg(long, value_name = "MICROSECONDS")]
    pause: Option<u64>,
    /// Show the progress until the rebuild ends
    #[arg(short, long)]
    wait: bool,
}

/// Read everything and check it against checksums and parity
///
/// Names each damaged block: drive, zone, block. Exit status with --wait: 0 if every member was
/// checked and no damage is left, otherwise 1.
#[derive(clap::Args)]
pub struct Scrub {
    /// Name, UUID or control socket
    array: String,
    /// Repair damaged blocks
    #[arg(short, long)]
    repair: bool,
    /// Show the progress until the scrub ends, and the findings
    #[arg(short, long)]
    wait: bool,
    /// Stop the running scrub; status shows what it has found
    #[arg(short, long, conflicts_with_all = ["repair", "wait"])]
    stop: bool,
}

/// Clear the errors of an array, and the records of lost or damaged blocks
///
/// For use after a repair, when the data was restored from a copy or is not needed. The next read
/// or scrub finds the remaining losses and damage.
#[derive(clap::Args)]
pub struct Clear {
    /// Name, UUID or control socket
    array: String,
}

/// Stop an array
///
/// Returns when the daemon has ended: everything is durable and the drives are free. Refused while
/// clients are connected.
#[derive(clap::Args)]
pub struct Stop {
    /// Name, UUID or control socket
    array: String,
    /// Stop even if clients are connected: their pending requests are finished, then they are
    /// disconnected
    #[arg(short, long)]
    force: bool,
}

/// Inject faults into the emulated drives of a running array
///
/// See furrow device fault add --help for the faults. A power-cut without --nth or a similar option
/// happens at once, on all drives at the same moment. After its last fault is cleared, a drive that
/// had disappeared answers again.
#[derive(clap::Args)]
pub struct Fault {
    /// Name, UUID or control socket
    pub array: String,
    /// Number of the member, or its drive; all: every member
    member: String,
    /// add, list or clear, and the arguments of furrow device fault without the device
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    fault: Vec<String>,
}

/// A member in the form that the daemon understands: a number, or the full path of its drive.
fn member(name: &str) -> Result<String> {
    if name.parse::<u32>().is_ok() {
        return Ok(name.to_owned());
    }
    Ok(devices::one(name)?.to_string())
}

/// The full path of a drive for `array`. The check that no other array uses the drive is made here,
/// because a daemon that made it would have to query itself.
///
/// # Errors
/// An error if another array uses the drive.
fn drive_for(array: &Running, name: &str) -> Result<String> {
    let spec = devices::one(name)?;
    if let DeviceSpec::Image(image) = &spec
        && let Some(other) = client::user_of(Path::new(&image.path))
        && other.uuid != array.status.uuid
    {
        let other = other.array;
        bail!(
            "{spec}: in use: a drive of the running array {other}: choose another drive, or stop \
             that array: furrow raid stop {other}"
        );
    }
    Ok(spec.to_string())
}

/// Runs `furrow raid fail`.
///
/// # Errors
/// An error if the array needs the member.
pub fn fail(args: &Fail, out: &mut dyn Write) -> Result<u8> {
    let array = client::find(&args.array)?;
    client::ask(&array.socket, &Request::Fail { member: member(&args.member)? })?;
    let word = if args.member.parse::<u32>().is_ok() { "member " } else { "" };
    writeln!(out, "{}: {word}{} is out of service", array.status.array, args.member)?;
    Ok(0)
}

/// The member that was replaced, and the UUID of its new drive.
#[derive(serde::Deserialize)]
struct Seat {
    member: u32,
    uuid: String,
}

/// Runs `furrow raid replace`.
///
/// # Errors
/// An error if the member is in service, or the drive does not fit or is not empty; with `--wait`
/// also if the drive was not rebuilt in full.
pub fn replace(args: &Replace, out: &mut dyn Write) -> Result<u8> {
    let array = client::find(&args.array)?;
    let device = drive_for(&array, &args.device)?;
    let request = Request::Replace { member: member(&args.member)?, device, force: args.force };
    let seat: Seat = serde_json::from_value(client::ask(&array.socket, &request)?)
        .context("an answer of another version")?;
    let name = &array.status.array;
    writeln!(out, "{name}: {} is member {} now; a rebuild begins", args.device, seat.member)?;
    if args.wait { wait_for_rebuild(&array, Some(&seat), true, out) } else { Ok(0) }
}

/// Runs `furrow raid add-spare`.
///
/// # Errors
/// An error if the drive does not fit, is not empty, or is a spare of another array.
pub fn add_spare(args: &AddSpare, out: &mut dyn Write) -> Result<u8> {
    let array = client::find(&args.array)?;
    let device = drive_for(&array, &args.device)?;
    client::ask(&array.socket, &Request::AddSpare { device, force: args.force })?;
    writeln!(out, "{}: {} is a spare", array.status.array, args.device)?;
    Ok(0)
}

/// Runs `furrow raid rebuild`.
///
/// # Errors
/// An error if nothing can be rebuilt although a member lacks data; with `--wait` also if a member
/// has failed or is missing, or the rebuild ended early or could not restore everything.
pub fn rebuild(args: &Rebuild, out: &mut dyn Write) -> Result<u8> {
    let array = client::find(&args.array)?;
    let name = &array.status.array;
    let asked = client::ask(&array.socket, &Request::Rebuild { pause_us: args.pause });
    if !args.wait {
        if let Err(error) = asked {
            // If all members are online, there is nothing to rebuild: that is a success, with and
            // without --wait.
            let status = client::status(&array.socket)?;
            let whole = status.members.iter().all(|member| member.state == "online");
            if args.pause.is_some() || !whole {
                return Err(error);
            }
            if let Some(why) = not_rebuilt(&status, None) {
                bail!("{name}: {why}: see furrow raid status {name}");
            }
            writeln!(out, "{name}: nothing is left to rebuild")?;
            return Ok(0);
        }
        writeln!(out, "{name}: {}", if args.pause.is_some() { "pace set" } else { "rebuilding" })?;
        return Ok(0);
    }
    wait_for_rebuild(&array, None, asked.is_ok(), out)
}

/// Shows the progress of rebuilds until no rebuild runs, or returns at once if none runs. `seat` is
/// the replaced member, if the command waits for its rebuild only; `is_begun` says whether there
/// was something to rebuild.
fn wait_for_rebuild(
    array: &Running,
    seat: Option<&Seat>,
    is_begun: bool,
    out: &mut dyn Write,
) -> Result<u8> {
    let name = &array.status.array;
    let done = |status: &Status| match &status.rebuild {
        Some(rebuild) if rebuild.running => {
            let line = status::describe_rebuild(name, rebuild);
            Some((rebuild.percent, format!("{name}: rebuild {line}")))
        }
        _ => None,
    };
    let status = wait(array, done)?;
    if let Some(error) = status.error {
        bail!("{name}: {error}");
    }
    if let Some(why) = not_rebuilt(&status, seat) {
        bail!("{name}: {why}: see furrow raid status {name}");
    }
    match seat {
        Some(seat) => writeln!(out, "{name}: member {} is rebuilt", seat.member)?,
        None if is_begun => writeln!(out, "{name}: rebuilt")?,
        None => writeln!(out, "{name}: nothing is left to rebuild")?,
    }
    Ok(0)
}

/// After a rebuild: the reason why members still lack data, or a description of the data that could
/// not be restored; `None` if all is well. With `seat`, also reports that another drive has taken
/// the place of its drive.
fn not_rebuilt(status: &Status, seat: Option<&Seat>) -> Option<String> {
    let last = status.last_rebuild.as_ref().filter(|last| !last.ok).map(|last| &*last.text);
    if let Some(seat) = seat
        && let Some(member) = status.members.get(seat.member as usize)
        && member.uuid != seat.uuid
    {
        let now = member.device.as_deref().unwrap_or("another drive");
        return Some(format!("the drive failed, and {now} is member {} now", seat.member));
    }
    let left = status.members.iter().find(|member| member.state != "online");
    if let Some(member) = left {
        let (number, state) = (member.member, &member.state);
        let why = last.unwrap_or("nothing rebuilds it");
        return Some(match &**state {
            "rebuilding" => format!("member {number} is not rebuilt: {why}"),
            _ => format!("member {number} is {state}, and not rebuilt: {why}"),
        });
    }
    if status.lost_blocks > 0 {
        let lost = || format!("{} of the volume LOST", show::count(status.lost_blocks, "block"));
        return Some(last.map_or_else(lost, str::to_owned));
    }
    None
}

/// Runs `furrow raid scrub`.
///
/// # Errors
/// An error if the scrub ended early, or if a scrub is running already, unless `--wait` is given
/// and that scrub does all that is asked.
pub fn scrub(args: &Scrub, out: &mut dyn Write) -> Result<u8> {
    let array = client::find(&args.array)?;
    let name = &array.status.array;
    if args.stop {
        client::ask(&array.socket, &Request::StopScrub)?;
        writeln!(out, "{name}: the scrub stops: see furrow raid status {name}")?;
        return Ok(0);
    }
    if args.wait {
        return scrub_to_the_end(&array, args.repair, out);
    }
    client::ask(&array.socket, &Request::Scrub { repair: args.repair })?;
    writeln!(out, "{name}: a scrub begins: see furrow raid status {name}")?;
    Ok(0)
}

/// Scrubs a whole array. If a scrub that does all that is asked runs already, waits for that scrub
/// instead.
///
/// # Errors
/// An error if no scrub can begin, or it ended early.
pub fn scrub_to_the_end(array: &Running, repair: bool, out: &mut dyn Write) -> Result<u8> {
    // A scrub that mends also finds what one finds that only reads.
    let serves = |status: &Status| {
        status.scrub.as_ref().is_some_and(|scrub| scrub.running && (scrub.repair || !repair))
    };
    if !serves(&array.status)
        && let Err(error) = client::ask(&array.socket, &Request::Scrub { repair })
        // Another command may just have begun a scrub.
        && !client::status(&array.socket).is_ok_and(|status| serves(&status))
    {
        return Err(error);
    }
    wait_for_scrub(array, out)
}

/// Shows the progress of a scrub, and then its findings.
fn wait_for_scrub(array: &Running, out: &mut dyn Write) -> Result<u8> {
    let name = &array.status.array;
    let done = |status: &Status| match &status.scrub {
        Some(scrub) if scrub.running => {
            let line = status::describe_scrub(name, scrub);
            Some((scrub.percent, format!("{name}: scrub {line}")))
        }
        _ => None,
    };
    let Some(scrub) = wait(array, done)?.scrub else { bail!("{name}: no scrub was begun") };
    if let Some(error) = scrub.error {
        bail!("{name}: the scrub ended early: {error}");
    }
    for damage in &scrub.findings {
        writeln!(out, "{name}: {}", status::describe_damage(damage))?;
    }
    if let Some(more) = status::describe_more(name, &scrub, scrub.findings.len()) {
        writeln!(out, "{name}: {more}")?;
    }
    writeln!(out, "{name}: {}", status::describe_scrub(name, &scrub))?;
    let left = scrub.damaged > scrub.repaired || scrub.lost > 0;
    Ok(u8::from(left || scrub.stopped || !scrub.unchecked.is_empty()))
}

/// Runs `furrow raid clear`.
///
/// # Errors
/// An error if a scrub is running.
pub fn clear(args: &Clear, out: &mut dyn Write) -> Result<u8> {
    let array = client::find(&args.array)?;
    client::ask(&array.socket, &Request::Clear)?;
    writeln!(
        out,
        "{}: errors are counted from 0 again, and no damage is known",
        array.status.array
    )?;
    Ok(0)
}

/// Shows the progress that `done` returns (percent and a line of text) until it returns `None`.
/// Then returns the last status.
fn wait(array: &Running, done: impl Fn(&Status) -> Option<(f64, String)>) -> Result<Status> {
    let terminal = std::io::stderr().is_terminal();
    let mut said: Option<Instant> = None;
    loop {
        let status = client::status(&array.socket)?;
        let Some((percent, line)) = done(&status) else {
            if terminal && said.is_some() {
                show::say("\n");
            }
            return Ok(status);
        };
        if terminal || said.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
            show::redraw(&format!("{} {line}", show::bar(percent)), terminal);
            said = Some(Instant::now());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Runs `furrow raid stop`.
///
/// # Errors
/// An error if clients are connected, or the array could not be stopped cleanly.
pub fn stop(args: &Stop, out: &mut dyn Write) -> Result<u8> {
    let array = client::find(&args.array)?;
    client::ask_last(&array.socket, &Request::Stop { force: args.force })?;
    let devices = array.status.members.iter().filter_map(|member| member.device.as_deref());
    for device in devices.chain(array.status.spares.iter().map(String::as_str)) {
        if let Ok(DeviceSpec::Image(image)) = device.parse() {
            in_use::until_free(Path::new(&image.path), UNLOCKED)?;
        }
    }
    let name = &array.status.array;
    writeln!(out, "{name}: stopped")?;
    if let Some(forgotten) = status::describe_forgotten(array.status.lost_blocks) {
        writeln!(out, "{name}: {forgotten}: scrub the array after its next start")?;
    }
    Ok(0)
}

/// The exit status of every command after a command line that cannot be parsed.
const WRONG_USAGE: u8 = 2;

/// Runs `furrow raid fault`.
///
/// # Errors
/// An error if the drives cannot inject such a fault.
pub fn fault(args: &Fault, out: &mut dyn Write) -> Result<u8> {
    if let Err(error) = fault::check_words(&args.fault) {
        crate::complain(&format!("{error:#}; see 'furrow device fault add --help'"));
        return Ok(WRONG_USAGE);
    }
    let array = client::find(&args.array)?;
    let one = if args.member == "all" { None } else { Some(member(&args.member)?) };
    let request = Request::Fault { member: one, words: args.fault.clone() };
    let text = client::ask(&array.socket, &request)?;
    out.write_all(text.as_str().unwrap_or_default().as_bytes())?;
    Ok(0)
}
