//! Drives that an engine cannot use are refused when it is made, and nothing is written.

use furrow_emu::{Emulator, Medium, Options};
use furrow_fs::{Fs, MkfsOptions};
use furrow_kv::{FormatOptions, Store};
use furrow_raid::{Config as ArrayConfig, Level, create};
use furrow_rt::{Completion, Config, Rt};
use furrow_zone::{
    BlockCount, ErrorKind, Geometry, Outcome, QueueId, Reports, Request, ZoneId, ZonedDevice,
};
use std::rc::Rc;

/// A drive whose last zone has a smaller capacity than the others.
struct Uneven(Emulator);

impl ZonedDevice for Uneven {
    fn geometry(&self) -> &Geometry {
        self.0.geometry()
    }

    fn submit(&self, queue: QueueId, request: Request) -> Completion<Outcome> {
        self.0.submit(queue, request)
    }

    fn report(&self, first: ZoneId, count: u32) -> Reports<'_> {
        Box::pin(async move {
            let mut reports = self.0.report(first, count).await?;
            let last = ZoneId(self.geometry().zones - 1);
            let smaller = reports.iter_mut().filter(|report| report.zone == last);
            smaller.for_each(|report| report.capacity = BlockCount(60));
            Ok(reports)
        })
    }

    fn oldest(&self) -> Option<u64> {
        self.0.oldest()
    }

    fn give_up(&self) {
        self.0.give_up();
    }

    fn name(&self) -> String {
        "uneven".to_owned()
    }
}

#[test]
fn zones_of_unequal_capacity_are_refused_by_each_engine_before_it_writes() {
    let rt = Rt::new(Config::simulated(1));
    let geometry = Geometry {
        max_open: Some(14),
        max_active: Some(14),
        oob_bytes: 64,
        ..Geometry::unlimited(64, 64, 64)
    };
    let drive = |rt: &Rt| {
        let medium = Medium::memory(&geometry);
        Emulator::new(rt, geometry.clone(), medium, Options::simulated()).unwrap()
    };
    let drives: Vec<Emulator> = (0..3).map(|_| drive(&rt)).collect();
    let (engine, used) = (rt.clone(), drives.clone());
    rt.block_on(async move {
        let uneven =
            |number: usize| -> Rc<dyn ZonedDevice> { Rc::new(Uneven(used[number].clone())) };
        let fs = Fs::format(&engine, uneven(0), &MkfsOptions::default()).await.err();
        let store = Store::format(&engine, uneven(0), &FormatOptions::default()).await.err();
        let config = ArrayConfig::new(Level::Raid5, used[0].geometry());
        let all = (0..3).map(uneven).collect();
        let array = create(&engine, all, &config, &Default::default(), true).await.err();
        for error in [fs, store, array] {
            let error = error.expect("it is refused");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let what = "uneven: zone 63 has a capacity of 60 blocks, but others have 64";
            assert!(error.to_string().contains(what), "{error}");
        }
    });
    assert!(drives.iter().all(|drive| drive.counters().writes + drive.counters().appends == 0));
    rt.clear();
}
