//! Clients that were refused, and why.
//!
//! Each refusal is counted by its reason, and reported once. The number of reports that wait for a
//! caller is limited, so a client that tries again and again takes no more memory.

use furrow_rt::Notify;
use rustls::{AlertDescription, CertificateError, Error as TlsError};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Maximum number of reports that wait for a caller; further ones are only counted.
const KEPT: usize = 64;
/// Maximum number of characters of a report's text, which may contain text from the client.
const TEXT_MAX: usize = 200;

macro_rules! reasons {
    ($($reason:ident $name:literal: $what:literal,)+) => {
        /// The reason for refusing a client.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Reason {
            $(#[doc = $what] $reason,)+
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &'static [Reason] = &[$(Reason::$reason),+];

            /// The reason as one word with dashes.
            pub fn name(self) -> &'static str {
                match self {
                    $(Reason::$reason => $name,)+
                }
            }

            fn what(self) -> &'static str {
                match self {
                    $(Reason::$reason => $what,)+
                }
            }
        }
    };
}

reasons! {
    PlainText "plain-text": "it does not speak TLS, which is required",
    NotOffered "tls-not-offered": "it wants TLS, which this server does not offer",
    NoCertificate "no-certificate": "it has no certificate, and one is required",
    BadCertificate "bad-certificate": "its certificate is not accepted",
    Alert "client-alert": "it does not accept this server",
    Tls "tls-error": "the TLS handshake failed",
    Protocol "protocol-error": "it broke the NBD protocol, or left in the middle of the handshake",
    TimedOut "timeout": "its handshake took too long",
}

/// A client that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the client.
    pub peer: String,
    /// The reason why the client was refused.
    pub reason: Reason,
    /// The reason and its details, as text.
    pub text: String,
}

/// A reason, with details if there are any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Why {
    reason: Reason,
    more: Option<String>,
}

impl From<Reason> for Why {
    fn from(reason: Reason) -> Why {
        Why { reason, more: None }
    }
}

impl From<TlsError> for Why {
    fn from(error: TlsError) -> Why {
        let (reason, more) = match &error {
            TlsError::NoCertificatesPresented => (Reason::NoCertificate, None),
            TlsError::InvalidCertificate(error) => {
                (Reason::BadCertificate, Some(certificate(error)))
            }
            TlsError::AlertReceived(AlertDescription::CertificateRequired) => {
                (Reason::NoCertificate, None)
            }
            TlsError::AlertReceived(alert) => (Reason::Alert, Some(format!("{alert:?}"))),
            other => (Reason::Tls, Some(other.to_string())),
        };
        Why { reason, more }
    }
}

/// The problem with a client's certificate, as text.
fn certificate(error: &CertificateError) -> String {
    let text = match error {
        CertificateError::UnknownIssuer => "not of an authority in ca-cert.pem".to_owned(),
        other => other.to_string(),
    };
    match text.contains("UnsupportedCertVersion") {
        // A certificate of version 1 or 2 has no extensions, so it does not say what it may be
        // used for.
        true => "X.509 version 1 or 2, expected version 3, as openssl x509 -req -extfile makes it"
            .to_owned(),
        false => text,
    }
}

/// The refusals of a server: counts, and reports that wait for a caller.
#[derive(Default)]
pub(crate) struct Refusals {
    counts: RefCell<Vec<(Reason, u64)>>,
    waiting: RefCell<VecDeque<Refusal>>,
    /// Number of reports dropped since the last one taken, because too many waited.
    dropped: Cell<u64>,
    more: Notify,
}

impl Refusals {
    pub(crate) fn add(&self, peer: &str, why: Why) {
        let Why { reason, more } = why;
        {
            let mut counts = self.counts.borrow_mut();
            match counts.iter_mut().find(|(other, _)| *other == reason) {
                Some((_, count)) => *count += 1,
                None => counts.push((reason, 1)),
            }
        }
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() == KEPT {
            return self.dropped.set(self.dropped.get() + 1);
        }
        let what = reason.what();
        let text = match more {
            Some(more) => format!("client {peer} was refused: {what}: {more}"),
            None => format!("client {peer} was refused: {what}"),
        };
        // Control characters are replaced, so that a client cannot add lines to a log.
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let text = text.chars().map(plain).take(TEXT_MAX).collect();
        waiting.push_back(Refusal { peer: peer.to_owned(), reason, text });
        drop(waiting);
        self.more.notify_all();
    }

    /// The number of refusals for each reason.
    pub(crate) fn counts(&self) -> Vec<(Reason, u64)> {
        let counts = self.counts.borrow();
        let of = |reason: &Reason| {
            counts.iter().find(|(other, _)| other == reason).map_or(0, |(_, count)| *count)
        };
        Reason::ALL.iter().map(|reason| (*reason, of(reason))).collect()
    }

    /// Waits for the next report. Returns it with the number of reports that were dropped
    /// before it.
    pub(crate) async fn next(&self) -> (Refusal, u64) {
        loop {
            let next = self.waiting.borrow_mut().pop_front();
            match next {
                Some(refusal) => return (refusal, self.dropped.take()),
                None => self.more.wait().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_says_makes_no_line_and_no_memory() {
        let refusals = Refusals::default();
        for number in 0..1000 {
            let more = Some(format!("{number}\n{}", "x".repeat(1000)));
            refusals.add("10.0.0.1:1", Why { reason: Reason::Tls, more });
        }
        assert_eq!(refusals.waiting.borrow().len(), KEPT);
        assert_eq!(refusals.dropped.get(), 1000 - KEPT as u64);
        let texts = refusals.waiting.borrow();
        assert!(texts.iter().all(|one| one.text.len() <= TEXT_MAX && !one.text.contains('\n')));
        let counted: u64 = refusals.counts().iter().map(|(_, count)| count).sum();
        assert_eq!((counted, refusals.counts().len()), (1000, Reason::ALL.len()));
    }
}
