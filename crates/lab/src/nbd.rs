//! NBD: the server of `furrow-nbd` against nbdkit and qemu-nbd, by the same client.
//!
//! All servers serve a gibibyte in memory over a Unix socket: ours from pages, nbdkit from its
//! memory plugin, qemu-nbd from a file on a file system in memory (it has no disk in memory that
//! stores writes). The client is fio's nbd engine, a process of its own; before measuring, it
//! writes once the 256 MiB that the runs use. So only the servers differ.

use crate::{Bench, Contestant, Effort, Row, compare};
use anyhow::{Context as _, Result, bail};
use furrow_nbd::{Export, Listen, Memory, Options, Server};
use furrow_rt::{Config, Rt};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The NBD benchmark.
pub const NBD: Bench = Bench {
    name: "nbd",
    about: "an NBD volume in memory by fio, 4 KiB and 64 KiB, 32 in flight, against nbdkit and \
            qemu-nbd; a ratio below 1 is a server slower than furrow's",
    run,
};

/// Programs that must be installed.
const PROGRAMS: [&str; 3] = ["fio", "nbdkit", "qemu-nbd"];
/// Bytes of the volumes.
const SIZE: u64 = 1 << 30;
const USED: &str = "256m";

/// The programs that are missing on this machine.
fn missing() -> Vec<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let found = |program: &str| folders.iter().any(|folder| folder.join(program).exists());
    PROGRAMS.into_iter().filter(|program| !found(program)).collect()
}

fn run(effort: Effort) -> Result<Vec<Row>> {
    let missing = missing();
    if !missing.is_empty() {
        let names = missing.join(", ");
        bail!("missing: {names}. On Debian and Ubuntu 'scripts/setup.sh bench' installs them");
    }
    let folder = Folder::new()?;
    let servers = [
        ("furrow", Running::furrow(&folder.0.join("furrow"))?),
        ("nbdkit", Running::nbdkit(&folder.0.join("nbdkit"))?),
        ("qemu-nbd", Running::qemu(&folder.0)?),
    ];
    for (_, server) in &servers {
        server.ask("write", "64k", 8, None)?;
    }
    let mut rows = Vec::new();
    for (mode, block, label) in [
        ("randread", "4k", "4 KiB read"),
        ("randwrite", "4k", "4 KiB write"),
        ("randread", "64k", "64 KiB read"),
        ("randwrite", "64k", "64 KiB write"),
    ] {
        let mut contestants: Vec<Contestant<'_>> = servers
            .iter()
            .map(|(name, server)| {
                Contestant::new(format!("{label}, {name}"), move |slice| {
                    server.ask(mode, block, 32, Some(slice))
                })
            })
            .collect();
        rows.extend(compare(effort, &mut contestants)?);
    }
    Ok(rows)
}

/// A folder for sockets, in memory if possible. It is removed at the end of the benchmark.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder> {
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = base.join(format!("furrow-bench-nbd-{}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        Ok(Folder(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If this fails, files stay in memory until the machine is restarted.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server that runs until it is dropped.
struct Running {
    socket: PathBuf,
    how: How,
}

enum How {
    /// Our server: a thread, which ends when the socket is closed.
    Thread(Option<(JoinHandle<()>, UnixStream)>),
    Process(Child),
}

impl Drop for Running {
    fn drop(&mut self) {
        match &mut self.how {
            How::Thread(thread) => {
                if let Some((thread, bell)) = thread.take() {
                    drop(bell);
                    // A panic of the thread has already been printed.
                    let _ = thread.join();
                }
            }
            How::Process(child) => {
                // Both fail only if the process has already ended.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

impl Running {
    fn furrow(socket: &Path) -> Result<Running> {
        let (bell, ear) = UnixStream::pair().context("a pair of sockets")?;
        let (ready, started) = channel();
        let place = Listen::Unix(socket.to_owned());
        let thread = std::thread::spawn(move || {
            let rt = Rt::new(Config::real());
            let exports = vec![Export::new("memory", Rc::new(Memory::new(SIZE / 4096)))];
            let server = Server::bind(&rt, &[place], exports, Options::default());
            let server = match server {
                Ok(server) => server,
                Err(error) => {
                    // Sending cannot fail, because the receiver waits below.
                    let _ = ready.send(Err(error));
                    return;
                }
            };
            let _ = ready.send(Ok(()));
            let (wait, ear) = (rt.clone(), Arc::new(OwnedFd::from(ear)));
            rt.block_on(async move {
                wait.readable(ear).await;
                server.shutdown().await;
            });
        });
        started.recv().context("the server did not start")??;
        Ok(Running { socket: socket.to_owned(), how: How::Thread(Some((thread, bell))) })
    }

    fn nbdkit(socket: &Path) -> Result<Running> {
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--unix"]).arg(socket).arg("memory").arg(SIZE.to_string());
        Running::start(command, socket)
    }

    fn qemu(folder: &Path) -> Result<Running> {
        let (image, socket) = (folder.join("image"), folder.join("qemu"));
        let file = std::fs::File::create(&image).context("a file in memory")?;
        file.set_len(SIZE).context("a file in memory")?;
        let mut command = Command::new("qemu-nbd");
        command.args(["--persistent", "--shared=8", "--format=raw", "--cache=writeback"]);
        command.arg("--socket").arg(&socket).arg(&image);
        Running::start(command, &socket)
    }

    fn start(mut command: Command, socket: &Path) -> Result<Running> {
        let name = command.get_program().to_string_lossy().into_owned();
        // The servers complain about connections that only test whether they listen.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| name.clone())?;
        let mut running = Running { socket: socket.to_owned(), how: How::Process(child) };
        let start = Instant::now();
        while UnixStream::connect(socket).is_err() {
            if let How::Process(child) = &mut running.how
                && let Some(status) = child.try_wait()?
            {
                bail!("{name} ended at once: {status}");
            }
            if start.elapsed() > Duration::from_secs(10) {
                bail!("{name} does not listen");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(running)
    }

    /// Requests per second over `time`; without a time, over one pass through the used part.
    fn ask(&self, mode: &str, block: &str, depth: u32, time: Option<Duration>) -> Result<f64> {
        let mut command = Command::new("fio");
        command
            .args(["--name=bench", "--ioengine=nbd", "--output-format=json", "--randrepeat=0"])
            .arg(format!("--uri=nbd+unix:///?socket={}", self.socket.display()))
            .args([format!("--rw={mode}"), format!("--bs={block}"), format!("--iodepth={depth}")])
            .arg(format!("--size={USED}"));
        if let Some(time) = time {
            // fio needs at least a few milliseconds.
            let milliseconds = time.as_millis().max(20);
            command.args(["--time_based".to_owned(), format!("--runtime={milliseconds}ms")]);
        }
        let output = command.stdin(Stdio::null()).output().context("fio")?;
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            bail!("fio: {said}{}", String::from_utf8_lossy(&output.stderr));
        }
        rate(&said).with_context(|| format!("unexpected output of fio: {said}"))
    }
}

/// Parses requests per second from fio's JSON, which follows a line that fio's engine prints.
fn rate(said: &str) -> Option<f64> {
    let document: serde_json::Value = serde_json::from_str(&said[said.find('{')?..]).ok()?;
    let job = &document["jobs"][0];
    let done = ["read", "write"].map(|way| job[way]["total_ios"].as_f64());
    let took = ["read", "write"].map(|way| job[way]["runtime"].as_f64());
    let (done, took) = (done[0]? + done[1]?, took[0]?.max(took[1]?));
    (took > 0.0).then(|| done / (took / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_requests_by_time() {
        let said = "fio: connected to NBD server\n{\"jobs\":[{\"read\":{\"total_ios\":500,\
                    \"runtime\":250},\"write\":{\"total_ios\":0,\"runtime\":0}}]}";
        assert_eq!(rate(said), Some(2000.0));
        assert_eq!(rate("fio: no such engine"), None);
        assert_eq!(rate("{}"), None);
    }
}
