//! Mixes of operations on many files: what MDtest and Filebench's personalities do.
//!
//! A client does its *steps* over and over; each is an operation of its own. Most steps concern the
//! client's *current* file, which `create` and `pick` choose.

use furrow_emu::timing::quantity::Bytes;
use serde::{Deserialize, Serialize};

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Makes a file, which becomes the current one.
    Create,
    /// Makes a random one of the client's files the current one.
    Pick,
    /// Writes `file` bytes to the current file, from its start.
    Write,
    /// Appends a random number of bytes, from 1 to `append`, to the current file.
    Append,
    /// Appends to the client's log, a file in addition to its other files.
    Log,
    /// Reads the current file whole.
    Read,
    /// Makes the current file durable.
    Fsync,
    /// Reads the attributes of the current file.
    Stat,
    /// Removes a random one of the client's files.
    Delete,
}

/// The operations of clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Number of files of each client when measuring begins.
    #[serde(default)]
    pub files: u32,
    /// Bytes of a new file.
    pub file: Bytes,
    /// Maximum number of bytes in an append.
    #[serde(default)]
    pub append: Bytes,
    /// Whether clients pick from the files of all clients, not only from their own.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shared: bool,
    /// The steps of a client, in order.
    pub steps: Vec<Step>,
    /// The steps of the first client, if they differ from the others'.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<Step>,
}

fn shareable(step: Step) -> bool {
    matches!(step, Step::Pick | Step::Read | Step::Stat | Step::Log)
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl Flow {
    /// Checks the flow.
    ///
    /// # Errors
    /// If the flow is invalid: the reason, in one clause.
    pub fn check(&self) -> Result<(), String> {
        if self.steps.is_empty() {
            return Err("`flow` has no `steps`".into());
        }
        if self.file.0 == 0 {
            return Err("`file` of `flow` is 0".into());
        }
        for steps in [&self.steps, &self.first] {
            let about = |step: &Step| !matches!(step, Step::Log | Step::Delete);
            let chosen = |step: &Step| matches!(step, Step::Create | Step::Pick);
            if steps.iter().find(|step| about(step)).is_some_and(|step| !chosen(step)) {
                return Err("`flow`: a step before `create` or `pick`".into());
            }
            let net = |step: &Step| match step {
                Step::Create => 1,
                Step::Delete => -1,
                _ => 0,
            };
            if steps.iter().map(net).sum::<i32>() < 0 {
                return Err("`flow`: more files are deleted than created".into());
            }
            let picks = steps.iter().any(|step| matches!(step, Step::Pick | Step::Delete));
            if picks && self.files == 0 {
                return Err("`flow` picks files, but there are no `files`".into());
            }
            if self.shared && steps.iter().any(|step| !shareable(*step)) {
                return Err("`flow`: of `shared` files nothing is written or deleted".into());
            }
            let adds = steps.iter().any(|step| matches!(step, Step::Append | Step::Log));
            if adds && self.append.0 == 0 {
                return Err("`flow` appends, but `append` is 0".into());
            }
        }
        Ok(())
    }

    /// The steps of client `thread`.
    pub fn steps(&self, thread: u32) -> &[Step] {
        if thread == 0 && !self.first.is_empty() { &self.first } else { &self.steps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(text: &str) -> Result<Flow, String> {
        let flow: Flow = toml::from_str(text).map_err(|error| error.to_string())?;
        flow.check().map(|()| flow)
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let good = "file = '1MiB'\nfiles = 3\nappend = '16KiB'\n\
                    steps = ['delete', 'create', 'append', 'fsync', 'pick', 'read', 'log', 'stat']";
        let good_flow = flow(good).unwrap();
        assert_eq!(good_flow.steps(0), good_flow.steps(1));
        for (from, to, word) in [
            ("'delete', 'create'", "'read', 'create'", "before"),
            ("'create',", "", "before"),
            ("'create',", "'pick',", "deleted"),
            ("files = 3", "files = 0", "no `files`"),
            ("append = '16KiB'", "", "`append` is 0"),
            ("'1MiB'", "'0'", "`file`"),
            ("'stat'", "'rename'", "rename"),
            ("files = 3", "files = 3\nshared = true", "shared"),
        ] {
            let error = flow(&good.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(word), "{from} -> {to}: {error}");
        }
        let first = flow(&format!("{good}\nfirst = ['create', 'write']")).unwrap();
        assert_eq!(first.steps(0).len(), 2);
        assert_eq!(first.steps(1).len(), 8);
    }
}
