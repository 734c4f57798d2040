//! Streams: stripes that are being filled, each with its segment writer.

use crate::lifetime::Lifetime;
use crate::write::item::{Stripe, Use};
use crate::write::line::SegmentWriter;
use furrow_rt::Nanos;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A stripe that is being filled, and the segment writer that takes it when it is full.
///
/// Invariants
/// - The stripe being filled is not full.
/// - While the stripe has a block, a timer is set that closes the stripe in time.
pub(crate) struct Stream {
    pub(super) filling: RefCell<Stripe>,
    /// Time at which the last block arrived.
    pub(super) last: Cell<Nanos>,
    pub(super) timer: Cell<bool>,
    /// Number of blocks written through the stream; the router prefers the stream that wrote least.
    pub(super) written: Cell<u64>,
    /// Lifetime of the blocks that the stream takes while lifetimes are separated.
    pub(crate) lifetime: Lifetime,
    /// Whether the stream is used only while lifetimes are separated.
    pub(crate) spare: bool,
    pub(crate) writer: Rc<SegmentWriter>,
}

impl Stream {
    pub(crate) fn new(
        (purpose, spare): (Use, bool),
        lifetime: Lifetime,
        chunk: u32,
        group: u32,
    ) -> Rc<Stream> {
        Rc::new(Stream {
            lifetime,
            spare,
            filling: RefCell::default(),
            last: Cell::default(),
            timer: Cell::new(false),
            written: Cell::new(0),
            writer: Rc::new(SegmentWriter::new(purpose, chunk, group)),
        })
    }

    /// The purpose of the stream.
    pub(crate) fn purpose(&self) -> Use {
        self.writer.purpose
    }

    /// Number of blocks in the stripe that is being filled.
    pub(crate) fn filled(&self) -> u32 {
        self.filling.borrow().items.len() as u32
    }

    /// Number of blocks written through the stream.
    pub(crate) fn written(&self) -> u64 {
        self.written.get()
    }

    /// Ends all waiting calls of the stream with `error`, because nothing can be written any more.
    pub(crate) fn abandon(&self, error: Option<&furrow_zone::Error>) {
        self.writer.abandon(error);
        self.filling.take().over(error);
    }
}
