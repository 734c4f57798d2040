//! An emulated ZNS drive that obeys every rule and can fail in every way.
//!
//! It has three parts that know nothing of each other: the *state machine*
//! ([`furrow_zone::machine`]) decides what a command may do, the *medium* ([`medium`]) keeps the
//! blocks, and the *timing engine* ([`timing`]) determines when the command is answered. Without
//! the timing engine, a command is answered as soon as the executor has nothing else to do. The
//! drive ([`Emulator`]) combines the three, and puts [faults](furrow_zone::fault) and [power
//! cuts](power) between them.
//!
//! ```
//! use furrow_emu::{Emulator, Medium, Options};
//! use furrow_rt::{Config, Page, Pages, Rt};
//! use furrow_zone::{BlockCount, Command, Lba, QueueId, Request, ZonedDevice};
//!
//! # let geometry = furrow_zone::Geometry::unlimited(8, 64, 48);
//! let rt = Rt::new(Config::simulated(7));
//! let medium = Medium::memory(&geometry);
//! let drive = Emulator::new(&rt, geometry, medium, Options::simulated())?;
//! let data = Pages::from_iter([Page::from_slice(b"hello")]);
//! let write = Command::Write { lba: Lba(0), blocks: BlockCount(1) };
//! let outcome = rt.block_on(drive.submit(QueueId(0), Request::with_data(write, data)));
//! assert!(outcome.status.is_ok());
//! # rt.clear();
//! # Ok::<(), furrow_zone::Error>(())
//! ```
//!
//! The crate touches files only in its image medium, and draws random numbers only from the
//! executor.

mod cache;
mod core;
pub mod emulator;
pub mod format;
mod holder;
pub mod image;
pub mod medium;
pub mod memory;
pub mod oob;
mod open;
mod options;
mod plain;
pub mod power;
mod queue;
pub mod snapshot;
pub mod timing;
pub mod transfer;

pub use crate::cache::{Parts, Unflushed};
pub use crate::core::Counters;
pub use emulator::{Emulator, Observer};
pub use furrow_zone::fault::{Fault, FaultKind, Place, When};
pub use holder::{Holder, holder};
pub use image::{Identity, Image, create_image, create_image_as};
pub use medium::Medium;
pub use memory::Memory;
pub use open::open;
pub use options::{Options, Step};
pub use plain::Plain;
pub use power::{Fate, Fates};
pub use queue::CommandInfo;
pub use snapshot::Snapshot;
pub use timing::{Model, Pace, TimingCounters};
