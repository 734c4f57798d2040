//! One flipped bit after a power cut, judged by what had been acknowledged.
//!
//! Each client works on files of its own and fsyncs them, so that the history tells which state of
//! each file was acknowledged. After a power cut, one bit flips in one written block: a sync
//! record, a checkpoint, a block of a delta log, a table page, a node, content, a summary or a
//! superblock. The harness knows beforehand which files depend on that block: those that the record
//! names, or the file of the node. Then
//!
//! - a mount for writing either shows everything that was acknowledged, or is refused because of
//!   the damage. Reads of the damaged file may fail; a refused mount of a damaged log has written
//!   nothing;
//! - a mount for reading shows everything that does not depend on the block;
//! - a mount after a repair shows the same, and fsck finds the damage that makes a mount refuse.
//!
//! In a full zone the write pointer does not show how far writes got. There the last records, and
//! the blocks that only these records need, cannot be distinguished from torn ones. Such cases
//! are counted.

use crate::crash::{Case, Subject, Tally};
use crate::fs::crash::Setup;
use furrow_emu::{Emulator, Fault, FaultKind, Options};
use furrow_fs::format::{BLOCK, NODE_MAGIC, NodeHeader, SUMMARY_MAGIC, SuperblockBody, item, kind};
use furrow_fs::{
    Fs, FsckOptions, Ino, MountOptions, NewNode, OnDamage, RenameMode, Repair, RepairOptions,
    WriteData,
};
use furrow_log::address::{BlockAddr, blocks_written, read_blocks, sectors_per_block};
use furrow_log::record::{self, RecordHeader};
use furrow_rt::buf::is_zero;
use furrow_rt::{Page, Pool, Rng, Rt};
use furrow_zone::{
    BlockCount, Command, ErrorKind, Geometry, Lba, QueueId, Request, ZoneId, ZoneState, ZonedDevice,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use zerocopy::FromBytes;

/// Number of files of a client, without the one that it renames over them.
const FILES: usize = 5;
/// Structures in which a bit may flip.
const KINDS: [&str; 8] = [
    "sync record",
    "checkpoint",
    "delta log",
    "table page",
    "node",
    "content",
    "summary",
    "superblock",
];

/// The subject of this module: one flipped bit after a power cut.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlipSubject;

/// A file of a client: the client, and the number of its name.
type Name = (usize, usize);

/// The inode of a directory, and a name in it.
type Entry = (u32, Vec<u8>);

/// A file: its inode, and the version of each of its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    ino: u32,
    blocks: BTreeMap<u64, u64>,
}

/// The state of a name: a file, or none.
type State = Option<Content>;

#[derive(Clone, Debug)]
enum Event {
    /// The file may get this state from now on.
    Began(Name, State),
    /// The state last announced by `Began` for the file is durable.
    Durable(Name),
}

/// The events of a run.
#[derive(Clone, Debug, Default)]
pub struct History(Vec<Event>);

/// For each file, the states that may be found after a power cut.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// The acknowledged state, followed by the states that may be found instead.
    files: BTreeMap<Name, Vec<State>>,
    reached: Rc<RefCell<Tally>>,
}

fn name_of(number: usize) -> String {
    if number == FILES { "new".to_owned() } else { format!("f{number}") }
}

fn bytes_of(block: u64, version: u64) -> Vec<u8> {
    let mut rng = Rng::new(version << 20 ^ block);
    (0..BLOCK / 8).flat_map(|_| rng.next().to_le_bytes()).collect()
}

/// A client that works on its own files.
struct Client {
    fs: Fs,
    history: Rc<RefCell<History>>,
    number: usize,
    directory: Ino,
    version: u64,
    files: BTreeMap<usize, State>,
}

impl Client {
    /// Records that the file may get this state from now on. Called before the operation, because
    /// the operation may take effect before it is answered.
    fn began(&self, file: usize, state: &State) {
        self.history.borrow_mut().0.push(Event::Began((self.number, file), state.clone()));
    }

    fn durable(&self, file: usize) {
        self.history.borrow_mut().0.push(Event::Durable((self.number, file)));
    }

    async fn put(&mut self, file: usize, block: u64) -> furrow_zone::Result<()> {
        let Some(mut content) = self.files.get(&file).cloned().flatten() else { return Ok(()) };
        self.version += 1;
        let version = self.version * 16 + self.number as u64;
        content.blocks.insert(block, version);
        let state = Some(content.clone());
        self.began(file, &state);
        let bytes = bytes_of(block, version);
        let data = WriteData::copy(self.fs.pool(), block * BLOCK as u64, &bytes);
        self.fs.write(Ino(content.ino), data).await?;
        self.files.insert(file, state);
        Ok(())
    }

    /// Makes a file with content and makes it durable.
    async fn make(&mut self, file: usize, rng: &mut Rng) -> furrow_zone::Result<()> {
        let name = name_of(file);
        self.began(file, &Some(Content { ino: 0, blocks: BTreeMap::new() }));
        let made = self.fs.create(self.directory, name.as_bytes(), &NewNode::file()).await?;
        let state = Some(Content { ino: made.ino.0, blocks: BTreeMap::new() });
        self.began(file, &state);
        self.files.insert(file, state);
        let first = if rng.one_in(6) { 600 } else { 0 };
        // Writes one to four blocks before the fsync.
        for block in first..first + 1 + rng.below(4) {
            self.put(file, block).await?;
        }
        self.fs.fsync(made.ino, false).await?;
        self.durable(file);
        Ok(())
    }

    async fn step(&mut self, rng: &mut Rng) -> furrow_zone::Result<()> {
        let file = rng.below(FILES as u64) as usize;
        let Some(content) = self.files.get(&file).cloned().flatten() else {
            return self.make(file, rng).await;
        };
        let name = name_of(file);
        match rng.below(10) {
            0..=4 => {
                let block = rng.below(6);
                for block in block..block + 1 + rng.below(2) {
                    self.put(file, block).await?;
                }
                self.fs.fsync(Ino(content.ino), false).await?;
                self.durable(file);
            }
            5 | 6 => {
                self.began(file, &None);
                self.fs.unlink(self.directory, name.as_bytes()).await?;
                self.files.insert(file, None);
                self.fs.fsync(self.directory, false).await?;
                self.durable(file);
            }
            7 | 8 => {
                if self.files.get(&FILES).cloned().flatten().is_none() {
                    self.make(FILES, rng).await?;
                }
                let new = self.files.get(&FILES).cloned().flatten();
                let (from, to) = (name_of(FILES), name.as_bytes());
                self.began(FILES, &None);
                self.began(file, &new);
                let renamed = self.fs.rename(
                    (self.directory, from.as_bytes()),
                    (self.directory, to),
                    RenameMode::Replace,
                );
                renamed.await?;
                self.files.insert(FILES, None);
                self.files.insert(file, new);
                self.fs.fsync(self.directory, false).await?;
                self.durable(FILES);
                self.durable(file);
            }
            _ => self.fs.sync().await?,
        }
        Ok(())
    }
}

/// True if an operation ran out of space: the client then stops.
fn is_full(error: &furrow_zone::Error) -> bool {
    error.kind() == ErrorKind::NoSpace
}

async fn run(
    rt: Rt,
    device: Rc<dyn ZonedDevice>,
    case: Case,
    setup: Setup,
    history: Rc<RefCell<History>>,
) -> Result<(), String> {
    let text = |error: furrow_zone::Error| error.to_string();
    let clients = 1 + case.seed as usize % 3;
    let mut known: Vec<BTreeMap<usize, State>> = vec![BTreeMap::new(); clients];
    for life in 0..2u64 {
        let fs = Fs::mount(&rt, device.clone(), setup.mount.clone()).await.map_err(text)?;
        let mut tasks = Vec::new();
        for (number, files) in known.iter_mut().enumerate() {
            let name = format!("d{number}");
            let directory = fs.lookup(Ino::ROOT, name.as_bytes()).await.map_err(text)?.ino;
            let (fs, history, files) = (fs.clone(), history.clone(), std::mem::take(files));
            let version = life << 20;
            let mut client = Client { fs, history, number, directory, version, files };
            let mut rng = Rng::new(case.seed ^ life << 40 ^ (number as u64) << 48 ^ 0xf11b);
            tasks.push(rt.spawn(async move {
                for _ in 0..12 + rng.below(20) {
                    match client.step(&mut rng).await {
                        Err(error) if is_full(&error) => break,
                        done => done.map_err(|error| error.to_string())?,
                    }
                }
                Ok::<_, String>(client.files)
            }));
        }
        for (files, task) in known.iter_mut().zip(tasks) {
            *files = task.await?;
        }
        if life == 0 && !case.seed.is_multiple_of(4) {
            fs.unmount().await.map_err(text)?;
        } else if life == 0 {
            return Ok(());
        }
    }
    Ok(())
}

/// A difference between what a mount shows of a file and what was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Problem {
    /// A read fails: a read of the file's directory if true, of the file itself if false.
    Unreadable(bool),
    /// The file does not exist.
    Missing,
    Wrong(String),
}

async fn look_at(fs: &Fs, name: Name, states: &[State]) -> Result<(), Problem> {
    let unreadable =
        |error: &furrow_zone::Error| matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io);
    let wrong = |what: &dyn std::fmt::Display| Problem::Wrong(format!("{what}"));
    let directory = match fs.lookup(Ino::ROOT, format!("d{}", name.0).as_bytes()).await {
        Ok(directory) => directory.ino,
        Err(error) if unreadable(&error) => return Err(Problem::Unreadable(true)),
        Err(error) => return Err(wrong(&error)),
    };
    let attr = match fs.lookup(directory, name_of(name.1).as_bytes()).await {
        Ok(attr) => attr,
        Err(error) if unreadable(&error) => return Err(Problem::Unreadable(false)),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return if states.contains(&None) { Ok(()) } else { Err(Problem::Missing) };
        }
        Err(error) => return Err(wrong(&error)),
    };
    let there: Vec<&Content> = states.iter().flatten().collect();
    let size = |content: &Content| {
        content.blocks.last_key_value().map_or(0, |(block, _)| (block + 1) * BLOCK as u64)
    };
    if !there.iter().any(|content| size(content) == attr.size) {
        return Err(wrong(&format!("{} bytes, expected {states:?}", attr.size)));
    }
    let blocks: BTreeSet<u64> =
        there.iter().flat_map(|content| content.blocks.keys().copied()).collect();
    for block in blocks {
        let at = block * BLOCK as u64;
        if at >= attr.size {
            continue;
        }
        let found = match fs.read(attr.ino, at, BLOCK).await {
            Ok(data) => data.to_vec(),
            Err(error) if unreadable(&error) => return Err(Problem::Unreadable(false)),
            Err(error) => return Err(wrong(&error)),
        };
        let right = there.iter().any(|content| match content.blocks.get(&block) {
            Some(version) => found == bytes_of(block, *version),
            None => is_zero(&found),
        });
        if !right {
            return Err(wrong(&format!("block {block} is of no version of {states:?}")));
        }
    }
    Ok(())
}

async fn problems(fs: &Fs, expected: &Expected) -> Vec<(Name, Problem)> {
    let mut found = Vec::new();
    for (name, states) in &expected.files {
        if let Err(problem) = look_at(fs, *name, states).await {
            found.push((*name, problem));
        }
    }
    found
}

/// A block in which a bit may flip.
#[derive(Clone, Debug)]
struct Site {
    kind: &'static str,
    addr: BlockAddr,
    page: Page,
}

/// The written blocks of a drive, and the superblock.
async fn sites(drive: &Emulator) -> Result<(Vec<Site>, SuperblockBody), String> {
    let geometry = drive.geometry().clone();
    let report = drive.report_now(ZoneId(0), geometry.zones).map_err(|s| s.to_string())?;
    let pool = Pool::new(4);
    let (mut sites, mut plan) = (Vec::new(), None::<SuperblockBody>);
    for zone in &report {
        for offset in 0..blocks_written(zone, &geometry) {
            let addr = BlockAddr::new(&geometry, zone.zone, offset);
            let Ok(pages) = read_blocks(drive, QueueId(0), addr, 1, &pool).await else { continue };
            let Some(page) = pages.into_iter().next() else { continue };
            if is_zero(page.bytes()) {
                continue;
            }
            let header = record::peek(page.bytes());
            let record_kind = header.map(|header| header.kind.get());
            if record_kind == Some(kind::SUPERBLOCK) && plan.is_none() {
                let body = page.bytes().get(RecordHeader::SIZE..).unwrap_or_default();
                plan = SuperblockBody::read_from_prefix(body).ok().map(|(body, _)| body);
            }
            let magic = u32::read_from_prefix(page.bytes()).map_or(0, |(magic, _)| magic);
            let main = plan.as_ref().is_some_and(|plan| zone.zone.0 >= plan.main_start.get());
            let kind = match (record_kind, magic) {
                (Some(kind::SUPERBLOCK), _) => "superblock",
                (Some(kind::CHECKPOINT), _) => "checkpoint",
                (Some(kind::DELTA), _) => "delta log",
                (Some(kind::UNIT), _) => "table page",
                (Some(kind::SYNC), _) => "sync record",
                (None, NODE_MAGIC) => "node",
                (None, SUMMARY_MAGIC) => "summary",
                _ if main => "content",
                // A later block of a record is of the same kind as the record's first block.
                _ => sites.last().map_or("superblock", |site: &Site| site.kind),
            };
            sites.push(Site { kind, addr, page });
        }
    }
    plan.map(|plan| (sites, plan)).ok_or_else(|| "no superblock".to_owned())
}

/// The inodes that the items of a sync record concern, and the names with their directories; `None`
/// if an item is unknown or continues past `body`.
fn concerns(body: &[u8]) -> Option<(BTreeSet<u32>, Vec<Entry>)> {
    struct Input<'a>(&'a [u8]);
    impl Input<'_> {
        fn take(&mut self, len: usize) -> Option<Vec<u8>> {
            let (now, rest) = self.0.split_at_checked(len)?;
            self.0 = rest;
            Some(now.to_vec())
        }
        fn u16(&mut self) -> Option<usize> {
            self.take(2).map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])))
        }
        fn u32(&mut self) -> Option<u32> {
            self.take(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        }
        fn text(&mut self) -> Option<Vec<u8>> {
            let len = self.u16()?;
            self.take(len)
        }
    }
    let (mut input, mut inodes, mut names) = (Input(body), BTreeSet::new(), Vec::new());
    while let Some(tag) = input.take(1) {
        match tag[0] {
            tag @ (item::CREATE | item::CREATE_WITH) => {
                input.take(8)?;
                let parent = input.u32()?;
                inodes.insert(input.u32()?);
                input.take(4 + 1 + 2 + 12 + 12)?;
                names.push((parent, input.text()?));
                input.text()?;
                if tag == item::CREATE_WITH {
                    input.text()?;
                }
            }
            item::LINK => {
                input.take(8)?;
                inodes.insert(input.u32()?);
                let parent = input.u32()?;
                input.take(12)?;
                names.push((parent, input.text()?));
            }
            item::REMOVE => {
                input.take(8)?;
                let parent = input.u32()?;
                input.take(12)?;
                names.push((parent, input.text()?));
            }
            item::RENAME => {
                input.take(8)?;
                let (from, to) = (input.u32()?, input.u32()?);
                input.take(1 + 12)?;
                names.push((from, input.text()?));
                names.push((to, input.text()?));
            }
            item::NODE => {
                input.take(4)?;
                inodes.insert(input.u32()?);
                input.take(8)?;
            }
            item::FREED => {
                input.take(4)?;
                inodes.insert(input.u32()?);
            }
            item::ALLOCATED => drop(input.take(9)?),
            item::DEPENDS => drop(input.take(12)?),
            item::ATTRIBUTES => drop(input.take(4 + 10 + 36)?),
            item::RANGE => drop(input.take(12)?),
            item::XATTRS => {
                input.take(4)?;
                let len = input.u32()? as usize;
                input.take(len)?;
            }
            item::CHANGE | item::NEW => {
                input.take(4)?;
                inodes.insert(input.u32()?);
                input.take(4 + 2)?;
                for _ in 0..input.u16()? {
                    input.u16()?;
                    let len = input.u16()?;
                    input.take(len)?;
                }
            }
            _ => return None,
        }
    }
    Some((inodes, names))
}

/// The files that may differ after a bit of a block flipped.
enum Depends {
    /// Only these files may differ.
    Files(BTreeSet<Name>),
    /// One file or one directory, but it is not known which.
    One,
    /// Any file may differ.
    All,
}

impl Depends {
    /// The files that depend on the block at `site`.
    fn on(site: &Site, directories: &[Ino], expected: &Expected) -> Depends {
        let of_inode = |ino: u32| {
            let has = |states: &[State]| states.iter().flatten().any(|c| c.ino == ino);
            let of = |(name, states): (&Name, &Vec<State>)| {
                let above = directories.get(name.0).is_some_and(|dir| dir.0 == ino);
                (has(states) || above || ino == Ino::ROOT.0).then_some(*name)
            };
            expected.files.iter().filter_map(of).collect::<BTreeSet<Name>>()
        };
        match site.kind {
            "sync record" => {
                let Some(header) = record::peek(site.page.bytes()) else { return Depends::All };
                let body = site.page.bytes().get(RecordHeader::SIZE..header.length.get() as usize);
                let Some((inodes, names)) = body.and_then(concerns) else { return Depends::All };
                let concerned = |(name, states): (&Name, &Vec<State>)| {
                    let named = |(parent, text): &Entry| {
                        directories.get(name.0).is_some_and(|dir| dir.0 == *parent)
                            && *text == name_of(name.1).as_bytes()
                    };
                    let held = states.iter().flatten().any(|c| inodes.contains(&c.ino));
                    (held || names.iter().any(named)).then_some(*name)
                };
                let mut files: BTreeSet<Name> =
                    expected.files.iter().filter_map(concerned).collect();
                // A client renames file number `FILES` over its other files. If the record names
                // it, all files of that client depend on the record.
                let clients: BTreeSet<usize> =
                    files.iter().filter(|name| name.1 == FILES).map(|name| name.0).collect();
                files.extend(expected.files.keys().filter(|name| clients.contains(&name.0)));
                Depends::Files(files)
            }
            "node" => match NodeHeader::read_from_prefix(site.page.bytes()) {
                Ok((header, _)) => {
                    let mut files = of_inode(header.ino.get());
                    // The file may also have lost the name under which its client wrote it (number
                    // `FILES`), if the rename depends on this node.
                    let old: Vec<Name> = files.iter().map(|name| (name.0, FILES)).collect();
                    files.extend(old);
                    Depends::Files(files)
                }
                Err(_) => Depends::All,
            },
            "content" => Depends::One,
            // The search for nodes may find an older version of any node, and the harness cannot
            // yet predict which ones.
            "delta log" | "table page" => Depends::All,
            _ => Depends::Files(BTreeSet::new()),
        }
    }

    /// The first problem that the damaged block does not explain. If `strict`, a damaged block
    /// explains only read errors, not wrong content.
    fn unexcused(&self, found: &[(Name, Problem)], strict: bool) -> Option<String> {
        let excused = |(name, problem): &&(Name, Problem)| {
            let known = match self {
                Depends::Files(files) => files.contains(name),
                Depends::All => true,
                Depends::One => {
                    let same = |(other, problem): &(Name, Problem)| {
                        other == name
                            || other.0 == name.0
                            || matches!(problem, Problem::Unreadable(true))
                    };
                    found.iter().all(same) && !matches!(problem, Problem::Wrong(_))
                }
            };
            known && (!strict || matches!(problem, Problem::Unreadable(_)))
        };
        found.iter().find(|problem| !excused(problem)).map(|problem| format!("{problem:?}"))
    }
}

/// A copy of `drive` with a bit of the block at `addr` flipped.
async fn flipped(
    rt: &Rt,
    drive: &Emulator,
    addr: BlockAddr,
    random: u64,
) -> Result<Emulator, String> {
    let copy = Emulator::from_snapshot(rt, &drive.snapshot(), Options::simulated());
    let per_block = sectors_per_block(copy.geometry());
    let lba = Lba(addr.lba(copy.geometry()).0 + random % per_block);
    let fault = Fault::new(FaultKind::BitFlip).at_blocks(lba, BlockCount(1)).times(1);
    copy.inject(fault).map_err(|error| error.to_string())?;
    let command = Command::Read { lba, blocks: BlockCount(1) };
    let request = Request::with_data(command, [Page::zeroed()].into_iter().collect());
    let _ = copy.submit(QueueId(0), request).await;
    Ok(copy)
}

fn mount_options(setup: &Setup, read_only: bool) -> MountOptions {
    MountOptions { read_only, on_damage: OnDamage::Continue, ..setup.mount.clone() }
}

fn count(expected: &Expected, what: String) {
    *expected.reached.borrow_mut().entry(what).or_default() += 1;
}

/// Mounts a copy of `drive` for reading, and compares its files with what is expected.
async fn compare_reading(
    rt: &Rt,
    drive: &Emulator,
    setup: &Setup,
    (depends, expected): (&Depends, &Expected),
) -> Result<(), String> {
    let copy = Emulator::from_snapshot(rt, &drive.snapshot(), Options::simulated());
    let fs = Fs::mount(rt, Rc::new(copy), mount_options(setup, true)).await;
    let fs = fs.map_err(|error| format!("mount for reading: {error}"))?;
    let found = problems(&fs, expected).await;
    if let Some(why) = depends.unexcused(&found, false) {
        return Err(format!("mounted for reading: {why}; losses {:?}", fs.losses()));
    }
    fs.unmount().await.map_err(|error| error.to_string())
}

async fn check_site(
    rt: &Rt,
    drive: &Emulator,
    setup: &Setup,
    site: &Site,
    (depends, expected): (&Depends, &Expected),
) -> Result<(), String> {
    let text = |error: furrow_zone::Error| error.to_string();
    let hit = flipped(rt, drive, site.addr, rt.random()).await?;
    let report = furrow_fs::fsck(Rc::new(hit.clone()), &FsckOptions::default()).await;
    let report = report.map_err(text)?;
    let used = Emulator::from_snapshot(rt, &hit.snapshot(), Options::simulated());
    let before = used.counters();
    let refused = match Fs::mount(rt, Rc::new(used.clone()), mount_options(setup, false)).await {
        Ok(fs) => {
            let found = problems(&fs, expected).await;
            let why = depends.unexcused(&found, true);
            let log = report.findings.iter().find(|f| f.structure == "sync record");
            let is_of_log = matches!(site.kind, "sync record" | "node" | "content");
            match (why, log) {
                (None, None) => {}
                (Some(_), None) if is_of_log && is_untold(&hit, site) => {
                    count(expected, format!("{}: nobody can tell", site.kind));
                }
                (Some(why), _) => return Err(format!("mounted: {why}")),
                (None, Some(finding)) => {
                    return Err(format!("mounted, though fsck says {finding}"));
                }
            }
            count(expected, format!("{}: mounted", site.kind));
            fs.unmount().await.map_err(text)?;
            return Ok(());
        }
        Err(error) if error.kind() == ErrorKind::Corrupt => error,
        Err(error) => return Err(format!("mount: {error}")),
    };
    count(expected, format!("{}: refused", site.kind));
    if report.is_ok() {
        return Err(format!("fsck finds nothing, the mount says {refused}"));
    }
    let after = used.counters();
    // Replay finds damaged nodes and directory blocks only after recovery has begun to write.
    let met = matches!(site.kind, "node" | "content");
    if !met && (before.writes, before.management) != (after.writes, after.management) {
        return Err(format!("a refused mount wrote something: {refused}"));
    }
    let both = (depends, expected);
    compare_reading(rt, &hit, setup, both).await.map_err(|why| format!("{refused}: {why}"))?;
    let options = RepairOptions { older_checkpoint: true, ..RepairOptions::default() };
    let repair = Repair::plan(rt, Rc::new(hit.clone()), &options).await.map_err(text)?;
    if !repair.is_useful() {
        return Err(format!("{refused}: no repair: {:?}", repair.verdict));
    }
    let gives_up = matches!(depends, Depends::Files(files) if !files.is_empty());
    if gives_up && site.kind == "sync record" && !repair.loses() {
        return Err(format!("{refused}: the repair names no loss"));
    }
    repair.apply(|_, _| {}).await.map_err(text)?;
    let fs = Fs::mount(rt, Rc::new(hit), mount_options(setup, false)).await;
    let fs = fs.map_err(|error| format!("mount after the repair: {error}"))?;
    let found = problems(&fs, expected).await;
    if let Some(why) = depends.unexcused(&found, false) {
        let actions = &repair.actions;
        return Err(format!("{refused}: after the repair: {why}; actions {actions:?}"));
    }
    fs.unmount().await.map_err(text)
}

/// True if the zone of the block at `site` is full: then its write pointer does not show how far
/// writes got.
fn is_untold(drive: &Emulator, site: &Site) -> bool {
    let Some((zone, _)) = site.addr.locate(drive.geometry()) else { return false };
    let report = drive.report_now(zone, 1).unwrap_or_default();
    report.first().is_some_and(|zone| zone.state == ZoneState::Full)
}

async fn reopen(rt: Rt, drive: Emulator, setup: Setup, expected: Expected) -> Result<(), String> {
    let sound = Emulator::from_snapshot(&rt, &drive.snapshot(), Options::simulated());
    let fs = Fs::mount(&rt, Rc::new(sound), mount_options(&setup, false)).await;
    let fs = fs.map_err(|error| format!("mount without damage: {error}"))?;
    let found = problems(&fs, &expected).await;
    if let Some(problem) = found.first() {
        return Err(format!("without damage: {problem:?}"));
    }
    let mut directories = Vec::new();
    for number in 0.. {
        let name = format!("d{number}");
        let Ok(directory) = fs.lookup(Ino::ROOT, name.as_bytes()).await else { break };
        directories.push(directory.ino);
    }
    drop(fs);
    let (sites, _) = sites(&drive).await?;
    let mut rng = Rng::new(rt.random());
    let wanted = KINDS[rng.below(KINDS.len() as u64) as usize];
    let of_kind: Vec<&Site> = sites.iter().filter(|site| site.kind == wanted).collect();
    if of_kind.is_empty() {
        return Ok(());
    }
    // Most blocks of the logs are older than the checkpoint, so two thirds of the cases take a
    // block of the newest epoch.
    let epoch = |site: &&&Site| record::peek(site.page.bytes()).map_or(0, |h| h.epoch.get());
    let newest = of_kind.iter().map(|site| epoch(&site)).max().unwrap_or(0);
    let recent: Vec<&Site> = of_kind.iter().filter(|s| epoch(s) == newest).copied().collect();
    let from = if rng.one_in(3) { &of_kind } else { &recent };
    let site = from[rng.below(from.len() as u64) as usize];
    let depends = Depends::on(site, &directories, &expected);
    let place = site.addr.locate(drive.geometry());
    let checked = check_site(&rt, &drive, &setup, site, (&depends, &expected)).await;
    checked.map_err(|why| format!("a bit of a {} at {place:?}: {why}", site.kind))
}

impl FlipSubject {
    fn setup(&self, case: Case) -> Setup {
        let setup = Setup::draw(case, None);
        let setup = match case.seed % 5 {
            0 | 3 => setup.merging(case),
            1 => setup.busy(case),
            _ => setup,
        };
        let mut setup = setup.in_sectors(case);
        setup.mount.on_damage = OnDamage::Continue;
        setup
    }
}

impl Subject for FlipSubject {
    type History = History;
    type Expected = Expected;

    fn name(&self) -> String {
        "flip".to_owned()
    }

    fn drive(&self, case: Case) -> Geometry {
        self.setup(case).geometry
    }

    fn prepare(&self, rt: &Rt, device: Rc<dyn ZonedDevice>, case: Case) -> Result<(), String> {
        let (setup, on) = (self.setup(case), rt.clone());
        let made = rt.block_on(async move {
            Fs::format(&on, device.clone(), &setup.format).await?;
            let fs = Fs::mount(&on, device, setup.mount).await?;
            for number in 0..3 {
                let name = format!("d{number}");
                fs.create(Ino::ROOT, name.as_bytes(), &NewNode::directory()).await?;
            }
            fs.unmount().await
        });
        made.map_err(|error| error.to_string())
    }

    fn run(
        &self,
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        case: Case,
        history: Rc<RefCell<History>>,
    ) -> Result<(), String> {
        rt.block_on(run(rt.clone(), device, case, self.setup(case), history))
    }

    fn mark(history: &History) -> usize {
        history.0.len()
    }

    fn expect(&self, history: &History, mark: usize) -> Expected {
        let mut expected = Expected::default();
        for event in &history.0[..mark] {
            match event {
                Event::Began(name, state) => {
                    let states = expected.files.entry(*name).or_insert_with(|| vec![None]);
                    states.push(state.clone());
                }
                Event::Durable(name) => {
                    if let Some(states) = expected.files.get_mut(name) {
                        states.drain(..states.len() - 1);
                    }
                }
            }
        }
        expected
    }

    fn reached(&self, expected: &Expected) -> Tally {
        std::mem::take(&mut expected.reached.borrow_mut())
    }

    fn coverage(&self, reached: &Tally) -> Vec<String> {
        let met = reached.iter().map(|(what, count)| format!("{count:>8}   {what}"));
        let missed = KINDS.iter().filter(|kind| !reached.keys().any(|k| k.starts_with(**kind)));
        met.chain(missed.map(|kind| format!("   never   {kind}"))).collect()
    }

    fn reopen(
        &self,
        rt: &Rt,
        drive: &Emulator,
        case: Case,
        expected: &Expected,
    ) -> Result<(), String> {
        let (setup, drive) = (self.setup(case), drive.clone());
        rt.block_on(reopen(rt.clone(), drive, setup, expected.clone()))
    }
}
