//! The options of a store, as a program gives them in a text.

use crate::error::{Failure, Outcome};
use furrow_kv::Options;

/// How to open a store.
pub(crate) enum Chosen {
    ReadOnly,
    /// Opens with these options; if a file is given, records all calls in it.
    Changed(Options, Option<String>),
}

/// Parses the options of a store, separated by commas.
pub(crate) fn options(text: &str) -> Outcome<Chosen> {
    let (mut options, mut record, mut changes) = (Options::default(), None, false);
    let mut read_only = false;
    for option in text.split(',').map(str::trim).filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let number = || {
            let range = 0..=90;
            let number = value.parse().ok().filter(|number| range.contains(number));
            number.ok_or_else(|| Failure::invalid(format!("{option}: expected 0 to 90 (percent)")))
        };
        if option == "ro" {
            read_only = true;
            continue;
        }
        changes = true;
        match name {
            "clean-below" => options.clean_below = number()?,
            "policy" => options.policy = value.parse()?,
            "record" if !value.is_empty() => record = Some(value.to_owned()),
            _ => {
                return Err(Failure::invalid(format!(
                    "{option}: not an option of a store; there are clean-below=PERCENT, \
                     policy=NAME, record=FILE, ro"
                )));
            }
        }
    }
    if read_only && changes {
        return Err(Failure::invalid("ro: the other options are for a store that is changed"));
    }
    Ok(if read_only { Chosen::ReadOnly } else { Chosen::Changed(options, record) })
}
