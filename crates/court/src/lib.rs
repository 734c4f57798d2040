//! File systems of the kernel and Furrow on one emulated drive: power cuts, and counts side by
//! side.
//!
//! ```text
//! workload ── file system ── /dev/ublkbN ── Drive ── Emulator
//!     └────────── marks ──────────┐ recording
//! recording ── Events ── Replay ── power cut ── /dev/ublkbN ── file system ── oracle
//! ```
//!
//! A [workload] by seed runs on a file system of the kernel, while the server of the drive records
//! its commands. [Cuts](cuts) of the power are derived from the recording afterwards: the kernel
//! mounts the resulting drive, and the [oracle] compares it with the promises made to the workload.
//! A [minimal] case has a few calls and every cut of the last two. Commands: `furrow-court`.
//!
//! A [comparison](compare) does the same work on each contestant and counts commands and bytes
//! at the drive. Furrow's [library] takes part in it as well: in the process of its user,
//! without a mount.
//!
//! Workload, oracle and cuts are pure; `kind`, `contestant`, `library`, `host`, `trial`, `minimal`,
//! `stuck` and `compare` touch the system.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a front end: mounts, files, processes, threads"
)]

pub mod compare;
pub mod contestant;
pub mod counts;
pub mod cuts;
pub mod host;
pub mod kind;
pub mod library;
pub mod minimal;
pub mod oracle;
pub mod recording;
pub mod replay;
pub mod show;
pub mod stuck;
pub mod trial;
pub mod workload;
