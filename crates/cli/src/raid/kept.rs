//! Block devices that have outlived the daemon of their volume (`--keep`).
//!
//! Such a device has writes that the volume does not have yet. A volume that goes on without them
//! must not get them later.

use anyhow::{Result, bail};
use furrow_log::Uuid;
use furrow_rt::Rt;

/// What tells the device of this array from those of others.
pub fn key(array: Uuid) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|at| array.0[at]))
}

/// Refuses to change the array `name` while a device of it waits for its daemon.
///
/// # Errors
/// If one waits, or another process serves one.
pub fn refuse(rt: &Rt, name: &str, array: Uuid) -> Result<()> {
    let engine = rt.clone();
    let waiting = rt.block_on(async move { furrow_ublk::waiting(&engine, key(array)).await });
    match waiting? {
        None => Ok(()),
        Some(device) => bail!(
            "{name}: {device} waits for it since the daemon was killed, with writes that the array \
             does not have yet: assemble it with --ublk --keep, which takes the device over; or \
             with --drop-kept, which removes the device and loses these writes"
        ),
    }
}

/// Removes the device that waits for the daemon of the array. Its number, if there was one.
///
/// # Errors
/// If it cannot be removed, or another process serves it.
pub fn discard(rt: &Rt, array: Uuid) -> Result<Option<furrow_ublk::Device>> {
    let engine = rt.clone();
    Ok(rt.block_on(async move {
        let waiting = furrow_ublk::waiting(&engine, key(array)).await?;
        if let Some(device) = &waiting {
            furrow_ublk::discard(&engine, device.clone()).await?;
        }
        Ok::<_, furrow_zone::Error>(waiting)
    })?)
}
