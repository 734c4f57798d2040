//! A drive that one command opens, uses and closes.

use crate::holds::{self, Needs};
use crate::in_use;
use anyhow::Result;
use furrow_rt::Rt;
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, Error, ErrorKind, ZonedDevice};
use std::path::Path;
use std::rc::Rc;

/// Opens the drive `device` for a command that needs a file system or a store on it. The error of a
/// drive in use names the user of the drive and what to do.
///
/// # Errors
/// The errors of [`in_use::open_now`].
pub fn open(rt: &Rt, device: &str, access: Access, needs: Needs) -> Result<Rc<dyn ZonedDevice>> {
    let spec: DeviceSpec = device.parse()?;
    if needs == Needs::FileSystem {
        return Ok(in_use::open_now(rt, &spec, access)?);
    }
    let drive = holds::open(rt, &spec, access).map_err(|error| match (&spec, error.kind()) {
        // A program keeps a store open for long, so there is no point in waiting.
        (DeviceSpec::Image(image), ErrorKind::Busy) => {
            Error::new(ErrorKind::Busy, in_use::of_store(Path::new(&image.path)))
        }
        _ => error,
    })?;
    if access.writes() {
        in_use::warn(&*drive);
    }
    Ok(drive)
}

/// Opens the drive `device`, carries out `work` with it, and closes it. If `work` does not find
/// what it needs, the error says what the drive holds.
///
/// # Errors
/// The errors of [`open`] and of `work`.
pub fn visit<T: 'static>(
    device: &str,
    access: Access,
    needs: Needs,
    work: impl AsyncFnOnce(&Rt, Rc<dyn ZonedDevice>) -> Result<T, Error> + 'static,
) -> Result<T> {
    let rt = Rt::new(crate::daemon::config()?);
    let drive = open(&rt, device, access, needs)?;
    let engine = rt.clone();
    let done = rt.block_on(async move {
        match work(&engine, drive.clone()).await {
            Err(error) => Err(holds::explain(&*drive, needs, error).await),
            done => done,
        }
    });
    rt.clear();
    Ok(done?)
}
