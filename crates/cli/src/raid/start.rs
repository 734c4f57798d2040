//! `furrow raid assemble`: assembles an array from its drives and serves it.
//!
//! Engine, NBD server and control socket are on one executor, on one thread. Order of starting: the
//! control socket is bound, the drives are opened, the array is assembled, its clients are served,
//! the control socket is served. Then the daemon reports that it is ready.

use super::client;
use super::devices::{self, same};
use super::exports::{BlockDevice, Exports};
use super::gather::{Chosen, Remark, UNUSABLE, Wanted, gather, in_brackets};
use super::hook;
use super::host::{Absent, ArrayHost, Drive, Parts, STOP_PATIENCE};
use super::kept;
use super::notice::Notices;
use super::request::Request;
use super::wait::Wait;
use crate::daemon;
use crate::holds;
use crate::metrics::{self, Metrics};
use crate::show;
use anyhow::{Context as _, Result, anyhow, bail};
use clap::ValueEnum;
use furrow_console::program::misused;
use furrow_control::place::{self, Kind};
use furrow_control::socket::Listener as Socket;
use furrow_drives::block_devices::tell_udev;
use furrow_log::Uuid;
use furrow_nbd::{Export, Identity, Listen, Listener, Server, Tls};
use furrow_raid::{Examined, MemberState, Options, Volume, split_brain};
use furrow_rt::{Nanos, Rt, either};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Error, ZonedDevice};
use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Minimum of [`Options::map_memory`] in bytes.
const MAP_MEMORY_MIN: u64 = 24 << 10;
/// Seconds that two time-outs of the kernel can take (30 s each, `io_timeout` in sysfs). After the
/// first, the NVMe driver aborts the command; after the second, it resets the controller.
const KERNEL_TIMEOUTS: u64 = 2 * 30;
/// Default number of seconds that a drive may take to answer. A command that the kernel aborts and
/// that is then retried must not cost the array a member.
pub const DRIVE_TIMEOUT: u64 = KERNEL_TIMEOUTS + furrow_linux::PATIENCE.as_secs() + 1;
/// A stop waits for a hanging drive until the drive is failed, which is at most a second after
/// its limit.
const _: () = assert!((DRIVE_TIMEOUT + 1) * Nanos::SECOND < STOP_PATIENCE);
/// Exit status of a failure.
const FAILURE: u8 = 1;
/// Nanoseconds that the ending daemon waits for clients of the control socket to get their answers.
const FAREWELL: u64 = 2 * Nanos::SECOND;

/// Assemble an array from its drives and serve it over NBD, or as a block device
///
/// Returns once a daemon serves the array, until furrow raid stop or SIGTERM to the daemon. Drives
/// may be given in any order; without DEVICE all block devices of the machine are searched. Drives
/// may be missing if the level allows it and they certainly have no newer data (or if you know
/// that: --degraded).
#[derive(clap::Args)]
pub struct Args {
    /// Drives, a directory of images, or a pattern of drives ('d*.zns', '/dev/disk/by-id/nvme-*')
    #[arg(value_name = "DEVICE")]
    devices: Vec<String>,
    /// UUID of the array, or its beginning, if the drives belong to several arrays
    #[arg(long)]
    uuid: Option<String>,
    /// Name of the array, if the drives belong to several arrays
    #[arg(long, short_alias = 'n')]
    name: Option<String>,
    /// Address of the server: unix:PATH or tcp:ADDRESS:PORT; may be given several times (default: a
    /// Unix socket called NAME.nbd in the directory of the control socket)
    #[arg(long, short_alias = 'l', value_name = "PLACE")]
    listen: Vec<Listen>,
    /// Also make the volume a block device of this machine, /dev/ublkbN (needs root and ublk:
    /// modprobe ublk_drv)
    #[arg(long)]
    ublk: bool,
    /// With --ublk: if the daemon is killed, the device stays, and its users wait until the array
    /// is assembled again with the same options
    #[arg(long, requires = "ublk")]
    keep: bool,
    /// Remove the block device that was kept (--keep) and waits for its daemon; writes to it that
    /// are not in the array are lost
    #[arg(long)]
    drop_kept: bool,
    /// TLS: off, on (clients may use it), require (clients must use it)
    #[arg(long, value_enum, default_value_t = Mode::Off, requires_if("on", "tls_certs"))]
    #[arg(requires_if("require", "tls_certs"))]
    tls: Mode,
    /// With --tls: directory with server-cert.pem and server-key.pem
    #[arg(long, value_name = "DIR")]
    tls_certs: Option<PathBuf>,
    /// With --tls require: admit only clients with a certificate of an authority in ca-cert.pem
    #[arg(long, requires = "tls_certs")]
    tls_verify: bool,
    /// Let clients only read
    #[arg(long, short_alias = 'r')]
    read_only: bool,
    /// Start even if missing drives may have newer data
    #[arg(long)]
    degraded: bool,
    /// If the array is split, that is, if drives continued without each other: start the part that
    /// the drive DEVICE belongs to, and leave out the drives of the other parts, unchanged
    #[arg(long, value_name = "DEVICE")]
    choose: Option<String>,
    /// Wait this long for missing or busy members, as at boot. Then start without them if the level
    /// allows, even if they were named. Also searches this machine's block devices and the folders
    /// of named files for members. Without --wait, a named drive that does not exist is an error,
    /// since its name may be mistyped
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=86_400))]
    wait: Option<u64>,
    /// Start even if the last writes to some blocks may be lost; these blocks then have their
    /// earlier content
    #[arg(long)]
    accept_loss: bool,
    /// An empty drive that becomes a spare, which replaces a member that fails; may be given
    /// several times. Drives that are spares already may be given among DEVICE
    #[arg(long, value_name = "DEVICE")]
    spare: Vec<String>,
    /// Append events to FILE, one line each: time, array, event, member, text
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Run PROGRAM for each event, with event, array, member and text as arguments and as
    /// FURROW_EVENT, FURROW_ARRAY, FURROW_UUID, FURROW_MEMBER, FURROW_TEXT;
    /// /usr/share/furrow/hooks/mail sends mail
    #[arg(long, value_name = "PROGRAM")]
    hook: Option<PathBuf>,
    /// Metrics for Prometheus: ADDRESS:PORT or /FILE
    #[arg(long, value_name = "WHERE")]
    metrics: Option<Metrics>,
    /// Seconds that a drive may take to answer before it is failed; 0: no limit. A smaller value
    /// than the default may fail drives whose command the kernel had to abort
    #[arg(long, value_name = "SECONDS", default_value_t = DRIVE_TIMEOUT)]
    drive_timeout: u64,
    /// Maximum number of connections of NBD clients
    #[arg(long, value_name = "N", default_value_t = 128)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    connections: u32,
    /// Maximum number of connections of one client, that is, of a process or an address
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    client_connections: u32,
    /// Seconds after which an idle connection is closed; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    idle_limit: u64,
    /// Microseconds that a rebuild pauses after every 32 rows
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
    rebuild_pause: u64,
    /// Memory for the volume's map, at least 24KiB; other parts of the map are read on demand
    /// (default: no limit; the whole map takes 1 MiB for each GiB of the volume)
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    map_memory: Option<u64>,
    /// Stay in the foreground, with messages on standard error
    #[arg(long, short_alias = 'f')]
    foreground: bool,
    /// Append the daemon's messages to FILE instead of the journal
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Report on standard output when the array is served; the daemon is started with this option.
    #[arg(long, hide = true, requires = "foreground")]
    ready: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    Off,
    On,
    Require,
}

/// Parses a bound of the map's memory.
fn parse_memory(text: &str) -> Result<u64, String> {
    let bytes = furrow_zone::size::parse(text)?.0;
    if bytes < MAP_MEMORY_MIN {
        return Err(format!("{text}: at least 24KiB are needed"));
    }
    crate::limits::check_memory(bytes).map_err(|why| format!("{text}: {why}"))?;
    Ok(bytes)
}

/// Runs the command.
///
/// # Errors
/// An error if the daemon cannot be started, or options contradict each other. If the array cannot
/// be served, this function prints the reason and returns the exit status of a failure.
pub fn run(args: &Args, out: &mut dyn std::io::Write) -> Result<u8> {
    // Wrong usage has a status of its own, which a daemon that cannot serve has not.
    devices::named(&args.devices)?;
    devices::listed(&args.spare)?;
    args.choose.as_deref().map(devices::one).transpose()?;
    if !args.foreground {
        let (status, message) = daemon::start(&again(), args.log.as_deref(), FAILURE)?;
        match status {
            0 => writeln!(out, "{message}")?,
            _ => crate::complain(&message),
        }
        return Ok(status);
    }
    if args.log.is_some() && !args.ready {
        let why = "--log is for a daemon: in the foreground messages go to standard error";
        return Err(misused(why));
    }
    if args.ready {
        // The daemon begins a new session, so that signals from the terminal do not reach it.
        let _ = rustix::process::setsid();
    }
    match serve(args) {
        Ok(()) => Ok(0),
        Err(error) => {
            let message = format!("{error:#}");
            if args.ready {
                // The parent reads this message only if the daemon fails before it has reported
                // that it is ready.
                daemon::say_failed(FAILURE, &message);
            }
            crate::complain(&message);
            Ok(FAILURE)
        }
    }
}

/// The arguments to start this command again as the daemon.
fn again() -> Vec<OsString> {
    let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
    // The new options go directly after the word `assemble`, before its other arguments.
    let at = words.iter().position(|word| word == "assemble").map_or(words.len(), |at| at + 1);
    words.splice(at..at, ["--foreground", "--ready"].map(OsString::from));
    words
}

/// Serves the array until it is stopped.
fn serve(args: &Args) -> Result<()> {
    let signals = daemon::begin()?;
    let places = args.listen.iter().map(absolute).collect::<Result<Vec<_>>>()?;
    let tls = tls(args)?;
    let rt = Rt::new(daemon::config()?);
    let (ended, ended_here) = UnixStream::pair().context("a socket for signals")?;
    signals.on_first(move |signal| {
        daemon::log(&format!("{signal}: stopping"));
        // The write fails only if the daemon has stopped already.
        let _ = (&ended).write_all(b"s");
    })?;
    ended_here.set_nonblocking(true).context("a socket for signals")?;
    let signal = Arc::new(OwnedFd::from(ended_here));
    let wait = Wait::new(args.wait.map(Duration::from_secs), signal.clone(), args.ready);
    let (by_uuid, by_name) = (args.uuid.as_deref(), args.name.as_deref());
    let drive_timeout = args.drive_timeout.saturating_mul(Nanos::SECOND);
    let part = args.choose.as_deref().map(devices::one).transpose()?;
    let part = part.as_ref();
    let wanted = Wanted { uuid: by_uuid, name: by_name, part, wait: &wait, drive_timeout };
    let chosen = gather(&rt, &args.devices, &wanted)?;
    let (name, uuid) = (chosen.name.clone(), chosen.uuid.clone());
    if let Some(other) = client::running().iter().find(|other| other.status.array == name) {
        if other.status.uuid == uuid {
            bail!("the array {name} ({uuid}) runs already: see furrow raid status {name}");
        }
        bail!(
            "an array named {name} runs already, with UUID {}: names must differ, as sockets and \
             exports are called by them",
            other.status.uuid
        );
    }
    client::make_runtime_dir()?;
    let hook = args.hook.as_deref().map(hook::program).transpose()?;
    let notices = Notices::start((&name, &uuid), args.events.as_deref(), hook.as_deref())?;
    let socket = Kind::Array.socket(&uuid);
    // The process that listens at this socket controls the array.
    let control = furrow_control::Server::new(&rt, Socket::bind(&socket)?);
    let _named = client::NameFile::write(&uuid, &name)?;
    let service = args.metrics.as_ref().map(metrics::Service::prepare).transpose()?;
    let started = start(args, &rt, (chosen, &wait), (&places, tls), notices);
    let end_metrics = || args.metrics.iter().for_each(metrics::end);
    let (host, remarks) = started.inspect_err(|_| end_metrics())?;
    if let Some(service) = service {
        let page = move || {
            let text =
                client::ask_within(&socket, &Request::Metrics, Some(Duration::from_secs(10)));
            Some(text.ok()?.as_str()?.to_owned())
        };
        service.start(page)?;
    }
    let handler = host.clone();
    let connections = control.connections();
    rt.spawn_detached(control.serve(handler));
    let status = host.status();
    let text = format!("served at {}", status.listening.join(" "));
    let mut said = format!("{name}: {text}");
    host.note("started", None, text);
    for Remark { event, member, text } in remarks {
        said = format!("{said}\n{name}: {text}");
        host.note(event, member, text);
    }
    if status.state != "online" {
        said = format!("{said}\n{name}: what to do: furrow raid status {name}");
    }
    // For a drive in use udev's properties come from the array, so udev has to look again now.
    host.drives().iter().for_each(tell_udev);
    daemon::warn_of_refusals();
    if args.ready {
        daemon::say_ready(&said)?;
    }
    let (engine, served) = (rt.clone(), host.clone());
    let result = rt.block_on(async move {
        let _ = either(engine.readable(signal), served.stop.wait()).await;
        let result = served.shut_down().await;
        // The socket is removed below, when the drives are freed: until then, clients that look for
        // the array still see it.
        connections.wait_for_end(&engine, FAREWELL).await;
        result
    });
    end_metrics();
    drop(host);
    rt.clear();
    result.map_err(|error| anyhow!("{name}: stopped, but not cleanly: {error}"))
}

/// Assembles the array and serves it. Also returns remarks on its problems.
fn start(
    args: &Args,
    rt: &Rt,
    (chosen, wait): (Chosen, &Wait),
    (places, tls): (&[Listen], Tls),
    notices: Notices,
) -> Result<(Rc<ArrayHost>, Vec<Remark>)> {
    let Chosen { name, uuid: _, drives: given, remarks: mut left_out, unnamed, stale } = chosen;
    let mut new = devices::listed(&args.spare)?;
    for spec in &new {
        let examined = given.iter().find(|(named, _)| same(&named.spec, spec));
        if let Some(member) = examined.and_then(|(_, examined)| examined.member) {
            bail!("{spec}: member {member} of the array {name}, not a spare");
        }
    }
    new.retain(|spec| !given.iter().any(|(named, _)| same(&named.spec, spec)));
    let mut open = |spec: &DeviceSpec| match wait.open(rt, spec)? {
        // With `--wait`, as at boot, a drive that does not open is treated as missing.
        Err(error) if wait.is_wanted() => {
            left_out.push(Remark::unusable(&error));
            Ok(None)
        }
        opened => opened.map(Some).map_err(anyhow::Error::from),
    };
    let (mut says, mut opened): (Vec<Examined>, Vec<(Uuid, Drive)>) = (Vec::new(), Vec::new());
    let mut unusable: Vec<(Uuid, DeviceSpec)> = Vec::new();
    for (named, examined) in given {
        match open(&named.spec)? {
            Some(drive) => {
                opened.push((examined.device, drive));
                says.push(examined);
            }
            None => unusable.push((examined.device, named.spec)),
        }
    }
    let mut spares_given = Vec::new();
    for spec in &new {
        spares_given.extend(open(spec)?);
    }
    let suspects = left_out.iter().any(|remark| remark.event == UNUSABLE);
    let absent = absent(args, &says, [&unusable, &unnamed], suspects);
    // The kept device is looked for only when the drives are open: then no other daemon of this
    // array is running, since it would hold the drives.
    let to_drop = match says.first().map(|drive| drive.array) {
        Some(array) if args.drop_kept => kept::waiting(rt, array)?,
        Some(array) if !args.keep && !args.read_only => {
            kept::refuse(rt, &name, array)?;
            None
        }
        _ => None,
    };
    let split_brain = split_brain(&says);
    if let Some(why) = split_brain.as_ref().filter(|_| !args.degraded) {
        bail!("{name}: {why}{}", in_brackets(&left_out));
    }
    // All checks that may refuse the array come before assembly: assembly records that members are
    // missing, and so makes these members stale.
    let default = [Listen::Unix(place::directory().join(format!("{name}.nbd")))];
    let places = if places.is_empty() { &default[..] } else { places };
    let limits = furrow_nbd::Limits {
        connections: args.connections as usize,
        per_client: args.client_connections as usize,
        idle: args.idle_limit.saturating_mul(Nanos::SECOND),
        ..furrow_nbd::Limits::default()
    };
    limits.check()?;
    let listeners = places.iter().map(Listener::bind).collect::<Result<Vec<_>, _>>()?;
    if args.ublk {
        furrow_ublk::available(false)?;
    }
    let devices: Vec<Rc<dyn ZonedDevice>> =
        opened.iter().map(|(_, drive)| drive.device.clone()).collect();
    let options = Options {
        rebuild_pause: args.rebuild_pause.saturating_mul(1000),
        map_memory: args.map_memory.unwrap_or(0),
        drive_timeout: args.drive_timeout.saturating_mul(Nanos::SECOND),
        accept_loss: args.accept_loss,
        ..Options::default()
    };
    let beside: Vec<String> = unnamed.iter().map(|(_, drive)| drive.to_string()).collect();
    let beside = match beside.join(", ") {
        none if none.is_empty() => none,
        drives => format!("; members that were not named: {drives}"),
    };
    let engine = rt.clone();
    let to_add: Vec<Rc<dyn ZonedDevice>> =
        spares_given.iter().map(|spare| spare.device.clone()).collect();
    let volume: Volume = rt
        .block_on(async move {
            match furrow_raid::assemble_if_spares_fit(&engine, devices, to_add.clone(), &options)
                .await
            {
                Err(error) => Err(explain_spares(&to_add, error).await),
                done => done,
            }
        })
        .map_err(|error| match (&beside[..], in_brackets(&left_out)) {
            ("", remarks) if remarks.is_empty() => anyhow!(error),
            (beside, remarks) => anyhow!("{error}{beside}{remarks}"),
        })?;
    let find = |uuid| opened.iter().find(|(other, _)| *other == uuid).map(|(_, d)| d.clone());
    let mut spares: Vec<Drive> = volume.spares().into_iter().filter_map(find).collect();
    for spare in spares_given {
        let (volume, device) = (volume.clone(), spare.device.clone());
        rt.block_on(async move { volume.add_spare(device, false).await })?;
        spares.push(spare);
    }
    let members = volume.members();
    let drives = members.iter().map(|(uuid, ..)| find(*uuid)).collect();
    let described = format!("{} of {} drives", volume.config().level, members.len());
    let export = Export::new(name.clone(), Rc::new(volume.clone()));
    let exports = vec![export.describe(described).read_only(args.read_only)];
    let open = is_open(places, &tls, args.read_only);
    let server_options = furrow_nbd::Options { tls, limits };
    let server = Server::new(rt, listeners, exports, server_options)?;
    // The kept device is dropped after all checks that can refuse the array: otherwise a refusal
    // would lose the writes in the device.
    if let Some(device) = to_drop {
        kept::discard(rt, device.clone())?;
        daemon::log(&format!("{device}, which was kept, is removed (--drop-kept)"));
    }
    let block_device = match args.ublk {
        true => Some(block_device(args, rt, &volume)?),
        false => None,
    };
    // The NBD server begins after the block device: writes that wait in a kept device are older
    // than those of NBD clients.
    server.begin();
    let mut remarks: Vec<Remark> = Vec::new();
    for (index, (uuid, state, _)) in (0..).zip(&members) {
        if *state == MemberState::Failed {
            let why = match absent.iter().find(|absent| absent.uuid == *uuid) {
                Some(Absent { why, unnamed: Some(drive), .. }) => format!(
                    ": {why}: it is stale from now on; to take it back, with a rebuild: furrow \
                     raid replace {name} {index} {drive} --force, which erases it first"
                ),
                Some(absent) => format!(": {}", absent.why),
                None => ", which failed earlier".to_owned(),
            };
            let text = format!("runs without member {index}{why}");
            remarks.push(Remark { event: "degraded", member: Some(index), text });
        }
    }
    remarks.extend(left_out);
    remarks.extend(open.map(|text| Remark { event: "unprotected", member: None, text }));
    if split_brain.is_some() {
        let text = "started because --degraded was given".to_owned();
        remarks.push(Remark { event: "forced", member: None, text });
    }
    let in_doubt = volume.recovered().in_doubt;
    if in_doubt > 0 {
        let stripes = show::count(in_doubt, "stripe");
        let text = format!(
            "started because --accept-loss was given: what was written last in {stripes} may be \
             lost"
        );
        remarks.push(Remark { event: "loss-accepted", member: None, text });
    }
    let service = Box::new(Exports::new(rt, server, block_device, args.read_only));
    let parts = Parts { name, volume, service, drives, spares, notices, absent, stale };
    Ok((ArrayHost::start(rt, parts), remarks))
}

/// The members that the newest record has in service, but whose drives are not open. `says` are the
/// records of the open drives, `unusable` the members' drives that do not open, and `unnamed` those
/// that were seen although they were not named; with `suspects`, further drives may be members.
fn absent(
    args: &Args,
    says: &[Examined],
    [unusable, unnamed]: [&[(Uuid, DeviceSpec)]; 2],
    suspects: bool,
) -> Vec<Absent> {
    let Some(newest) = furrow_raid::newest(says) else { return Vec::new() };
    let is_open = |uuid: &Uuid| says.iter().any(|open| open.device == *uuid);
    let gone = newest
        .members
        .iter()
        .filter(|(uuid, state)| *state != MemberState::Failed && !is_open(uuid));
    let of = |drives: &[(Uuid, DeviceSpec)], uuid: &Uuid| {
        drives.iter().find(|(other, _)| other == uuid).map(|(_, spec)| spec.clone())
    };
    let why = |uuid: &Uuid| match (of(unusable, uuid), args.wait) {
        (Some(spec), _) => format!("its drive {spec} cannot be used"),
        (None, None) if let Some(spec) = of(unnamed, uuid) => {
            format!("its drive {spec} was not named")
        }
        (None, Some(seconds)) if suspects => {
            format!("it was not found in {seconds} s, unless it is a drive that cannot be used")
        }
        (None, Some(seconds)) => format!("its drive was found nowhere in {seconds} s"),
        (None, None) if args.devices.is_empty() => "its drive was found nowhere".to_owned(),
        (None, None) => "its drive is not among those that were named".to_owned(),
    };
    let absent = |uuid: &Uuid| Absent { uuid: *uuid, why: why(uuid), unnamed: of(unnamed, uuid) };
    gone.map(|(uuid, _)| absent(uuid)).collect()
}

/// Adds to the `error` of an assembly what the drive that was to become a spare holds, if the error
/// is about that.
async fn explain_spares(spares: &[Rc<dyn ZonedDevice>], error: Error) -> Error {
    let text = error.to_string();
    match spares.iter().find(|spare| text.starts_with(&format!("{}:", spare.name()))) {
        Some(spare) => holds::explain_used(&**spare, error).await,
        None => error,
    }
}

/// Makes `volume` a block device of the kernel.
fn block_device(args: &Args, rt: &Rt, volume: &Volume) -> Result<BlockDevice> {
    let kept_for = args.keep.then(|| kept::key(volume.uuid()));
    let served = furrow_ublk::Exported::new(volume.clone(), args.read_only);
    let served = served.always_durable(args.keep);
    let (engine, options) = (rt.clone(), furrow_ublk::Options { number: None, kept_for });
    let server = async move { furrow_ublk::Server::start(&engine, served, options).await };
    Ok(rt.block_on(server)?)
}

/// A warning that lists the addresses that other machines can use without authentication; `None` if
/// there are none.
fn is_open(places: &[Listen], tls: &Tls, read_only: bool) -> Option<String> {
    let open = |place: &&Listen| matches!(place, Listen::Tcp(at) if !at.ip().is_loopback());
    let open: Vec<String> = places.iter().filter(open).map(Listen::to_string).collect();
    if open.is_empty() || matches!(tls, Tls::Require(_)) {
        return None;
    }
    let may = if read_only { "read" } else { "read and write" };
    Some(format!(
        "WARNING: anyone who reaches {} can {may} the volume, unauthenticated and in the clear: \
         use --tls require with --tls-verify, or listen at 127.0.0.1 or a Unix socket",
        open.join(" ")
    ))
}

/// Makes the path of a socket absolute, because the daemon changes its working directory.
fn absolute(place: &Listen) -> Result<Listen> {
    Ok(match place {
        Listen::Unix(path) => Listen::Unix(std::path::absolute(path)?),
        Listen::Tcp(address) => Listen::Tcp(*address),
    })
}

/// The TLS settings of `--tls` and its related options.
///
/// # Errors
/// An error if the certificates cannot be loaded, or if the options contradict each other, so that
/// the server would admit clients that the options seem to exclude.
fn tls(args: &Args) -> Result<Tls> {
    let why = match (args.tls, args.tls_verify, &args.tls_certs) {
        (Mode::Off, true, _) => {
            "--tls-verify without --tls: clients would be served in the clear, without a \
             certificate: use --tls require"
        }
        (Mode::Off, _, Some(_)) => {
            "--tls-certs without --tls: clients would be served in the clear: use --tls require, \
             or --tls on"
        }
        (Mode::On, true, _) => {
            "--tls-verify with --tls on: clients that do without TLS would be admitted without a \
             certificate: use --tls require"
        }
        _ => "",
    };
    if !why.is_empty() {
        return Err(misused(why));
    }
    let load = || {
        let directory = args.tls_certs.as_deref().unwrap_or(Path::new("."));
        Identity::load(directory, args.tls_verify)
    };
    Ok(match args.tls {
        Mode::Off => Tls::Off,
        Mode::On => Tls::On(load()?),
        Mode::Require => Tls::Require(load()?),
    })
}
