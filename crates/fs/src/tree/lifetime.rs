//! How long data is expected to live, and how programs declare it.
//!
//! Blocks that die together should lie together, so the data of a file goes to the hot, the warm or
//! the cold stream. As in F2FS, the stream depends first on a hint from a program, and second on
//! the end of the file's name. The hint is the extended attribute [`ATTRIBUTE`] of the file (in
//! F2FS it is `RWH_WRITE_LIFE_*` of fcntl(2), which FUSE does not pass on). A new file or directory
//! inherits the attribute from its directory.
//!
//! | attribute | stream |
//! |---|---|
//! | `short` | hot |
//! | `medium`, `long` | warm |
//! | `extreme` | cold |
//!
//! The choice is stored as the inode's `class` (`format`). A node copies the class when one of its
//! blocks is written, so placing a block needs no further look-up. A block that is already on the
//! drive stays in its place until it is written again. Data of directories is always hot, and data
//! moved by cleaning is always cold.

use crate::blocked::NotApplied;
use crate::format::class;
use furrow_zone::{Error, ErrorKind};

/// Name of the attribute that declares a lifetime.
pub const ATTRIBUTE: &[u8] = b"user.furrow.lifetime";

/// Expected lifetime of data, compared with other data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lifetime {
    /// The value `short`: the data is hot.
    Short,
    /// The value `medium`: the data is warm.
    Medium,
    /// The value `long`: the data is warm.
    Long,
    /// The value `extreme`: the data is cold.
    Extreme,
}

impl Lifetime {
    const ALL: [(Lifetime, &str); 4] = [
        (Lifetime::Short, "short"),
        (Lifetime::Medium, "medium"),
        (Lifetime::Long, "long"),
        (Lifetime::Extreme, "extreme"),
    ];

    /// The value of the attribute for this lifetime.
    pub fn name(self) -> &'static str {
        Lifetime::ALL.iter().find(|(lifetime, _)| *lifetime == self).map_or("", |(_, name)| name)
    }

    /// The lifetime that the attribute's value stands for.
    pub fn parse(value: &[u8]) -> Option<Lifetime> {
        let found = Lifetime::ALL.iter().find(|(_, name)| name.as_bytes() == value);
        found.map(|(lifetime, _)| *lifetime)
    }

    pub(super) fn class(self) -> u8 {
        match self {
            Lifetime::Short => class::HOT,
            Lifetime::Medium | Lifetime::Long => class::FILE,
            Lifetime::Extreme => class::COLD,
        }
    }
}

/// File name extensions that tell how long the data of a file should live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extensions {
    /// Extensions of files that are overwritten soon.
    pub hot: Vec<String>,
    /// Extensions of files that are written once.
    pub cold: Vec<String>,
}

impl Default for Extensions {
    /// Treats databases and their logs as hot; pictures, films, sounds and archives as cold.
    fn default() -> Extensions {
        let hot = ["db", "db-wal", "db-journal", "sqlite", "sqlite-wal", "sqlite-journal"];
        let cold = [
            "jpg", "jpeg", "gif", "png", "avi", "mp4", "mkv", "mov", "mp3", "flac", "ogg", "wav",
            "webm", "pdf", "zip", "gz", "xz", "zst", "bz2", "iso",
        ];
        let owned = |list: &[&str]| list.iter().map(|end| (*end).to_owned()).collect();
        Extensions { hot: owned(&hot), cold: owned(&cold) }
    }
}

impl Extensions {
    /// The class of a new file called `name`.
    pub(crate) fn class(&self, name: &[u8]) -> u8 {
        let ends = |list: &[String]| {
            let mut list = list.iter();
            list.any(|end| name.strip_suffix(end.as_bytes()).is_some_and(|n| n.ends_with(b".")))
        };
        match () {
            () if ends(&self.hot) => class::HOT,
            () if ends(&self.cold) => class::COLD,
            () => class::FILE,
        }
    }
}

/// Checks a value of the lifetime attribute.
pub(crate) fn check(value: &[u8]) -> Result<Lifetime, NotApplied> {
    Lifetime::parse(value).ok_or_else(|| {
        let message = "a lifetime is one of short, medium, long and extreme";
        NotApplied::Failed(Error::new(ErrorKind::Invalid, message))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_is_expected() {
        let extensions = Extensions::default();
        for (name, class) in [
            ("film.mp4", class::COLD),
            ("a.tar.gz", class::COLD),
            (".mp4", class::COLD),
            ("mp4", class::FILE),
            ("xmp4", class::FILE),
            ("places.sqlite-wal", class::HOT),
            ("x.db", class::HOT),
            ("x.db.txt", class::FILE),
        ] {
            assert_eq!(extensions.class(name.as_bytes()), class, "{name}");
        }
        let none = Extensions { hot: vec![], cold: vec!["log".into()] };
        assert_eq!([none.class(b"x.db"), none.class(b"x.log")], [class::FILE, class::COLD]);
    }

    #[test]
    fn lifetimes_have_names_and_classes() {
        for (lifetime, name) in Lifetime::ALL {
            assert_eq!(lifetime.name(), name);
            assert_eq!(Lifetime::parse(name.as_bytes()), Some(lifetime));
        }
        assert_eq!(Lifetime::parse(b"forever"), None);
        let classes = Lifetime::ALL.map(|(lifetime, _)| lifetime.class());
        assert_eq!(classes, [class::HOT, class::FILE, class::FILE, class::COLD]);
    }
}
