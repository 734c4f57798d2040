//! Every drive that a device spec can name, opened in one way: emulated drives, zoned drives of the
//! system, and soft zones on a block device or in a file.
//!
//! Commands, the C interface and experiments open drives here, so that all of them know the same
//! drives, and refuse other files with the same words.
//!
//! Invariant: this crate does not know what an engine stores on a drive.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "looks at files and /sys")]

pub mod block_devices;
mod other;
pub mod soft;

pub use other::{FRONT, is_image, lost_front, of_no_member, signature};

use furrow_emu::Emulator;
use furrow_rt::Rt;
use furrow_soft::SoftDrive;
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, Error, ErrorKind, ZonedDevice};
use std::path::Path;
use std::rc::Rc;

/// An open drive, by kind.
pub enum Drive {
    /// An emulated drive, in an image or in memory.
    Emulated(Rc<Emulator>),
    /// A zoned drive of the system.
    System(Rc<furrow_linux::Drive>),
    /// Soft zones.
    Soft(Rc<SoftDrive>),
}

impl Drive {
    /// Opens the drive that `spec` names. If it is not a zoned drive, the error says what it is.
    ///
    /// # Errors
    /// The errors of [`furrow_emu::open`], [`furrow_linux::Drive::open`] and [`soft::open`].
    pub fn open(rt: &Rt, spec: &DeviceSpec, access: Access) -> Result<Drive, Error> {
        if soft::is_soft(spec) {
            return soft::open(rt, spec, access).map(Drive::Soft);
        }
        let opened = match spec {
            DeviceSpec::Node(node) => furrow_linux::Drive::open(rt, node, access)
                .map(|drive| Drive::System(Rc::new(drive))),
            _ => furrow_emu::open(rt, spec, access).map(Drive::Emulated),
        };
        opened.map_err(|error| match (spec.path(), error.kind()) {
            (Some(path), ErrorKind::WrongFormat) => {
                other::without_zones(Path::new(path)).unwrap_or(error)
            }
            _ => error,
        })
    }

    /// The drive, whatever its kind.
    pub fn zoned(&self) -> Rc<dyn ZonedDevice> {
        match self {
            Drive::Emulated(drive) => drive.clone(),
            Drive::System(drive) => drive.clone(),
            Drive::Soft(drive) => drive.clone(),
        }
    }
}

/// Like [`Drive::open`], for callers that need not know the kind.
///
/// # Errors
/// The errors of [`Drive::open`].
pub fn open(rt: &Rt, spec: &DeviceSpec, access: Access) -> Result<Rc<dyn ZonedDevice>, Error> {
    Ok(Drive::open(rt, spec, access)?.zoned())
}
