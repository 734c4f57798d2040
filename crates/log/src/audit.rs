//! Accounts: checked subtraction, comparison in audits, and the error that refuses an account.
//!
//! An *account* is a number or a set that an engine keeps in memory although it could be
//! counted: valid blocks of a zone, writes in flight. Subtracting more from an account than it
//! holds is a defect of the program, never of a medium; every part of an engine notes such a
//! subtraction in [`Broken`].
//!
//! An audit compares accounts with the things they count, and changes nothing. Simulation and tests
//! run audits after every operation, engines at checkpoints in debug builds.

use furrow_zone::{Error, ErrorKind, Result};
use std::cell::OnceCell;
use std::fmt::{Debug, Display};
use std::ops::Sub;
use std::rc::Rc;

/// A number type that an account can have.
pub trait Count: Copy + Default + Display + PartialOrd + Sub<Output = Self> {}

impl<T: Copy + Default + Display + PartialOrd + Sub<Output = T>> Count for T {}

/// The first account of an engine that would have gone below zero, whichever part of the engine
/// finds it. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct Broken(Rc<OnceCell<Error>>);

impl Broken {
    /// Returns `from` less `by`. If `by` is more than `from`, the program has a defect, and the
    /// account's right value is unknown: a debug build stops, a release build notes the account and
    /// continues with zero. The engine asks [`Broken::first`] before it makes anything durable.
    pub fn less<T: Count>(&self, account: impl Display, from: T, by: T) -> T {
        if by <= from {
            return from - by;
        }
        let what = format!("the account of {account} falls below 0: {by} less than {from}");
        debug_assert!(false, "{what}");
        let _ = self.0.set(Error::new(ErrorKind::Internal, format!("audit: {what}")));
        T::default()
    }

    /// Returns the error of the first account that would have gone below zero, if any.
    pub fn first(&self) -> Option<&Error> {
        self.0.get()
    }
}

/// Refuses an account whose value is not the expected one.
///
/// # Errors
/// `Internal` with the account's name, the expected and the found value.
pub fn equal<T: PartialEq + Debug>(account: impl Display, expected: T, found: T) -> Result<()> {
    match expected == found {
        true => Ok(()),
        false => Err(broken(account, format_args!("expected {expected:?}, found {found:?}"))),
    }
}

/// Refuses an account whose value exceeds `most`.
///
/// # Errors
/// `Internal` with the account's name, its bound and the found value.
pub fn at_most<T: PartialOrd + Display>(account: impl Display, most: T, found: T) -> Result<()> {
    match found <= most {
        true => Ok(()),
        false => Err(broken(account, format_args!("expected at most {most}, found {found}"))),
    }
}

/// Refuses an account unless `holds` is true. `expected` describes the value that the account
/// should have.
///
/// # Errors
/// `Internal` with the account's name and `expected`.
pub fn expect(account: impl Display, holds: bool, expected: &str) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(broken(account, format_args!("expected {expected}, found otherwise"))),
    }
}

/// Refuses an account unless `holds` is true. `what` returns what was expected and what was found.
///
/// # Errors
/// `Internal` with the account's name and `what`.
pub fn holds(account: impl Display, holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(broken(account, what())) }
}

/// Builds the error of a broken account.
pub fn broken(account: impl Display, what: impl Display) -> Error {
    Error::new(ErrorKind::Internal, format!("audit: {account}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_noted_while_accounts_suffice() {
        let broken = Broken::default();
        assert_eq!((broken.less("a", 5u32, 5), broken.less("b", 7u64, 3)), (0, 4));
        assert!(broken.first().is_none());
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "the account of b falls below 0"))]
    fn the_first_account_below_zero_is_noted() {
        let broken = Broken::default();
        assert_eq!(broken.clone().less("b", 3u32, 4), 0);
        assert_eq!(broken.less("c", 0u64, 1), 0);
        let error = broken.first().map(Error::to_string).unwrap_or_default();
        assert!(error.contains("the account of b falls below 0"), "{error}");
    }
}
