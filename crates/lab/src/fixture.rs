//! A small laboratory for tests: one entry of each kind of `setup.toml`, and claims made with them.

/// A source, drive, profile, host and workload, whose texts have characters that HTML must not
/// interpret. The workload is the last table, so that fields may be appended to it.
pub(crate) const SETUP: &str = r#"
version = 1
[source.s]
title = "A <source> & more"
[device.d]
spec = "mem:pm1731a,timing=virtual,medium=discard"
about = "a drive"
[profile.raw]
engine = "none"
about = "no <engine>"
[host.h]
zone_lock = true
[workload.w]
op = "write"
order = "random"
size = "64KiB"
threads = 2
depth = 4
zones = 4
warm = "20ms"
run = "20ms"
"#;

/// A file of claims, each written by [`claim`] or [`needing`].
pub(crate) fn claims(claims: &[String]) -> String {
    format!("version = 1\n{}", claims.concat())
}

/// A claim that is run with everything in [`SETUP`]; `rest` has its figures and runs.
pub(crate) fn claim(id: &str, what: &str, forecast: &str, rest: &str) -> String {
    format!(
        "[[claim]]\nid = \"{id}\"\nsource = \"s\"\nwhat = \"{what}\"\n\
         setup = {{ device = \"d\", profile = \"raw\", host = \"h\", workload = \"w\" }}\n\
         forecast = \"{forecast}\"\n{rest}\n"
    )
}

/// A claim whose only run uses more zones than may be active.
pub(crate) fn failing(id: &str) -> String {
    let rest = r#"
figures = [{ name = "f", unit = "MB/s", paper = 1, run = "r" }]
[[claim.runs]]
name = "r"
with = { zones = 5000 }
"#;
    claim(id, "fails", "nothing", rest)
}

/// A claim that cannot be run until `needs` is built.
pub(crate) fn needing(id: &str, what: &str, needs: &str) -> String {
    format!(
        "[[claim]]\nid = \"{id}\"\nsource = \"s\"\nwhat = \"{what}\"\nneeds = \"{needs}\"\n\
         figures = [{{ name = \"f\", unit = \"x\", paper = 7.5, relation = \"at-most\" }}]\n"
    )
}
