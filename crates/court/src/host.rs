//! Serving a drive to the kernel while a thread uses the block device.

use crate::kind::kernel_said;
use anyhow::{Context as _, Result, anyhow, ensure};
use furrow_emu::Emulator;
use furrow_rt::{Config, Nanos, Rt, become_io_flusher, within};
use furrow_ublk::{Drive, Options, Server};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;

/// How long a hanging user may take to end after its device was removed, in nanoseconds.
const LAST_PATIENCE: u64 = 30 * Nanos::SECOND;

/// How the use of a drive ended.
#[derive(Debug)]
pub enum Used<T> {
    /// The user ended by itself.
    Ended(T),
    /// The user hung, and ended only after the device was removed. Holds the kernel's messages
    /// about waiting tasks.
    Hung(Vec<String>),
}

/// Serves the drive that `open` opens. Meanwhile `using` runs on a thread and gets the name of the
/// block device. The device is removed when `using` ends, or after `patience` nanoseconds.
///
/// # Errors
/// If the drive cannot be served, or `using` does not end even after the device was removed.
pub fn serve<T: Send + 'static>(
    open: impl FnOnce(&Rt) -> Result<Rc<Emulator>>,
    patience: u64,
    using: impl FnOnce(&str) -> T + Send + 'static,
) -> Result<Used<T>> {
    ensure!(become_io_flusher(), "this needs root");
    let rt = Rt::new(Config::real());
    let drive = open(&rt)?;
    let served = Drive::new(drive.clone())?;
    let engine = rt.clone();
    let server = rt.block_on(async move {
        Server::start(&engine, served, Options { number: None, kept_for: None }).await
    })?;
    let device = server.device().to_string();
    let (mut here, there) = UnixStream::pair().context("a socket")?;
    let thread = std::thread::spawn(move || {
        let result = using(&device);
        // Closing the socket tells the other side that this thread is done.
        drop(there);
        result
    });
    let over = Arc::new(OwnedFd::from(here.try_clone().context("a socket")?));
    let engine = rt.clone();
    let ended = rt.block_on(async move {
        let ended = within(&engine, patience, engine.readable(over.clone())).await;
        if ended.is_some() {
            return (None, true, server.stop().await);
        }
        let said = waiting_tasks();
        let stopped = server.stop().await;
        let ended = within(&engine, LAST_PATIENCE, engine.readable(over)).await;
        (Some(said), ended.is_some(), stopped)
    });
    drop(drive);
    rt.clear();
    let (hung, over, stopped) = ended;
    if !over {
        let said = hung.unwrap_or_default().join(" | ");
        return Err(anyhow!("the device's user does not end; it hangs in the kernel: {said}"));
    }
    let _ = here.read(&mut [0]);
    let result = thread.join().map_err(|_| anyhow!("the device's user has panicked"))?;
    if let Some(said) = hung {
        return Ok(Used::Hung(said));
    }
    stopped?;
    Ok(Used::Ended(result))
}

/// The kernel's messages about tasks that wait for a device.
fn waiting_tasks() -> Vec<String> {
    let _ = std::fs::write("/proc/sysrq-trigger", "w");
    kernel_said(60)
}
