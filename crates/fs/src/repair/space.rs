//! Repair of space: rebuilds the SIT from the blocks that nodes lead to, and empties superzones
//! whose summaries are missing or damaged.

use super::{Log, quietly};
use crate::clean::Urgency;
use crate::core::Inner;
use crate::durability::recover::mount;
use crate::format::{HOLE, SitEntry};
use crate::tree::node;
use furrow_log::pool::{SuperzoneId, SuperzoneState};
use furrow_rt::Rt;
use furrow_zone::words::count;
use furrow_zone::{Result, ZonedDevice};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// A segment's map of valid blocks.
type Map = [u8; 64];

/// Makes the SIT show exactly the blocks in use. Nothing except the tables may be dirty.
pub(super) async fn settle(inner: &Rc<Inner>, log: &mut Log) -> Result<()> {
    let maps = maps(inner).await?;
    let core = &mut *inner.core.borrow_mut();
    let (mut entries, mut blocks) = (0, 0);
    for segment in 0..core.alloc.sit().len() {
        let said: SitEntry = core.alloc.sit().get(segment);
        let map = maps.get(&segment).copied().unwrap_or([0; 64]);
        if said.map == map {
            continue;
        }
        let differ = said.map.iter().zip(&map).map(|(a, b)| (a ^ b).count_ones());
        blocks += differ.sum::<u32>();
        entries += 1;
        core.alloc.repair_segment(segment, map);
    }
    if entries > 0 {
        let (entries, blocks) = (count(entries, "entry"), count(blocks.into(), "block"));
        let problem = format!("{entries} wrong about {blocks}");
        log.mended("SIT entry", (0, "all".into()), problem, "rebuilt from the trees");
    }
    core.alloc.count_valid();
    core.durability.require_checkpoint();
    Ok(())
}

/// The blocks in use, as a map for each segment.
async fn maps(inner: &Rc<Inner>) -> Result<BTreeMap<u32, Map>> {
    let mut maps: BTreeMap<u32, Map> = BTreeMap::new();
    let nodes = inner.core.borrow().tables.nat().len();
    for nid in 1..nodes {
        let entry = inner.core.borrow().tables.nat().get(nid);
        if entry.ino.get() == 0 || entry.addr.get() == HOLE {
            continue;
        }
        let page = inner.run(|core| core.node(nid).cloned()).await?;
        let core = inner.core.borrow();
        let mut own = |addr: u32| {
            if let Some((_, segment, block)) = core.alloc.segment_of(addr) {
                maps.entry(segment).or_insert([0; 64])[(block / 8) as usize] |= 1 << (block % 8);
            }
        };
        own(entry.addr.get());
        node::pointers(&page).iter().for_each(|(_, pointer)| own(pointer.addr.get()));
    }
    Ok(maps)
}

/// Moves all valid blocks out of `superzones`, which have a missing or damaged summary.
pub(super) async fn empty(
    rt: &Rt,
    device: Rc<dyn ZonedDevice>,
    superzones: &BTreeSet<u32>,
    log: &mut Log,
) -> Result<()> {
    let inner = mount(rt, device, quietly()).await?;
    let fs = crate::Fs(inner.clone());
    let emptied = async {
        for superzone in superzones {
            let id = SuperzoneId(*superzone);
            leave(&inner, id).await?;
            let done = inner.empty(id, Urgency::Last).await?;
            let action = if done { "blocks in use are moved elsewhere" } else { "not all moved" };
            let problem = "a summary is not right";
            log.mended("summary", (0, format!("superzone {superzone}")), problem, action);
        }
        Ok(())
    };
    if let Err(error) = emptied.await {
        inner.fail(&error);
        let _ = fs.unmount().await;
        return Err(error);
    }
    fs.unmount().await
}

/// Fills the rest of a superzone that is still being written.
async fn leave(inner: &Rc<Inner>, id: SuperzoneId) -> Result<()> {
    let state = inner.core.borrow().alloc.zones().state(id);
    if state != SuperzoneState::Active {
        return Ok(());
    }
    inner.leave_head(id).await
}
