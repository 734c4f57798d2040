//! The control socket of an open store, through which other programs query it.
//!
//! The requests are those of [`furrow_control::store`]. A separate thread serves them on its own
//! executor; like any caller, it only calls the engine, and while it waits for one call it serves
//! other clients. If the socket cannot be made, the store works without it, because a library
//! cannot report that to a user.

use crate::engine::{Source, ask};
use crate::process::{check_fork, config};
use crate::tally::Counted;
use crate::view::{View, Views};
use furrow_control::place::{self, Kind};
use furrow_control::scrub::Scrub;
use furrow_control::socket::Listener;
use furrow_control::store::Request;
use furrow_control::{Handler, Reply, Server};
use furrow_kv::{FileKind, ScrubOrder, ZoneInfo};
use furrow_rt::{Config, Rt, Stopped, either};
use serde_json::{Value, json};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Bytes of a block.
const BLOCK: u64 = 4096;

/// A listening control socket. Dropping it ends its thread and removes the socket.
pub(crate) struct Control {
    /// Shutting this down ends the thread.
    end: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Listens at a new control socket for a store; `None` if that is impossible.
    pub(crate) fn start(of: Source) -> Option<Control> {
        place::make_directory().ok()?;
        // A copy of a drive has the same UUID, so the plain name may be taken.
        let names = [of.uuid.clone(), format!("{}-{}", of.uuid, std::process::id())];
        let bind = |name: String| Listener::bind(&Kind::Store.socket(&name)).ok();
        let listener = names.into_iter().find_map(bind)?;
        let config = config().ok()?;
        let (end, ended) = UnixStream::pair().ok()?;
        let ended = Arc::new(OwnedFd::from(ended));
        let thread = std::thread::Builder::new()
            .name("furrow-control".into())
            .spawn(move || serve(config, listener, of, ended))
            .ok()?;
        Some(Control { end, thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if check_fork().is_err() {
            // The socket and its thread belong to the parent process.
            return;
        }
        // Unlike a write, this raises no signal in the program if the thread has ended.
        let _ = self.end.shutdown(Shutdown::Both);
        if thread.thread().id() != std::thread::current().id() {
            // A panic of the thread was reported already.
            let _ = thread.join();
        }
    }
}

/// Serves clients until `ended` can be read.
fn serve(config: Config, listener: Listener, of: Source, ended: Arc<OwnedFd>) {
    let rt = Rt::new(config);
    let (engine, server) = (rt.clone(), Server::new(&rt, listener));
    let handler = Rc::new(Open { of: Rc::new(of), views: Views::default() });
    rt.block_on(async move {
        let _ = either(engine.readable(ended), server.serve(handler)).await;
    });
    // Ends the connections, and with them their views.
    rt.clear();
}

/// Answers requests about a store.
struct Open {
    of: Rc<Source>,
    views: Views,
}

impl Handler for Open {
    type Request = Request;
    /// The view that the client reads.
    type Session = Option<View>;

    async fn answer(
        self: Rc<Self>,
        request: Request,
        view: &mut Option<View>,
    ) -> Result<Reply, String> {
        let of = &self.of;
        let value = match request {
            Request::Stat => stat(of).await.map_err(|stopped| stopped.to_string())?,
            Request::Zones => zones(of).await?,
            Request::Scrub { order } => {
                let parse = |order: String| {
                    ScrubOrder::parse(&order).ok_or(format!("not a request: scrub {order}"))
                };
                scrub(of, order.map(parse).transpose()?).await?
            }
            Request::Freeze => {
                let (frozen, value) = self.views.freeze(of).await?;
                *view = Some(frozen);
                value
            }
            Request::Read { file, offset, bytes } => {
                let view = view.as_ref().ok_or("freeze a view first")?;
                let bytes = view.read(file, offset, bytes).await?;
                return Ok(Reply { value: json!({ "bytes": bytes.len() }), bytes });
            }
        };
        Ok(value.into())
    }

    /// A client that reads a database may process data for a long time between two requests.
    fn may_rest(&self, view: &Option<View>) -> bool {
        view.is_some()
    }
}

/// The content of each zone, with the numbers of valid blocks by kind in the order
/// of [`FileKind::ALL`].
async fn zones(of: &Source) -> Result<Value, String> {
    let zones = ask(&of.port, |engine| {
        let store = engine.store.clone();
        async move {
            let zones = store.zones().await?;
            Ok::<_, furrow_zone::Error>((zones, store.zone_blocks(), store.kind_of()))
        }
    });
    let (zones, zone_blocks, kinds) =
        zones.await.map_err(|stopped| stopped.to_string())?.map_err(|why| why.to_string())?;
    let each = |zone: &ZoneInfo| {
        let mut by_kind = [0u64; FileKind::ALL.len()];
        for (file, blocks) in &zone.files {
            if let Some(kind) = kinds.get(file) {
                by_kind[*kind as usize] += u64::from(*blocks);
            }
        }
        json!({
            "use": zone.usage.name(),
            "active": zone.active,
            "written": zone.written,
            "valid": zone.valid,
            "kinds": by_kind,
        })
    };
    Ok(json!({
        "zone_blocks": zone_blocks,
        "zones": zones.iter().map(each).collect::<Vec<_>>(),
    }))
}

/// Passes `order`, if there is one, to the store. Returns the running scrub, or the last one, with
/// the same fields as the scrub of a mount.
async fn scrub(of: &Source, order: Option<ScrubOrder>) -> Result<Value, String> {
    let done = ask(&of.port, move |engine| {
        let ordered = order.map_or(Ok(()), |order| engine.store.scrub(order));
        std::future::ready(ordered.map(|()| engine.store.scrub_report()))
    });
    let report =
        done.await.map_err(|stopped| stopped.to_string())?.map_err(|why| why.to_string())?;
    Ok(json!({ "scrub": report.map(Scrub::from) }))
}

/// The state of a store, as `furrow kv stat` shows it for a store in use.
async fn stat(of: &Source) -> Result<Value, Stopped> {
    let (space, did, kinds) = ask(&of.port, |engine| {
        let store = &engine.store;
        std::future::ready((store.space(), store.counters(), store.kinds()))
    })
    .await?;
    let by_kind = FileKind::ALL.iter().zip(kinds).map(|(kind, sum)| {
        json!({
            "kind": kind.name(),
            "files": sum.files,
            "bytes": sum.bytes,
            "disk_bytes": sum.blocks * BLOCK,
            "extents": sum.extents,
            "copied_bytes": did.copied_of[*kind as usize] * BLOCK,
        })
    });
    let operations = Counted::NAMES.map(|(op, name)| {
        let told = of.tally.of(op);
        json!({ "operation": name, "calls": told.calls, "hops": told.hops })
    });
    Ok(json!({
        "version": 1,
        "device": of.device,
        "uuid": of.uuid,
        "label": of.label,
        "process": std::process::id(),
        "size_bytes": space.capacity,
        "used_bytes": space.used,
        "available_bytes": space.available,
        "zones": space.zones,
        "free_zones": space.free_zones,
        "peak_zones": space.peak_zones,
        "kinds": by_kind.collect::<Vec<_>>(),
        "appended_bytes": did.appended,
        "read_bytes": did.read,
        "syncs": did.syncs,
        "rounds": did.rounds,
        "ring_turns": did.turns,
        "zones_cleaned": did.cleaned,
        "zones_reset": did.resets,
        "relocated_extents": did.relocated,
        "waits": did.waits,
        "waited_nanoseconds": did.waited,
        "refused": did.refused,
        "operations": operations,
        "handed_calls": of.tally.handed(),
    }))
}
