//! RocksDB for Java: finds the plugin that was built for the jar a program uses.
//!
//! The loader (`java/loader.c` of the plugin), which is preloaded into the Java virtual machine,
//! compares the library in the jar byte by byte with the libraries that plugins were built for, and
//! chooses the plugin. This module only reads the class path first, so that a program without a
//! plugin fails before it begins.

use anyhow::{Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The library that is preloaded, in the directory of the plugins.
pub const LOADER: &str = "libfurrow_java.so";
/// Name of the directory of the plugins, next to the program.
const DIRECTORY: &str = "java";
/// Advice on how to build a plugin.
const HOW: &str = "make rocksdb-jni VERSION=... builds it, with the version in the name of the \
                   program's rocksdbjni jar";

/// The directory with the plugins, one for each version: from FURROW_JAVA, next to this program, or
/// where they are installed.
///
/// # Errors
/// An error if none was built.
pub fn plugins() -> Result<PathBuf> {
    super::find("FURROW_JAVA", DIRECTORY, &["../lib/furrow/java"], HOW)
}

/// Checks that `plugins` has a plugin for the RocksDB in the class path of these arguments of java.
/// A jar inside another jar is not found.
///
/// # Errors
/// An error if there is no plugin for that RocksDB; the message says how to build one.
pub fn check(arguments: &[OsString], plugins: &Path) -> Result<()> {
    let paths = class_path(arguments, std::env::var("CLASSPATH").ok());
    for name in paths.iter().filter_map(|path| artifact(path)) {
        if plugins.join(&name).is_dir() {
            continue;
        }
        let (id, version) = split(&name);
        let apart = match id {
            "frocksdbjni" => " ARTIFACT=com.ververica:frocksdbjni",
            _ => "",
        };
        bail!(
            "{name}.jar: the plugin for it is not in {}: make rocksdb-jni VERSION={version}{apart}",
            plugins.display()
        );
    }
    Ok(())
}

/// The jars and directories from which java would take classes, without those that manifests of
/// jars add.
fn class_path(arguments: &[OsString], environment: Option<String>) -> Vec<PathBuf> {
    let mut named = environment;
    let mut words = arguments.iter().filter_map(|word| word.to_str());
    while let Some(word) = words.next() {
        let value = match word.split_once('=') {
            Some(("--class-path", value)) => Some(value.to_owned()),
            _ if ["-cp", "-classpath", "--class-path", "-jar"].contains(&word) => {
                words.next().map(str::to_owned)
            }
            _ if word.starts_with('-') => continue,
            // This word is the class; the words after it are arguments of the program.
            _ => break,
        };
        named = value.or(named);
        if word == "-jar" {
            break;
        }
    }
    let parts = named.unwrap_or_default();
    parts.split(':').filter(|part| !part.is_empty()).flat_map(jars).collect()
}

/// The files that a part of a class path stands for: `lib/*` stands for each file in `lib`.
fn jars(part: &str) -> Vec<PathBuf> {
    let Some(directory) = part.strip_suffix("/*").or((part == "*").then_some(".")) else {
        return vec![PathBuf::from(part)];
    };
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// The name and version of a jar with RocksDB, in the form of the name of its plugin's directory.
fn artifact(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.strip_suffix(".jar")?;
    let (id, version) = split(name);
    let known = ["rocksdbjni", "frocksdbjni"].contains(&id);
    // Jars of sources, documents and tests begin with the same name.
    let plain = version.starts_with(|c: char| c.is_ascii_digit())
        && !["-sources", "-javadoc", "-tests"].iter().any(|end| version.ends_with(end));
    (known && plain).then(|| name.to_owned())
}

fn split(name: &str) -> (&str, &str) {
    name.split_once('-').unwrap_or((name, ""))
}

#[cfg(test)]
mod tests {
    use super::super::tests::words;
    use super::*;

    #[test]
    fn the_jar_of_rocksdb_is_found_in_the_class_path() {
        let of = |line: &str, environment: Option<&str>| -> Vec<String> {
            let paths = class_path(&words(line), environment.map(str::to_owned));
            paths.iter().filter_map(|path| artifact(path)).collect()
        };
        let jar = "/m2/rocksdbjni-7.8.3.jar";
        for line in [
            format!("-Xmx1g -cp app.jar:{jar} Main -cp other"),
            format!("-classpath {jar} Main"),
            format!("--class-path={jar} Main"),
            format!("--class-path {jar} -Da=b=c Main"),
        ] {
            assert_eq!(of(&line, Some("x.jar")), ["rocksdbjni-7.8.3"], "{line}");
        }
        assert_eq!(of("Main", Some(jar)), ["rocksdbjni-7.8.3"]);
        let flink = "frocksdbjni-8.10.0-ververica-1.0";
        assert_eq!(of(&format!("-cp {flink}.jar Main"), None), [flink]);
        assert!(of(&format!("Main -cp {jar}"), None).is_empty());
        assert!(
            of("-cp rocksdbjni-7.8.3-sources.jar:rocksdbjni.jar:a/kafka-1.jar X", None).is_empty()
        );
        assert!(of("-jar app.jar", Some(jar)).is_empty());
    }

    #[test]
    fn a_jar_without_its_plugin_is_refused_with_the_command_that_builds_it() {
        let none = Path::new("/no/such");
        let why = check(&words("-cp rocksdbjni-9.10.0.jar Main"), none).unwrap_err().to_string();
        assert!(why.contains("make rocksdb-jni VERSION=9.10.0"), "{why}");
        let flink = "-cp frocksdbjni-8.10.0-ververica-1.0.jar Main";
        let why = check(&words(flink), none).unwrap_err().to_string();
        assert!(why.contains("VERSION=8.10.0-ververica-1.0 ARTIFACT=com.ververica"), "{why}");
        assert!(check(&words("-cp app.jar Main"), none).is_ok());
    }
}
