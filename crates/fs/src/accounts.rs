//! Comparing accounts, and the errors for accounts that contradict each other.

use furrow_log::audit::broken;
use furrow_zone::{Error, Result};
use std::cell::OnceCell;
use std::fmt::{Arguments, Display};
use std::ops::Sub;
use std::rc::Rc;

/// The error for an account that contradicts another account.
pub(crate) fn contradiction(account: Arguments<'_>, expected: Arguments<'_>) -> Error {
    broken(&account.to_string(), format!("expected {expected}"))
}

/// Checks that an account equals `expected`.
pub(crate) fn same<T: PartialEq + Display>(
    account: Arguments<'_>,
    expected: T,
    found: T,
) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(contradiction(account, format_args!("{expected}, found {found}")))
}

/// Checks that an account is at most `most`.
pub(crate) fn at_most<T: PartialOrd + Display>(
    account: Arguments<'_>,
    most: T,
    found: T,
) -> Result<()> {
    if found <= most {
        return Ok(());
    }
    Err(contradiction(account, format_args!("at most {most}, found {found}")))
}

/// Checks that an account satisfies `condition`, which `expected` describes.
pub(crate) fn holds(condition: bool, account: Arguments<'_>, expected: &str) -> Result<()> {
    if condition {
        return Ok(());
    }
    Err(contradiction(account, format_args!("{expected}, found otherwise")))
}

/// A number type that an account can have.
pub(crate) trait Count: Copy + Default + Display + PartialOrd + Sub<Output = Self> {}

impl<T: Copy + Default + Display + PartialOrd + Sub<Output = T>> Count for T {}

/// Records the first account of a mount that went below zero, whichever part of the engine
/// finds it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Broken(Rc<OnceCell<Error>>);

impl Broken {
    /// Returns `from` less `by`. If `by` is more than `from`, the engine has a defect: a debug
    /// build stops, a release build goes read-only after this step.
    pub(crate) fn less<T: Count>(&self, account: &str, from: T, by: T) -> T {
        if by <= from {
            return from - by;
        }
        let error =
            contradiction(format_args!("{account}"), format_args!("{by} at least, found {from}"));
        debug_assert!(false, "{error}");
        let _ = self.0.set(error);
        T::default()
    }

    /// The error of the first account that went below zero, if any.
    pub(crate) fn get(&self) -> Option<&Error> {
        self.0.get()
    }
}
