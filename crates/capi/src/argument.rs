//! Arguments of callers in C.

use crate::error::{Failure, Outcome};
use furrow_kv::Lifetime;

/// Stores a result at the caller's address `to`.
///
/// # Safety
/// `to` is null or may be written.
pub(crate) unsafe fn put<T>(to: *mut T, value: T, what: &str) -> Outcome {
    if to.is_null() {
        return Err(Failure::invalid(format!("{what}: a null pointer")));
    }
    // SAFETY: as the caller promises; the place holds no value to be dropped.
    unsafe { to.write(value) };
    Ok(())
}

pub(crate) fn lifetime_of(number: i32) -> Outcome<Lifetime> {
    let lifetime = u8::try_from(number).ok().and_then(Lifetime::from_byte);
    lifetime.ok_or_else(|| Failure::invalid(format!("lifetime {number}: expected 0 to 5")))
}
