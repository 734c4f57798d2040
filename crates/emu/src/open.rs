//! Opens the drive that a device spec names.

use crate::emulator::Emulator;
use crate::image::Image;
use crate::medium::Medium;
use crate::options::Options;
use crate::timing::{Model, Pace, Preset};
use furrow_rt::{Clock, Rt};
use furrow_zone::spec::{self, DeviceSpec, Run, Timing};
use furrow_zone::{Access, Error, ErrorKind, Result};
use std::path::Path;
use std::rc::Rc;

/// Opens the device that `spec` names, on the executor `rt`. With timing, commands take as long as
/// the model says. Without timing, a simulation carries out one command at a time with the order
/// across queues shuffled; with a real clock, commands are carried out as fast as possible.
///
/// # Errors
/// If there is no such device, it is in use, damaged, of a newer format, or not supported, or its
/// timing model is wrong. Then nothing has been written, except that an image's damaged magic may
/// have been restored.
pub fn open(rt: &Rt, spec: &DeviceSpec, access: Access) -> Result<Rc<Emulator>> {
    let emulator = match spec {
        DeviceSpec::Node(node) => {
            let path = &node.path;
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{path}: a drive of the system, but this command needs an emulated one: an \
                     image ('furrow device create') or mem:"
                ),
            ));
        }
        DeviceSpec::Memory(memory) => {
            let options = options(rt, spec, &memory.run, memory.preset())?;
            let medium = match memory.medium {
                spec::Medium::Memory => Medium::memory(&memory.geometry),
                spec::Medium::Discard => Medium::discard(&memory.geometry),
            };
            Emulator::new(rt, memory.geometry.clone(), medium, options)?
        }
        DeviceSpec::Image(image) => {
            let opened = Image::open(Path::new(&image.path), access, image.sync)?;
            let preset = opened.image.preset().to_owned();
            let preset = (!preset.is_empty()).then_some(preset);
            let options = options(rt, spec, &image.run, preset.as_deref())?;
            let options = Options { name: image.path.clone(), ..options };
            Emulator::from_image(rt, opened, options)?
        }
    };
    Ok(Rc::new(emulator))
}

/// The options of a drive made from `preset`.
fn options(rt: &Rt, spec: &DeviceSpec, run: &Run, preset: Option<&str>) -> Result<Options> {
    let clock = rt.config().clock;
    let invalid = |what: &str| Error::new(ErrorKind::Invalid, format!("{spec}: {what}"));
    let scale = u64::from(run.time_scale.unwrap_or(1));
    let base = match (run.timing, clock) {
        (Timing::Off, _) if run.model.is_some() || !run.parameters.is_empty() => {
            return Err(invalid("a model has no effect without timing: add timing=realtime"));
        }
        (Timing::Off, Clock::Virtual) => Options::simulated(),
        (Timing::Off, Clock::Real) => Options::fast(),
        (Timing::Virtual, Clock::Real) => {
            return Err(invalid("timing=virtual is for simulations: use timing=realtime here"));
        }
        (Timing::Realtime, Clock::Virtual) => {
            return Err(invalid("timing=realtime needs a real clock: use timing=virtual here"));
        }
        (Timing::Virtual, _) if run.time_scale.is_some() => {
            return Err(invalid("time-scale is for timing=realtime: virtual time has none"));
        }
        (Timing::Realtime, _) if scale == 0 => {
            return Err(invalid("time-scale is 0: 1 is the drive's own speed, 10 a tenth of it"));
        }
        (Timing::Virtual | Timing::Realtime, _) => {
            let model = model(run, preset).map_err(|error| error.at(spec.to_string()))?;
            Options::timed(Pace { model, scale: scale * 1_000 })
        }
    };
    Ok(Options { seed: run.seed, name: spec.to_string(), ..base })
}

/// The timing model: the model that `run` names, or the model of the drive's preset, with the given
/// parameters.
///
/// # Errors
/// If there is no such model, or a parameter is wrong.
#[allow(clippy::disallowed_methods, reason = "a device spec may name a file of parameters")]
fn model(run: &Run, preset: Option<&str>) -> Result<Rc<Model>> {
    let base = match run.model.as_deref().or(preset).unwrap_or("plain") {
        path if path.ends_with(".toml") => {
            let text = std::fs::read_to_string(path).map_err(|error| {
                Error::new(ErrorKind::NotFound, format!("model {path}: {error}"))
            })?;
            Preset::parse(&text).map_err(|error| error.at(path))?
        }
        name => Preset::named(name)?,
    };
    base.with(&run.parameters)
}
