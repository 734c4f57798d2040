//! What the queues of a drive's zones have in common: the drive, how writes are divided into
//! commands, and the accounts of the writes in flight.

use super::burst::Bursts;
use crate::address::{blocks_per_command, sectors_per_block};
use crate::in_flight::InFlight;
use crate::queues::Queues;
use crate::writer::counters::Counters;
use crate::writer::failed_zones::{FailedZones, Failure};
use crate::writer::options::{Order, WriterOptions};
use furrow_rt::{Page, Rt};
use furrow_zone::{Geometry, ZonedDevice};
use std::cell::RefCell;
use std::rc::Rc;

/// State that all queues of a drive share.
pub(crate) struct Shared {
    pub(crate) rt: Rt,
    pub(crate) device: Rc<dyn ZonedDevice>,
    pub(crate) queues: Rc<Queues>,
    pub(crate) depth: u32,
    pub(crate) pieces: u32,
    pub(crate) learns_pieces: bool,
    pub(crate) bursts: RefCell<Bursts>,
    pub(crate) join: bool,
    pub(crate) append_pieces: u32,
    pub(crate) blocks_per_command: u32,
    /// Maximum number of blocks in an append; 0: appends are not available.
    pub(crate) blocks_per_append: u32,
    pub(crate) zero: Page,
    pub(crate) in_flight: RefCell<InFlight>,
    pub(crate) failed: FailedZones,
    pub(crate) counters: RefCell<Counters>,
}

impl Shared {
    /// Prepares the queues of `device`.
    pub(crate) fn new(rt: &Rt, device: Rc<dyn ZonedDevice>, options: &WriterOptions) -> Shared {
        let geometry = device.geometry();
        let depth = match options.order {
            Order::Blocking => 1,
            Order::Queued | Order::Append => options.depth.max(1),
        };
        let largest = largest_command(geometry);
        let cap = options.command_blocks.map_or(largest, |cap| cap.clamp(1, largest));
        Shared {
            rt: rt.clone(),
            queues: Queues::new(options.queues),
            depth,
            pieces: options.pieces.clamp(1, depth),
            learns_pieces: options.learns_pieces
                && options.order == Order::Queued
                && options.pieces.min(depth) > 1,
            bursts: RefCell::default(),
            join: options.join,
            append_pieces: options.append_pieces.min(depth),
            blocks_per_command: cap,
            blocks_per_append: match options.order {
                Order::Append => largest_append(geometry).min(cap),
                Order::Blocking | Order::Queued => 0,
            },
            zero: Page::zeroed(),
            in_flight: RefCell::default(),
            failed: FailedZones::default(),
            counters: RefCell::default(),
            device,
        }
    }

    /// Notes a failure of a zone. Only the zone's first failure is kept, until it is forgotten.
    pub(crate) fn note_failure(&self, failure: Failure) {
        if self.failed.note(failure) && self.failed.are_relocated() {
            self.in_flight.borrow_mut().wake_all();
        }
    }
}

/// Number of logical blocks at the end of a zone that do not make a whole block.
pub(crate) fn tail_sectors(geometry: &Geometry) -> u64 {
    geometry.zone_capacity.0 % sectors_per_block(geometry)
}

/// Maximum number of blocks in a write command. Leaves space for the zone's tail of less than
/// a block.
fn largest_command(geometry: &Geometry) -> u32 {
    let most = blocks_per_command(geometry);
    if tail_sectors(geometry) > 0 { most.saturating_sub(1).max(1) } else { most }
}

/// Maximum number of blocks in an append.
fn largest_append(geometry: &Geometry) -> u32 {
    let limit = geometry.append_limit().map_or(u64::MAX, |limit| limit.0);
    (limit / sectors_per_block(geometry)).min(u64::from(blocks_per_command(geometry))) as u32
}
