//! The files of a file system as a target, through the library: one file for each client.
//!
//! The engine runs on the executor of the clients, so its work takes no time but that of the
//! drive; what a processor would need is the host model's to say.
//!
//! Not here: other than regular files, limits of dirty data (the engine has its own).

use super::Target;
use crate::host::Host;
use crate::workload::{Kind, Mode, Op, Workload};
use anyhow::{Context as _, Result, ensure};
use furrow_fs::{Counters, Fs, Ino, MkfsOptions, MountOptions, NewNode, WriteData};
use furrow_rt::{PAGE_SIZE, Rt};
use furrow_zone::ZonedDevice;
use std::rc::Rc;

/// Largest read or write of the library that is used.
const PIECE: u64 = 1 << 20;

/// See the module.
pub struct Files {
    fs: Fs,
    files: Vec<Ino>,
    workload: Workload,
    /// What is written. Zeros: the emulated drive keeps them in no space, so that a full-size
    /// drive fits into memory, and in virtual time content makes no difference.
    content: Vec<u8>,
}

impl Files {
    /// Makes a file system on `device`, mounts it, makes the files and, for reads, writes them and
    /// mounts again so that nothing is cached.
    ///
    /// # Errors
    /// If the drive cannot hold the file system or the host model asks for what the engine lacks.
    pub async fn new(
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        workload: &Workload,
        host: &Host,
    ) -> Result<Files> {
        let name = device.name();
        ensure!(
            host.dirty.0 == 0 && host.background.0 == 0 && host.flushers == 0,
            "{name}: the engine's dirty limits and flushers cannot be set"
        );
        ensure!(
            host.request_cap.0 == 0 && !host.zone_lock,
            "{name}: a request cap and a zone lock are for commands, not for files"
        );
        ensure!(workload.span.0 > 0, "{name}: how large are the files? `span` is not set");
        let force = MkfsOptions { force: true, ..MkfsOptions::default() };
        Fs::format(rt, device.clone(), &force).await.context("mkfs")?;
        let default = MountOptions::default();
        let cache_pages = match host.memory.0 as usize / PAGE_SIZE {
            0 => default.cache_pages,
            pages => pages,
        };
        let options = MountOptions { cache_pages, ..default };
        let fs = Fs::mount(rt, device.clone(), options.clone()).await.context("mount")?;
        let mut files = Vec::new();
        for thread in 0..workload.clients() {
            let name = format!("client-{thread}");
            let file = fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?;
            files.push(file.ino);
        }
        let content = vec![0; PIECE as usize];
        let mut target = Files { fs, files, workload: workload.clone(), content };
        if workload.op == Kind::Read || workload.read_percent > 0 {
            target.fill().await?;
            target.fs.unmount().await.context("unmount")?;
            target.fs = Fs::mount(rt, device, options).await.context("mount")?;
        }
        Ok(target)
    }

    /// What the file system has written since it was mounted.
    pub fn counters(&self) -> Counters {
        self.fs.counters()
    }

    /// Ends the file system.
    ///
    /// # Errors
    /// If its last checkpoint fails.
    pub async fn end(&self) -> Result<()> {
        self.fs.unmount().await.context("unmount")
    }

    async fn fill(&self) -> Result<()> {
        for file in &self.files {
            let mut at = 0;
            while at < self.workload.span.0 {
                let bytes = PIECE.min(self.workload.span.0 - at);
                self.write(*file, at, bytes).await?;
                at += bytes;
            }
        }
        self.fs.sync().await.context("sync")
    }

    async fn write(&self, file: Ino, at: u64, bytes: u64) -> Result<()> {
        let mut done = 0;
        while done < bytes {
            let piece = PIECE.min(bytes - done);
            let from = &self.content[..piece as usize];
            let data = WriteData::copy(self.fs.pool(), at + done, from);
            self.fs.write(file, data).await?;
            done += piece;
        }
        Ok(())
    }
}

impl Target for Files {
    fn space(&self, _thread: u32) -> (u64, bool) {
        (self.workload.span.0, false)
    }

    async fn perform(&self, thread: u32, op: Op) -> Result<u64> {
        let file = self.files[thread as usize % self.files.len()];
        if op.kind == Kind::Read {
            let mut done = 0;
            while done < op.bytes {
                let piece = PIECE.min(op.bytes - done);
                let read = self.fs.read(file, op.at + done, piece as usize).await?;
                ensure!(!read.is_empty(), "file of client {thread} ends before {}", op.at + done);
                done += read.len() as u64;
            }
            return Ok(done);
        }
        self.write(file, op.at, op.bytes).await?;
        if op.sync || self.workload.mode == Mode::Direct {
            self.fs.fsync(file, true).await?;
        }
        Ok(op.bytes)
    }
}
