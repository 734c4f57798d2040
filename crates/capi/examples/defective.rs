//! The library for C and C++, with a defect of the store that its user chooses. The test that
//! cuts power under programs (`plugins/rocksdb/kill.cc`) must find the defect; otherwise that
//! test is blind.

#![allow(unsafe_code, reason = "an interface for C takes pointers")]

use furrow_policy::StoreDefect;
use std::ffi::{CStr, c_char};

/// Builds the defect of this name into every store that is opened from now on. Returns 0, or 1 if
/// there is no defect of this name or one was chosen before.
///
/// # Safety
/// `name` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn furrow_build_in_defect(name: *const c_char) -> i32 {
    // SAFETY: as the caller promises.
    let name = unsafe { CStr::from_ptr(name) };
    let named = |defect: &StoreDefect| name.to_bytes() == format!("{defect:?}").as_bytes();
    let Some(defect) = StoreDefect::ALL.into_iter().find(named) else { return 1 };
    i32::from(!furrow::change_options(move |options| options.variant.defect = Some(defect)))
}
