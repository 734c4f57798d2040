//! Waiting for the first of two events, one of which is often a timeout.

use crate::Rt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Waits for the first of two futures: `Ok` if it is `a`, `Err` if it is `b`. The other future
/// is dropped.
pub async fn either<A: Future, B: Future>(a: A, b: B) -> Result<A::Output, B::Output> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|context| match a.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Ok(value)),
        Poll::Pending => b.as_mut().poll(context).map(Err),
    })
    .await
}

/// The value of `future`, or `None` if it does not complete within `nanoseconds`.
pub async fn within<F: Future>(rt: &Rt, nanoseconds: u64, future: F) -> Option<F::Output> {
    either(future, rt.sleep(nanoseconds)).await.ok()
}
