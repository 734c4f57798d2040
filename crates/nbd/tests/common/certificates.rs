//! Certificates of an authority, a server and a client, with the file names that TLS needs.

#![allow(dead_code, reason = "not every test needs all of it")]

use furrow_nbd::Identity;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rcgen::{ExtendedKeyUsagePurpose, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder with the certificates of an authority, a server and a client.
pub struct Certificates(PathBuf);

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Certificates {
    pub fn new(name: &str) -> Certificates {
        let folder = std::env::temp_dir().join(format!("furrow-tls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.join("ca-cert.pem"), authority.pem()).unwrap();
        for who in ["server", "client"] {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.distinguished_name.push(DnType::CommonName, who);
            params.extended_key_usages = vec![match who {
                "server" => ExtendedKeyUsagePurpose::ServerAuth,
                _ => ExtendedKeyUsagePurpose::ClientAuth,
            }];
            let certificate = params.signed_by(&key, &authority).unwrap();
            std::fs::write(folder.join(format!("{who}-cert.pem")), certificate.pem()).unwrap();
            std::fs::write(folder.join(format!("{who}-key.pem")), key.serialize_pem()).unwrap();
        }
        Certificates(folder)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn identity(&self, verify: bool) -> Identity {
        Identity::load(&self.0, verify).unwrap()
    }

    pub fn client(&self, with_certificate: bool) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        let authority = self.0.join("ca-cert.pem");
        roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        if !with_certificate {
            return builder.with_no_client_auth();
        }
        let chain = vec![CertificateDer::from_pem_file(self.0.join("client-cert.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(self.0.join("client-key.pem")).unwrap();
        builder.with_client_auth_cert(chain, key).unwrap()
    }
}
