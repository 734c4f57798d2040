//! Comparing accounts: the errors of accounts that contradict each other.

use furrow_log::audit::broken;
use furrow_zone::{Error, Result};
use std::cell::OnceCell;
use std::fmt::{Arguments, Display};
use std::rc::Rc;

/// The error of an account that contradicts another one.
pub(crate) fn contradiction(account: Arguments<'_>, expected: Arguments<'_>) -> Error {
    broken(&account.to_string(), format!("expected {expected}"))
}

/// An account must be `expected`.
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

/// An account must not be above `most`.
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

/// An account must satisfy `condition`, which `expected` describes.
pub(crate) fn holds(condition: bool, account: Arguments<'_>, expected: &str) -> Result<()> {
    if condition {
        return Ok(());
    }
    Err(contradiction(account, format_args!("{expected}, found otherwise")))
}

/// The place where the parts of a mount note an account that went below zero; the first is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Broken(Rc<OnceCell<Error>>);

impl Broken {
    /// The remainder of an account of `from` after `by` is taken. If `by` is more than `from`, the
    /// engine has a defect: a debug build stops, a release build goes read-only after this step.
    pub(crate) fn less(&self, account: &str, from: u64, by: u64) -> u64 {
        from.checked_sub(by).unwrap_or_else(|| {
            let error = contradiction(
                format_args!("{account}"),
                format_args!("{by} at least, found {from}"),
            );
            debug_assert!(false, "{error}");
            let _ = self.0.set(error);
            0
        })
    }

    /// As [`Broken::less`], for a count.
    pub(crate) fn fewer(&self, account: &str, from: usize, by: usize) -> usize {
        self.less(account, from as u64, by as u64) as usize
    }

    /// The account that went below zero.
    pub(crate) fn get(&self) -> Option<&Error> {
        self.0.get()
    }
}
