//! The requests to the daemon of an array, by its control socket (`furrow_control`).

use serde::{Deserialize, Serialize};

/// A request to the daemon of an array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Ask for the [`Status`](super::status::Status).
    Status,
    /// Ask for the metrics as Prometheus text.
    Metrics,
    /// Take a member out of service.
    Fail {
        /// The member's number, or its device.
        member: String,
    },
    /// Replace a failed member by a drive.
    Replace {
        /// The member's number, or its device.
        member: String,
        /// Device spec with an absolute path.
        device: String,
        /// Overwrite a drive that holds data.
        force: bool,
    },
    /// Keep a drive for the next member that fails.
    AddSpare {
        /// Device spec with an absolute path.
        device: String,
        /// Overwrite a drive that holds data.
        #[serde(default)]
        force: bool,
    },
    /// Resume a rebuild.
    Rebuild {
        /// New pause in microseconds after every 32 rows.
        pause_us: Option<u64>,
    },
    /// Read and check all blocks.
    Scrub {
        /// Repair damaged blocks.
        repair: bool,
    },
    /// Stop the running scrub.
    StopScrub,
    /// Clear errors and records of lost or damaged blocks.
    Clear,
    /// Stop the array.
    Stop {
        /// Stop even if clients are connected.
        force: bool,
    },
    /// Inject faults into emulated drives.
    Fault {
        /// Number or device of the member; `None` means all members.
        member: Option<String>,
        /// The arguments of `furrow device fault` without the device.
        words: Vec<String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_are_written_and_nothing_else_is() {
        for request in [
            Request::Status,
            Request::StopScrub,
            Request::Clear,
            Request::Stop { force: true },
            Request::Rebuild { pause_us: None },
            Request::Fault { member: None, words: vec!["list".into()] },
        ] {
            let text = serde_json::to_string(&request).unwrap();
            assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request, "{text}");
        }
        for wrong in [
            "",
            "{}",
            "[]",
            r#"{"request":"melt"}"#,
            r#"{"request":"fail"}"#,
            r#"{"request":"fail","member":3}"#,
            r#"{"request":"stop","force":true,"really":true}"#,
            r#"{"request":["status"]}"#,
        ] {
            assert!(serde_json::from_str::<Request>(wrong).is_err(), "{wrong}");
        }
    }
}
