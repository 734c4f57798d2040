//! Stripe builder: collects blocks until a stripe is full or its time limit has passed.

use crate::volume::Volume;
use crate::write::item::{Call, Item};
use crate::write::stream::Stream;
use std::rc::Rc;

impl Volume {
    /// Adds a block to the stripe that the stream fills, without waiting.
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

    /// Passes the stripe being filled to the segment writer, even if it is not full.
    pub(crate) fn close_stripe(&self, stream: &Rc<Stream>) {
        let stripe = stream.filling.take();
        if stripe.items.is_empty() {
            return;
        }
        self.enqueue(&stream.writer, stripe);
    }
}

/// Closes the stream's stripe when its time limit has passed without a further block; zeros fill
/// the rest.
async fn pad_in_time(volume: Volume, stream: Rc<Stream>) {
    loop {
        let due = stream.last.get().after(volume.0.options.pad_after);
        volume.0.rt.sleep_until(due).await;
        if stream.filling.borrow().items.is_empty() {
            break;
        }
        // The stripe would only wait in line for a segment: in the meantime further blocks may
        // fill it.
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
