//! Serving a drive to the kernel while a thread uses the block device.

use anyhow::{Context as _, Result, anyhow};
use furrow_emu::Emulator;
use furrow_rt::{Config, Nanos, Rt, within};
use furrow_ublk::{Drive, Options, Server, Tap};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;

/// Longest use of a drive, in nanoseconds.
const PATIENCE: u64 = 600 * Nanos::SECOND;

/// Serves the drive that `open` opens, its commands going through `tap`, while `using` runs on a
/// thread with the name of the block device. The device is removed then.
///
/// # Errors
/// If the drive cannot be served, or `using` does not end.
pub fn serve<T: Send + 'static>(
    open: impl FnOnce(&Rt) -> Result<Emulator>,
    tap: &Rc<Tap>,
    using: impl FnOnce(&str) -> T + Send + 'static,
) -> Result<T> {
    let rt = Rt::new(Config::real());
    let drive = Rc::new(open(&rt)?);
    let served = Drive::new(drive.clone())?.tapped(tap.clone());
    let engine = rt.clone();
    let server = rt.block_on(async move {
        Server::start(&engine, served, Options { number: None, kept_for: None }).await
    })?;
    let device = server.device().to_string();
    let (mut here, there) = UnixStream::pair().context("a socket")?;
    let thread = std::thread::spawn(move || {
        let result = using(&device);
        // Its end is what the other side waits for.
        drop(there);
        result
    });
    let over = Arc::new(OwnedFd::from(here.try_clone().context("a socket")?));
    let engine = rt.clone();
    let ended = rt.block_on(async move {
        let ended = within(&engine, PATIENCE, engine.readable(over)).await;
        (ended.is_some(), server.stop().await)
    });
    drop(drive);
    rt.clear();
    if !ended.0 {
        return Err(anyhow!("the device's user does not end: it hangs in the kernel"));
    }
    let _ = here.read(&mut [0]);
    let result = thread.join().map_err(|_| anyhow!("the device's user has panicked"))?;
    ended.1?;
    Ok(result)
}
