//! `furrow run`: runs programs that use RocksDB on a file store.

mod java;
mod linked;

use crate::kv::drive::Looked;
use crate::kv::view::View;
use anyhow::{Context as _, Result, bail};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use furrow_kv::Policy;
use furrow_zone::spec::DeviceSpec;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The plugin's library.
const LIBRARY: &str = "libfurrow_rocksdb.so";

/// Run a program that uses RocksDB on a file store
///
/// The program's databases are in the store, and their paths are paths of the store. The program
/// must be linked to RocksDB's shared library, as Debian's db_bench and ldb are; it needs no
/// change and no option. Programs with an option --fs_uri also accept furrow://DEVICE there, in
/// place of --store.
///
/// A program on a Java virtual machine brings its own RocksDB, in a jar rocksdbjni-VERSION.jar. The
/// plugin must be built for that version: make rocksdb-jni VERSION=...
///
/// Exit status: that of the program. If it does not begin: 127 if there is no program of this name,
/// 126 if it cannot be run (as of env, nice and timeout), 1 if the store or the plugin cannot be
/// used, 2 after wrong usage.
///
/// furrow run --store db.zns -- db_bench --benchmarks=fillrandom --enable_blob_files=true
#[derive(clap::Args)]
pub struct Args {
    /// Drive with a store ('furrow kv mkfs'), or mem:..., which begins empty
    #[arg(long, value_name = "DEVICE")]
    store: Option<DeviceSpec>,
    /// Only read the store, in its state when the program first reads it. Another program may have
    /// it open and keep working; files that it removes keep their space until this program ends.
    /// For RocksDB's OpenForReadOnly, as in 'ldb scan' and 'db_bench --readonly'
    #[arg(long, requires = "store")]
    #[arg(conflicts_with_all = ["policy", "clean_below", "same_victim", "record"])]
    read_only: bool,
    /// The program is a script that starts a Java virtual machine; java itself is recognised
    #[arg(long, requires = "store")]
    java: bool,
    /// Make a database follow its directory on the host: if the program has removed the directory,
    /// as Kafka Streams does, the next opening of a database removes that database from the store
    #[arg(long, requires = "store", conflicts_with = "read_only")]
    follow_directories: bool,
    /// Which files share zones (default: baza)
    #[arg(long, value_name = "NAME", requires = "store", value_parser = policies())]
    policy: Option<Policy>,
    /// Percentage of free zones below which zone cleaning begins
    #[arg(long, value_name = "PERCENT", requires = "store")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=90))]
    clean_below: Option<u32>,
    /// Let RocksDB collect the blob files whose zones cleaning would take; as-printed: one file
    /// less, as equation 1 of the Same-Victim paper has it
    #[arg(long, value_name = "HOW", value_parser = ["on", "as-printed"])]
    #[arg(num_args = 0..=1, default_missing_value = "on", require_equals = true)]
    same_victim: Option<String>,
    /// Append a line to FILE for each compaction: family, job, number of files collected, number of
    /// files, and the expected values of both
    #[arg(long, value_name = "FILE", requires = "same_victim")]
    same_victim_log: Option<PathBuf>,
    /// When the program ends, write the store's figures to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Record the program's calls to the store in FILE, for 'furrow kv trace' and for replays
    #[arg(long, value_name = "FILE", requires = "store")]
    record: Option<PathBuf>,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

/// The placement policies, each with a description.
fn policies() -> impl TypedValueParser<Value = Policy> {
    let named = Policy::NAMES.map(|(name, policy)| {
        PossibleValue::new(name).help(match policy {
            Policy::Baza => {
                "Blob files share zones in order of creation: best for databases with blob files"
            }
            Policy::Shared => {
                "Files with the same lifetime hint share a zone, even if they are written \
                 concurrently"
            }
            Policy::LizaPaper => "LIZA of the BAZA paper: tables and blobs apart, by their hints",
            Policy::LizaZenfs => "The rule of the released ZenFS: the zone whose hint fits best",
            Policy::Generations => {
                "Like baza; moved blocks share zones with blocks that were moved as often"
            }
        })
    });
    PossibleValuesParser::new(named).try_map(|name| name.parse::<Policy>())
}

/// Replaces this process by the program; returns only if that fails.
pub fn run(args: &Args, _: &mut dyn Write) -> Result<u8> {
    check_uris(&args.program)?;
    let mut command = Command::new(&args.program[0]);
    if args.java || linked::is_java(&args.program[0]) {
        let plugins = java::plugins()?;
        java::check(&args.program[1..], &plugins)?;
        preload(&mut command, &plugins.join(java::LOADER))?;
        command.env("FURROW_JAVA", plugins);
    } else {
        let library = library()?;
        linked::check(&args.program[0], &library)?;
        preload(&mut command, &library)?;
    }
    if let Some(store) = &args.store {
        match args.read_only {
            true => drop(View::open(&store.to_string(), false)?),
            false => is_usable(store)?,
        }
        command.env("FURROW_URI", uri(store, args)?);
    } else if !names_store(&args.program) {
        let name = Path::new(&args.program[0]).display();
        crate::complain(&format!(
            "{name}: no --store: its databases are files of the host's file system"
        ));
    }
    command.args(&args.program[1..]);
    if args.follow_directories {
        command.env("FURROW_FOLLOW", "1");
    }
    if let Some(how) = &args.same_victim {
        command.env("FURROW_SAME_VICTIM", how);
    }
    if let Some(log) = &args.same_victim_log {
        command.env("FURROW_SAME_VICTIM_LOG", writable(log, "--same-victim-log")?);
    }
    if let Some(report) = &args.report {
        command.env("FURROW_REPORT", writable(report, "--report")?);
    }
    let error = command.exec();
    let name = Path::new(&args.program[0]).display();
    crate::complain(&format!("{name}: cannot be run: {error}"));
    // env(1), nice(1) and timeout(1) use the same statuses.
    Ok(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Makes `command` load `library` first, before libraries that are preloaded already.
///
/// # Errors
/// An error if the dynamic linker would not load `library`: the linker would only warn, and the
/// program would put its databases on the host.
fn preload(command: &mut Command, library: &Path) -> Result<()> {
    if !library.is_file() {
        bail!("{}: no such file", library.display());
    }
    // ld.so(8): spaces and colons separate the libraries of LD_PRELOAD, and nothing quotes them.
    if library.as_os_str().as_encoded_bytes().iter().any(|byte| b" :$".contains(byte)) {
        bail!(
            "{}: a library cannot be preloaded from a path with a space, ':' or '$': move it",
            library.display()
        );
    }
    let mut preload = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    command.env("LD_PRELOAD", preload);
    Ok(())
}

fn uri(store: &DeviceSpec, args: &Args) -> Result<String> {
    let mut options = Vec::new();
    if args.read_only {
        options.push("ro".to_owned());
    }
    if let Some(policy) = args.policy {
        let named = Policy::NAMES.iter().find(|(_, each)| *each == policy);
        options.extend(named.map(|(name, _)| format!("policy={name}")));
    }
    options.extend(args.clean_below.map(|percent| format!("clean-below={percent}")));
    if let Some(record) = &args.record {
        let path = std::path::absolute(record).context("--record")?;
        let path = path.to_str().filter(|path| !path.contains([',', '?'])).with_context(|| {
            format!("--record {}: the path must be UTF-8 without ',' and '?'", record.display())
        })?;
        options.push(format!("record={path}"));
    }
    Ok(format!("furrow://{store}?{}", options.join(",")))
}

/// Whether an argument of the program names a store by its URI.
fn names_store(program: &[OsString]) -> bool {
    program[1..].iter().any(|word| word.to_string_lossy().contains("furrow://"))
}

/// The absolute path of a file that the program will write; the file is created if it is missing.
fn writable(path: &Path, option: &str) -> Result<PathBuf> {
    let tried = OpenOptions::new().create(true).append(true).open(path);
    tried.with_context(|| format!("{option}: {}: cannot be written", path.display()))?;
    std::path::absolute(path).with_context(|| option.to_owned())
}

/// Fails if a store's image cannot be used: missing, in use, damaged, or no store. The plugin
/// refuses such an image too, but the program may then report only that it failed.
fn is_usable(device: &DeviceSpec) -> Result<()> {
    if let DeviceSpec::Image(_) = device {
        Looked::open(&device.to_string())?;
    }
    Ok(())
}

/// Checks the URIs in the arguments: RocksDB's tools crash without a message if no plugin handles a
/// URI's scheme.
fn check_uris(program: &[OsString]) -> Result<()> {
    let mut words = program.iter().skip(1).filter_map(|word| word.to_str());
    while let Some(word) = words.next() {
        let word = word.trim_start_matches('-');
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        if !matches!(name, "fs_uri" | "env_uri") {
            continue;
        }
        let value = value.or_else(|| words.next()).unwrap_or_default();
        let Some(rest) = value.strip_prefix("furrow://") else {
            bail!("--{name}={value}: expected furrow://DEVICE: RocksDB's tools crash over others");
        };
        let device = rest.rsplit_once('?').map_or(rest, |(device, _)| device);
        let spec: DeviceSpec = device.parse().with_context(|| format!("--{name}={value}"))?;
        let options = rest.rsplit_once('?').map_or("", |(_, options)| options);
        if options.split(',').any(|option| option == "ro") {
            View::open(device, false).with_context(|| format!("--{name}={value}"))?;
            continue;
        }
        is_usable(&spec).with_context(|| format!("--{name}={value}"))?;
    }
    Ok(())
}

/// The plugin's path: from FURROW_ROCKSDB, in this program's directory, or where the plugin is
/// installed.
fn library() -> Result<PathBuf> {
    find("FURROW_ROCKSDB", LIBRARY, &[&format!("../lib/{LIBRARY}")], "make rocksdb builds it")
}

/// Finds a part of Furrow that is built separately: at the path in the variable `named`, as `name`
/// in this program's directory, or at one of the paths `others` relative to that directory, in
/// this order.
fn find(named: &str, name: &str, others: &[&str], how: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(named).map(PathBuf::from) {
        if !path.exists() {
            bail!("{named}: {}: no such file", path.display());
        }
        return std::path::absolute(path).with_context(|| named.to_owned());
    }
    let program = std::env::current_exe().context("this program's path")?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let places = std::iter::once(&name).chain(others).map(|place| beside.join(place));
    match places.into_iter().find(|path| path.exists()) {
        Some(path) => path.canonicalize().with_context(|| path.display().to_string()),
        None => bail!(
            "{name} is neither next to {} nor in {}: {how}; make install then installs it",
            program.display(),
            others.join(" nor in ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_store_may_be_named_by_the_arguments_of_the_program() {
        for named in
            ["ldb --fs_uri=furrow://x scan", "db_bench -env_uri furrow://x", "a furrow://x"]
        {
            assert!(names_store(&words(named)), "{named}");
        }
        assert!(!names_store(&words("db_bench --db=/x")) && !names_store(&words("ldb")));
    }

    #[test]
    fn what_the_dynamic_linker_would_ignore_is_not_preloaded() {
        let folder = std::env::temp_dir().join(format!("furrow preload {}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let library = folder.join("library.so");
        let mut command = Command::new("true");
        let mut why = || preload(&mut command, &library).unwrap_err().to_string();
        assert!(why().contains("no such file"));
        std::fs::write(&library, "").unwrap();
        assert!(why().contains("with a space"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn uris_that_a_tool_would_crash_over_are_refused() {
        assert!(check_uris(&words("db_bench --fs_uri=furrow://mem:zones=64 --db=x")).is_ok());
        assert!(check_uris(&words("ldb --fs_uri furrow://mem:zones=64 scan")).is_ok());
        for wrong in ["--fs_uri=zenfs://x", "--env_uri=", "--fs_uri=furrow:///no/such", "--fs_uri"]
        {
            assert!(check_uris(&words(&format!("db_bench {wrong}"))).is_err(), "{wrong}");
        }
    }
}
