//! Drives of the Linux kernel: zoned block devices (NVMe ZNS, SMR disks, null_blk, dm), generic
//! NVMe devices, and, for soft zones, plain block devices and files.
//!
//! A [`Drive`] is a [`ZonedDevice`](furrow_zone::ZonedDevice) on a device node, with one of two
//! transports ([`transport`]). On a block device, reads, writes and flushes go through an io_uring,
//! without the page cache. Zone management and zone reports are blocking system calls, made by
//! threads of the drive. All commands to a generic NVMe device go through an io_uring ([`nvme`]).
//! The kernel gets one write of a zone at a time: the drive keeps the others, in order, and joins
//! adjacent ones.
//!
//! A [`PlainDrive`] is a [`PlainDevice`](furrow_zone::PlainDevice) with the same ring and threads:
//! a block device without zones, or a file.
//!
//! The crate is named after the kernel whose interface it uses. All system calls for drives of the
//! system are here, in [`ioctl`], [`ring`] and [`nvme`]. The decisions are pure and need no device:
//! [`sysfs`] and [`layout`] (the properties of a drive), [`lane`] (the order of a zone's commands),
//! [`failure`] (the meaning of an error).
//!
//! Invariants
//! - While the kernel has a management command of a zone, it has no other command that changes the
//!   zone. The same holds for a write, unless writes are queued.
//! - After an error the zone's report comes before any decision about the command.
//! - Memory that the kernel may access is kept until the kernel has answered.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this crate is the outside: device nodes, sysfs, threads for calls that block"
)]

pub mod claim;
mod drive;
mod failure;
mod flight;
mod ioctl;
mod lane;
mod layout;
mod names;
mod nvme;
mod plain;
mod ring;
mod sysfs;
mod transport;
mod workers;

pub use drive::Drive;
pub use failure::PATIENCE;
pub use names::{Obstacle, by_id, obstacles, plain_obstacles};
pub use plain::{PlainDrive, PlainFile, allocate};
