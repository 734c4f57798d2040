//! From a device spec to a drive.

use crate::emulator::{Emulator, Options};
use crate::image::{Image, OpenMode};
use crate::medium::Medium;
use furrow_rt::{Clock, Rt};
use furrow_zone::spec::{self, DeviceSpec, Timing};
use furrow_zone::{Error, ErrorKind, Result};
use std::path::Path;
use std::rc::Rc;

/// Opens the device that `spec` names, on the executor `rt`: in simulation one command at a time
/// with the order across queues shuffled, in real time as fast as it goes.
///
/// # Errors
/// If there is no such device, it is in use, damaged, of a newer format, or not supported. Nothing
/// has been written then.
pub fn open(rt: &Rt, spec: &DeviceSpec, mode: OpenMode) -> Result<Rc<Emulator>> {
    let options = |seed, name: String| {
        let base = match rt.config().clock {
            Clock::Virtual => Options::simulated(),
            Clock::Real => Options::fast(),
        };
        Options { seed, name, ..base }
    };
    let untimed = |timing: Timing| match timing {
        Timing::Off => Ok(()),
        timing => Err(Error::new(
            ErrorKind::Unsupported,
            format!("{spec}: timing={timing} is not supported by this version yet: leave it out"),
        )),
    };
    let emulator = match spec {
        DeviceSpec::Node(path) => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{path}: real drives are not supported by this version yet: use an image \
                     ('furrow device create') or mem:"
                ),
            ));
        }
        DeviceSpec::Memory(memory) => {
            untimed(memory.timing)?;
            let medium = match memory.medium {
                spec::Medium::Memory => Medium::memory(&memory.geometry),
                spec::Medium::Discard => Medium::discard(&memory.geometry),
            };
            let options = options(memory.seed, spec.to_string());
            Emulator::new(rt, memory.geometry.clone(), medium, options)?
        }
        DeviceSpec::Image(image) => {
            untimed(image.timing)?;
            let opened = Image::open(Path::new(&image.path), mode, image.sync)?;
            Emulator::from_image(rt, opened, options(image.seed, image.path.clone()))?
        }
    };
    Ok(Rc::new(emulator))
}
