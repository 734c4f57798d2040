//! Devices that were kept for a volume and wait for their next server.
//!
//! A kept device holds writes that were not carried out: requests that the last server had not
//! answered, and dirty pages of the kernel. These writes belong to the volume as it was when the
//! last server died. If the volume is changed before the device has a new server, the writes
//! overwrite the change. So a program calls [`waiting`] before it changes a volume.

use crate::abi::{DeviceInfo, Parameters, STATE_DEAD, STATE_WAITING, attribute, group};
use crate::backend::Properties;
use crate::control::{Control, all_devices};
use crate::server::{DEPTH, Device, on_thread};
use furrow_rt::{Nanos, Rt};
use furrow_zone::{Error, ErrorKind};

/// Nanoseconds that the kernel may take to notice that a server has gone: before Linux 6.7 it
/// checks every 5 seconds.
const PATIENCE: u64 = 15 * Nanos::SECOND;

/// The device that was kept for `key` and waits for a server. If the server was killed just now,
/// waits until the kernel has noticed. `None` if there is no such device, the kernel has no ublk,
/// or this process may not see the ublk devices.
///
/// # Errors
/// `Busy` if another process serves the device; `Io`.
pub async fn waiting(rt: &Rt, key: u64) -> Result<Option<Device>, Error> {
    if all_devices().is_empty() {
        return Ok(None);
    }
    let mut control = match Control::open() {
        Ok(control) => control,
        Err(error) if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unsupported) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let until = rt.now().after(PATIENCE);
    loop {
        match judge(&control.kept(key)) {
            Kept::Nothing => return Ok(None),
            Kept::Waits(number) => return Ok(Some(Device { number })),
            Kept::Served { number, pid } if rt.now() >= until => {
                let what = format!("/dev/ublkb{number}: process {pid} serves it: end that first");
                return Err(Error::new(ErrorKind::Busy, what));
            }
            Kept::Served { .. } => rt.sleep(10 * Nanos::MILLI).await,
        }
    }
}

/// Removes `device`, which [`waiting`] has found. All requests that wait in the device end
/// with errors.
///
/// # Errors
/// `Io`, or an error of opening `/dev/ublk-control`.
pub async fn discard(rt: &Rt, device: Device) -> Result<(), Error> {
    on_thread(rt, move || {
        let mut control = Control::open()?;
        control.stop(device.number)?;
        control.delete(device.number)
    })
    .await
}

/// The state of the devices that are kept for a volume.
#[derive(Debug, PartialEq, Eq)]
enum Kept {
    Nothing,
    Waits(u32),
    /// A process serves a device, or the kernel has not noticed yet that the process has gone.
    Served {
        number: u32,
        pid: i32,
    },
}

fn judge(kept: &[DeviceInfo]) -> Kept {
    if let Some(info) = kept.iter().find(|info| info.state == STATE_WAITING) {
        return Kept::Waits(info.device);
    }
    // A dead device has no block device, and so holds no writes.
    match kept.iter().find(|info| info.state != STATE_DEAD) {
        Some(info) => Kept::Served { number: info.device, pid: info.pid },
        None => Kept::Nothing,
    }
}

/// Checks that the kept device `number` has the properties of the device that would be made now.
///
/// # Errors
/// `Invalid` if its properties differ; `Io`.
pub(crate) fn check(
    control: &mut Control,
    number: u32,
    properties: &Properties,
) -> Result<(), Error> {
    let info = control.info(number).unwrap_or_default();
    match difference(&info, &control.parameters(number)?, properties) {
        None => Ok(()),
        Some(what) => {
            let advice = "start it as before, by the same version of furrow; or remove the \
                          device, which loses what was not written (furrow raid assemble \
                          --drop-kept)";
            let what = format!("/dev/ublkb{number} was kept with {what}: {advice}");
            Err(Error::new(ErrorKind::Invalid, what))
        }
    }
}

/// The first difference between the kept device and `properties`, as text: "A, not B".
fn difference(info: &DeviceInfo, found: &Parameters, properties: &Properties) -> Option<String> {
    let wanted = properties.parameters();
    let sectors = (found.basic.sectors, wanted.basic.sectors);
    if sectors.0 != sectors.1 {
        return Some(format!("{} sectors, not {}", sectors.0, sectors.1));
    }
    let is_read_only = |of: &Parameters| of.basic.attributes & attribute::READ_ONLY != 0;
    match (is_read_only(found), is_read_only(&wanted)) {
        (true, false) => return Some("--read-only".to_owned()),
        (false, true) => return Some("the right to write, not --read-only".to_owned()),
        _ => {}
    }
    let depth = (info.queues, info.depth);
    if depth != (1, DEPTH) {
        let what = format!("{} queues of {} requests, not 1 of {DEPTH}", depth.0, depth.1);
        return Some(what);
    }
    if info.largest != properties.transfer_bytes {
        let (found, wanted) = (info.largest, properties.transfer_bytes);
        return Some(format!("requests of {found} bytes at most, not {wanted}"));
    }
    // The kernel adds another group of parameters by itself.
    let groups = group::BASIC | group::DISCARD | group::ZONED;
    let same = found.groups & groups == wanted.groups
        && found.basic == wanted.basic
        && found.discard == wanted.discard;
    (!same).then(|| "other properties".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVE: u16 = 1;

    fn info(device: u32, state: u16) -> DeviceInfo {
        DeviceInfo { device, state, pid: 7, queues: 1, depth: DEPTH, ..Default::default() }
    }

    #[test]
    fn a_device_whose_server_has_just_gone_is_not_overlooked() {
        assert_eq!(judge(&[]), Kept::Nothing);
        assert_eq!(judge(&[info(2, STATE_DEAD)]), Kept::Nothing);
        assert_eq!(judge(&[info(2, LIVE)]), Kept::Served { number: 2, pid: 7 });
        assert_eq!(judge(&[info(2, LIVE), info(3, STATE_WAITING)]), Kept::Waits(3));
    }

    #[test]
    fn a_device_is_taken_over_only_if_it_is_the_same() {
        let properties = Properties {
            block_bytes: 4096,
            sectors: 800,
            transfer_bytes: 1 << 20,
            read_only: false,
            volatile_cache: true,
            discards: true,
            zones: None,
        };
        let kept = DeviceInfo { largest: 1 << 20, ..info(2, STATE_WAITING) };
        let mut parameters = properties.parameters();
        // The kernel adds the group with the numbers of the device's nodes.
        parameters.groups |= 1 << 2;
        assert_eq!(difference(&kept, &parameters, &properties), None);
        let says = |kept: &DeviceInfo, change: &dyn Fn(&mut Properties)| {
            let mut changed = properties.clone();
            change(&mut changed);
            difference(kept, &parameters, &changed).unwrap_or_default()
        };
        assert_eq!(says(&kept, &|p| p.sectors = 8), "800 sectors, not 8");
        assert!(says(&kept, &|p| p.read_only = true).contains("not --read-only"));
        assert!(says(&kept, &|p| p.transfer_bytes = 4096).contains("1048576 bytes"));
        assert_eq!(says(&kept, &|p| p.volatile_cache = false), "other properties");
        assert_eq!(says(&kept, &|p| p.discards = false), "other properties");
        let deep = DeviceInfo { depth: 128, ..kept };
        assert!(says(&deep, &|_| {}).contains("128 requests, not 1 of 64"));
    }
}
