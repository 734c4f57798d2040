//! Replacing a member: which drive may take its place, and which members record this first.

use crate::volume::Volume;
use furrow_array::drive::Drive;
use furrow_array::event::Event;
use furrow_array::examine::{check_empty, erase};
use furrow_array::member::MemberState;
use furrow_array::state_ring::Holds;
use furrow_log::Uuid;
use furrow_rt::Boxed;
use furrow_zone::{Error, ErrorKind, Result, ZoneReport, ZonedDevice};
use std::rc::Rc;

impl Volume {
    /// Replaces the failed member `index` by an empty drive, and starts the rebuild. With `force`,
    /// the drive may have content, which is lost.
    ///
    /// # Errors
    /// `Invalid` if the member has not failed or the drive does not fit, `Exists` if the drive is
    /// not empty. In both cases the array is as before; with `force`, the drive may have been
    /// erased when another drive took the place. Any other error is one of the drive or of
    /// the volume.
    #[inline(never)]
    pub fn replace(
        &self,
        index: u32,
        device: Rc<dyn ZonedDevice>,
        force: bool,
    ) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            self.check_vacant(index)?;
            self.check_replacement(&*device)?;
            if !force {
                check_empty(&*device).await?;
            }
            self.0.array.watch(&device);
            let seated = async {
                let zones = erase(&*device).await?;
                self.seat(index, device.clone(), &zones, (Holds::Nothing, None)).await
            };
            let seated = seated.await;
            if seated.is_err() {
                self.0.array.forget(&device);
            }
            seated
        })
    }

    /// Fails unless member `index` has failed, so that a new drive may take its place.
    pub(crate) fn check_vacant(&self, index: u32) -> Result<()> {
        self.check_alive()?;
        let what = match self.0.array.members().get(index as usize) {
            Some(member) if member.state() == MemberState::Failed => return Ok(()),
            Some(_) => format!("member {index} is in service: fail it first"),
            None => {
                format!(
                    "there is no member {index}: they are 0 to {}",
                    self.0.array.members().len() - 1
                )
            }
        };
        Err(Error::new(ErrorKind::Invalid, what))
    }

    /// Takes an empty drive into service as member `index`, which has failed. The drive gets a new
    /// UUID, unless one is given; `ring` says what its state ring holds.
    pub(crate) async fn seat(
        &self,
        index: u32,
        device: Rc<dyn ZonedDevice>,
        zones: &[ZoneReport],
        (ring, uuid): (Holds, Option<Uuid>),
    ) -> Result<()> {
        let drive = Drive::open(&self.0.rt, device, zones, ring, &self.0.options.writer())?;
        let one = self.state_records().await;
        // Another drive may have taken the place while this one was erased.
        self.check_vacant(index)?;
        self.0.meta.forget();
        // Segments forget the zones of the member's former drive.
        for segment in &mut *self.0.segments.borrow_mut() {
            segment.zones[index as usize] = None;
            segment.rebuilt &= !(1 << index);
        }
        let uuid = uuid.unwrap_or_else(|| Uuid::random(&mut self.0.rt.fork_rng()));
        let former = self.0.array.seat(index, uuid, Rc::new(drive));
        self.space_changed();
        self.leave_unfit();
        // The other members record the replacement first. If only the new drive recorded that it is
        // a member, the others could continue without that drive, and the drive would not find out.
        self.write_state_but(false, Some(index), &one).await;
        drop(one);
        self.write_state(false).await;
        self.failed().map_or(Ok(()), Err)?;
        self.tell(Event::Replaced { member: index, former });
        self.start_rebuild();
        Ok(())
    }

    /// Fails if a drive cannot take the place of a member.
    pub(crate) fn check_replacement(&self, device: &dyn ZonedDevice) -> Result<()> {
        self.0.shape.check_replacement(&self.0.config, device)
    }

    /// Whether the other members in service have all data.
    pub fn can_do_without(&self, index: u32) -> bool {
        self.survives_without(&[index])
    }

    /// Takes a member out of service, as if it had failed. Writes a record to the other members
    /// first, to notice drives that have died since their last command: the array must not count
    /// on them.
    ///
    /// # Errors
    /// `Invalid` if there is no such member, or the array needs it; the volume's error if it cannot
    /// be written.
    #[inline(never)]
    pub fn fail(&self, index: u32) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            self.check_alive()?;
            let exists = (index as usize) < self.0.array.members().len();
            let refuse_needed = || match exists && self.can_do_without(index) {
                true => Ok(()),
                false => {
                    let what = format!("the array cannot do without member {index}");
                    Err(Error::new(ErrorKind::Invalid, what))
                }
            };
            refuse_needed()?;
            let one = self.state_records().await;
            self.write_state_but(false, Some(index), &one).await;
            drop(one);
            self.failures_noted().await?;
            refuse_needed()?;
            self.member_failed(index, Error::new(ErrorKind::Io, "taken out of service"));
            self.failures_noted().await
        })
    }
}
