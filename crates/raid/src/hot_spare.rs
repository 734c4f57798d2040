//! Spares: drives that wait for a member to fail.
//!
//! A spare holds one record, in its ring: the array that it is for, and the UUID that it will have
//! as a member. That record stays until the drive has a state record of its own. So at any moment
//! the drive is a member to drives that have recorded it as a member, and a spare to the others:
//! the next assembly completes the change after a crash in between.

use crate::array::member::MemberState;
use crate::assemble::{Examined, Given, check_empty, erase, erase_but, find};
use crate::drive::Drive;
use crate::format::{MemberEntry, SpareBody, kind};
use crate::level::Level;
use crate::state_ring::{Found, Holds};
use crate::volume::Volume;
use furrow_log::Uuid;
use furrow_log::record::{RecordId, seal};
use furrow_rt::Boxed;
use furrow_zone::{Error, ErrorKind, Result, ZonedDevice};
use std::rc::Rc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The content of a spare's record.
///
/// # Errors
/// `Corrupt` if its values are invalid.
pub(crate) fn examined(found: &Found, name: &str) -> Result<Examined> {
    let body = SpareBody::read_from_prefix(&found.body).ok();
    let known = body.and_then(|(body, _)| Some((body, Level::from_byte(body.level)?)));
    let Some((body, level)) = known else {
        return Err(Error::new(ErrorKind::Corrupt, format!("{name}: its record as a spare")));
    };
    let end = body.label.iter().position(|byte| *byte == 0).unwrap_or(body.label.len());
    Ok(Examined {
        array: found.header.object,
        device: found.header.device,
        member: None,
        drives: body.drives.get(),
        level,
        label: String::from_utf8_lossy(&body.label[..end]).into_owned(),
        events: 0,
        blocks: body.blocks.get(),
        created: body.created.get(),
        clean: true,
        members: Vec::new(),
        record: 0,
        known: Vec::new(),
        served: Vec::new(),
        recorded: 0,
        epoch: found.header.epoch.get(),
        checkpoint: 0,
        written_blocks: 0,
        segments: 0,
        damaged: None,
    })
}

/// If a drive that calls itself a spare has become a member, and a crash prevented its own record
/// of that: the index of the member. `None`: it is a spare. `array` is the array of the other
/// drives, with the name of one.
///
/// # Errors
/// `WrongFormat` if it is for another array, `Invalid` if it is stale.
pub(crate) fn seat_of(
    given: &Given,
    (other, array): (&str, Uuid),
    members: &[MemberEntry],
) -> Result<Option<usize>> {
    let (name, header) = (given.device.name(), &given.found.header);
    if header.object != array {
        let what = format!(
            "{name} is a spare of array {}, {other} is of array {array}: leave it out",
            header.object
        );
        return Err(Error::new(ErrorKind::WrongFormat, what));
    }
    let Some(index) = members.iter().position(|member| member.uuid == header.device) else {
        return Ok(None);
    };
    if MemberState::from_byte(members[index].state) == Some(MemberState::Rebuilding) {
        return Ok(Some(index));
    }
    let what = format!(
        "{name} is stale: it was a spare, became member {index}, and the array went on without \
         it: leave it out, and give it back with `furrow raid replace {array} {index} {name} \
         --force`"
    );
    Err(Error::new(ErrorKind::Invalid, what))
}

impl Volume {
    /// Spares given at assembly or added since, and not used yet.
    pub fn spares(&self) -> Vec<Uuid> {
        self.0.array.spares()
    }

    /// Makes an empty drive a spare: it records that, also for the next assembly. A drive that is a
    /// spare of this array already is left unchanged. With `force`, its content is lost.
    ///
    /// # Errors
    /// `Invalid` if it does not fit, `Exists` if it is not empty, or a spare of another array; then
    /// nothing was written.
    #[inline(never)]
    pub fn add_spare(&self, device: Rc<dyn ZonedDevice>, force: bool) -> Boxed<'_, Result<Uuid>> {
        Box::pin(async move {
            self.check_alive()?;
            self.check_replacement(&*device)?;
            self.0.array.watch(&device);
            let added = self.make_spare(&device, force).await;
            // The drive gets no commands until it is a member.
            self.0.array.forget(&device);
            added
        })
    }

    async fn make_spare(&self, device: &Rc<dyn ZonedDevice>, force: bool) -> Result<Uuid> {
        if let Some((uuid, _)) = self.recorded(&**device).await? {
            self.0.array.add_spare(uuid);
            return Ok(uuid);
        }
        if !force {
            check_free(&**device).await?;
        }
        let zones = erase(&**device).await?;
        let drive =
            Drive::open(&self.0.rt, device.clone(), &zones, Holds::Nothing, &self.0.options)?;
        let uuid = Uuid::random(&mut self.0.rt.fork_rng());
        let id = RecordId {
            kind: kind::SPARE,
            epoch: self.0.array.epoch(),
            sequence: 1,
            device: uuid,
            object: self.0.array.uuid(),
            ..RecordId::default()
        };
        drive.write_state(seal(&id, self.spare_body().as_bytes(), &self.0.pages)).await?;
        self.0.array.add_spare(uuid);
        Ok(uuid)
    }

    /// Replaces the failed member `index` by a spare of this array; the rebuild begins.
    ///
    /// # Errors
    /// `Invalid` if the member has not failed, or the drive does not fit or is no spare of this
    /// array; then nothing was written.
    #[inline(never)]
    pub fn take_spare(&self, index: u32, device: Rc<dyn ZonedDevice>) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            self.check_vacant(index)?;
            self.check_replacement(&*device)?;
            self.0.array.watch(&device);
            let taken = self.seat_spare(index, &device).await;
            if taken.is_err() {
                self.0.array.forget(&device);
            }
            taken
        })
    }

    async fn seat_spare(&self, index: u32, device: &Rc<dyn ZonedDevice>) -> Result<()> {
        let Some((uuid, ring)) = self.recorded(&**device).await? else {
            let what = format!("{}: is no spare of this array", device.name());
            return Err(Error::new(ErrorKind::Invalid, what));
        };
        self.0.array.remove_spare(uuid);
        // Erases everything except its record as a spare, which it needs until it is a member.
        let zones = erase_but(&**device, Some(ring)).await?;
        let holds = Holds::Record { ring, damaged: false };
        self.seat(index, device.clone(), &zones, (holds, Some(uuid))).await
    }

    /// The UUID of a spare of this array, and the zone of the ring with its record.
    async fn recorded(&self, device: &dyn ZonedDevice) -> Result<Option<(Uuid, u32)>> {
        let found = match find(device).await {
            Ok((found, ..)) => found,
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            Err(_) => return Ok(None),
        };
        let uuid = found.header.device;
        // A drive that has become a member since is stale, regardless of its record.
        let taken = self.0.array.members().iter().any(|member| member.uuid() == uuid);
        let ours = found.is_spare() && found.header.object == self.0.array.uuid() && !taken;
        Ok(ours.then_some((uuid, found.ring)))
    }

    fn spare_body(&self) -> SpareBody {
        let (shape, config) = (&self.0.shape, &self.0.config);
        let mut body = SpareBody::new_zeroed();
        body.incompat = shape.meta.incompat().into();
        let label = config.label.as_bytes();
        body.label[..label.len()].copy_from_slice(label);
        body.created = self.0.array.identity().created.into();
        body.blocks = shape.blocks.into();
        body.drives = shape.placement.n.into();
        body.level = config.level as u8;
        body
    }
}

/// Refuses a drive that holds data; the error names the array of a spare.
async fn check_free(device: &dyn ZonedDevice) -> Result<()> {
    if let Ok((found, ..)) = find(device).await
        && found.is_spare()
        && let Ok(spare) = examined(&found, &device.name())
    {
        let what = format!(
            "{}: a spare of the array {} ({}): use --force to take it from there",
            device.name(),
            spare.label,
            spare.array
        );
        return Err(Error::new(ErrorKind::Exists, what));
    }
    check_empty(device).await
}
