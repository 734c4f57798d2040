//! The process that serves a mount.

use super::options::Options;
use super::remount::Running;
use crate::daemon::{config, log};
use crate::holds::{self, Needs};
use crate::in_use;
use crate::metrics;
use anyhow::{Context as _, Result, anyhow};
use furrow_fs::{Fs, MountOptions};
use furrow_fuse::endpoint::syncs;
use furrow_fuse::report::{Stat, prometheus};
use furrow_fuse::{FuseServer, Info, Session};
use furrow_linux::claim::hand_over;
use furrow_rt::{Config, Pool, Port};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, Error};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::channel;

/// A mount to be made.
pub struct Plan {
    /// The device, as given.
    pub device: String,
    /// The source to show in the mount table.
    pub source: String,
    /// Mount point.
    pub directory: PathBuf,
    /// The options given with `-o`.
    pub options: Options,
    /// The options given with `-o` as text.
    pub texts: Vec<String>,
}

impl Plan {
    /// The block device of the file system, if the kernel can hold it for the mount: then the
    /// source of the mount is the device's own name.
    fn block_device(&self) -> Option<&Path> {
        let DeviceSpec::Node(_) = self.device.parse().ok()? else { return None };
        let path = Path::new(&self.source);
        let kind = std::fs::metadata(path).ok()?.file_type();
        (kind.is_block_device() && self.options.fsname.is_none()).then_some(path)
    }
}

/// Mounts the file system and serves the mount until it is unmounted. Calls `ready` once the
/// mount works.
///
/// # Errors
/// An error if the device or the directory cannot be used, `ready` fails, or the last
/// checkpoint fails.
pub fn serve(plan: Plan, ready: impl FnOnce(String) -> Result<()>) -> Result<()> {
    let signals = crate::daemon::begin()?;
    let metrics = plan.options.metrics.as_ref().map(metrics::Service::prepare).transpose()?;
    let no_more_metrics = || plan.options.metrics.iter().for_each(metrics::end);
    let (port, pool, info) = start_engine(&plan).inspect_err(|_| no_more_metrics())?;
    let mut endpoint = plan.options.endpoint.clone();
    endpoint.source.clone_from(&plan.source);
    let commit = Arc::new(AtomicU64::new(plan.options.engine.commit_interval));
    let server = FuseServer::new(port.clone(), pool, plan.options.ttl(), info, Box::new(log))
        .with_handles(plan.options.handles)
        .with_async_dio(plan.options.async_dio)
        .with_writeback_cache(plan.options.writeback_cache)
        .with_remount(Box::new(Running::new(&plan.texts, &commit)));
    let (reporter, leaving) = (server.reporter(), server.reporter());
    let mut claim = plan.block_device().and_then(hand_over);
    endpoint.block_device = claim.is_some();
    let served = Session::mount(server, &endpoint, &plan.directory)
        .and_then(|mut session| {
            if plan.options.writeback_cache && !plan.options.engine.read_only {
                session.write_back_every(commit, log)?;
            }
            signals.unmount_on_signal(session.ending(), log)?;
            let page = move || Some(prometheus::text(&reporter.stat()?));
            metrics.map_or(Ok(()), |service| service.start(page))?;
            let stat = leaving.stat();
            ready(damaged(&plan, stat).unwrap_or_else(|| notes(&plan)))?;
            Ok(session)
        })
        .and_then(|session| {
            let rings = if session.has_rings() { ", requests come by io_uring" } else { "" };
            let directory = session.directory().display();
            log(&format!("{} mounted on {directory}{rings}", plan.source));
            crate::daemon::warn_of_refusals();
            session.run()
        });
    let left = leaving.left();
    if left.is_none()
        && let Some(claim) = claim.take()
        && let Err(error) = claim.take_back()
    {
        // The mount was cut off: the kernel has freed the device before the last checkpoint.
        log(&format!("{}: other programs can use the device now: {error}", plan.source));
    }
    let ended = stop_engine(port, left).with_context(|| format!("{}: unmount", plan.source));
    no_more_metrics();
    match (&served, &ended) {
        (Ok(()), Ok(())) => log(&format!("{} unmounted", plan.source)),
        // The first error is returned; the second one is logged, so that it is not lost.
        (Err(_), Err(error)) => log(&format!("{error:#}")),
        _ => {}
    }
    served.and(ended)
}

fn start_engine(plan: &Plan) -> Result<(Port<Fs>, Pool, Info)> {
    let spec: DeviceSpec = plan.device.parse()?;
    let read_only = plan.options.engine.read_only;
    let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
    let (sender, receiver) = channel();
    let (source, engine) = (plan.source.clone(), plan.options.engine.clone());
    // The directory as the mount table shows it; the given path if it cannot be resolved.
    let directory = plan.directory.canonicalize().unwrap_or_else(|_| plan.directory.clone());
    let options = MountOptions { notice: log, ..engine };
    // A kernel that caches writes sets the times of files itself, with its coarse clock.
    let config = Config { coarse_wall: plan.options.writeback_cache, ..config()? };
    let port = Port::start(config, move |rt| {
        let device = open_device(rt, &spec, access)?;
        let info = Info {
            device: source,
            directory: directory.display().to_string(),
            pid: std::process::id(),
            read_only,
            zone_blocks: device.geometry().zone_capacity.0,
        };
        let engine = rt.clone();
        let fs = rt.block_on(async move {
            match Fs::mount(&engine, device.clone(), options).await {
                Err(error) => Err(holds::explain(&*device, Needs::FileSystem, error).await),
                Ok(fs) => fs.with_names(&*device).await,
            }
        })?;
        fs.watch_drive();
        // `start_engine` waits for this below, so the receiver exists.
        let _ = sender.send((fs.pool().clone(), info));
        Ok::<Fs, Error>(fs)
    })?;
    let (pool, info) = receiver.recv().map_err(|_| anyhow!("the engine did not start"))?;
    Ok((port, pool, info))
}

/// Opens the device. The daemon of its last mount may still be writing its last checkpoint, for
/// which umount(8) does not wait.
fn open_device(
    rt: &furrow_rt::Rt,
    spec: &DeviceSpec,
    access: Access,
) -> Result<std::rc::Rc<dyn furrow_zone::ZonedDevice>, Error> {
    let drive = in_use::open(rt, spec, access, in_use::PATIENCE, log)
        .map_err(|error| in_use::explain(spec, error))?;
    drive.warnings().iter().for_each(|warning| log(&format!("warning: {warning}")));
    Ok(drive)
}

/// Ends the engine. With `left`, the engine has unmounted already, with this result.
fn stop_engine(port: Port<Fs>, left: Option<Result<(), Error>>) -> Result<()> {
    let unmounted = port.try_stop(move |_, fs| {
        let fs = fs.clone();
        async move {
            match left {
                Some(ended) => ended,
                None => fs.unmount().await,
            }
        }
    });
    unmounted.context("no last checkpoint")??;
    Ok(())
}

/// A warning if a read-only mount hides damaged content.
fn damaged(plan: &Plan, stat: Option<Stat>) -> Option<String> {
    let lines = stat?.not_shown;
    Some(format!(
        "{}: DAMAGED: what is shown may be older or incomplete (all of it: furrow stat {}): {}",
        plan.source,
        plan.directory.display(),
        lines.first()?
    ))
}

/// What a user should know of this mount, a line each.
fn notes(plan: &Plan) -> String {
    let notes = [without_sync(plan), faster(plan).to_owned()];
    notes.iter().filter(|note| !note.is_empty()).map(String::as_str).collect::<Vec<_>>().join("\n")
}

/// A note about the option `writeback_cache`, if it was neither chosen nor refused.
fn faster(plan: &Plan) -> &'static str {
    let chosen = plan.texts.iter().any(|text| text.contains("writeback_cache"));
    if chosen || plan.options.engine.read_only {
        return "";
    }
    "note: small buffered writes are several times as fast with -o writeback_cache, but then only \
     close(2) and fsync(2) report a full drive; -o nowriteback_cache leaves out this note"
}

/// A warning if sync(1) does not reach this mount. A drive in memory gets no warning, because the
/// drive keeps nothing after the mount.
fn without_sync(plan: &Plan) -> String {
    let held = plan.block_device().is_some();
    if held && syncs() || plan.options.engine.read_only || plan.device.starts_with("mem:") {
        return String::new();
    }
    let why = match plan.options.fsname {
        _ if held => "this mount on Linux before 6.18",
        Some(_) => "a mount with fsname=",
        None => "this mount, which is not of a block device",
    };
    format!(
        "note: {}: sync(1) and syncfs(2) do not reach {why}; to make everything durable, run \
         'furrow sync {}'",
        plan.source,
        plan.directory.display()
    )
}
