//! Commands that make, start, stop and remove devices: calls of `/dev/ublk-control`, which block.

#![allow(unsafe_code, reason = "the kernel reads and writes memory that a ring entry names")]

use crate::abi::{ControlCommand, DeviceInfo, Parameters, STATE_DEAD, control, feature};
use furrow_zone::{Error, ErrorKind};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use zerocopy::IntoBytes as _;

const NODE: &str = "/dev/ublk-control";

/// All ones: no device, or no queue.
const NONE: u32 = u32::MAX;

/// Marks Furrow's devices: "furrow" in `ublksrv_flags`, which the kernel only keeps.
const MARK: u64 = u64::from_le_bytes(*b"furrow\0\0");

/// The control node, opened.
pub(crate) struct Control {
    node: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

impl Control {
    /// Opens the control node.
    ///
    /// # Errors
    /// `Unsupported` if the kernel has no ublk or no io_uring, `Denied`, `Io`.
    pub(crate) fn open() -> Result<Control, Error> {
        let node = OpenOptions::new().read(true).write(true).open(NODE).map_err(|error| {
            let (kind, advice) = match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => (
                    ErrorKind::Unsupported,
                    ": this kernel has no ublk, or has not loaded it: modprobe ublk_drv (Linux \
                     6.6 or later)",
                ),
                Some(Errno::ACCESS | Errno::PERM) => (ErrorKind::Denied, ": run this as root"),
                _ => (ErrorKind::Io, ""),
            };
            Error::new(kind, format!("{NODE}: {error}{advice}"))
        })?;
        let ring = IoUring::builder().build(4).map_err(|error| {
            let what = format!(
                "io_uring: {error}: ublk needs it: allow it (sysctl kernel.io_uring_disabled=0, \
                 and in the container's system call filter)"
            );
            Error::new(ErrorKind::Unsupported, what)
        })?;
        Ok(Control { node, ring })
    }

    /// Sends a command and waits for its answer. The memory that `command` points to belongs to the
    /// caller and must outlive this call.
    fn call(&mut self, number: u32, command: ControlCommand) -> Result<i32, Errno> {
        let mut bytes = [0; 80];
        bytes[..size_of::<ControlCommand>()].copy_from_slice(command.as_bytes());
        let node = types::Fd(self.node.as_raw_fd());
        let entry = opcode::UringCmd80::new(node, number).cmd(bytes).build();
        // SAFETY: this call waits for the answer, and until then the memory that the command names
        // lives and the node stays open.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return Err(Errno::BUSY);
        }
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
                    return Err(Errno::from_raw_os_error(errno));
                }
            }
            if let Some(answer) = self.ring.completion().next() {
                let result = answer.result();
                return if result < 0 {
                    Err(Errno::from_raw_os_error(-result))
                } else {
                    Ok(result)
                };
            }
        }
    }

    /// The features of the kernel's ublk; 0 if the kernel does not report them, because it is older
    /// than 6.5.
    fn features(&mut self) -> u64 {
        let mut features = 0u64;
        let address = (&raw mut features).expose_provenance() as u64;
        let command =
            ControlCommand { device: NONE, queue: !0, length: 8, address, ..Default::default() };
        self.call(control::GET_FEATURES, command).map_or(0, |_| features)
    }

    /// Checks that the kernel has the features `wanted` for a device with or without zones.
    ///
    /// # Errors
    /// `Unsupported` if one is missing.
    fn has(&mut self, wanted: u64, zoned: bool) -> Result<(), Error> {
        if self.features() & wanted == wanted {
            return Ok(());
        }
        let what = match zoned {
            true => "this kernel's ublk has no zones: they need Linux 6.6 or later",
            false => "this kernel's ublk has no user copy: it needs Linux 6.6 or later",
        };
        Err(Error::new(ErrorKind::Unsupported, what))
    }

    /// Makes a device, which has no block device yet. If `number` is `None`, the kernel chooses the
    /// number. With `kept_for` the device outlives its server, and [`Control::kept`] finds the
    /// device by that key.
    ///
    /// # Errors
    /// `Unsupported` if the kernel cannot have such devices; `Denied`; `Exists`; `Io`.
    pub(crate) fn add(
        &mut self,
        number: Option<u32>,
        depth: u16,
        largest: u32,
        zoned: bool,
        kept_for: Option<u64>,
    ) -> Result<DeviceInfo, Error> {
        let mut wanted = feature::USER_COPY;
        if kept_for.is_some() {
            wanted |= feature::RECOVERY | feature::REISSUE;
        }
        if zoned {
            wanted |= feature::ZONED;
        }
        self.has(wanted, zoned)?;
        let device = number.unwrap_or(NONE);
        let mut info = DeviceInfo {
            queues: 1,
            depth,
            largest,
            device,
            pid: std::process::id() as i32,
            features: wanted | feature::IOCTL_NUMBERS,
            mark: kept_for.map_or(MARK, mark_of),
            ..Default::default()
        };
        let command = with_info(device, &mut info);
        self.call(control::ADD, command).map_err(|errno| match (errno, number) {
            (Errno::EXIST, Some(number)) => {
                let what = format!("/dev/ublkb{number}: the number is taken: choose another");
                Error::new(ErrorKind::Exists, what)
            }
            (Errno::PERM | Errno::ACCESS, _) => {
                let what = format!("{NODE}: add a device: {errno}: this needs CAP_SYS_ADMIN");
                Error::new(ErrorKind::Denied, what)
            }
            (Errno::INVAL, _) if zoned => Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{NODE}: add a zoned device: {errno}: a kernel without CONFIG_BLK_DEV_ZONED"
                ),
            ),
            _ => failed("add a device", errno),
        })?;
        if info.features & wanted != wanted {
            let _ = self.delete(info.device);
            let what = format!("{NODE}: the kernel's ublk has not what this device needs");
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        Ok(info)
    }

    /// Sets the properties of a device that is not started.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn set(&mut self, device: u32, parameters: &Parameters) -> Result<(), Error> {
        let command = ControlCommand {
            device,
            queue: !0,
            length: size_of::<Parameters>() as u16,
            address: std::ptr::from_ref(parameters).expose_provenance() as u64,
            ..Default::default()
        };
        match self.call(control::SET_PARAMETERS, command) {
            Ok(_) => Ok(()),
            Err(errno) => Err(failed("set the device's properties", errno)),
        }
    }

    /// Starts a device: its block device appears. The kernel reads from the device before this
    /// call returns.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn start(&mut self, device: u32) -> Result<(), Error> {
        self.serve_from_here(device, control::START, "start the device")
    }

    /// Tells the kernel that this process serves the device.
    fn serve_from_here(&mut self, device: u32, number: u32, what: &str) -> Result<(), Error> {
        let data = u64::from(std::process::id());
        let command = ControlCommand { device, queue: !0, data, ..Default::default() };
        self.call(number, command).map(drop).map_err(|errno| failed(what, errno))
    }

    /// Stops a device: its dirty pages are written, the block device is removed, and every request
    /// that waits for the server is ended.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn stop(&mut self, device: u32) -> Result<(), Error> {
        let command = ControlCommand { device, queue: !0, ..Default::default() };
        match self.call(control::STOP, command) {
            Ok(_) | Err(Errno::NODEV) => Ok(()),
            Err(errno) => Err(failed("stop the device", errno)),
        }
    }

    /// Removes a device, whose character device must be closed already.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn delete(&mut self, device: u32) -> Result<(), Error> {
        let command = ControlCommand { device, queue: !0, ..Default::default() };
        match self.call(control::DELETE, command) {
            Ok(_) | Err(Errno::NODEV) => Ok(()),
            Err(errno) => Err(failed("remove the device", errno)),
        }
    }

    /// The kernel's information on each device that is kept for `key`.
    pub(crate) fn kept(&mut self, key: u64) -> Vec<DeviceInfo> {
        let mark = mark_of(key);
        let infos = all_devices().into_iter().filter_map(|device| self.info(device));
        infos.filter(|info| info.mark == mark).collect()
    }

    /// The kernel's information on a device; `None` if there is no such device.
    pub(crate) fn info(&mut self, device: u32) -> Option<DeviceInfo> {
        let mut info = DeviceInfo::default();
        let command = with_info(device, &mut info);
        self.call(control::GET_INFO, command).is_ok().then_some(info)
    }

    /// The properties of a device.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn parameters(&mut self, device: u32) -> Result<Parameters, Error> {
        let length = size_of::<Parameters>();
        // The kernel fills as many bytes as this length allows.
        let mut parameters = Parameters { length: length as u32, ..Default::default() };
        let command = ControlCommand {
            device,
            queue: !0,
            length: length as u16,
            address: std::ptr::from_mut(&mut parameters).expose_provenance() as u64,
            ..Default::default()
        };
        match self.call(control::GET_PARAMETERS, command) {
            Ok(_) => Ok(parameters),
            Err(errno) => Err(failed("read the device's properties", errno)),
        }
    }

    /// Begins to take over a device that waits for a server. After this, its queue can be opened.
    ///
    /// # Errors
    /// `Busy` while the kernel is still ending the last server; `Io`.
    pub(crate) fn start_recovery(&mut self, device: u32) -> Result<(), Error> {
        let command = ControlCommand { device, queue: !0, ..Default::default() };
        match self.call(control::START_RECOVERY, command) {
            Ok(_) => Ok(()),
            Err(Errno::BUSY) => {
                let what = format!("/dev/ublkb{device}: its last server has not ended");
                Err(Error::new(ErrorKind::Busy, what))
            }
            Err(errno) => Err(failed("take over a device", errno)),
        }
    }

    /// Completes the takeover when the queue is open: from then on requests come.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn end_recovery(&mut self, device: u32) -> Result<(), Error> {
        self.serve_from_here(device, control::END_RECOVERY, "take over a device")
    }

    /// Removes the devices that killed servers of Furrow have left.
    pub(crate) fn remove_left(&mut self) {
        for device in all_devices() {
            let Some(info) = self.info(device) else { continue };
            // A device that was made but not started yet has this state, too, but its server lives.
            if info.mark == MARK && info.state == STATE_DEAD && !is_running(info.pid) {
                let _ = self.delete(device);
            }
        }
    }
}

/// Whether this process can make block devices on this machine, with zones or without.
///
/// # Errors
/// `Unsupported` or `Denied`, each with advice; `Io`.
pub fn available(zoned: bool) -> Result<(), Error> {
    Control::open()?.has(feature::USER_COPY | if zoned { feature::ZONED } else { 0 }, zoned)
}

/// The mark of the device that is kept for `key`.
fn mark_of(key: u64) -> u64 {
    key ^ MARK.rotate_left(8)
}

/// The numbers of all devices.
pub(crate) fn all_devices() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/dev") else { return Vec::new() };
    let number = |name: std::ffi::OsString| {
        name.to_str().and_then(|name| name.strip_prefix("ublkc")?.parse::<u32>().ok())
    };
    entries.flatten().filter_map(|entry| number(entry.file_name())).collect()
}

fn with_info(device: u32, info: &mut DeviceInfo) -> ControlCommand {
    ControlCommand {
        device,
        queue: !0,
        length: size_of::<DeviceInfo>() as u16,
        address: std::ptr::from_mut(info).expose_provenance() as u64,
        ..Default::default()
    }
}

/// Whether a server with the id `pid` runs. The kernel reports -1 for a server that has gone.
fn is_running(pid: i32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

fn failed(what: &str, errno: Errno) -> Error {
    Error::new(ErrorKind::Io, format!("{NODE}: {what}: {errno}"))
}
