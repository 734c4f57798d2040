//! The environment of a mount: device, options and layout. While the file system is mounted, only
//! [`crate::Fs::reconfigure`] changes options, and only [`crate::Fs::set_label`] changes the
//! layout: its label.

use crate::layout::Layout;
use crate::types::MountOptions;
use furrow_log::writer::Writer;
use furrow_rt::{Pool, Rt};
use furrow_zone::{Geometry, ZonedDevice};
use std::rc::Rc;

/// Drive, clock and options, and values derived from them.
pub(crate) struct Env {
    pub(crate) rt: Rt,
    pub(crate) device: Rc<dyn ZonedDevice>,
    pub(crate) geometry: Geometry,
    pub(crate) layout: Rc<Layout>,
    pub(crate) options: MountOptions,
    /// The pool from which the engine takes pages for reads and records.
    pub(crate) pages: Pool,
    /// The writer that every write to the drive goes through.
    pub(crate) writer: Writer,
}
