//! Older states of drives: earlier images, and how members are set back to them.

use super::World;
use crate::raid::part::Part;
use crate::simulation::{Summary, on_executor};
use furrow_emu::{Emulator, Options, Snapshot};
use furrow_log::Uuid;
use furrow_raid::{damaged_member, examine};
use furrow_rt::{Rng, Rt};
use furrow_zone::{ErrorKind, ZonedDevice};
use std::rc::Rc;

/// Maximum number of images that a simulation keeps.
const KEPT: usize = 12;

/// The state of all drives at one time.
#[derive(Clone)]
pub(super) struct Image {
    drive: Snapshot,
    /// Value of [`World::lived`] when the image was taken.
    lived: u64,
}

/// A member whose drive is set back to an older image.
pub(super) struct Back {
    pub(super) member: u32,
    /// Number of the member's drive.
    pub(super) part: u32,
    /// Whether the array was assembled after this state was taken, so the drive must not be put
    /// in service.
    pub(super) stale: bool,
    image: usize,
}

impl World {
    /// The drives in their present state, with the power on and without faults.
    pub(super) fn emulator(&self, rt: &Rt) -> Result<Emulator, String> {
        let emulator = Emulator::from_snapshot(rt, &self.drive, Options::simulated());
        emulator.clear_faults(None).map_err(|error| error.to_string())?;
        Ok(emulator)
    }

    /// Keeps images of the end of a life, and of its middle if there is one.
    pub(super) fn keep_images(&mut self, middle: Option<Snapshot>) {
        let lived = self.lived;
        let both = middle.into_iter().chain([self.drive.clone()]);
        self.images.extend(both.map(|drive| Image { drive, lived }));
        let most = self.images.len().saturating_sub(KEPT);
        self.images.drain(..most);
    }

    /// Draws an image of a member; if `stale`, one from before the last assembly.
    pub(super) fn draw_image(&self, member: u32, stale: bool, rng: &mut Rng) -> Option<Back> {
        let part = self.seats[member as usize]?;
        let old = |image: &Image| image.lived < self.lived;
        // The last image is the present state.
        let fit: Vec<usize> = (0..self.images.len().saturating_sub(1))
            .filter(|at| !stale || old(&self.images[*at]))
            .collect();
        // The newest images are the most likely to be mistaken for the present state.
        let last = if rng.one_in(2) { fit.len().min(2) } else { fit.len() } as u64;
        if last == 0 {
            return None;
        }
        let image = fit[fit.len() - 1 - rng.below(last) as usize];
        Some(Back { member, part, stale: old(&self.images[image]), image })
    }

    /// Sets members' drives back. These members do not count as whole any more.
    pub(super) fn put_back(
        &mut self,
        backs: &[Back],
        seed: u64,
        summary: &mut Summary,
    ) -> Result<(), String> {
        let members: Vec<u32> = backs.iter().map(|back| back.member).collect();
        self.doubt(&members, seed, summary)?;
        self.array.older.extend(backs.iter().map(|back| back.part));
        self.drive = on_executor(seed, summary, |rt| {
            let emulator = self.emulator(rt)?;
            let zones = self.array.geometry.zones;
            for Back { part, image, .. } in backs {
                let image = &self.images[*image].drive;
                let done = emulator.put_back(image, part * zones..(part + 1) * zones);
                done.map_err(|error| format!("an image of part {part}: {error}"))?;
            }
            Ok(emulator.snapshot())
        })?;
        Ok(())
    }

    /// Notes that these members may lack data from now on.
    pub(super) fn doubt(
        &mut self,
        members: &[u32],
        seed: u64,
        summary: &mut Summary,
    ) -> Result<(), String> {
        let parts: Vec<u32> = members.iter().filter_map(|m| self.seats[*m as usize]).collect();
        let uuids: Vec<Uuid> = on_executor(seed, summary, |rt| {
            let emulator = self.emulator(rt)?;
            let device: Rc<dyn ZonedDevice> = Rc::new(emulator);
            let all = Part::split(rt, &device, self.array.parts());
            rt.block_on(async move {
                let mut uuids = Vec::new();
                for part in parts {
                    let part = &*all[part as usize];
                    match examine(part).await {
                        Ok(examined) => uuids.push(examined.device),
                        // A drive that a crash kept from becoming a member has no UUID to record.
                        Err(error) if error.kind() == ErrorKind::NotFound => {}
                        // The drive's records are gone with a zone, but its other blocks
                        // identify it.
                        Err(error) if error.kind() == ErrorKind::Corrupt => {
                            let damaged = damaged_member(part).await.map_err(|e| e.to_string())?;
                            let signs = damaged.into_iter().flat_map(|damaged| damaged.signs);
                            uuids.extend(signs.map(|(_, device)| device));
                        }
                        Err(error) => return Err(error.to_string()),
                    }
                }
                Ok(uuids)
            })
        })?;
        self.doubted.extend(uuids);
        self.whole.retain(|member| !members.contains(member));
        Ok(())
    }
}
