//! Installation by `make install`, and by the Debian package of `make deb`.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a command")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const HELPERS: [&str; 7] = [
    "fsck.furrow",
    "fsck.fuse.furrow",
    "mkfs.furrow",
    "mkfs.fuse.furrow",
    "mount.furrow",
    "mount.fuse.furrow",
    "mount.fuseblk.furrow",
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

/// The path of a copy of the command in a separate directory, without the RocksDB plugin.
/// Installation of the plugin is tested where it is built (scripts/rocksdb.sh).
fn alone(directory: &Path) -> String {
    let binary = directory.join("furrow");
    fs::hard_link(env!("CARGO_BIN_EXE_furrow"), &binary).unwrap();
    binary.to_str().unwrap().to_owned()
}

/// Runs scripts/install.sh with only `prefix` set.
fn install(what: &str, prefix: &Path) -> String {
    let mut command = Command::new(root().join("scripts/install.sh"));
    for unset in ["DESTDIR", "UNITDIR", "RULESDIR", "SBINDIR", "DOCDIR"] {
        command.env_remove(unset);
    }
    let out = run(command.arg(what).env("PREFIX", prefix));
    String::from_utf8(out.stdout).unwrap()
}

/// The anchors of a page: its headings, as GitHub names them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for heading in page.lines().filter_map(|line| line.strip_prefix('#')) {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
        let name: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let again = (1..).map(|number| format!("{name}-{number}"));
        let free = [name.clone()].into_iter().chain(again).find(|name| !found.contains(name));
        found.extend(free);
    }
    found
}

/// The relative targets of a page's links and pictures.
fn relative_links(page: &str) -> Vec<String> {
    let mut links = Vec::new();
    let parts: Vec<&str> = page.split("```").step_by(2).collect();
    for part in parts {
        for opening in ["](", "src=\"", "srcset=\"", "href=\""] {
            for rest in part.split(opening).skip(1) {
                let link = rest.split([')', '"', ' ', '\n']).next().unwrap_or_default();
                if !link.is_empty() && !link.contains(':') {
                    links.push(link.to_owned());
                }
            }
        }
    }
    links
}

/// The relative links and anchors of all pages below `directory` that lead nowhere.
fn dead_links(directory: &Path) -> Vec<String> {
    let (mut dead, mut seen) = (Vec::new(), 0);
    for page in below(directory) {
        if page.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        for link in relative_links(&fs::read_to_string(&page).unwrap()) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => page.clone(),
                path => page.parent().unwrap().join(path),
            };
            seen += 1;
            let text = fs::read_to_string(&target).unwrap_or_default();
            if !target.exists() || !anchor.is_empty() && !anchors(&text).contains(anchor) {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(seen > 200, "{seen} links below {}", directory.display());
    dead
}

#[test]
fn links_and_anchors_are_found() {
    let page = "[a](b.md#c) `x`\n```\n[no](no.md)\n```\n![p](d/e.svg) <img src=\"f.svg\">\n\
                [w](https://x/y) [self](#one-two)\n";
    assert_eq!(relative_links(page), ["b.md#c", "d/e.svg", "#one-two", "f.svg"]);
    let found = anchors("# One: two\n## `Code` of it\n## One: two\n");
    assert_eq!(Vec::from_iter(found), ["code-of-it", "one-two", "one-two-1"]);
}

/// Tests the hook for mail with a fake sendmail, which writes its input to a file.
#[test]
fn the_mail_hook_sends_what_an_operator_needs() {
    let to = scratch("mail");
    let (mail, settings) = (to.join("mail.txt"), to.join("settings"));
    let write = |name: &str, text: &str| {
        let path = to.join("source");
        fs::write(&path, text).unwrap();
        run(Command::new("install").args(["-m", "755"]).arg(path).arg(to.join(name)));
    };
    write("sendmail", &format!("#!/bin/sh\n[ \"$1\" = -t ] && cat >{}\n", mail.display()));
    write("furrow", "#!/bin/sh\necho \"the state of $3\"; exit 1\n");
    write("systemctl", "#!/bin/sh\nfor unit; do :; done; echo \"how $unit is\"; exit 3\n");
    let path = format!("{}:{}", to.display(), std::env::var("PATH").unwrap());
    let told = |arguments: &[&str]| {
        let _ = fs::remove_file(&mail);
        let mut hook = Command::new(root().join("scripts/hooks/mail"));
        hook.args(arguments).env("PATH", &path).env("FURROW_MAIL_SETTINGS", &settings);
        run(&mut hook);
        fs::read_to_string(&mail).ok()
    };
    let text = told(&["member-failed", "tank\nBcc: x", "2", "member 2 failed: no answer"]).unwrap();
    let (head, body) = text.split_once("\n\n").unwrap();
    assert!(head.starts_with("To: root\nSubject: furrow on "), "{head}");
    assert!(head.contains(": tank Bcc: x: member-failed\n") && !head.contains("\nBcc"), "{head}");
    for line in ["member 2 failed: no answer", "Member: 2", "the state of tank"] {
        assert!(body.contains(line), "{body}");
    }
    let text = told(&["unit-failed", "furrow-raid@tank.service"]).unwrap();
    assert!(text.contains("how furrow-raid@tank.service is"), "{text}");
    // A harmless event causes no mail, unless the settings ask for it.
    let hook = fs::read_to_string(root().join("scripts/hooks/mail")).unwrap();
    let events = fs::read_to_string(root().join("docs/use/volumes.md")).unwrap();
    let quiet = hook.lines().find_map(|line| line.strip_prefix("QUIET=\"")).unwrap();
    for event in quiet.trim_end_matches('"').split(' ') {
        assert!(events.contains(&format!("`{event}`")), "no event is called {event}");
    }
    assert_eq!(told(&["scrub-finished", "tank", "", "nothing damaged"]), None);
    fs::write(&settings, "MAILTO='storage@example.org, b'\nMAILFROM=a@b\nQUIET=degraded\n")
        .unwrap();
    let text = told(&["scrub-finished", "tank", "", "nothing damaged"]).unwrap();
    assert!(text.starts_with("From: a@b\nTo: storage@example.org, b\n"), "{text}");
    assert_eq!(told(&["degraded", "tank", "", "x"]), None);
}

#[test]
fn what_is_installed_works_from_where_it_is_and_can_be_taken_away() {
    let to = scratch("install").join("usr");
    // This file belongs to another package and must stay.
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
    // Each name runs the command, with the help of its subcommand, and has a page that leads to the
    // subcommand's page.
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
    let units = to.join("lib/systemd/system");
    for (name, command) in [
        ("furrow@.service", "bin/furrow mount "),
        ("furrow-raid@.service", "bin/furrow raid assemble "),
        ("furrow-scrub.service", "bin/furrow scrub --all "),
        ("furrow-mail@.service", "share/furrow/hooks/mail unit-failed "),
    ] {
        let text = fs::read_to_string(units.join(name)).unwrap();
        let start = format!("ExecStart={}", to.join(command).display());
        assert!(text.contains(&start), "{text}");
    }
    for unit in below(&units) {
        let name = unit.file_name().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&unit).unwrap();
        assert!(!text.contains("DIR@"), "{text}");
        // Every service that may fail sends mail about its failure.
        let fails = name.ends_with(".service") && !name.starts_with("furrow-mail");
        assert_eq!(text.contains("OnFailure=furrow-mail@%n.service"), fails, "{name}");
    }
    if has("systemd-analyze") {
        let verify = ["--man=no", "verify"];
        let out = run(Command::new("systemd-analyze").args(verify).args(below(&units)));
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        // systemd-analyze also reads the machine's own units, and may complain about those.
        assert!(!said.contains("furrow"), "{said}");
    }
    assert_eq!(dead_links(&share.join("doc/furrow")), Vec::<String>::new());
    // Manual pages refer to documents by the names under which these are installed.
    let mut referred = 0;
    for page in below(&share.join("man")) {
        let text = fs::read_to_string(&page).unwrap_or_default().replace("\\-", "-");
        let words = text.split(|c: char| !(c.is_alphanumeric() || "/._-".contains(c)));
        for word in words.map(|word| word.trim_end_matches('.')).filter(|w| w.ends_with(".md")) {
            let document = share.join("doc/furrow").join(word);
            assert!(document.exists() && text.contains("/usr/share/doc/furrow"), "{word}: {text}");
            referred += 1;
        }
    }
    assert!(referred > 1, "pages name their documents");
    let hook = fs::metadata(share.join("furrow/hooks/mail")).unwrap().permissions();
    assert_eq!(hook.mode() & 0o777, 0o755);
    for file in ["furrow.rules.yml", "furrow-dashboard.json"] {
        assert!(share.join("furrow/prometheus").join(file).exists());
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
    let made =
        run(Command::new(root().join("scripts/deb.sh")).env("DEB_LEVEL", "1").arg(binary).arg(&to));
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
    let suggests = "default-mta | mail-transport-agent, rocksdb-tools, librocksdb-dev";
    assert_eq!(field("Suggests"), suggests);
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
        "lib/systemd/system/furrow-scrub.timer",
        "lib/udev/rules.d/61-furrow.rules",
        "share/doc/furrow/copyright",
        "bin/furrow",
    ] {
        assert!(list.contains(&format!("./usr/{file}\n")), "{file}: {list}");
    }
    // The unpacked package has every document where links to it lead.
    let tree = to.join("tree");
    run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&tree));
    let documents = tree.join("usr/share/doc/furrow");
    let sources = below(&root().join("docs")).into_iter().filter(|path| path.is_file());
    for source in sources.chain([root().join("README.md"), root().join("CHANGELOG.md")]) {
        let name = source.strip_prefix(root()).unwrap();
        assert!(documents.join(name).exists(), "{}: {list}", name.display());
    }
    assert_eq!(dead_links(&documents), Vec::<String>::new());
    // The changelog in Debian's form has the entries of CHANGELOG.md.
    let changelog = run(Command::new("gzip").arg("-dc").arg(documents.join("changelog.gz")));
    let changelog = String::from_utf8(changelog.stdout).unwrap();
    assert!(changelog.starts_with("furrow (0.") && changelog.contains("\n  * "), "{changelog}");
    assert!(changelog.lines().count() > 10, "{changelog}");
    for script in ["postinst", "prerm", "postrm"] {
        let out = run(Command::new("dpkg-deb").args(["-I", package, script]));
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(text.starts_with("#!/bin/sh\n") && text.contains("furrow-scrub.timer"), "{text}");
        run(Command::new("sh").arg("-n").arg(root().join("scripts/debian").join(script)));
    }
    let description = field("Description");
    assert!(!description.contains("not supported"), "real drives are: {description}");
    for word in ["RAID", "NBD", "file system"] {
        assert!(description.contains(word), "{word}: {description}");
    }
}

/// With the signatures of the package, file(1) recognises the first block of each kind of drive.
#[test]
fn file_knows_what_drives_hold() {
    let (at, magic) = (scratch("magic"), root().join("scripts/magic/furrow"));
    let furrow = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_furrow"));
        run(command.args(words).current_dir(&at));
    };
    let said = |name: &str| {
        let out = run(Command::new("file").arg("-b").arg("-m").arg(&magic).arg(at.join(name)));
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    };
    // An image has a header before the zones; the first block of the zones is what a real drive has
    // at block 0.
    let front = |name: &str| {
        let image = fs::read(at.join(name)).unwrap();
        let mut blocks = image.chunks_exact(4096);
        let first = blocks.find(|block| block.starts_with(b"FRW1")).unwrap();
        fs::write(at.join("front"), first).unwrap();
        said("front")
    };
    let drives = ["a.zns", "b.zns", "c.zns", "d.zns", "e.zns"];
    for drive in drives {
        furrow(&["device", "create", drive, "-o", "zones=64", "-o", "zone-size=1MiB"]);
    }
    assert_eq!(said("a.zns"), "Furrow emulated zoned drive, version 1, 64 zones");
    furrow(&["mkfs", "-L", "data", "a.zns"]);
    assert_eq!(front("a.zns"), "Furrow file system, label \"data\"");
    furrow(&["kv", "mkfs", "--label", "db", "b.zns"]);
    assert_eq!(front("b.zns"), "Furrow file store, label \"db\"");
    furrow(&["raid", "create", "-l", "5", "-n", "t", "--spare", "e.zns", "c.zns", "d.zns"]);
    assert_eq!(front("c.zns"), "Furrow array member");
    assert_eq!(front("e.zns"), "Furrow array spare");
    furrow(&["device", "create", "--soft", "s", "--size", "64MiB", "--zone-size", "1MiB"]);
    assert_eq!(said("s"), "Furrow soft zones");
}
