//! Answers the requests that reach an array through its control socket.

use super::ArrayHost;
use crate::raid::metrics;
use crate::raid::request::Request;
use furrow_control::{Handler, Reply};
use furrow_rt::Nanos;
use furrow_zone::{Error, ErrorKind};
use serde_json::{Value, json};
use std::rc::Rc;

/// Longest time in nanoseconds that a stop waits until no client is connected: the server notices
/// only after some time that a client has disconnected.
const LEAVING: u64 = Nanos::SECOND;

impl Handler for ArrayHost {
    type Request = Request;
    type Session = ();

    async fn answer(
        self: Rc<Self>,
        request: Request,
        (): &mut (),
    ) -> std::result::Result<Reply, String> {
        let done = match request {
            Request::Status => {
                let status = serde_json::to_value(self.status());
                return status.map(Reply::from).map_err(|error| error.to_string());
            }
            Request::Metrics => {
                let text = metrics::text(&self.status(), &self.volume.counters());
                return Ok(json!(text + &self.service.metrics(&self.name)).into());
            }
            Request::Stop { force } => return self.end(force).await.map(Reply::from),
            Request::Fault { member, words } => {
                let text = self.fault(member.as_deref(), &words);
                return text.map(Reply::from).map_err(|error| format!("{error:#}"));
            }
            _ if self.stopping.get() => {
                Err(Error::new(ErrorKind::Busy, "the array is being stopped"))
            }
            Request::Fail { member } => self.fail(&member).await,
            Request::Replace { member, device, force } => {
                self.replace(&member, &device, force).await
            }
            Request::AddSpare { device, force } => self.add_spare(&device, force).await,
            Request::Rebuild { pause_us } => self.rebuild(pause_us),
            Request::Scrub { repair } => self.begin_scrub(repair),
            Request::StopScrub => self.stop_scrub(),
            Request::Clear => self.clear(),
        };
        done.map(Reply::from).map_err(|error| error.to_string())
    }

    fn is_over(&self) -> bool {
        self.ended.borrow().is_some()
    }
}

impl ArrayHost {
    /// Stops the array and waits for its end. Unless `force` is set, refuses if clients
    /// are connected.
    async fn end(&self, force: bool) -> std::result::Result<Value, String> {
        let clients = || match force || self.stopping.get() {
            true => 0,
            false => self.service.clients(),
        };
        let until = self.rt.now().after(LEAVING);
        while clients() > 0 && self.rt.now() < until {
            self.rt.sleep(LEAVING / 50).await;
        }
        let clients = clients();
        if clients > 0 {
            return Err(format!(
                "{}: in use by {}: disconnect, or use --force",
                self.name,
                crate::show::count(clients as u64, "client")
            ));
        }
        self.stop.notify_all();
        loop {
            if let Some(result) = self.ended.borrow().clone() {
                return result
                    .map(|()| json!({}))
                    .map_err(|error| format!("{}: stopped, but not cleanly: {error}", self.name));
            }
            self.end.wait().await;
        }
    }
}
