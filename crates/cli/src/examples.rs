//! An example for each command, which its help and its manual page show.

use clap::Command;

/// The words of a command, and examples of it, a line each. A test parses them.
const EXAMPLES: [(&str, &[&str]); 59] = [
    ("mkfs", &["furrow mkfs -L data /dev/nvme0n2"]),
    (
        "mount",
        &["furrow mount /dev/nvme0n2 /srv/data", "furrow mount -o ro,noatime LABEL=data /srv/data"],
    ),
    ("umount", &["furrow umount /srv/data"]),
    ("fsck", &["furrow fsck /dev/nvme0n2", "furrow fsck -n --repair /dev/nvme0n2"]),
    ("label", &["furrow label /dev/nvme0n2 data"]),
    ("df", &["furrow df", "furrow df --json /srv/data"]),
    ("map", &["furrow map /srv/data"]),
    ("stat", &["furrow stat --every 5 /srv/data"]),
    ("top", &["furrow top", "furrow top --once --json"]),
    ("gc", &["furrow gc /srv/data"]),
    ("scrub", &["furrow scrub /srv/data"]),
    ("sync", &["furrow sync /srv/data"]),
    (
        "run",
        &[
            "furrow run --store /dev/nvme0n2 -- db_bench --benchmarks=fillseq",
            "furrow run --store db.zns --java -- bin/start-app.sh",
        ],
    ),
    ("demo", &["furrow demo --work /tmp /srv/data"]),
    ("dump superblock", &["furrow dump superblock /dev/nvme0n2"]),
    ("dump checkpoint", &["furrow dump checkpoint --json /dev/nvme0n2"]),
    ("dump nat", &["furrow dump nat /dev/nvme0n2 1-20"]),
    ("dump sit", &["furrow dump sit /dev/nvme0n2 0-9"]),
    ("dump node", &["furrow dump node /dev/nvme0n2 /etc/passwd"]),
    ("dump directory", &["furrow dump directory /dev/nvme0n2 /etc"]),
    ("dump segment", &["furrow dump segment /dev/nvme0n2 7"]),
    (
        "raid create",
        &["furrow raid create --level 5 --name tank /dev/nvme0n2 /dev/nvme1n2 /dev/nvme2n2"],
    ),
    (
        "raid assemble",
        &[
            "furrow raid assemble --name tank --ublk",
            "furrow raid assemble --wait 30 --hook /usr/local/bin/tell '/dev/nvme*n2'",
        ],
    ),
    ("raid examine", &["furrow raid examine /dev/nvme0n2"]),
    ("raid status", &["furrow raid status", "furrow raid status --json tank"]),
    ("raid fail", &["furrow raid fail tank 2"]),
    ("raid replace", &["furrow raid replace tank 2 /dev/nvme5n2 --wait"]),
    ("raid add-spare", &["furrow raid add-spare tank /dev/nvme6n2"]),
    ("raid rebuild", &["furrow raid rebuild tank --wait"]),
    ("raid scrub", &["furrow raid scrub tank --repair --wait"]),
    ("raid clear", &["furrow raid clear tank"]),
    ("raid stop", &["furrow raid stop tank"]),
    ("raid fault", &["furrow raid fault tank 2 add disappear"]),
    ("kv mkfs", &["furrow kv mkfs --label db /dev/nvme0n2"]),
    ("kv ls", &["furrow kv ls /dev/nvme0n2 /db"]),
    ("kv df", &["furrow kv df /dev/nvme0n2"]),
    ("kv map", &["furrow kv map /dev/nvme0n2"]),
    ("kv stat", &["furrow kv stat --json /dev/nvme0n2"]),
    ("kv get", &["furrow kv get /dev/nvme0n2 /db/CURRENT"]),
    ("kv put", &["furrow kv put /dev/nvme0n2 000012.sst /db/000012.sst"]),
    ("kv rm", &["furrow kv rm -r /dev/nvme0n2 /db.old"]),
    ("kv mv", &["furrow kv mv /dev/nvme0n2 /db /db.old"]),
    ("kv ln", &["furrow kv ln /dev/nvme0n2 /db/000012.sst /kept/000012.sst"]),
    ("kv mkdir", &["furrow kv mkdir /dev/nvme0n2 /db"]),
    ("kv rmdir", &["furrow kv rmdir /dev/nvme0n2 /db"]),
    ("kv backup", &["furrow kv backup /dev/nvme0n2 /srv/backup"]),
    ("kv restore", &["furrow kv restore /srv/backup /dev/nvme1n2"]),
    ("kv fsck", &["furrow kv fsck /dev/nvme0n2"]),
    ("kv trace", &["furrow kv trace run.trace"]),
    (
        "device create",
        &[
            "furrow device create disk.zns --preset pm1731a -o capacity=8GiB",
            "furrow device create --soft /dev/sdb",
        ],
    ),
    ("device check", &["furrow device check disk.zns"]),
    ("device show", &["furrow device show /dev/nvme0n2"]),
    ("device report", &["furrow device report --first 8 --count 4 /dev/nvme0n2"]),
    ("device serve", &["furrow device serve disk.zns"]),
    ("device presets", &["furrow device presets pm1731a", "furrow device presets zn540-1t --toml"]),
    ("device zone", &["furrow device zone disk.zns finish 12"]),
    ("device fault add", &["furrow device fault add disk.zns hang"]),
    ("device fault list", &["furrow device fault list disk.zns"]),
    ("device fault clear", &["furrow device fault clear disk.zns 1"]),
];

/// `command` with the examples below the help of each command.
pub fn add(command: Command) -> Command {
    below(command, "")
}

fn below(mut command: Command, name: &str) -> Command {
    let names: Vec<String> =
        command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    for one in names {
        let path = format!("{name} {one}");
        command = command.mut_subcommand(one, |it| below(it, path.trim_start()));
    }
    let Some((_, lines)) = EXAMPLES.iter().find(|(of, _)| *of == name) else { return command };
    let more = command.get_after_long_help().or(command.get_after_help());
    let more = more.map_or(String::new(), |text| format!("{text}\n\n"));
    let title = if lines.len() == 1 { "Example" } else { "Examples" };
    let examples: Vec<String> = lines.iter().map(|line| format!("  {line}")).collect();
    command.after_long_help(format!("{more}{title}:\n{}", examples.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(command: &Command, name: &str, all: &mut Vec<String>) {
        let visible = |below: &&Command| !below.is_hide_set() && below.get_name() != "help";
        let mut any = false;
        for below in command.get_subcommands().filter(visible) {
            any = true;
            leaves(below, format!("{name} {}", below.get_name()).trim_start(), all);
        }
        if !any {
            all.push(name.to_owned());
        }
    }

    #[test]
    fn every_command_has_an_example_that_parses() {
        let mut all = Vec::new();
        leaves(&crate::command(), "", &mut all);
        assert!(all.len() > 50, "{all:?}");
        for (name, lines) in EXAMPLES {
            assert!(all.contains(&name.to_owned()), "no command: {name}");
            for line in lines {
                assert!(line.starts_with(&format!("furrow {name}")), "{line}");
                let words = line.split_whitespace().map(|word| word.trim_matches('\''));
                let parsed = crate::command().try_get_matches_from(words);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            }
        }
        for name in all {
            assert!(EXAMPLES.iter().any(|(of, _)| *of == name), "no example of furrow {name}");
        }
    }

    #[test]
    fn help_shows_the_example_after_what_was_there() {
        let mut command = crate::command();
        command.build();
        let mount = command.find_subcommand_mut("mount").unwrap().render_long_help().to_string();
        let at = |text: &str| mount.find(text).unwrap_or_else(|| panic!("no {text} in {mount}"));
        assert!(at("writeback_cache") < at("Examples:\n  furrow mount /dev/nvme0n2"));
    }
}
