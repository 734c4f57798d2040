//! The commands that change a running array: each asks its daemon.

use super::client::{self, Running};
use super::devices;
use super::request::Request;
use super::status::{self, Status};
use crate::device::fault;
use crate::{in_use, show};
use anyhow::{Result, bail};
use furrow_zone::spec::DeviceSpec;
use std::io::{IsTerminal as _, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often progress is asked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often it is printed where there is no terminal.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// How long drives may stay locked after the daemon has ended.
const UNLOCKED: Duration = Duration::from_secs(10);

/// Take a member out of service
///
/// Refused if the array could not do without it. What the drive holds is stale then: it comes back
/// with furrow raid replace only.
#[derive(clap::Args)]
pub struct Fail {
    /// Name, UUID or control socket
    array: String,
    /// Number of the member, or its drive
    member: String,
}

/// Put an empty drive in the place of a failed member
///
/// A rebuild begins; furrow raid status shows how far it is, and --wait waits for it.
#[derive(clap::Args)]
pub struct Replace {
    /// Name, UUID or control socket
    array: String,
    /// Number of the member, or its drive
    member: String,
    /// The new drive
    #[arg(value_name = "DEV")]
    device: String,
    /// Lose what the drive holds
    #[arg(short, long)]
    force: bool,
    /// Show how far the rebuild is until it has ended
    #[arg(short, long)]
    wait: bool,
}

/// Keep a drive for the next member that fails
///
/// It takes the place of a member that has failed already at once. The drive says from now on that
/// it is a spare of this array: furrow raid assemble takes it among the others.
#[derive(clap::Args)]
pub struct AddSpare {
    /// Name, UUID or control socket
    array: String,
    /// An empty drive
    #[arg(value_name = "DEV")]
    device: String,
    /// Lose what the drive holds
    #[arg(short, long)]
    force: bool,
}

/// Go on with a rebuild, change its pace, or wait for it
#[derive(clap::Args)]
pub struct Rebuild {
    /// Name, UUID or control socket
    array: String,
    /// Microseconds to pause after every 32 rows, for the sake of clients; 0: none
    #[arg(long, value_name = "MICROSECONDS")]
    pause: Option<u64>,
    /// Show how far it is until it is over
    #[arg(short, long)]
    wait: bool,
}

/// Read everything and check it against checksums and parity
///
/// Names each damaged block: drive, zone, block. Exit status with --wait: 0 if nothing is left
/// damaged, else 1.
#[derive(clap::Args)]
pub struct Scrub {
    /// Name, UUID or control socket
    array: String,
    /// Write anew what is damaged
    #[arg(short, long)]
    repair: bool,
    /// Show how far it is until it is over, and what it found
    #[arg(short, long)]
    wait: bool,
    /// Stop the scrub that is running; status shows what it found until then
    #[arg(short, long, conflicts_with_all = ["repair", "wait"])]
    stop: bool,
}

/// Forget the errors of an array, and what is known to be lost or damaged
///
/// For when it has been seen to: the data came back from a copy, or is not missed. What is still
/// lost or damaged is found by the next read or scrub.
#[derive(clap::Args)]
pub struct Clear {
    /// Name, UUID or control socket
    array: String,
}

/// Stop an array
///
/// Returns when its daemon has ended: everything is durable and the drives are free. Refused while
/// clients are connected.
#[derive(clap::Args)]
pub struct Stop {
    /// Name, UUID or control socket
    array: String,
    /// Also if clients are connected: what they have under way is finished, then they are cut off
    #[arg(short, long)]
    force: bool,
}

/// Give emulated drives of a running array faults
///
/// What can be given: furrow device fault --help. A power-cut without --nth or the like happens at
/// once, to all drives at the same moment. With its last fault cleared, a drive that had
/// disappeared answers again.
#[derive(clap::Args)]
pub struct Fault {
    /// Name, UUID or control socket
    pub array: String,
    /// Number of the member, or its drive; all: each of them
    member: String,
    /// As after furrow device fault IMAGE
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    fault: Vec<String>,
}

/// A member as the daemon knows it: a number stays one, a drive gets its full path.
fn member(name: &str) -> Result<String> {
    if name.parse::<u32>().is_ok() {
        return Ok(name.to_owned());
    }
    Ok(devices::one(name)?.to_string())
}

/// Runs `furrow raid fail`.
///
/// # Errors
/// If the array could not do without the member.
pub fn fail(args: &Fail, out: &mut dyn Write) -> Result<u8> {
    let array = client::find(&args.array)?;
    client::ask(&array.socket, &Request::Fail { member: member(&args.member)? })?;
    writeln!(out, "{}: member {} is out of service", array.status.array, args.member)?;
    Ok(0)
}

/// Runs `furrow raid replace`.
///
/// # Errors
/// If the member is in service, or the drive does not fit or is not empty.
pub fn replace(args: &Replace, out: &mut dyn Write) -> Result<u8> {
    let array = client::find(&args.array)?;
    let device = devices::one(&args.device)?.to_string();
    let request = Request::Replace { member: member(&args.member)?, device, force: args.force };
    client::ask(&array.socket, &request)?;
    let name = &array.status.array;
    writeln!(out, "{name}: {} is member {} now, a rebuild begins", args.device, args.member)?;
    if args.wait { wait_for_rebuild(&array, out) } else { Ok(0) }
}

/// Runs `furrow raid add-spare`.
///
/// # Errors
/// If the drive does not fit, is not empty, or is a spare of another array.
pub fn add_spare(args: &AddSpare, out: &mut dyn Write) -> Result<u8> {
    let array = client::find(&args.array)?;
    let device = devices::one(&args.device)?.to_string();
    client::ask(&array.socket, &Request::AddSpare { device, force: args.force })?;
    writeln!(out, "{}: {} is a spare", array.status.array, args.device)?;
    Ok(0)
}

/// Runs `furrow raid rebuild`.
///
/// # Errors
/// If there is nothing to rebuild.
pub fn rebuild(args: &Rebuild, out: &mut dyn Write) -> Result<u8> {
    let array = client::find(&args.array)?;
    let name = &array.status.array;
    let asked = client::ask(&array.socket, &Request::Rebuild { pause_us: args.pause });
    if !args.wait {
        asked?;
        writeln!(out, "{name}: {}", if args.pause.is_some() { "pace set" } else { "rebuilding" })?;
        return Ok(0);
    }
    wait_for_rebuild(&array, out)
}

/// Shows how far a rebuild is until none runs. One that has ended already has been waited for.
fn wait_for_rebuild(array: &Running, out: &mut dyn Write) -> Result<u8> {
    let name = &array.status.array;
    let done = |status: &Status| match &status.rebuild {
        Some(rebuild) if rebuild.running => {
            let line = status::describe_rebuild(rebuild);
            Some((rebuild.percent, format!("{name}: rebuild {line}")))
        }
        _ => None,
    };
    let status = wait(array, done)?;
    if let Some(error) = status.error {
        bail!("{name}: {error}");
    }
    if status.rebuild.is_some() {
        bail!("{name}: the rebuild ended early: see furrow raid status {name}");
    }
    writeln!(out, "{name}: nothing is left to rebuild")?;
    Ok(0)
}

/// Runs `furrow raid scrub`.
///
/// # Errors
/// If one is running already, or it ended early.
pub fn scrub(args: &Scrub, out: &mut dyn Write) -> Result<u8> {
    let array = client::find(&args.array)?;
    let name = &array.status.array;
    if args.stop {
        client::ask(&array.socket, &Request::StopScrub)?;
        writeln!(out, "{name}: the scrub stops: see furrow raid status {name}")?;
        return Ok(0);
    }
    client::ask(&array.socket, &Request::Scrub { repair: args.repair })?;
    if !args.wait {
        writeln!(out, "{name}: a scrub begins: see furrow raid status {name}")?;
        return Ok(0);
    }
    let done = |status: &Status| match &status.scrub {
        Some(scrub) if scrub.running => {
            let line = status::describe_scrub(scrub);
            Some((scrub.percent, format!("{name}: scrub {line}")))
        }
        _ => None,
    };
    let Some(scrub) = wait(&array, done)?.scrub else { bail!("{name}: no scrub was begun") };
    if let Some(error) = scrub.error {
        bail!("{name}: the scrub ended early: {error}");
    }
    for damage in &scrub.findings {
        writeln!(out, "{name}: {}", status::describe_damage(damage))?;
    }
    writeln!(out, "{name}: {}", status::describe_scrub(&scrub))?;
    let left = scrub.findings.iter().any(|damage| !damage.repaired) || scrub.lost > 0;
    Ok(u8::from(left))
}

/// Runs `furrow raid clear`.
///
/// # Errors
/// If a scrub is running.
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

/// Shows progress until there is none, and returns the last status.
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
/// If clients are connected, or it could not be stopped in order.
pub fn stop(args: &Stop, out: &mut dyn Write) -> Result<u8> {
    let array = client::find(&args.array)?;
    client::ask_last(&array.socket, &Request::Stop { force: args.force })?;
    let devices = array.status.members.iter().filter_map(|member| member.device.as_deref());
    for device in devices.chain(array.status.spares.iter().map(String::as_str)) {
        if let Ok(DeviceSpec::Image(image)) = device.parse() {
            in_use::until_free(Path::new(&image.path), UNLOCKED)?;
        }
    }
    writeln!(out, "{}: stopped", array.status.array)?;
    Ok(0)
}

/// Runs `furrow raid fault`.
///
/// # Errors
/// If the drives cannot have such a fault.
pub fn fault(args: &Fault, out: &mut dyn Write) -> Result<u8> {
    fault::check_words(&args.fault)?;
    let array = client::find(&args.array)?;
    let one = if args.member == "all" { None } else { Some(member(&args.member)?) };
    let request = Request::Fault { member: one, words: args.fault.clone() };
    let text = client::ask(&array.socket, &request)?;
    out.write_all(text.as_str().unwrap_or_default().as_bytes())?;
    Ok(0)
}
