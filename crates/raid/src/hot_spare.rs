//! Spares of a volume: how one is made, and how it takes the place of a failed member.

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
            spare::check_free(&**device).await?;
        }
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
}
