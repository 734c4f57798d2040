//! Drives of the Linux kernel: zoned block devices (NVMe ZNS, SMR disks, null_blk, dm), generic
//! NVMe devices, and plain block devices and files, for soft zones.
//!
//! A [`Drive`] is a [`ZonedDevice`](furrow_zone::ZonedDevice) on a device node, by one of two
//! transports ([`transport`]). On a block device reads, writes and flushes go through an io_uring,
//! without the page cache; zone management and zone reports are system calls that block, so threads
//! of the drive make them. To a generic NVMe device all commands go through an io_uring ([`nvme`]).
//! One write at a time is in flight to a zone: the drive keeps the others, in order, and joins
//! neighbours.
//!
//! A [`PlainDrive`] is a [`PlainDevice`](furrow_zone::PlainDevice) by the same ring and threads: a
//! block device without zones, or a file.
//!
//! The crate is named after the kernel whose interface it speaks. All system calls for drives of
//! the system are here, in [`ioctl`], [`ring`] and [`nvme`]; the decisions are pure and need no
//! device: [`sysfs`] and [`layout`] (what the drive is like), [`lane`] (the order of a zone's
//! commands), [`failure`] (what an error means).
//!
//! Invariants: beside a management command of a zone, and beside a write unless writes are queued,
//! the kernel has no other command of the zone that changes it; after an error the zone is reported
//! before anything is decided about the command; memory that the kernel may touch is kept until it
//! has answered.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this crate is the outside: device nodes, sysfs, threads for calls that block"
)]

pub mod claim;
pub mod conformance;
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

pub use drive::{Access, Drive};
pub use failure::PATIENCE;
pub use names::{Obstacle, by_id, obstacles, plain_obstacles};
pub use plain::{PlainDrive, PlainFile, allocate};
