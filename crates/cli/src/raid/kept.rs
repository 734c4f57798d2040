//! Block devices that have outlived the daemon of their volume (`--keep`).
//!
//! A kept device holds writes that its volume lacks. These writes belong to the volume as it was
//! when its daemon died. If the volume has been changed since, the writes would overwrite the
//! changes.

use anyhow::{Result, bail};
use furrow_log::Uuid;
use furrow_rt::Rt;
use furrow_ublk::Device;
use furrow_zone::Error;

/// A number that distinguishes the device of this array from those of other arrays.
pub fn key(array: Uuid) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|at| array.0[at]))
}

/// Refuses to change the array `name` while one of its devices waits for the array's daemon.
///
/// # Errors
/// An error if such a device waits, or another process serves such a device.
pub fn refuse(rt: &Rt, name: &str, array: Uuid) -> Result<()> {
    match waiting(rt, array)? {
        None => Ok(()),
        Some(device) => bail!(
            "{name}: {device} waits for it since the daemon was killed, with writes that the array \
             does not have yet: assemble it with --ublk --keep, which takes the device over; or \
             with --drop-kept, which removes the device and loses these writes"
        ),
    }
}

/// The device that waits for the array's daemon, if there is one.
///
/// # Errors
/// An error if another process serves such a device.
pub fn waiting(rt: &Rt, array: Uuid) -> Result<Option<Device>, Error> {
    let engine = rt.clone();
    rt.block_on(async move { furrow_ublk::waiting(&engine, key(array)).await })
}

/// Removes a waiting device, together with the writes that its volume lacks.
///
/// # Errors
/// An error if it cannot be removed.
pub fn discard(rt: &Rt, device: Device) -> Result<(), Error> {
    let engine = rt.clone();
    rt.block_on(async move { furrow_ublk::discard(&engine, device).await })
}
