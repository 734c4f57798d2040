//! Requests and answers as JSON, and the version that both name.
//!
//! A request is an object with the `version` of the protocol, the name of the `request`, and its
//! arguments: `{"version":2,"request":"fail","member":"1"}`. An answer is an object with the
//! version and either the result, `ok`, or an `error`: `{"version":2,"ok":{}}`. On a socket each is
//! a line. Requests of another version are refused, as clients refuse answers of another version:
//! after an upgrade a server has to be restarted.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Version of the protocol. Version 1 had no version in requests.
pub const VERSION: u32 = 2;
/// Longest request in bytes, without its line end.
pub const REQUEST_MAX: usize = 64 << 10;

/// An answer: a result or an error.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Version of the protocol.
    pub version: u32,
    /// The result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<Value>,
    /// The error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether the server ends after this answer.
    #[serde(default, skip_serializing_if = "is_false")]
    pub last: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl Answer {
    /// The answer for a result.
    pub fn of(result: Result<Value, String>) -> Answer {
        let answer = Answer { version: VERSION, ..Answer::default() };
        match result {
            Ok(value) => Answer { ok: Some(value), ..answer },
            Err(error) => Answer { error: Some(error), ..answer },
        }
    }

    /// The answer as a line, with its line end.
    pub fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// The request as a line, without its line end.
///
/// # Errors
/// An error if the request is not a JSON object, or is longer than [`REQUEST_MAX`].
pub fn write<T: Serialize>(request: &T) -> Result<Vec<u8>, String> {
    let mut request = serde_json::to_value(request).map_err(|error| error.to_string())?;
    let Some(fields) = request.as_object_mut() else {
        return Err("a request must be an object".to_owned());
    };
    fields.insert("version".to_owned(), VERSION.into());
    let line = serde_json::to_vec(&request).map_err(|error| error.to_string())?;
    match line.len() {
        ..=REQUEST_MAX => Ok(line),
        length => Err(format!("a request of {length} bytes: at most {REQUEST_MAX} are taken")),
    }
}

/// Reads the request in `line`.
///
/// # Errors
/// The reason why the line is not a request of this version. The message begins with `not a
/// request`.
pub fn read<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    if line.len() > REQUEST_MAX {
        return Err(too_long());
    }
    let mut fields: Map<String, Value> =
        serde_json::from_slice(line).map_err(|error| format!("not a request: {error}"))?;
    let version = fields.remove("version").unwrap_or_default();
    if version != VERSION {
        let theirs = if version.is_null() { "1".to_owned() } else { version.to_string() };
        return Err(format!(
            "not a request of version {VERSION} of the control protocol, but of version {theirs}: \
             use the command that belongs to the running program, or restart the program"
        ));
    }
    T::deserialize(Value::Object(fields)).map_err(|error| format!("not a request: {error}"))
}

/// The error for a request that is too long.
pub(crate) fn too_long() -> String {
    format!("not a request: longer than {REQUEST_MAX} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
    enum Sample {
        Status,
        Stop { force: bool },
        Scrub { order: Option<String> },
    }

    #[test]
    fn requests_are_read_as_they_are_written_and_nothing_else_is() {
        for request in [Sample::Status, Sample::Stop { force: true }, Sample::Scrub { order: None }]
        {
            let line = write(&request).unwrap();
            assert_eq!(read::<Sample>(&line).unwrap(), request);
        }
        for wrong in [
            "",
            "{}",
            "[]",
            "null",
            r#"{"version":2}"#,
            r#"{"version":2,"request":"melt"}"#,
            r#"{"version":2,"request":"stop"}"#,
            r#"{"version":2,"request":"stop","force":1}"#,
            r#"{"version":2,"request":"stop","force":true,"really":true}"#,
            r#"{"version":2,"request":["status"]}"#,
            r#"{"version":"2","request":"status"}"#,
            r#"{"version":2,"request":"status"} {}"#,
            &"[".repeat(4000),
        ] {
            let error = read::<Sample>(wrong.as_bytes()).unwrap_err();
            assert!(error.starts_with("not a request"), "{wrong}: {error}");
        }
        assert!(write(&"text").is_err());
        let long = Sample::Scrub { order: Some("x".repeat(REQUEST_MAX)) };
        assert!(write(&long).unwrap_err().contains("at most 65536"));
    }

    #[test]
    fn requests_of_another_version_are_refused_with_the_reason() {
        for (line, version) in [
            (r#"{"request":"status"}"#, "of version 1"),
            (r#"{"version":3,"request":"status","more":[]}"#, "of version 3"),
        ] {
            let error = read::<Sample>(line.as_bytes()).unwrap_err();
            assert!(error.contains(version) && error.contains("restart"), "{error}");
        }
    }

    #[test]
    fn an_answer_is_a_result_or_an_error() {
        let text = |answer: Answer| String::from_utf8(answer.line()).unwrap();
        assert_eq!(text(Answer::of(Ok(1.into()))), "{\"version\":2,\"ok\":1}\n");
        assert_eq!(text(Answer::of(Err("no".into()))), "{\"version\":2,\"error\":\"no\"}\n");
    }
}
