//! Files that users name for text of a daemon: logs, events, metrics. A user may name a drive by
//! mistake; the check here keeps the content of the drive from being destroyed.

use anyhow::{Context as _, Result, bail};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// Number of bytes at the front of a file that are checked for text.
const FRONT: u64 = 4096;

/// Checks that text may be appended to `path`.
///
/// # Errors
/// An error if `path` is a block device, or a file that does not hold text.
pub fn check_append(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(found) if found.file_type().is_block_device() => {
            bail!("{}: a block device: name a file", path.display())
        }
        Ok(found) if found.is_file() && front(path)?.contains(&0) => {
            bail!("{}: does not hold text, and was not changed: name another file", path.display())
        }
        _ => Ok(()),
    }
}

/// Checks that `path` may be replaced by metrics.
///
/// # Errors
/// An error if `path` exists and is not a file that is empty or holds metrics.
pub fn check_metrics(path: &Path) -> Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    let ours = |front: &[u8]| front.is_empty() || front.starts_with(b"# HELP ");
    if !found.is_file() || !ours(&front(path)?) {
        bail!("it exists and does not hold metrics; it was not changed: name another file");
    }
    Ok(())
}

fn front(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(|| path.display().to_string())?;
    file.take(FRONT).read_to_end(&mut bytes).with_context(|| path.display().to_string())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_no_text_is_left_as_it_is() {
        let at = std::env::temp_dir().join(format!("furrow-text-{}", std::process::id()));
        fs::create_dir_all(&at).unwrap();
        for (name, bytes, appends, replaces) in [
            ("empty", &b""[..], true, true),
            ("log", b"2026-11-28 a line\n", true, false),
            ("m.prom", b"# HELP furrow_up_seconds Time.\n", true, true),
            ("d.zns", b"FURROWZN\0\0\x01", false, false),
        ] {
            fs::write(at.join(name), bytes).unwrap();
            assert_eq!(check_append(&at.join(name)).is_ok(), appends, "{name}");
            assert_eq!(check_metrics(&at.join(name)).is_ok(), replaces, "{name}");
        }
        assert!(check_append(&at.join("new")).is_ok() && check_metrics(&at.join("new")).is_ok());
        assert!(check_append(Path::new("/dev/null")).is_ok());
        assert!(check_metrics(Path::new("/dev/null")).is_err() && check_metrics(&at).is_err());
        std::os::unix::fs::symlink(at.join("d.zns"), at.join("link.prom")).unwrap();
        assert!(check_metrics(&at.join("link.prom")).is_err());
        fs::remove_dir_all(&at).unwrap();
    }
}
