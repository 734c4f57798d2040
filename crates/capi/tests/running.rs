//! An open store: the answers of its control socket, requests that arrive there, and which thread
//! runs the engine.

#![allow(unsafe_code, reason = "an interface for C takes pointers")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "a test")]

use furrow::file::{furrow_file, furrow_file_append, furrow_file_close, furrow_file_sync};
use furrow::store::{
    furrow_counters, furrow_create, furrow_store, furrow_store_close, furrow_store_counters,
    furrow_store_open,
};
use serde_json::Value;
use std::ffi::CString;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

fn sockets(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn open() -> *mut furrow_store {
    let device = CString::new("mem:capacity=256MiB,zone-size=4MiB").unwrap();
    let mut store = null_mut();
    // SAFETY: strings with zeros, a place for the answer.
    let kind = unsafe { furrow_store_open(device.as_ptr(), null(), &raw mut store, null_mut()) };
    assert_eq!(kind, 0);
    store
}

fn counters(store: *const furrow_store) -> furrow_counters {
    let mut counted = std::mem::MaybeUninit::uninit();
    // SAFETY: the store is open; the counters are used only after a success.
    unsafe {
        assert_eq!(furrow_store_counters(store, counted.as_mut_ptr(), null_mut()), 0);
        counted.assume_init()
    }
}

/// Makes a file, appends to it, syncs and closes it: four calls.
fn write(store: *const furrow_store, name: &str) {
    let (name, bytes) = (CString::new(name).unwrap(), [7u8; 100_000]);
    let mut file: *mut furrow_file = null_mut();
    // SAFETY: the store is open, the file until it is closed.
    unsafe {
        assert_eq!(furrow_create(store, name.as_ptr(), 3, &raw mut file, null_mut()), 0);
        assert_eq!(furrow_file_append(file, bytes.as_ptr().cast(), bytes.len(), null_mut()), 0);
        assert_eq!(furrow_file_sync(file, null_mut()), 0);
        assert_eq!(furrow_file_close(file, null_mut()), 0);
    }
}

/// Sends these bytes, and returns everything that comes until the connection ends.
fn said(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The store may have ended the connection in the meantime.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

#[test]
fn a_store_that_runs_says_how_it_is_and_threads_of_low_priority_leave_calls_to_others() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("running");
    let _ = std::fs::remove_dir_all(&folder);
    // SAFETY: this program has no other thread that looks at its environment.
    unsafe { std::env::set_var("FURROW_RUN", &folder) };
    let store = open();
    write(store, "000001.sst");
    let found = sockets(&folder);
    assert_eq!(found.len(), 1);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&found[0])), (0o700, 0o600), "its owner's alone");

    let ask = || {
        let answer = said(&found[0], b"{\"version\":2,\"request\":\"stat\"}\n");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["version"], 2);
        answer["ok"].clone()
    };
    let told = ask();
    assert_eq!((told["appended_bytes"].as_u64(), told["syncs"].as_u64()), (Some(100_000), Some(1)));
    assert_eq!(told["kinds"][1]["kind"], "table");
    assert_eq!(told["kinds"][1]["bytes"], 100_000);
    assert_eq!(told["operations"][0]["operation"], "append");
    assert_eq!(told["operations"][0]["calls"], 1);

    // A scrub reads everything in the background.
    let scrub = |order: Value| {
        let request = serde_json::json!({ "version": 2, "request": "scrub", "order": order });
        let answer = said(&found[0], format!("{request}\n").as_bytes());
        serde_json::from_str::<Value>(&answer).unwrap()
    };
    assert_eq!(scrub(Value::Null)["ok"]["scrub"], Value::Null, "none was begun");
    assert!(scrub("pause".into())["error"].as_str().unwrap().contains("no scrub is running"));
    assert_eq!(scrub("start".into())["ok"]["scrub"]["state"], "running");
    let begun = Instant::now();
    let ended = loop {
        let now = scrub(Value::Null)["ok"]["scrub"].clone();
        if now["state"] != "running" {
            break now;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{now}");
    };
    assert_eq!((&ended["state"], &ended["damaged"]), (&"finished".into(), &0.into()), "{ended}");
    assert!(ended["blocks_done"].as_u64().unwrap() >= 24, "{ended}");
    assert!(scrub("begin".into())["error"].as_str().unwrap().contains("not a request"));

    // After any request, the next one is answered.
    let endless = vec![b'x'; 100_000];
    let deep = format!("{}\n", "[".repeat(4000));
    for hostile in [&b"\n"[..], b"{}\n", b"\xff\xfe\0\n", b"{\"request\":\"stat\"}\n", &endless] {
        let answer = said(&found[0], hostile);
        assert!(answer.is_empty() || answer.contains("not a request"), "{answer}");
    }
    assert!(said(&found[0], deep.as_bytes()).contains("not a request"));
    // Clients that hang do not delay others.
    let held: Vec<_> = (0..20).map(|_| UnixStream::connect(&found[0]).unwrap()).collect();
    held.iter().for_each(|mut one| one.write_all(b"{\"version\":").unwrap());
    drop(UnixStream::connect(&found[0]).unwrap());
    assert_eq!(ask()["appended_bytes"], 100_000);
    drop(held);

    // A thread of low priority never runs the engine; other threads run it in place.
    let before = counters(store);
    let address = store as usize;
    let lower = std::thread::spawn(move || {
        let now = rustix::process::getpriority_process(None).unwrap();
        rustix::process::setpriority_process(None, (now + 1).min(19)).unwrap();
        assert!(rustix::process::getpriority_process(None).unwrap() > now, "cannot be lower");
        for file in 0..20 {
            write(address as *const furrow_store, &format!("low{file}"));
        }
    });
    lower.join().unwrap();
    let after = counters(store);
    assert_eq!(after.handed - before.handed, 80);
    // Other threads carried out all calls of the thread with low priority. They carry out a call of
    // the present thread only by chance.
    let hops = after.append.hops - before.append.hops;
    assert_eq!((after.append.calls - before.append.calls, hops), (20, 20));
    write(store, "mine");
    assert_eq!(counters(store).handed, after.handed);

    // A silent client does not keep the store from closing; the socket is removed nevertheless.
    let silent = UnixStream::connect(&found[0]).unwrap();
    let begun = Instant::now();
    // SAFETY: the store is not used after this.
    assert_eq!(unsafe { furrow_store_close(store, null_mut()) }, 0);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert!(sockets(&folder).is_empty());
    drop(silent);

    // Neither the socket of a killed process nor a file in place of the folder is an obstacle.
    let dead = folder.join("dead.store");
    drop(UnixListener::bind(&dead).unwrap());
    assert!(UnixStream::connect(&dead).is_err());
    let store = open();
    assert_eq!(sockets(&folder).len(), 2);
    // SAFETY: the store is not used after this.
    assert_eq!(unsafe { furrow_store_close(store, null_mut()) }, 0);
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, "a file").unwrap();
    let store = open();
    write(store, "000001.sst");
    // SAFETY: the store is not used after this.
    assert_eq!(unsafe { furrow_store_close(store, null_mut()) }, 0);
    std::fs::remove_file(&folder).unwrap();
}
