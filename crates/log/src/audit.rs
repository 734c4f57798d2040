//! The parts of every audit of accounts: a comparison, and the error that refuses it.
//!
//! An audit compares an account with the things it counts, and changes nothing. Simulation and
//! tests run audits after every operation, engines at checkpoints in debug builds. A refusal means
//! a defect of the program, never of a medium.

use furrow_zone::{Error, ErrorKind, Result};
use std::fmt::Debug;

/// Refuses an account whose value is not the expected one.
///
/// # Errors
/// `Internal` with the account's name, the expected and the found value.
pub fn equal<T: PartialEq + Debug>(account: &str, expected: T, found: T) -> Result<()> {
    match expected == found {
        true => Ok(()),
        false => Err(broken(account, format!("expected {expected:?}, found {found:?}"))),
    }
}

/// Refuses an account that breaks a condition; `what` says what was expected and found.
///
/// # Errors
/// `Internal` with the account's name and `what`.
pub fn holds(account: &str, holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(broken(account, what())) }
}

/// Builds the error of a broken account.
pub fn broken(account: &str, what: String) -> Error {
    Error::new(ErrorKind::Internal, format!("audit: {account}: {what}"))
}
