//! Finds and checks the hook, the program that runs for each event, before the array is served.

use anyhow::{Context as _, Result, bail};
use rustix::fs::{Access, access};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Maximum number of bytes of a script's first line, which names its interpreter.
const FIRST_LINE: usize = 256;

/// The full path of a hook; a name without a slash is searched in PATH.
///
/// # Errors
/// An error if there is no such program, or it cannot be run.
pub fn program(path: &Path) -> Result<PathBuf> {
    if path.components().count() > 1 || path.is_absolute() || path.as_os_str().is_empty() {
        return runs(path).with_context(|| format!("hook {}", path.display()));
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&folders).map(|folder| folder.join(path));
    match found.find_map(|path| runs(&path).ok()) {
        Some(path) => Ok(path),
        None => bail!(
            "hook {}: no program of this name in PATH: give its path, such as ./{}",
            path.display(),
            path.display()
        ),
    }
}

/// The full path of a program, if its file shows that the kernel can run it.
fn runs(path: &Path) -> Result<PathBuf> {
    let path = path.canonicalize()?;
    if !path.is_file() {
        bail!("not a program: expected an executable file");
    }
    if access(&path, Access::EXEC_OK).is_err() {
        bail!("not executable: chmod +x it");
    }
    let mut head = Vec::new();
    match File::open(&path) {
        Ok(file) => file.take(FIRST_LINE as u64).read_to_end(&mut head)?,
        // This user may run the program, but not read it.
        Err(_) => return Ok(path),
    };
    let Some(line) = head.strip_prefix(b"#!") else {
        if head.starts_with(b"\x7fELF") {
            return Ok(path);
        }
        bail!("neither a program nor a script: a script begins with a line such as #!/bin/sh");
    };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    let interpreter = Path::new(std::ffi::OsStr::from_bytes(&line[..end]));
    if access(interpreter, Access::EXEC_OK).is_err() || !interpreter.is_file() {
        bail!("its first line names {}, which cannot be run", interpreter.display());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_hook_that_cannot_be_run_is_refused() {
        let folder = std::env::temp_dir().join(format!("furrow-hook-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let made = |name: &str, text: &str, mode: u32| {
            let path = folder.join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let script = made("script", "#! /bin/sh -e\n", 0o755);
        assert_eq!(program(&script).unwrap(), script.canonicalize().unwrap());
        assert!(program(Path::new("sh")).unwrap().is_absolute());
        for (path, why) in [
            (folder.join("missing"), "No such file"),
            (folder.clone(), "executable file"),
            (made("plain", "#!/bin/sh\n", 0o644), "chmod"),
            (made("empty", "", 0o755), "#!/bin/sh"),
            (made("lost", "#!/no/such/interpreter\n", 0o755), "/no/such/interpreter"),
            (PathBuf::from("no-such-program-anywhere"), "PATH"),
            (PathBuf::new(), "No such file"),
        ] {
            let error = format!("{:#}", program(&path).unwrap_err());
            assert!(error.contains(why) && error.starts_with("hook "), "{error}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
