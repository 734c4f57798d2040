//! Assembly as a table of steps, up to a volume that recovery takes over.

use super::start;
use crate::checkpoint::state::Image;
use crate::format::RING_ZONES;
use crate::meta::place::MetaPlace;
use crate::options::Options;
use crate::payload::{self, Payload};
use crate::shape::{Config, Shape};
use crate::steps::{self, OF_ASSEMBLY, Step};
use crate::volume::Volume;
use furrow_array::assemble::{Gathered, Seats};
use furrow_array::drive::Drive;
use furrow_array::service::Array;
use furrow_array::watchdog::Watchdog;
use furrow_rt::Rt;
use furrow_zone::{Error, ErrorKind, Result, ZoneReport, ZonedDevice};
use std::rc::Rc;

/// The state that the steps of an assembly share.
pub(crate) struct Assembly {
    rt: Rt,
    watchdog: Watchdog,
    options: Options,
    devices: Vec<Rc<dyn ZonedDevice>>,
    /// Drives that are to become spares after the assembly.
    spares: Vec<Rc<dyn ZonedDevice>>,
    gathered: Gathered,
    opened: Option<Opened>,
}

/// The volume before its recovery, with the reports of its members' zones.
struct Opened {
    volume: Volume,
    zones: Vec<Vec<ZoneReport>>,
    image: Image,
    /// Whether a member lacks a drive although the newest state record has the member in service.
    missing: bool,
    /// Members, as bits, with a damaged record that may be newer than their newest whole
    /// state record.
    unsure: u32,
}

/// The steps of an assembly before its recovery.
pub(crate) const ASSEMBLY: &[Step<Assembly>] = &[
    Step {
        name: "the newest state record of each drive is read",
        run: |assembly| Box::pin(assembly.read_records()),
        audit: |_| Ok(()),
    },
    Step {
        name: "the newest of them says which drive is which member; stale drives are refused",
        run: |assembly| {
            Box::pin(async { assembly.gathered.match_members(assembly.options.accept_loss) })
        },
        audit: |_| Ok(()),
    },
    Step {
        name: "the members' drives are opened",
        run: |assembly| Box::pin(async { assembly.open_drives() }),
        audit: Assembly::audit,
    },
    Step {
        name: "an array is refused if a damaged record said that members continued without others",
        run: |assembly| Box::pin(assembly.refuse_alone()),
        audit: Assembly::audit,
    },
    Step {
        name: "drives to become spares are refused unless they fit and are empty",
        run: |assembly| Box::pin(assembly.check_spares()),
        audit: Assembly::audit,
    },
    Step {
        name: "members without a drive are noted as failed, unless the array needs them",
        run: |assembly| Box::pin(assembly.note_missing()),
        audit: Assembly::audit,
    },
];

/// Tries once to assemble the array. `None` if a drive was gone for a moment and `last` is not set:
/// the caller tries again.
pub(super) async fn put_together(
    rt: &Rt,
    watchdog: &Watchdog,
    devices: &[Rc<dyn ZonedDevice>],
    spares: &[Rc<dyn ZonedDevice>],
    options: &Options,
    last: bool,
) -> Result<Option<Volume>> {
    let mut assembly = Assembly::new(rt, watchdog, devices, spares, options);
    let ready = steps::run(rt, OF_ASSEMBLY, ASSEMBLY, &mut assembly).await;
    let Some(Opened { volume, zones, image, .. }) = assembly.opened else {
        ready?;
        return Err(Error::new(ErrorKind::Internal, "assembly: no step opened the volume"));
    };
    let recovered = match ready {
        Ok(()) => volume.recover(zones, image).await,
        Err(error) => Err(error),
    };
    match recovered {
        // What a drive that was gone for a moment has may be taken for lost by some table.
        recovered if volume.has_missed() && !last => {
            if recovered.is_ok() {
                // The next try must find the drives at rest; whatever fails here fails again there.
                let _ = volume.stop().await;
            }
            return Ok(None);
        }
        recovered => recovered?,
    }
    volume.serve();
    Ok(Some(volume))
}

/// For tests: a volume on which the last steps of recovery have not begun.
#[cfg(test)]
pub(crate) async fn unfinished(
    rt: &Rt,
    devices: Vec<Rc<dyn ZonedDevice>>,
    options: &Options,
) -> Result<Volume> {
    let watchdog = Watchdog::new(rt, 0);
    let mut assembly = Assembly::new(rt, &watchdog, &devices, &[], options);
    steps::run(rt, OF_ASSEMBLY, ASSEMBLY, &mut assembly).await?;
    let Opened { volume, zones, image, .. } = assembly.opened.expect("opened");
    let mut recovery = crate::recover::steps::Recovery::new(&volume, zones, image);
    steps::run(rt, 0, crate::recover::steps::RECOVERY, &mut recovery).await?;
    Ok(volume)
}

impl Assembly {
    fn new(
        rt: &Rt,
        watchdog: &Watchdog,
        devices: &[Rc<dyn ZonedDevice>],
        spares: &[Rc<dyn ZonedDevice>],
        options: &Options,
    ) -> Assembly {
        Assembly {
            rt: rt.clone(),
            watchdog: watchdog.clone(),
            options: options.clone(),
            devices: devices.to_vec(),
            spares: spares.to_vec(),
            gathered: Gathered::default(),
            opened: None,
        }
    }

    fn audit(&self) -> Result<()> {
        self.opened.as_ref().map_or(Ok(()), |opened| opened.volume.audit_members())
    }

    async fn read_records(&mut self) -> Result<()> {
        self.gathered.read(std::mem::take(&mut self.devices), payload::told).await
    }

    fn open_drives(&mut self) -> Result<()> {
        let gathered = std::mem::take(&mut self.gathered);
        let (record, checkpoint, device) = gathered.newest();
        let (identity, device) = (record.identity.clone(), device.clone());
        let payload = Payload::read(record)
            .map_err(|what| Error::new(ErrorKind::Corrupt, what).at(device.name()))?;
        let config = payload.config(&identity);
        let first_zone = device.geometry().conventional_zones + RING_ZONES;
        let shape = payload.shape(record, first_zone).map_err(|error| error.at(device.name()))?;
        let image = payload.image;
        let check = |device: &dyn ZonedDevice| check_device(device, &shape, &config);
        let writer = self.options.writer();
        let seats = gathered.seat(&check, &|device, reports, holds| {
            check(&*device)?;
            Drive::open(&self.rt, device, reports, holds, &writer)
        })?;
        let Seats { members, zones, missing, unsure, spares, counts } = seats;
        let array = Array::new(identity, shape.placement, counts, members, self.watchdog.clone());
        spares.into_iter().for_each(|spare| array.add_spare(spare));
        let at = (checkpoint, image.clone());
        let volume = start(&self.rt, array, (config, shape), &self.options, at);
        self.opened = Some(Opened { volume, zones, image, missing, unsure });
        Ok(())
    }

    async fn refuse_alone(&mut self) -> Result<()> {
        let opened = self.opened.as_ref().filter(|opened| opened.unsure != 0);
        let Some(Opened { volume, zones, image, unsure, .. }) = opened else { return Ok(()) };
        match self.options.accept_loss {
            true => Ok(()),
            false => volume.check_not_alone(zones, image, *unsure).await,
        }
    }

    async fn check_spares(&mut self) -> Result<()> {
        let Some(Opened { volume, .. }) = &self.opened else { return Ok(()) };
        for spare in &self.spares {
            volume.check_spare(spare, false).await?;
        }
        Ok(())
    }

    async fn note_missing(&mut self) -> Result<()> {
        let opened = self.opened.as_ref().filter(|opened| opened.missing);
        let Some(Opened { volume, zones, image, .. }) = opened else { return Ok(()) };
        volume.foresee_in_doubt(zones, image).await?;
        // The record precedes every write that these members lack: otherwise they could come back
        // later as if they had missed nothing.
        volume.write_state(false).await;
        volume.check_alive()
    }
}

fn check_device(device: &dyn ZonedDevice, shape: &Shape, config: &Config) -> Result<()> {
    let geometry = device.geometry();
    let advice = "give drives with more active zones";
    config.check_permits(&format!("{} has", device.name()), geometry, advice)?;
    let capacity = furrow_log::address::blocks_per_zone(geometry);
    if MetaPlace::of(geometry) != shape.meta {
        let than = shape.meta.with_or_without();
        return Err(Error::new(
            ErrorKind::WrongFormat,
            format!(
                "{}: {} out-of-band bytes, the array was made on drives {than} an out-of-band \
                 area: not the drive it says it is, or formatted since",
                device.name(),
                geometry.oob_bytes
            ),
        ));
    }
    if capacity == shape.capacity && geometry.zones >= shape.zones {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::WrongFormat,
        format!(
            "{}: {} zones of {capacity} blocks, the array was made on {} of {}: not the drive it \
             says it is",
            device.name(),
            geometry.zones,
            shape.zones,
            shape.capacity
        ),
    ))
}
