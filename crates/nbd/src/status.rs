//! The server's counters, its status, and Prometheus text.

use crate::refusal::Reason;
use furrow_metrics::{Page, seconds};
use serde::Serialize;
use std::cell::Cell;
use std::fmt::Display;

/// Defines the counters, and the structure for their values at one moment, from one list.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of one export or connection.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $($(#[$doc])* pub(crate) $name: Cell<u64>,)* }

        /// The values of the counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// The present values.
            pub(crate) fn get(&self) -> Counts {
                Counts { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// READ requests.
    reads,
    /// WRITE requests.
    writes,
    /// TRIM requests.
    trims,
    /// WRITE_ZEROES requests.
    zeroes,
    /// FLUSH requests.
    flushes,
    /// CACHE requests.
    caches,
    /// BLOCK_STATUS requests.
    statuses,
    /// Requests with FUA.
    fua,
    /// Writes with an edge within a block, which are carried out as read, modify, write.
    partial,
    /// Requests answered with an error.
    errors,
    /// Bytes of data sent for READ.
    bytes_read,
    /// Bytes of data received for WRITE.
    bytes_written,
    /// Total nanoseconds that READ requests took, from their receipt to their answer.
    read_ns,
    /// Total nanoseconds that WRITE requests took.
    write_ns,
    /// Total nanoseconds that FLUSH requests took.
    flush_ns,
}

/// Adds `by` to a counter.
pub(crate) fn count(counter: &Cell<u64>, by: u64) {
    counter.set(counter.get().wrapping_add(by));
}

/// The state of one export.
#[derive(Clone, Debug, Serialize)]
pub struct ExportStatus {
    /// Name of the export.
    pub name: String,
    /// Size of the export in bytes.
    pub size: u64,
    /// Whether the export is read-only.
    pub read_only: bool,
    /// Connections that use the export now.
    pub connections: u64,
    /// Counters of the export.
    pub counts: Counts,
}

/// The state of one connection.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionStatus {
    /// Number of the connection, which is never reused.
    pub id: u64,
    /// Name of the client at the other end.
    pub peer: String,
    /// The export that the connection uses; `None` during the handshake.
    pub export: Option<String>,
    /// Whether the connection is under TLS.
    pub tls: bool,
    /// Requests in flight.
    pub in_flight: u64,
    /// Bytes of memory charged to the connection.
    pub in_flight_bytes: u64,
    /// Counters of the connection.
    pub counts: Counts,
}

/// The state of the server at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The addresses of the server's listeners.
    pub listening: Vec<String>,
    /// Whether the server is shutting down.
    pub stopping: bool,
    /// Connections accepted so far.
    pub accepted: u64,
    /// Connections refused because there were too many.
    pub refused: u64,
    /// Handshakes that failed or took too long.
    pub failed_handshakes: u64,
    /// Clients that were refused, by reason.
    #[serde(skip)]
    pub refusals: Vec<(Reason, u64)>,
    /// Connections closed in the handshake to make space for others.
    pub evicted: u64,
    /// Connections closed because the client was silent for too long.
    pub idle: u64,
    /// Connections closed because the client broke the protocol or stalled within a message.
    pub dropped: u64,
    /// The exports, in the order in which they were given to the server.
    pub exports: Vec<ExportStatus>,
    /// Connections, the oldest first.
    pub connections: Vec<ConnectionStatus>,
}

impl Status {
    /// The status as Prometheus text. Every sample has `labels`; without labels, the samples of two
    /// servers could not be collected together.
    pub fn prometheus(&self, labels: &[(&str, &str)]) -> String {
        let mut page = Page::new("furrow_nbd", labels);
        let in_flight: u64 = self.connections.iter().map(|c| c.in_flight_bytes).sum();
        page.one("connections", "gauge", "Connections", self.connections.len() as u64);
        page.one("accepted_total", "counter", "Connections accepted", self.accepted);
        page.one(
            "refused_total",
            "counter",
            "Connections refused because too many were open",
            self.refused,
        );
        page.one("failed_handshakes_total", "counter", "Failed handshakes", self.failed_handshakes);
        let name = "refused_clients_total";
        page.family(name, "counter", "Clients that were refused, by reason");
        for (reason, count) in &self.refusals {
            page.sample(name, &[("reason", reason.name())], *count);
        }
        page.one("evicted_total", "counter", "Handshakes closed to make space", self.evicted);
        page.one("idle_total", "counter", "Connections closed because they were idle", self.idle);
        page.one("dropped_total", "counter", "Connections that broke the protocol", self.dropped);
        page.one("in_flight_bytes", "gauge", "Memory charged to requests", in_flight);
        each(&mut page, self, ("export_size_bytes", "gauge", "Size of the export"), |e| {
            vec![("", "", e.size)]
        });
        each(&mut page, self, ("export_connections", "gauge", "Connections to the export"), |e| {
            vec![("", "", e.connections)]
        });
        each(&mut page, self, ("requests_total", "counter", "Requests, by command"), |e| {
            let c = &e.counts;
            let commands = [
                ("read", c.reads),
                ("write", c.writes),
                ("trim", c.trims),
                ("write_zeroes", c.zeroes),
                ("flush", c.flushes),
                ("cache", c.caches),
                ("block_status", c.statuses),
            ];
            commands.map(|(name, value)| ("command", name, value)).to_vec()
        });
        each(&mut page, self, ("bytes_total", "counter", "Bytes of payload, by direction"), |e| {
            let bytes = [("read", e.counts.bytes_read), ("write", e.counts.bytes_written)];
            bytes.map(|(name, value)| ("direction", name, value)).to_vec()
        });
        let family = ("request_seconds_total", "counter", "Time of requests, by command");
        each(&mut page, self, family, |e| {
            let c = &e.counts;
            let times = [("read", c.read_ns), ("write", c.write_ns), ("flush", c.flush_ns)];
            times.map(|(name, value)| ("command", name, seconds(value))).to_vec()
        });
        each(&mut page, self, ("fua_total", "counter", "Requests with FUA"), |e| {
            vec![("", "", e.counts.fua)]
        });
        each(
            &mut page,
            self,
            ("partial_writes_total", "counter", "Writes of parts of blocks"),
            |e| vec![("", "", e.counts.partial)],
        );
        each(&mut page, self, ("errors_total", "counter", "Requests that failed"), |e| {
            vec![("", "", e.counts.errors)]
        });
        page.finish()
    }
}

/// Adds a sample for each export and each (label, label's value, number) that `values` returns for
/// the export.
fn each<V: Display>(
    page: &mut Page,
    status: &Status,
    (name, kind, help): (&str, &str, &str),
    values: impl Fn(&ExportStatus) -> Vec<(&'static str, &'static str, V)>,
) {
    page.family(name, kind, help);
    for export in &status.exports {
        for (key, value, number) in values(export) {
            let labels = [("export", &*export.name), (key, value)];
            page.sample(name, if key.is_empty() { &labels[..1] } else { &labels }, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_text_has_a_line_for_each_export_and_escapes_its_name() {
        let counters = Counters::default();
        count(&counters.trims, 3);
        count(&counters.bytes_read, 4096);
        let export = ExportStatus {
            name: "a\"b\\c\nd".into(),
            size: 8192,
            read_only: false,
            connections: 1,
            counts: counters.get(),
        };
        let status = Status {
            listening: Vec::new(),
            stopping: false,
            accepted: 5,
            refused: 0,
            failed_handshakes: 0,
            refusals: vec![(Reason::NoCertificate, 2)],
            evicted: 0,
            idle: 0,
            dropped: 0,
            exports: vec![export],
            connections: Vec::new(),
        };
        let text = status.prometheus(&[("array", "x")]);
        let label = "array=\"x\",export=\"a\\\"b\\\\c\\nd\"";
        for line in [
            "furrow_nbd_accepted_total{array=\"x\"} 5".to_owned(),
            "furrow_nbd_refused_clients_total{array=\"x\",reason=\"no-certificate\"} 2".to_owned(),
            format!("furrow_nbd_requests_total{{{label},command=\"trim\"}} 3"),
            format!("furrow_nbd_bytes_total{{{label},direction=\"read\"}} 4096"),
            format!("furrow_nbd_export_size_bytes{{{label}}} 8192"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
        }
        assert_eq!(furrow_metrics::problems(&text), Vec::<String>::new());
    }
}
