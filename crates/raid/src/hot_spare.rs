//! Spares of a volume: how a drive becomes a spare, and how a spare takes the place of a
//! failed member.

use crate::format::kind;
use crate::volume::Volume;
use furrow_array::drive::Drive;
use furrow_array::examine::{erase, erase_but, find};
use furrow_array::spare;
use furrow_array::state_ring::Holds;
use furrow_log::Uuid;
use furrow_log::record::{RecordId, seal};
use furrow_rt::Boxed;
use furrow_zone::{Error, ErrorKind, Result, ZonedDevice};
use std::rc::Rc;
use zerocopy::IntoBytes;

impl Volume {
    /// UUIDs of the spares that were given at assembly or added since, and are not used yet.
    pub fn spares(&self) -> Vec<Uuid> {
        self.0.array.spares()
    }

    /// Makes an empty drive a spare, and records that on the drive for later assemblies. A drive
    /// that is a spare of this array already is left unchanged. With `force`, the drive may have
    /// content, which is lost.
    ///
    /// # Errors
    /// `Invalid` if the drive does not fit, `Exists` if it is not empty or is a spare of
    /// another array; in both cases nothing was written. Any other error is one of the drive or
    /// of the volume.
    #[inline(never)]
    pub fn add_spare(&self, device: Rc<dyn ZonedDevice>, force: bool) -> Boxed<'_, Result<Uuid>> {
        Box::pin(async move {
            self.check_alive()?;
            if let Some(uuid) = self.check_spare(&device, force).await? {
                self.0.array.add_spare(uuid);
                return Ok(uuid);
            }
            self.0.array.watch(&device);
            let added = self.make_spare(&device).await;
            // The drive gets no further commands until it becomes a member.
            self.0.array.forget(&device);
            added
        })
    }

    /// Checks that a drive fits, and that it is empty, a spare of this array already, or may lose
    /// its content (`force`). Returns the UUID of a spare of this array.
    pub(crate) async fn check_spare(
        &self,
        device: &Rc<dyn ZonedDevice>,
        force: bool,
    ) -> Result<Option<Uuid>> {
        self.check_replacement(&**device)?;
        self.0.array.watch(device);
        let recorded = self.recorded(&**device).await;
        let checked = match recorded {
            Ok(None) if !force => spare::check_free(&**device).await.map(|()| None),
            recorded => recorded.map(|recorded| recorded.map(|(uuid, _)| uuid)),
        };
        self.0.array.forget(device);
        checked
    }

    async fn make_spare(&self, device: &Rc<dyn ZonedDevice>) -> Result<Uuid> {
        let zones = erase(&**device).await?;
        let drive = Drive::open(
            &self.0.rt,
            device.clone(),
            &zones,
            Holds::Nothing,
            &self.0.options.writer(),
        )?;
        let uuid = Uuid::random(&mut self.0.rt.fork_rng());
        let id = RecordId {
            kind: kind::SPARE,
            epoch: self.0.array.epoch(),
            sequence: 1,
            device: uuid,
            object: self.0.array.uuid(),
            ..RecordId::default()
        };
        let (shape, identity) = (&self.0.shape, self.0.array.identity());
        let body = spare::body(identity, shape.meta.incompat(), shape.blocks);
        drive.write_state(seal(&id, body.as_bytes(), &self.0.pages)).await?;
        self.0.array.add_spare(uuid);
        Ok(uuid)
    }

    /// Replaces the failed member `index` by a spare of this array; the rebuild begins.
    ///
    /// # Errors
    /// `Invalid` if the member has not failed, if the drive does not fit, or if it is not a spare
    /// of this array; then the drive stays what it was. Any other error is one of the drive or of
    /// the volume.
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
        // Erases all zones except the one with the drive's record as a spare: the drive stays a
        // spare until it is a member.
        let zones = erase_but(&**device, Some(ring)).await?;
        let holds = Holds::Record { ring, damaged: false };
        let seated = self.seat(index, device.clone(), &zones, (holds, Some(uuid))).await;
        if seated.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid) {
            self.0.array.add_spare(uuid);
        }
        seated
    }

    /// The UUID of a spare of this array, and the zone of the state ring that holds its record;
    /// `None` if `device` is not a spare of this array.
    async fn recorded(&self, device: &dyn ZonedDevice) -> Result<Option<(Uuid, u32)>> {
        let found = match find(device).await {
            Ok((found, ..)) => found,
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            Err(_) => return Ok(None),
        };
        let uuid = found.header.device;
        // A drive whose UUID is that of a member is a stale image, even if its record says that it
        // is a spare.
        let taken = self.0.array.members().iter().any(|member| member.uuid() == uuid);
        let ours = found.is_spare() && found.header.object == self.0.array.uuid() && !taken;
        Ok(ours.then_some((uuid, found.ring)))
    }
}
