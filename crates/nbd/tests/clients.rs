//! Stock clients: libnbd's tools, qemu's, fio. `scripts/setup.sh test` installs them. If the
//! tools are missing, these tests fail, unless `FURROW_WITHOUT_NBD_CLIENTS=1` says that they
//! should be skipped.

#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the outside")]

use crate::certificates::Certificates;
use crate::common::{Fixture, SIZE};
use crate::tools::{attempt, image, run};
use furrow_nbd::{Options, Tls};
use serde_json::Value;
use std::path::Path;

fn uri(fixture: &Fixture, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", fixture.socket().display())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn nbdinfo_tells_what_is_served() {
    let fixture = Fixture::start();
    let list = uri(&fixture, "");
    let Some(said) = run("nbdinfo", &["--list", "--json", &list]) else { return };
    let told: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(told["protocol"], "newstyle-fixed");
    assert_eq!(told["structured"], true);
    let names: Vec<&str> = told["exports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["export-name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["disk", "fixed", "other"]);
    let disk = &told["exports"][0];
    for can in ["cache", "df", "fast_zero", "flush", "fua", "multi_conn", "trim", "zero"] {
        assert_eq!(disk[format!("can_{can}")], true, "{can}");
    }
    assert_eq!(disk["is_read_only"], false);
    assert_eq!(disk["description"], "a disk");
    assert_eq!(disk["export-size"], SIZE);
    assert_eq!(disk["contexts"][0], "base:allocation");
    let sizes = ["minimum", "preferred", "maximum"].map(|size| &disk[format!("block_size_{size}")]);
    assert_eq!(sizes, [&Value::from(1), &Value::from(65536), &Value::from(32 << 20)]);
    let fixed = &told["exports"][1];
    assert_eq!((&fixed["is_read_only"], &fixed["can_trim"]), (&true.into(), &false.into()));
    let Some(said) = run("nbdinfo", &["--map", "--json", &uri(&fixture, "disk")]) else { return };
    let map: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&map[0]["length"], &map[0]["type"]), (&SIZE.into(), &3.into()));
    let (success, said) = attempt("nbdinfo", &[&uri(&fixture, "nobody")]).unwrap();
    assert!(!success && said.contains("No such file or directory"), "{said}");
}

#[test]
fn nbdcopy_brings_images_of_any_size_there_and_back() {
    let fixture = Fixture::start();
    let (there, back) = (fixture.folder.join("there"), fixture.folder.join("back"));
    let uri = uri(&fixture, "disk");
    for (length, connections) in [(50 << 20, "4"), (33_333_333, "1"), (512, "2")] {
        let data = image(&there, length);
        let arguments = ["--connections", connections, "--flush", text(&there), &uri];
        let Some(_) = run("nbdcopy", &arguments) else { return };
        run("nbdcopy", &["--connections", connections, "--destination-is-zero", &uri, text(&back)]);
        let found = std::fs::read(&back).unwrap();
        assert_eq!(found.len() as u64, SIZE);
        assert!(found[..length] == data, "{length} bytes through {connections}");
        let _ = std::fs::remove_file(&back);
    }
}

#[test]
fn nbdsh_finds_the_edges() {
    let fixture = Fixture::start();
    let script = r#"
import errno
def fails(code, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == code, (error.errnum, error)
        return str(error)
    assert False, "it must fail"
size = h.get_size()
assert h.pread(16, 0) == b"\0" * 16
h.pwrite(b"edge" * 3, 4090)
assert h.pread(20, 4088) == b"\0\0" + b"edge" * 3 + b"\0" * 6
h.pwrite(b"x" * 512, 512, nbd.CMD_FLAG_FUA)
h.zero(100, 600)
assert h.pread(300, 550) == b"x" * 50 + b"\0" * 100 + b"x" * 150
h.zero(8192, 0, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
assert h.pread(8192, 0) == b"\0" * 8192
h.trim(1 << 20, 1 << 20, nbd.CMD_FLAG_FUA)
h.cache(size, 0)
h.flush()
spans = []
def extent(context, offset, entries, error):
    assert context == nbd.CONTEXT_BASE_ALLOCATION
    spans.extend(entries)
h.block_status(size, 0, extent)
assert spans[0] == 8192 and spans[1] == 0, spans
assert spans[2] == size - 8192 and spans[3] == 3, spans
data = bytes(range(256)) * 4096
h.pwrite(data, 12345)
parts = []
h.pread_structured(len(data), 12345, lambda b, o, s, e: parts.append(len(b)), nbd.CMD_FLAG_DF)
assert parts == [len(data)]
assert h.pread(len(data), 12345) == data
h.set_strict_mode(0)
fails(errno.EINVAL, lambda: h.pread(512, size))
fails(errno.ENOSPC, lambda: h.pwrite(b"x" * 512, size))
fails(errno.EINVAL, lambda: h.trim(size, 512))
fails(errno.ENOTSUP, lambda: h.zero(4096, 0, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO))
h.zero(4096, 0, nbd.CMD_FLAG_FAST_ZERO)
def part(i):
    return nbd.Buffer.from_bytearray(bytearray([i]) * 5000)
cookies = [h.aio_pwrite(part(i), i * 5000) for i in range(200)]
while any(not h.aio_command_completed(c) for c in cookies[-1:]) or h.aio_in_flight() > 0:
    h.poll(-1)
for i in range(200):
    assert h.pread(5000, i * 5000) == bytes([i]) * 5000
h.shutdown()
"#;
    let uri = uri(&fixture, "disk");
    let Some(_) = run("nbdsh", &["--base-allocation", "-u", &uri, "-c", script]) else { return };
    let script = r#"
assert h.is_read_only()
h.set_strict_mode(0)
for call in [lambda: h.pwrite(b"x", 0), lambda: h.zero(1, 0), lambda: h.trim(1, 0)]:
    try:
        call()
        assert False, "written to what is read-only"
    except nbd.Error as error:
        assert error.errno == "EPERM", error
assert h.pread(4, 5000) == bytes([1]) * 4
"#;
    run("nbdsh", &["-u", &uri.replace("/disk", "/fixed"), "-c", script]);
    // A client that knows only the oldest form of newstyle.
    let script = "h.set_request_structured_replies(False)
h.set_opt_mode(False)
h.set_handshake_flags(0)
h.set_export_name('disk')
h.connect_unix(SOCKET)
assert not h.get_structured_replies_negotiated()
assert h.pread(4, 5000) == bytes([1]) * 4
h.shutdown()";
    let script = script.replace("SOCKET", &format!("'{}'", fixture.socket().display()));
    run("nbdsh", &["-c", &script]);
}

#[test]
fn qemu_converts_compares_and_maps() {
    let fixture = Fixture::start();
    let (raw, qcow) = (fixture.folder.join("raw"), fixture.folder.join("qcow2"));
    let length = SIZE as usize;
    image(&raw, length);
    let uri = uri(&fixture, "disk");
    let convert = ["convert", "-n", "-W", "-m", "8", "-f", "raw", "-O", "raw", text(&raw), &uri];
    let Some(_) = run("qemu-img", &convert) else { return };
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&raw), &uri]);
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, text(&qcow)]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &uri, text(&qcow)]);
    let map = run("qemu-img", &["map", "--output=json", "-f", "raw", &uri]).unwrap();
    let map: Value = serde_json::from_str(&map).unwrap();
    let holes = map.as_array().unwrap().iter().filter(|run| run["data"] == false);
    let bytes: u64 = holes.map(|run| run["length"].as_u64().unwrap()).sum();
    assert!(bytes >= 10 * (3 << 20), "{bytes} bytes of holes in {map}");
}

#[test]
fn qemu_io_writes_patterns_zeroes_and_discards() {
    let fixture = Fixture::start();
    let uri = uri(&fixture, "disk");
    let commands = [
        "write -P 0x11 0 1M",
        "write -P 0x22 -f 1000 3000",
        "read -P 0x11 0 1000",
        "read -P 0x22 1000 3000",
        "read -P 0x11 4000 1044576",
        "write -z 2000 100",
        "write -z -u 64k 64k",
        "write -z -u -n 128k 64k",
        "read -P 0 2000 100",
        "read -P 0 64k 128k",
        "discard 512k 256k",
        "read -P 0 512k 256k",
        "aio_write -P 0x33 1M 2M",
        "aio_write -P 0x44 3M 512",
        "aio_flush",
        "flush",
        "read -P 0x33 1M 2M",
        "read -P 0x44 3M 512",
    ];
    let mut arguments = vec!["-f", "raw"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    arguments.push(&uri);
    let Some(said) = run("qemu-io", &arguments) else { return };
    assert!(!said.contains("failed") && !said.contains("error"), "{said}");
}

#[test]
fn fio_verifies_what_it_wrote() {
    let fixture = Fixture::start();
    let uri = format!("--uri={}", uri(&fixture, "disk"));
    for (size, depth, job) in [
        ("--bs=4k", "--iodepth=32", "--rw=randwrite"),
        ("--bsrange=1k-200k", "--iodepth=16", "--rw=randrw"),
    ] {
        let arguments = [
            "--name=verify",
            "--ioengine=nbd",
            &uri,
            job,
            size,
            depth,
            "--size=48m",
            "--io_size=24m",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--serialize_overlap=1",
            "--randseed=7",
            "--fsync=64",
        ];
        if run("fio", &arguments).is_none() {
            return;
        }
    }
}

#[test]
fn stock_clients_speak_tls() {
    let certificates = Certificates::new("clients");
    let tls = Tls::Require(certificates.identity(true));
    let mut fixture = Fixture::with(Options { tls, ..Options::default() });
    let folder = text(certificates.path());
    let address = fixture.tcp.replace("127.0.0.1", "localhost");
    let uri = format!("nbds://{address}/disk?tls-certificates={folder}");
    let Some(said) = run("nbdinfo", &["--json", &uri]) else { return };
    let told: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(told["TLS"], true, "{said}");
    let raw = fixture.folder.join("raw");
    let data = image(&raw, 20 << 20);
    run("nbdcopy", &["--connections", "2", text(&raw), &uri]);
    let back = fixture.folder.join("back");
    let port = address.rsplit(':').next().unwrap();
    let creds = format!("tls-creds-x509,id=tls,dir={folder},endpoint=client");
    let source = format!("driver=nbd,host=localhost,port={port},export=disk,tls-creds=tls");
    let convert =
        ["convert", "--object", &creds, "--image-opts", &source, "-O", "raw", text(&back)];
    run("qemu-img", &convert);
    assert!(std::fs::read(&back).unwrap()[..data.len()] == data);
    let (success, said) = attempt("nbdinfo", &[&format!("nbd://{address}/disk")]).unwrap();
    assert!(!success && said.contains("TLS"), "{said}");
    assert!(fixture.status().accepted >= 5);
}
