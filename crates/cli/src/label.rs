//! `furrow label`: shows or changes the label of a file system.

use crate::holds::{self, Holds, Needs};
use crate::in_use;
use crate::target::{Target, not_a_device};
use crate::{daemon, show};
use anyhow::{Result, bail};
use furrow_drives::block_devices;
use furrow_fs::{Fs, MountOptions};
use furrow_log::record::check_label;
use furrow_rt::Rt;
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, ZonedDevice};
use std::ffi::OsString;
use std::io::Write;
use std::rc::Rc;

/// Show or change the label of a file system
///
/// fstab and furrow mount find a file system by LABEL=NAME. To change the label, unmount the file
/// system. The change is durable when the command returns; a power failure leaves the old label or
/// the new one.
#[derive(clap::Args)]
pub struct Args {
    /// Device; to show the label, also a mount point
    #[arg(value_name = "DIR|DEVICE")]
    target: OsString,
    /// New label, at most 63 bytes; "" removes the label
    #[arg(value_parser = checked)]
    name: Option<String>,
}

/// Reads a label on the command line.
pub(crate) fn checked(text: &str) -> Result<String, furrow_zone::Error> {
    check_label(text).map(|()| text.to_owned())
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<u8> {
    let target = Target::find(&args.target)?;
    let label = match (&target, &args.name) {
        (Target::Mounted(_), None) => target.status()?.label,
        (Target::Mounted(directory), Some(_)) => {
            return Err(not_a_device(&args.target, directory));
        }
        (Target::Device(device), None) => of(device)?,
        (Target::Device(device), Some(name)) => return change(device, name),
    };
    writeln!(out, "{}", show::printable(&label))?;
    Ok(0)
}

/// The label of the content of a drive.
fn of(device: &str) -> Result<String> {
    let spec: DeviceSpec = device.parse()?;
    let rt = Rt::new(daemon::config()?);
    let drive = in_use::open_now(&rt, &spec, Access::ReadOnly)?;
    let name = drive.name();
    let found = rt.block_on(async move {
        let holds = Holds::of(&*drive).await?;
        Ok::<_, furrow_zone::Error>((holds.identity(&*drive).await?, holds.describe()))
    });
    rt.clear();
    match found? {
        (Some((_, label)), _) => Ok(label),
        (None, holds) => bail!("{name} holds {holds}, which has no label"),
    }
}

fn change(device: &str, label: &str) -> Result<u8> {
    let spec: DeviceSpec = device.parse()?;
    let rt = Rt::new(daemon::config()?);
    let drive = in_use::open_now(&rt, &spec, Access::ReadWrite)?;
    let (engine, label) = (rt.clone(), label.to_owned());
    let done = rt.block_on(async move { set(&engine, drive, &label).await });
    rt.clear();
    done?;
    block_devices::tell_udev(&spec);
    Ok(0)
}

async fn set(rt: &Rt, drive: Rc<dyn ZonedDevice>, label: &str) -> Result<()> {
    match Holds::of(&*drive).await? {
        Holds::Store(..) => bail!(
            "{}: a file store: its label is given by furrow kv mkfs and not changed later",
            drive.name()
        ),
        Holds::Member(examined) => bail!(
            "{}: a drive of the array {}: an array's name is given by furrow raid create and not \
             changed later",
            drive.name(),
            examined.label
        ),
        _ => {}
    }
    let options = MountOptions::default();
    let fs = match Fs::mount(rt, drive.clone(), options).await {
        Err(error) => return Err(holds::explain(&*drive, Needs::FileSystem, error).await.into()),
        Ok(fs) => fs,
    };
    let changed = fs.set_label(label).await;
    // An error of the change takes precedence over an error of the unmount.
    let ended = fs.unmount().await;
    changed?;
    Ok(ended?)
}
