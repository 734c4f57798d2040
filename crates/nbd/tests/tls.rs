//! TLS: off, on, required, with and without certificates of clients.

#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the outside")]

use crate::certificates::Certificates;
use crate::common::bytes::{self, info, option, request};
use crate::common::{Client, Fixture};
use furrow_nbd::{Identity, Options, Reason, Status, Tls};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

const POLICY: u32 = (1 << 31) + 2;
const INVALID: u32 = (1 << 31) + 3;
const TLS_REQUIRED: u32 = (1 << 31) + 5;

fn serve(tls: Tls) -> Fixture {
    Fixture::with(Options { tls, ..Options::default() })
}

/// The number of clients that were refused for this reason.
fn refused(status: &Status, reason: Reason) -> u64 {
    status.refusals.iter().find(|(other, _)| *other == reason).unwrap().1
}

/// The configuration of a client that uses the certificate in `folder` and trusts `authority`.
fn with_certificate(folder: &Path, authority: CertificateDer<'static>) -> ClientConfig {
    let chain = CertificateDer::from_pem_file(folder.join("client-cert.pem"));
    let key = PrivateKeyDer::from_pem_file(folder.join("client-key.pem"));
    let mut roots = RootCertStore::empty();
    roots.add(authority).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    // The usual function would refuse a certificate of version 1 on the client's side already.
    let key = provider.key_provider.load_private_key(key.unwrap()).unwrap();
    let certified = CertifiedKey::new(vec![chain.unwrap()], key);
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
}

fn greeted(fixture: &Fixture) -> Client {
    let mut client = fixture.connect();
    client.greet(bytes::FIXED | bytes::NO_ZEROES);
    client
}

type Secure = Client<StreamOwned<ClientConnection, UnixStream>>;

/// Continues with `client` under TLS.
fn secure(mut client: Client, config: ClientConfig) -> Secure {
    assert_eq!(client.ask(bytes::STARTTLS, &[]), [(1, vec![])]);
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    Client { stream: StreamOwned::new(connection, client.stream), structured: false }
}

#[test]
fn all_goes_on_under_tls() {
    let certificates = Certificates::new("all");
    let mut fixture = serve(Tls::Require(certificates.identity(false)));
    let mut client = secure(greeted(&fixture), certificates.client(false));
    assert_eq!(client.ask(bytes::STARTTLS, &[])[0].0, INVALID, "once");
    client.go("disk", true);
    let data: Vec<u8> = (0..9 << 20).map(|i| (i * 7 + i / 999) as u8).collect();
    assert_eq!(client.write(4097, &data), 0);
    assert!(client.read(4097, data.len() as u32) == data);
    for i in 0..100 {
        assert_eq!(client.read(i * 4096 + 4097, 4096), data[i as usize * 4096..][..4096]);
    }
    let all: Vec<u8> = (0..200).flat_map(|i| request(bytes::READ, 0, i, i * 512, 40_000)).collect();
    client.send(&all);
    (0..200).for_each(|i| assert_eq!(client.data(i, i * 512, 40_000).len(), 40_000));
    assert!(fixture.status().connections[0].tls);
    client.send(&request(bytes::DISC, 0, 0, 0, 0));
    assert!(client.at_end());
}

#[test]
fn required_means_that_nothing_else_is_spoken() {
    let certificates = Certificates::new("required");
    let mut fixture = serve(Tls::Require(certificates.identity(false)));
    let mut client = greeted(&fixture);
    for which in [bytes::LIST, bytes::GO, bytes::INFO, bytes::STRUCTURED, 77] {
        assert_eq!(client.ask(which, &info("disk", &[]))[0].0, TLS_REQUIRED, "{which}");
    }
    assert_eq!(client.ask(bytes::ABORT, &[]), [(1, vec![])]);
    let mut client = greeted(&fixture);
    client.send(&option(bytes::EXPORT_NAME, b"disk"));
    assert!(client.at_end());
    fixture.until("counted", |status| refused(status, Reason::PlainText) == 2);
    // A client that first asks in plain text and then starts TLS, as the server tells it to, does
    // not count as refused.
    let mut client = greeted(&fixture);
    assert_eq!(client.ask(bytes::LIST, &[])[0].0, TLS_REQUIRED);
    let mut client = secure(client, certificates.client(false));
    client.go("disk", false);
    client.send(&request(bytes::DISC, 0, 0, 0, 0));
    assert!(client.at_end());
    fixture.until("gone", |status| status.connections.is_empty());
    assert_eq!(refused(&fixture.status(), Reason::PlainText), 2);
}

#[test]
fn on_lets_clients_choose_and_off_says_no() {
    let certificates = Certificates::new("choose");
    let fixture = serve(Tls::On(certificates.identity(false)));
    let mut plain = greeted(&fixture);
    plain.go("disk", true);
    assert_eq!(plain.write(0, b"hello"), 0);
    let mut client = secure(greeted(&fixture), certificates.client(false));
    client.go("disk", false);
    assert_eq!(client.read(0, 5), b"hello");
    let mut off = serve(Tls::Off);
    let mut client = greeted(&off);
    assert_eq!(client.ask(bytes::STARTTLS, &[])[0].0, POLICY);
    drop(client);
    off.until("counted", |status| refused(status, Reason::NotOffered) == 1);
    let mut client = greeted(&off);
    assert_eq!(client.ask(bytes::STARTTLS, &[])[0].0, POLICY);
    client.go("disk", false);
    drop(client);
    off.until("gone", |status| status.accepted == 2 && status.connections.is_empty());
    assert_eq!(refused(&off.status(), Reason::NotOffered), 1, "it did without");
}

#[test]
fn what_was_said_in_plain_text_does_not_count() {
    let certificates = Certificates::new("plain");
    let mut fixture = serve(Tls::On(certificates.identity(false)));
    // Structured replies that were agreed on before TLS are forgotten.
    let mut client = greeted(&fixture);
    assert_eq!(client.ask(bytes::STRUCTURED, &[]), [(1, vec![])]);
    let mut client = secure(client, certificates.client(false));
    client.go("disk", false);
    assert_eq!(client.read(0, 5), [0; 5]);
    // An option sent together with STARTTLS ends the connection.
    let mut client = greeted(&fixture);
    let mut both = option(bytes::STARTTLS, &[]);
    both.extend(option(bytes::GO, &info("disk", &[])));
    client.send(&both);
    assert!(client.at_end());
    fixture.until("counted", |status| status.failed_handshakes == 1);
}

#[test]
fn clients_without_a_certificate_stay_out_where_one_is_asked_for() {
    let certificates = Certificates::new("verify");
    let strangers = Certificates::new("strangers");
    let mut fixture = serve(Tls::Require(certificates.identity(true)));
    let mut client = secure(greeted(&fixture), certificates.client(true));
    client.go("disk", true);
    assert_eq!(client.read(0, 5), [0; 5]);
    let authority = CertificateDer::from_pem_file(certificates.path().join("ca-cert.pem")).unwrap();
    let mut stranger = certificates.client(false);
    for _ in 0..2 {
        let mut client = secure(greeted(&fixture), stranger);
        use std::io::{Read, Write};
        let written = client.stream.write_all(&option(bytes::LIST, &[]));
        assert!(written.is_err() || client.stream.read_exact(&mut [0; 20]).is_err());
        // The next client has a certificate of another authority.
        stranger = with_certificate(strangers.path(), authority.clone());
    }
    fixture.until("counted", |status| status.failed_handshakes == 2);
    let status = fixture.status();
    let counts = [Reason::NoCertificate, Reason::BadCertificate].map(|why| refused(&status, why));
    assert_eq!(counts, [1, 1]);
    assert_eq!(client.read(0, 5), [0; 5]);
}

/// `openssl x509 -req` makes such certificates if it is given no extensions. Those of the authority
/// and the client are stored in `version1` and are valid for a hundred years.
#[test]
fn a_certificate_of_version_1_is_named_as_the_reason() {
    let certificates = Certificates::new("version1");
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/version1");
    let authority = certificates.path().join("ca-cert.pem");
    let roots = CertificateDer::from_pem_file(&authority).unwrap();
    std::fs::copy(kept.join("ca-cert.pem"), &authority).unwrap();
    let mut fixture = serve(Tls::Require(certificates.identity(true)));
    let client = with_certificate(&kept, roots);
    let mut client = secure(greeted(&fixture), client);
    use std::io::{Read, Write};
    let written = client.stream.write_all(&option(bytes::LIST, &[]));
    assert!(written.is_err() || client.stream.read_exact(&mut [0; 20]).is_err());
    fixture.until("counted", |status| refused(status, Reason::BadCertificate) == 1);
    let told = fixture.refusal();
    assert_eq!(told.reason, Reason::BadCertificate);
    assert!(told.text.contains("X.509 version 1"), "{}", told.text);
}

#[test]
fn noise_instead_of_tls_ends_it() {
    let certificates = Certificates::new("noise");
    let mut fixture = serve(Tls::On(certificates.identity(false)));
    for noise in [&[0u8; 400][..], &[0xff; 70_000], b"\x16\x03\x01\xff\xffGET / HTTP/1.1\r\n\r\n"] {
        let mut client = greeted(&fixture);
        assert_eq!(client.ask(bytes::STARTTLS, &[]), [(1, vec![])]);
        use std::io::{Read, Write};
        let _ = client.stream.write_all(noise);
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        // The server sends an alert or nothing, and then the end.
        let _ = client.stream.read_to_end(&mut Vec::new());
    }
    fixture.until("counted", |status| status.failed_handshakes == 3);
    assert_eq!(refused(&fixture.status(), Reason::Tls), 3);
}

#[test]
fn certificates_that_are_missing_or_wrong_are_named() {
    let certificates = Certificates::new("wrong");
    let folder = certificates.path();
    let message = |verify| Identity::load(folder, verify).err().unwrap().to_string();
    std::fs::copy(folder.join("client-key.pem"), folder.join("server-key.pem")).unwrap();
    assert!(message(false).contains("server-key.pem"), "{}", message(false));
    std::fs::write(folder.join("server-key.pem"), "no key").unwrap();
    assert!(message(false).contains("private key"), "{}", message(false));
    std::fs::write(folder.join("server-cert.pem"), "").unwrap();
    assert!(message(false).contains("no certificate in it"), "{}", message(false));
    std::fs::remove_file(folder.join("ca-cert.pem")).unwrap();
    assert!(message(true).contains("ca-cert.pem"), "{}", message(true));
}
