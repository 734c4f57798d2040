//! Installation by `make install`, and by the Debian package of `make deb`.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a command")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const HELPERS: [&str; 6] = [
    "fsck.furrow",
    "fsck.fuse.furrow",
    "mkfs.furrow",
    "mkfs.fuse.furrow",
    "mount.furrow",
    "mount.fuse.furrow",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn run(command: &mut Command) -> Output {
    let out = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{command:?}: {said}");
    out
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output();
    found.is_ok_and(|out| out.status.success())
}

/// Every file, link and directory below `path`.
fn below(path: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let entry = entry.unwrap().path();
        if entry.is_dir() && !entry.is_symlink() {
            all.extend(below(&entry));
        }
        all.push(entry);
    }
    all
}

/// The command in a directory of its own, without the RocksDB plugin. Installation of the plugin is
/// tested where it is built (scripts/rocksdb.sh).
fn alone(directory: &Path) -> String {
    let binary = directory.join("furrow");
    fs::hard_link(env!("CARGO_BIN_EXE_furrow"), &binary).unwrap();
    binary.to_str().unwrap().to_owned()
}

/// Runs scripts/install.sh with only `prefix`.
fn install(what: &str, prefix: &Path) -> String {
    let mut command = Command::new(root().join("scripts/install.sh"));
    for unset in ["DESTDIR", "UNITDIR", "RULESDIR", "SBINDIR", "DOCDIR"] {
        command.env_remove(unset);
    }
    let out = run(command.arg(what).env("PREFIX", prefix));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn what_is_installed_works_from_where_it_is_and_can_be_taken_away() {
    let to = scratch("install").join("usr");
    // A file of somebody else, which must stay.
    fs::create_dir_all(to.join("share/man/man8")).unwrap();
    fs::write(to.join("share/man/man8/other.8"), "x").unwrap();
    let binary = &alone(&scratch("install-built"));
    let helpers = |directory: &str| {
        let names = fs::read_dir(directory).into_iter().flatten();
        let names = names.map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().contains("furrow")).count()
    };
    let before = helpers("/usr/sbin");
    let said = install(binary, &to);
    assert_eq!(helpers("/usr/sbin"), before, "it keeps to its prefix");
    assert!(said.contains("SBINDIR=/usr/sbin"), "{said}");
    assert!(said.contains("without the RocksDB plugin") && said.contains("make rocksdb"), "{said}");
    let size = |path: &Path| fs::metadata(path).unwrap().len();
    assert!(size(&to.join("bin/furrow")) < size(Path::new(binary)), "it is stripped");
    // Each name is the command; its help is that of the subcommand, its page leads to one.
    for name in HELPERS {
        let out = run(Command::new(to.join("sbin").join(name)).arg("--help"));
        let help = String::from_utf8(out.stdout).unwrap();
        let subcommand = name.split('.').next().unwrap();
        assert!(help.contains(&format!("Usage: furrow {subcommand} ")), "{name}: {help}");
        let page = to.join(format!("share/man/man8/{name}.8"));
        let page = fs::read_to_string(page).unwrap();
        let target = page.trim().strip_prefix(".so ").unwrap();
        assert!(to.join("share/man").join(target).exists(), "{target}");
    }
    let share = to.join("share");
    run(Command::new("bash").arg("-n").arg(share.join("bash-completion/completions/furrow")));
    for file in ["zsh/site-functions/_furrow", "fish/vendor_completions.d/furrow.fish"] {
        assert!(fs::read_to_string(share.join(file)).unwrap().contains("umount"), "{file}");
    }
    for (name, command) in [("furrow@", "mount "), ("furrow-raid@", "raid assemble ")] {
        let unit = to.join(format!("lib/systemd/system/{name}.service"));
        let text = fs::read_to_string(&unit).unwrap();
        let start = format!("ExecStart={}/furrow {command}", to.join("bin").display());
        assert!(text.contains(&start) && !text.contains("@BINDIR@"), "{text}");
        if has("systemd-analyze") {
            let out = run(Command::new("systemd-analyze").args(["--man=no", "verify"]).arg(&unit));
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            // systemd-analyze also reads the machine's own units, and may complain about those.
            assert!(!said.contains(name), "{said}");
        }
    }
    let rules = fs::read_to_string(to.join("lib/udev/rules.d/61-furrow.rules")).unwrap();
    let asked = format!("\"{}/furrow device show --udev $devnode\"", to.join("bin").display());
    assert!(rules.contains(&asked), "{rules}");
    install("--uninstall", &to);
    let mut left = below(&to);
    left.retain(|path| !path.is_dir());
    assert_eq!(left, [to.join("share/man/man8/other.8")]);
    assert!(!to.join("bin").exists() && !to.join("share/furrow").exists());
}

#[test]
fn the_debian_package_holds_the_same() {
    if !has("dpkg-deb") || !has("objdump") {
        eprintln!("SKIPPED the_debian_package_holds_the_same: no dpkg-deb or no objdump");
        return;
    }
    let to = scratch("deb");
    let binary = alone(&scratch("deb-built"));
    let made = run(Command::new(root().join("scripts/deb.sh")).arg(binary).arg(&to));
    let said = String::from_utf8(made.stdout).unwrap();
    assert!(said.contains("without the RocksDB plugin"), "{said}");
    let package = said.lines().last().unwrap();
    let field = |name: &str| {
        let out = run(Command::new("dpkg-deb").args(["-f", package, name]));
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(field("Package"), "furrow");
    assert_eq!(field("Version"), env!("CARGO_PKG_VERSION"));
    assert!(field("Depends").starts_with("libc6 (>= 2."), "{}", field("Depends"));
    assert_eq!(field("Recommends"), "kmod");
    assert_eq!(field("Suggests"), "rocksdb-tools, librocksdb-dev");
    let out = run(Command::new("dpkg-deb").args(["-c", package]));
    let list = String::from_utf8(out.stdout).unwrap();
    for line in list.lines() {
        assert!(line.contains("root/root"), "{line}");
    }
    for name in HELPERS {
        assert!(list.contains(&format!("./usr/sbin/{name} -> ../bin/furrow")), "{name}: {list}");
        assert!(list.contains(&format!("./usr/share/man/man8/{name}.8.gz")), "{name}");
    }
    for file in [
        "lib/systemd/system/furrow@.service",
        "lib/systemd/system/furrow-raid@.service",
        "lib/udev/rules.d/61-furrow.rules",
        "share/doc/furrow/copyright",
        "bin/furrow",
    ] {
        assert!(list.contains(&format!("./usr/{file}\n")), "{file}: {list}");
    }
    // Every document, compressed if it is large.
    let documents = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap());
    let names = documents.map(|entry| entry.file_name().into_string().unwrap());
    for name in names.filter(|name| name.ends_with(".md")).chain(["README.md".to_owned()]) {
        assert!(list.contains(&format!("./usr/share/doc/furrow/{name}")), "{name}: {list}");
    }
    let description = field("Description");
    assert!(!description.contains("not supported"), "real drives are: {description}");
    for word in ["RAID", "NBD", "file system"] {
        assert!(description.contains(word), "{word}: {description}");
    }
}
