//! Places of control sockets: in the runtime directory, under the UUID of the array or store that
//! they control.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// The kind of object that a control socket controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The daemon of an array.
    Array,
    /// A store that a program uses.
    Store,
}

impl Kind {
    /// The ending of the sockets' names, after the UUID.
    fn ending(self) -> &'static str {
        match self {
            Kind::Array => "control",
            Kind::Store => "store",
        }
    }

    /// The socket of the array or store called `name`: its UUID, or another name if several have
    /// the same UUID.
    pub fn socket(self, name: &str) -> PathBuf {
        directory().join(format!("{name}.{}", self.ending()))
    }

    /// All sockets of this kind.
    ///
    /// If there is no runtime directory, there are no sockets.
    ///
    /// # Errors
    /// An error if this user may not list the runtime directory.
    pub fn sockets(self) -> io::Result<Vec<PathBuf>> {
        let entries = match std::fs::read_dir(directory()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let is_ours = |path: &PathBuf| path.extension().is_some_and(|it| it == self.ending());
        Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_ours).collect())
    }
}

/// The name of the array or store that a socket controls: the name of the socket's file without
/// the ending.
pub fn name_of(socket: &Path) -> String {
    socket.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// The runtime directory: `FURROW_RUN`, otherwise `furrow` in `XDG_RUNTIME_DIR` or in `/run`.
pub fn directory() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(own) = set("FURROW_RUN") {
        // The path is made absolute, since a daemon changes its working directory.
        return std::path::absolute(&own).unwrap_or_else(|_| own.into());
    }
    match set("XDG_RUNTIME_DIR") {
        Some(users) => PathBuf::from(users).join("furrow"),
        None => PathBuf::from("/run/furrow"),
    }
}

/// Makes the runtime directory, for this user alone, if it is missing.
///
/// # Errors
/// The system's error.
pub fn make_directory() -> io::Result<PathBuf> {
    let path = directory();
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
    Ok(path)
}
