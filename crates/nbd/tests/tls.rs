//! TLS: off, on, required, with and without certificates of clients.

#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the outside")]

use crate::certificates::Certificates;
use crate::common::bytes::{self, info, option, request};
use crate::common::{Client, Fixture};
use furrow_nbd::{Identity, Options, Tls};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

const POLICY: u32 = (1 << 31) + 2;
const INVALID: u32 = (1 << 31) + 3;
const TLS_REQUIRED: u32 = (1 << 31) + 5;

fn serve(tls: Tls) -> Fixture {
    Fixture::with(Options { tls, ..Options::default() })
}

fn greeted(fixture: &Fixture) -> Client {
    let mut client = fixture.connect();
    client.greet(bytes::FIXED | bytes::NO_ZEROES);
    client
}

type Secure = Client<StreamOwned<ClientConnection, UnixStream>>;

/// The same client, under TLS.
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
    let fixture = serve(Tls::Require(certificates.identity(false)));
    let mut client = greeted(&fixture);
    for which in [bytes::LIST, bytes::GO, bytes::INFO, bytes::STRUCTURED, 77] {
        assert_eq!(client.ask(which, &info("disk", &[]))[0].0, TLS_REQUIRED, "{which}");
    }
    assert_eq!(client.ask(bytes::ABORT, &[]), [(1, vec![])]);
    let mut client = greeted(&fixture);
    client.send(&option(bytes::EXPORT_NAME, b"disk"));
    assert!(client.at_end());
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
    let off = serve(Tls::Off);
    assert_eq!(greeted(&off).ask(bytes::STARTTLS, &[])[0].0, POLICY);
}

#[test]
fn what_was_said_in_plain_text_does_not_count() {
    let certificates = Certificates::new("plain");
    let mut fixture = serve(Tls::On(certificates.identity(false)));
    // Structured replies agreed on before TLS are forgotten.
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
    let mut stranger = certificates.client(false);
    for _ in 0..2 {
        let mut client = secure(greeted(&fixture), stranger);
        use std::io::{Read, Write};
        let written = client.stream.write_all(&option(bytes::LIST, &[]));
        assert!(written.is_err() || client.stream.read_exact(&mut [0; 20]).is_err());
        // Next: a certificate of another authority.
        let chain = CertificateDer::from_pem_file(strangers.path().join("client-cert.pem"));
        let key = PrivateKeyDer::from_pem_file(strangers.path().join("client-key.pem"));
        let mut roots = RootCertStore::empty();
        let authority = certificates.path().join("ca-cert.pem");
        roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        stranger = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![chain.unwrap()], key.unwrap())
            .unwrap();
    }
    fixture.until("counted", |status| status.failed_handshakes == 2);
    assert_eq!(client.read(0, 5), [0; 5]);
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
        // An alert, or nothing, then the end.
        let _ = client.stream.read_to_end(&mut Vec::new());
    }
    fixture.until("counted", |status| status.failed_handshakes == 3);
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
