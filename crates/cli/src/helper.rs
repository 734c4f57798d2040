//! The names by which mount(8), mkfs(8) and fsck(8) call the program, as links to it.

use std::ffi::OsString;
use std::path::Path;

/// The names, each with its subcommand and the section of its manual page.
pub const NAMES: [(&str, &str); 7] = [
    ("mkfs.furrow", "mkfs"),
    ("mkfs.fuse.furrow", "mkfs"),
    ("fsck.furrow", "fsck"),
    ("fsck.fuse.furrow", "fsck"),
    ("mount.furrow", "mount"),
    ("mount.fuse.furrow", "mount"),
    // A mount of a block device has this type, so mount(8) looks for this helper to remount it.
    ("mount.fuseblk.furrow", "mount"),
];

/// Translates a call by one of [`NAMES`] into the subcommand; `None` for any other name.
pub fn call(arguments: &[OsString]) -> Option<Vec<OsString>> {
    let name = Path::new(arguments.first()?).file_name()?.to_str()?;
    let (_, subcommand) = NAMES.iter().find(|(known, _)| *known == name)?;
    let rest = &arguments[1..];
    let rest = match *subcommand {
        "mount" => mount(rest),
        "fsck" => fsck(rest),
        _ => rest.to_vec(),
    };
    Some(["furrow".into(), (*subcommand).into()].into_iter().chain(rest).collect())
}

/// Translates `DEVICE DIR [-sfnvrw] [-o OPTIONS] [-t TYPE] [-N NAMESPACE]`, the arguments that
/// mount(8) gives its helpers.
fn mount(arguments: &[OsString]) -> Vec<OsString> {
    let mut call: Vec<OsString> = Vec::new();
    let mut places = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            Some("-o") => {
                call.push("-o".into());
                call.extend(rest.next().cloned());
            }
            Some("-t" | "-N") => drop(rest.next()),
            Some("-h" | "-V") => call.push(argument.clone()),
            Some(flags)
                if flags.len() > 1 && flags.starts_with('-') && !flags.starts_with("--") =>
            {
                for flag in flags.chars().skip(1) {
                    match flag {
                        'f' => call.push("--fake".into()),
                        'r' => call.extend(["-o".into(), "ro".into()]),
                        'w' => call.extend(["-o".into(), "rw".into()]),
                        // Sloppy, no mtab, verbose: these options need no action.
                        's' | 'n' | 'v' => {}
                        other => call.push(format!("-{other}").into()),
                    }
                }
            }
            Some(flag) if flag.starts_with("--") && flag.len() > 2 => call.push(argument.clone()),
            Some("--") => {}
            _ => places.push(argument.clone()),
        }
    }
    call.push("--".into());
    call.extend(places);
    call
}

/// Translates the arguments of fsck(8), above all those at boot: `-a` or `-p` (repair what is safe)
/// are passed on; `-C` with or without a descriptor (show progress) is left out, since progress is
/// always shown on a terminal.
fn fsck(arguments: &[OsString]) -> Vec<OsString> {
    let ours = |argument: &&OsString| argument.to_str().is_none_or(|word| !word.starts_with("-C"));
    arguments.iter().filter(ours).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    fn called(text: &str) -> Vec<OsString> {
        call(&words(text)).unwrap()
    }

    #[test]
    fn a_mount_helper_is_a_mount() {
        let call = called("/sbin/mount.fuse.furrow d.zns /mnt -o rw,noatime -sn -t fuse.x");
        assert_eq!(call, words("furrow mount -o rw,noatime -- d.zns /mnt"));
        let call = called("mount.furrow d.zns /mnt -fr");
        assert_eq!(call, words("furrow mount --fake -o ro -- d.zns /mnt"));
        assert_eq!(called("mount.furrow --help"), words("furrow mount --help --"));
    }

    #[test]
    fn a_checker_takes_what_fsck_passes() {
        let call = called("/usr/sbin/fsck.fuse.furrow -a -C0 /d.zns");
        assert_eq!(call, words("furrow fsck -a /d.zns"));
        assert_eq!(called("fsck.furrow -n -v d.zns"), words("furrow fsck -n -v d.zns"));
    }

    #[test]
    fn mkfs_passes_everything_and_other_names_are_none() {
        assert_eq!(called("mkfs.furrow -L x d.zns"), words("furrow mkfs -L x d.zns"));
        assert_eq!(call(&words("/usr/bin/furrow mount d.zns /mnt")), None);
        assert_eq!(call(&[]), None);
    }
}
