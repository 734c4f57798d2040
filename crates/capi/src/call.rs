//! Calls of a store that may be recorded.

use crate::error::Outcome;
use crate::record::{Recorder, recorded};
use crate::shared::Shared;
use crate::tally::Counted;
use furrow_kv::Store;
use furrow_kv::trace::Op;
use furrow_zone::Error;
use std::cell::Cell;
use std::future::Future;

/// A call that may be recorded, while it is carried out.
pub(crate) struct Call<'a> {
    shared: &'a Shared,
    what: Counted,
    order: Cell<Option<u64>>,
}

impl Call<'_> {
    /// Runs `f` on the engine, as [`Shared::call`] does.
    pub(crate) fn engine<T, F>(&self, f: impl FnOnce(Store) -> F + Send + 'static) -> Outcome<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + 'static,
    {
        let recorder = self.shared.recorder.clone();
        let (order, result) = self.shared.call(self.what, move |store| {
            let order = recorder.as_deref().map(Recorder::take);
            let future = f(store);
            async move { Ok((order, future.await)) }
        })?;
        self.order.set(order);
        Ok(result?)
    }

    /// Like [`Call::engine`], for a function that does not wait for the drive.
    pub(crate) fn now<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Store) -> Result<T, Error> + Send + 'static,
    ) -> Outcome<T> {
        self.engine(move |store| std::future::ready(f(&store)))
    }
}

impl Shared {
    /// Like [`recorded`], for a call that runs on the engine.
    pub(crate) fn record<T>(
        &self,
        what: Counted,
        body: impl FnOnce(&Call<'_>) -> Outcome<T>,
        op: impl FnOnce(Option<&T>) -> Op,
    ) -> Outcome<T> {
        let call = Call { shared: self, what, order: Cell::new(None) };
        recorded(self.recorder.as_deref(), || body(&call), || call.order.get(), op)
    }
}
