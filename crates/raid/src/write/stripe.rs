//! Stripe builder: collects blocks until a stripe is full or its time limit has passed.

use crate::lifetime::Lifetime;
use crate::volume::Volume;
use crate::write::item::{Call, Item, Stripe, Use};
use crate::write::segment::SegmentWriter;
use furrow_rt::Nanos;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A stripe that is being filled, and the segment writer that takes it when it is full.
///
/// Invariants
/// - The stripe being filled is not full.
/// - While the stripe has a block, a timer is set that closes the stripe.
pub(crate) struct Stream {
    filling: RefCell<Stripe>,
    /// When the last block came.
    last: Cell<Nanos>,
    timer: Cell<bool>,
    /// Blocks written through the stream: the one that wrote least is preferred.
    written: Cell<u64>,
    /// The blocks that it takes where lifetimes are separated.
    pub(crate) lifetime: Lifetime,
    /// Used only where lifetimes are separated.
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

    /// The stream's purpose.
    pub(crate) fn purpose(&self) -> Use {
        self.writer.purpose
    }

    /// Blocks in the stripe that is being filled.
    pub(crate) fn filled(&self) -> u32 {
        self.filling.borrow().items.len() as u32
    }

    /// Blocks written through the stream.
    pub(crate) fn written(&self) -> u64 {
        self.written.get()
    }

    /// Nothing can be written any more: the calls of the stripe being filled are told of the error.
    pub(crate) fn abandon(&self, error: Option<&furrow_zone::Error>) {
        self.writer.abandon(error);
        self.filling.take().over(error);
    }
}

impl Volume {
    /// Adds a block to the stripe that the stream fills. Never waits.
    pub(crate) fn put(&self, stream: &Rc<Stream>, item: Item, call: &Rc<Call>) {
        let now = self.0.rt.now_coarse();
        let full = {
            let mut filling = stream.filling.borrow_mut();
            if !filling.calls.last().is_some_and(|last| Rc::ptr_eq(last, call)) {
                filling.calls.push(call.clone());
                call.joins(1);
            }
            filling.items.push(item);
            filling.came += u128::from(now.0);
            filling.items.len() as u32 == stream.writer.chunk * self.0.shape.placement.k
        };
        stream.written.set(stream.written.get() + 1);
        if full {
            self.close_stripe(stream);
            return;
        }
        stream.last.set(now);
        if !stream.timer.replace(true) {
            self.0.rt.spawn_detached(pad_in_time(self.clone(), stream.clone()));
        }
    }

    /// Passes the stripe being filled to the segment writer, full or not.
    pub(crate) fn close_stripe(&self, stream: &Rc<Stream>) {
        let stripe = stream.filling.take();
        if stripe.items.is_empty() {
            return;
        }
        self.enqueue(&stream.writer, stripe);
    }
}

/// Closes the stream's stripe if no further block has come for a while; the rest of it is padding.
async fn pad_in_time(volume: Volume, stream: Rc<Stream>) {
    loop {
        let due = stream.last.get().after(volume.0.options.pad_after);
        volume.0.rt.sleep_until(due).await;
        if stream.filling.borrow().items.is_empty() {
            break;
        }
        // The stripe would have to wait for the segment as well: further blocks may fill it.
        if stream.writer.moves_on().await {
            stream.last.set(volume.0.rt.now_coarse());
            continue;
        }
        if stream.last.get().after(volume.0.options.pad_after) <= volume.0.rt.now() {
            volume.close_stripe(&stream);
            break;
        }
    }
    stream.timer.set(false);
    if !stream.filling.borrow().items.is_empty() && !stream.timer.replace(true) {
        volume.0.rt.spawn_detached(Box::pin(pad_in_time(volume.clone(), stream.clone()))
            as std::pin::Pin<Box<dyn std::future::Future<Output = ()>>>);
    }
}
