//! Block devices of the Linux kernel as drives: NVMe ZNS, SMR disks, null_blk, dm; and plain ones
//! and files, for soft zones.
//!
//! A [`Drive`] is a [`ZonedDevice`](furrow_zone::ZonedDevice) on a block device node. Reads, writes
//! and flushes go through an io_uring, without the page cache; zone management and zone reports are
//! system calls that block, so threads of the drive make them. The kernel wants one write at a time
//! per zone: the drive keeps the others, in order, and joins neighbours.
//!
//! A [`PlainDrive`] is a [`PlainDevice`](furrow_zone::PlainDevice) by the same ring and threads: a
//! block device without zones, or a file.
//!
//! The crate is named after the kernel whose interface it speaks. All system calls for drives of
//! the system are here, in [`ioctl`] and [`ring`]; the decisions are pure and need no device:
//! [`sysfs`] and [`layout`] (what the drive is like), [`lane`] (the order of a zone's commands),
//! [`failure`] (what an error means).
//!
//! Invariants: at most one write or management command of a zone is with the kernel; after an
//! error the zone is reported before the next command of the zone is sent; pages that the kernel
//! may touch are kept until it has answered.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this crate is the outside: device nodes, sysfs, threads for calls that block"
)]

pub mod conformance;
mod drive;
mod failure;
mod ioctl;
mod lane;
mod layout;
mod names;
mod plain;
mod ring;
mod sysfs;
mod workers;

pub use drive::{Access, Drive};
pub use names::{Obstacle, by_id, obstacles, plain_obstacles};
pub use plain::{PlainDrive, PlainFile, allocate};
