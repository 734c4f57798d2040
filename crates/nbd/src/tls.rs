//! TLS: whether it is offered, and the server's certificates.
//!
//! rustls provides TLS: a funded project maintains it, it is audited and memory-safe, and has only
//! TLS 1.2 and 1.3. It does no I/O itself, so it runs inside the executor's tasks. The cryptography
//! is `ring`'s. Files have the names that nbdkit, qemu and libvirt use, so that one directory
//! serves all.

use furrow_zone::{Error, ErrorKind, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use std::path::Path;
use std::sync::Arc;

/// The certificate of the authority that must have signed the certificates of clients, if clients
/// are verified.
const AUTHORITY: &str = "ca-cert.pem";
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";

/// Whether the server offers TLS or requires it.
#[derive(Clone, Default)]
pub enum Tls {
    /// TLS is not offered.
    #[default]
    Off,
    /// TLS is offered, but not required.
    On(Identity),
    /// Clients must use TLS.
    Require(Identity),
}

/// The server's certificate and key, and the authority that signs clients' certificates.
#[derive(Clone)]
pub struct Identity(Arc<ServerConfig>);

fn bad(path: &Path, what: impl std::fmt::Display, advice: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("{}: {what}; {advice}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let advice = "expected certificates in PEM";
    let list = CertificateDer::pem_file_iter(path).map_err(|error| bad(path, error, advice))?;
    let list = list.collect::<Result<Vec<_>, _>>().map_err(|error| bad(path, error, advice))?;
    if list.is_empty() {
        return Err(bad(path, "no certificate in it", advice));
    }
    Ok(list)
}

impl Identity {
    /// Loads `server-cert.pem` (the whole chain) and `server-key.pem` from `directory`. With
    /// `verify_clients`, only clients whose certificate is signed by one in `ca-cert.pem` are
    /// admitted.
    pub fn load(directory: &Path, verify_clients: bool) -> Result<Identity> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| bad(directory, error, "TLS cannot be set up"))?;
        let builder = if verify_clients {
            let path = directory.join(AUTHORITY);
            let mut roots = RootCertStore::empty();
            for certificate in certificates(&path)? {
                roots
                    .add(certificate)
                    .map_err(|error| bad(&path, error, "expected an authority's certificate"))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| bad(&path, error, "expected an authority's certificate"))?;
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let chain = certificates(&directory.join(CERTIFICATE))?;
        let path = directory.join(KEY);
        let key = PrivateKeyDer::from_pem_file(&path)
            .map_err(|error| bad(&path, error, "expected an unencrypted private key in PEM"))?;
        let config = builder.with_single_cert(chain, key).map_err(|error| {
            bad(&path, error, &format!("expected the key of {CERTIFICATE} in the same directory"))
        })?;
        Ok(Identity(Arc::new(config)))
    }
}

impl Tls {
    /// The server's side of TLS for a new connection; `None` if TLS is not offered.
    pub(crate) fn connection(&self) -> Option<ServerConnection> {
        match self {
            Tls::Off => None,
            // `new` fails only for configurations that this module does not make.
            Tls::On(identity) | Tls::Require(identity) => {
                ServerConnection::new(identity.0.clone()).ok()
            }
        }
    }

    /// Whether clients must use TLS.
    pub(crate) fn is_required(&self) -> bool {
        matches!(self, Tls::Require(_))
    }
}
