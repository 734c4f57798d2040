//! Orders to the daemon of a mount, which come as extended attributes of the mount's root.
//!
//! The attribute's name is [`PREFIX`] and the request as JSON, and its value is the answer. So any
//! process that sees the mount can send a request, from any mount or network namespace, and the
//! kernel tells the daemon the user of that process. Reports, such as the status, are attributes
//! with names of their own, which commands of any version read.

use crate::envelope;
use crate::{Answer, Error, VERSION};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Beginning of the names of attributes that are requests.
pub const PREFIX: &str = "furrow.ask.";
/// Longest name of an attribute in bytes (XATTR_NAME_MAX).
const NAME_MAX: usize = 255;

/// A request to the daemon of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Ask for the running or last scrub.
    Scrub {
        /// An order to carry out first: start, repair, pause, resume or stop.
        #[serde(default)]
        order: Option<String>,
    },
    /// Clean superzones.
    Gc {
        /// Maximum number of superzones to clean.
        superzones: u32,
    },
    /// Change mount options.
    Remount {
        /// The options, in the form that `-o` takes.
        options: String,
    },
}

impl Request {
    /// The name of the attribute that makes this request.
    ///
    /// # Errors
    /// An error if the name is longer than the kernel allows.
    pub fn attribute(&self) -> Result<String, Error> {
        let request = envelope::write(self).map_err(Error::Unsent)?;
        let name = format!("{PREFIX}{}", String::from_utf8_lossy(&request));
        match name.len() {
            ..=NAME_MAX => Ok(name),
            _ => Err(Error::Unsent("too long for one request".to_owned())),
        }
    }

    /// Reads the request in the name of an attribute, which begins with [`PREFIX`].
    ///
    /// # Errors
    /// The reason why it is not a request of this version.
    pub fn of(name: &str) -> Result<Request, String> {
        envelope::read(name.strip_prefix(PREFIX).unwrap_or_default().as_bytes())
    }
}

/// The result in the value of an attribute.
///
/// # Errors
/// The daemon's error, or an error if it speaks another version of the protocol.
pub fn result(value: &[u8]) -> Result<Value, Error> {
    match serde_json::from_slice::<Answer>(value) {
        Ok(answer) if answer.version == VERSION => crate::client::result(answer),
        Ok(answer) => Err(Error::OtherVersion { theirs: Some(answer.version), process: None }),
        Err(_) => Err(Error::OtherVersion { theirs: None, process: None }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_the_name_of_an_attribute() {
        for request in [
            Request::Scrub { order: None },
            Request::Scrub { order: Some("repair".into()) },
            Request::Gc { superzones: u32::MAX },
            Request::Remount { options: "x".repeat(190) },
        ] {
            let name = request.attribute().unwrap();
            assert!(name.starts_with(PREFIX) && name.len() <= NAME_MAX, "{name}");
            assert_eq!(Request::of(&name), Ok(request));
        }
        assert!(Request::Remount { options: "x".repeat(220) }.attribute().is_err());
        for wrong in ["furrow.ask.", "furrow.ask.{}", "furrow.ask.{\"request\":\"gc\"}", "x"] {
            assert!(Request::of(wrong).unwrap_err().contains("not a request"), "{wrong}");
        }
    }

    #[test]
    fn a_daemon_of_another_version_is_no_result() {
        let ok = Answer::of(Ok(1.into())).line();
        assert_eq!(result(&ok).unwrap(), 1);
        let refused = Answer::of(Err("no".into())).line();
        assert!(matches!(result(&refused), Err(Error::Refused(why)) if why == "no"));
        for other in [&b"{\"version\":9,\"ok\":1}"[..], b"{\"blocks\":1}", b"ok"] {
            let error = result(other).unwrap_err();
            assert!(matches!(error, Error::OtherVersion { .. }), "{error}");
            assert!(error.to_string().contains("restart it"), "{error}");
        }
    }
}
