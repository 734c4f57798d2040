//! Many files of a file system as a target: each client goes through the steps of a flow.
//!
//! Each client has its own directory of files. Unless the flow is `shared`, clients never use the
//! same file, and the operations of a seed do not depend on the order in which clients run.

use super::Target;
use super::files::Library;
use crate::catalogue::Point;
use crate::flow::{Flow, Step};
use crate::inside::{Ended, Moment};
use crate::workload::Op;
use anyhow::{Context as _, Result, anyhow, ensure};
use furrow_fs::{Ino, NewNode};
use furrow_rt::{Rng, Rt};
use furrow_zone::ZonedDevice;
use std::cell::RefCell;
use std::rc::Rc;

/// Many files of a file system as a target, with a flow for each client.
pub struct Flows {
    library: Rc<Library>,
    flow: Flow,
    clients: Vec<RefCell<Client>>,
}

#[derive(Clone, Copy)]
struct File {
    ino: Ino,
    number: u64,
    bytes: u64,
}

struct Client {
    home: Ino,
    files: Vec<File>,
    /// Index of the current file.
    current: usize,
    /// The current file, if clients also pick files of other clients.
    picked: Option<File>,
    /// Number of files made so far, which gives the next file its name.
    made: u64,
    log: File,
    next: usize,
    rng: Rng,
}

impl Client {
    fn current(&self) -> Result<File> {
        let own = self.files.get(self.current).copied();
        self.picked.or(own).ok_or_else(|| anyhow!("there is no current file"))
    }

    /// Removes the file at `index`.
    fn remove(&mut self, index: usize) -> File {
        let file = self.files.swap_remove(index);
        if self.current == self.files.len() {
            self.current = index;
        } else if self.current == index {
            self.current = 0;
        }
        file
    }
}

fn name(number: u64) -> String {
    format!("file-{number}")
}

impl Flows {
    /// Makes a file system on `device` and its files, and mounts it again so that nothing is
    /// cached.
    ///
    /// # Errors
    /// If the drive cannot hold the files, or the host model asks for something that the engine
    /// lacks.
    pub async fn new(
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        point: &Point,
        flow: &Flow,
        seed: u64,
    ) -> Result<Flows> {
        let (host, workload) = (&point.host, &point.workload);
        // Without processor time, operations on cached content would take no time, and the clients
        // would repeat them forever.
        ensure!(host.cpu.0 > 0, "{}: a flow needs a host with `cpu`", device.name());
        let library = Rc::new(Library::new(rt, device, &point.profile, host).await?);
        let mut makers = Vec::new();
        for thread in 0..workload.clients() {
            let (library, flow) = (library.clone(), flow.clone());
            let rng = Rng::new(seed ^ u64::from(thread + 1).wrapping_mul(0x9fb2_1c65_1e98_df25));
            makers.push(rt.spawn(async move { prepare(&library, &flow, thread, rng).await }));
        }
        let mut clients = Vec::new();
        for maker in makers {
            clients.push(RefCell::new(maker.await.context("making files")?));
        }
        let mut library =
            Rc::try_unwrap(library).map_err(|_| anyhow!("a client did not end its files"))?;
        library.fs.sync().await.context("sync")?;
        library.mount_again().await?;
        Ok(Flows { library: Rc::new(library), flow: flow.clone(), clients })
    }

    /// Makes a file of a random client the current file of `client`.
    async fn pick_any(&self, client: &RefCell<Client>) -> Result<u64> {
        let (owner, index) = {
            let client = &mut *client.borrow_mut();
            let owner = client.rng.below(self.clients.len() as u64) as usize;
            (owner, client.rng.below(u64::from(self.flow.files.max(1))) as usize)
        };
        let (home, file) = {
            let owner = self.clients[owner].borrow();
            let file = owner.files.get(index).copied();
            (owner.home, file.ok_or_else(|| anyhow!("there is no file {index}"))?)
        };
        self.library.fs.lookup(home, name(file.number).as_bytes()).await?;
        client.borrow_mut().picked = Some(file);
        Ok(0)
    }

    async fn step(&self, client: &RefCell<Client>, step: Step) -> Result<u64> {
        let fs = &self.library.fs;
        match step {
            Step::Create => {
                let (home, number) = {
                    let client = &mut *client.borrow_mut();
                    client.made += 1;
                    (client.home, client.made)
                };
                let made = fs.create(home, name(number).as_bytes(), &NewNode::file()).await?;
                let client = &mut *client.borrow_mut();
                client.current = client.files.len();
                client.files.push(File { ino: made.ino, number, bytes: 0 });
                Ok(0)
            }
            Step::Pick => {
                if self.flow.shared {
                    return self.pick_any(client).await;
                }
                let (home, file) = {
                    let client = &mut *client.borrow_mut();
                    let index = client.rng.below(client.files.len().max(1) as u64) as usize;
                    client.current = index;
                    (client.home, client.current()?)
                };
                fs.lookup(home, name(file.number).as_bytes()).await?;
                Ok(0)
            }
            Step::Write => {
                let (bytes, ino) = (self.flow.file.0, client.borrow().current()?.ino);
                self.library.write(ino, 0, bytes).await?;
                let client = &mut *client.borrow_mut();
                let current = client.current;
                client.files[current].bytes = bytes.max(client.files[current].bytes);
                Ok(bytes)
            }
            Step::Append => {
                let (file, bytes) = {
                    let client = &mut *client.borrow_mut();
                    let bytes = 1 + client.rng.below(self.flow.append.0);
                    let file = client.current()?;
                    let current = client.current;
                    client.files[current].bytes += bytes;
                    (file, bytes)
                };
                self.library.write(file.ino, file.bytes, bytes).await?;
                Ok(bytes)
            }
            Step::Log => {
                let (log, bytes) = {
                    let client = &mut *client.borrow_mut();
                    let bytes = 1 + client.rng.below(self.flow.append.0);
                    let log = client.log;
                    client.log.bytes += bytes;
                    (log, bytes)
                };
                self.library.write(log.ino, log.bytes, bytes).await?;
                Ok(bytes)
            }
            Step::Read => {
                let file = client.borrow().current()?;
                let done = self.library.read(file.ino, 0, file.bytes).await?;
                ensure!(done == file.bytes, "file {} ends at {done}", file.number);
                Ok(done)
            }
            Step::Fsync => {
                let ino = client.borrow().current()?.ino;
                self.library.fsync(ino, false).await?;
                Ok(0)
            }
            Step::Stat => {
                let ino = client.borrow().current()?.ino;
                fs.getattr(ino).await?;
                Ok(0)
            }
            Step::Delete => {
                let (home, file) = {
                    let client = &mut *client.borrow_mut();
                    let index = client.rng.below(client.files.len().max(1) as u64) as usize;
                    ensure!(index < client.files.len(), "there is no file to delete");
                    (client.home, client.remove(index))
                };
                fs.unlink(home, name(file.number).as_bytes()).await?;
                Ok(0)
            }
        }
    }
}

/// Makes the directory and the files of client `thread`.
async fn prepare(library: &Library, flow: &Flow, thread: u32, mut rng: Rng) -> Result<Client> {
    let fs = &library.fs;
    let directory = format!("client-{thread}");
    let home = fs.create(Ino::ROOT, directory.as_bytes(), &NewNode::directory()).await?.ino;
    let log = fs.create(home, b"log", &NewNode::file()).await?.ino;
    let mut files = Vec::new();
    for number in 1..=u64::from(flow.files) {
        let made = fs.create(home, name(number).as_bytes(), &NewNode::file()).await?;
        library.write(made.ino, 0, flow.file.0).await?;
        files.push(File { ino: made.ino, number, bytes: flow.file.0 });
    }
    let log = File { ino: log, number: 0, bytes: 0 };
    // One draw decorrelates the streams of neighbouring seeds.
    let rng = Rng::new(rng.next());
    Ok(Client {
        home,
        files,
        current: 0,
        picked: None,
        made: u64::from(flow.files),
        log,
        next: 0,
        rng,
    })
}

impl Target for Flows {
    fn space(&self, _thread: u32) -> (u64, bool) {
        (self.flow.file.0, false)
    }

    async fn perform(&self, thread: u32, _op: Op) -> Result<u64> {
        let client = &self.clients[thread as usize % self.clients.len()];
        let step = {
            let client = &mut *client.borrow_mut();
            let steps = self.flow.steps(thread);
            let step = steps[client.next % steps.len()];
            client.next += 1;
            step
        };
        let within = || format!("client {thread}, {step:?}");
        self.step(client, step).await.with_context(within)
    }

    fn moment(&self) -> Option<Moment> {
        Some(self.library.moment())
    }

    async fn end(&self) -> Result<Option<Ended>> {
        self.library.end().await.map(Some)
    }
}
