//! What is installed: by `make install`, and by the Debian package that `make deb` makes.
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

#[test]
fn what_is_installed_works_from_where_it_is() {
    let to = scratch("install");
    let binary = env!("CARGO_BIN_EXE_furrow");
    run(Command::new(root().join("scripts/install.sh"))
        .arg(binary)
        .env("PREFIX", to.join("usr"))
        .env("SBINDIR", to.join("sbin"))
        .env_remove("DESTDIR")
        .env_remove("UNITDIR"));
    // Each name is the command; its help is that of the subcommand, its page leads to one.
    for name in HELPERS {
        let out = run(Command::new(to.join("sbin").join(name)).arg("--help"));
        let help = String::from_utf8(out.stdout).unwrap();
        let subcommand = name.split('.').next().unwrap();
        assert!(help.contains(&format!("Usage: furrow {subcommand} ")), "{name}: {help}");
        let page = to.join(format!("usr/share/man/man8/{name}.8"));
        let page = fs::read_to_string(page).unwrap();
        let target = page.trim().strip_prefix(".so ").unwrap();
        assert!(to.join("usr/share/man").join(target).exists(), "{target}");
    }
    let share = to.join("usr/share");
    run(Command::new("bash").arg("-n").arg(share.join("bash-completion/completions/furrow")));
    for file in ["zsh/site-functions/_furrow", "fish/vendor_completions.d/furrow.fish"] {
        assert!(fs::read_to_string(share.join(file)).unwrap().contains("umount"), "{file}");
    }
    let unit = to.join("usr/lib/systemd/system/furrow@.service");
    let text = fs::read_to_string(&unit).unwrap();
    let start = format!("ExecStart={}/furrow mount ", to.join("usr/bin").display());
    assert!(text.contains(&start) && !text.contains("@BINDIR@"), "{text}");
    if has("systemd-analyze") {
        let out = run(Command::new("systemd-analyze").args(["--man=no", "verify"]).arg(&unit));
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        // It also reads the machine's own units, and may have something to say about those.
        assert!(!said.contains("furrow@"), "{said}");
    }
}

#[test]
fn the_debian_package_holds_the_same() {
    if !has("dpkg-deb") || !has("objdump") {
        eprintln!("SKIPPED the_debian_package_holds_the_same: no dpkg-deb or no objdump");
        return;
    }
    let to = scratch("deb");
    let made =
        run(Command::new(root().join("scripts/deb.sh")).arg(env!("CARGO_BIN_EXE_furrow")).arg(&to));
    let package = String::from_utf8(made.stdout).unwrap();
    let package = package.trim();
    let field = |name: &str| {
        let out = run(Command::new("dpkg-deb").args(["-f", package, name]));
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(field("Package"), "furrow");
    assert_eq!(field("Version"), env!("CARGO_PKG_VERSION"));
    assert!(field("Depends").starts_with("libc6 (>= 2."), "{}", field("Depends"));
    let out = run(Command::new("dpkg-deb").args(["-c", package]));
    let list = String::from_utf8(out.stdout).unwrap();
    for line in list.lines() {
        assert!(line.contains("root/root"), "{line}");
    }
    for name in HELPERS {
        assert!(list.contains(&format!("./usr/sbin/{name} -> ../bin/furrow")), "{name}: {list}");
        assert!(list.contains(&format!("./usr/share/man/man8/{name}.8.gz")), "{name}");
    }
    for file in ["lib/systemd/system/furrow@.service", "share/doc/furrow/copyright", "bin/furrow"] {
        assert!(list.contains(&format!("./usr/{file}\n")), "{file}: {list}");
    }
}
