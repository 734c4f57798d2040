#!/usr/bin/env bash
# Boots a guest with systemd and udev three times: arrays and mounts are found again, whatever happened to drives.
#
# scripts/guest-boot.sh: makes arrays and file systems, replaces members, boots; boots again without a drive
# that an array counts on. What the guest does at each boot: scripts/guest-boot-steps.sh.
# FURROW_GUEST_BUILT=1: the command is built. Needs root, for the owners of the guest's files.
# The guest is a minimal Debian of this machine's own suite, made by mmdebstrap below the target folder, with the
# kernel of scripts/guest.sh.
. "$(dirname "$0")/lib.sh"
. scripts/guest-lib.sh

guest="$(realpath -m "$target_dir")/guest"
tree="$guest/boot"
mkdir -p "$guest"
for tool in qemu-system-x86_64 cpio xz depmod modprobe mmdebstrap; do
    have "$tool" || fail "missing: $tool. Run: scripts/setup.sh test-guest"
done
find_kernel
[ -n "${FURROW_GUEST_BUILT:-}" ] || cargo build --quiet --locked --package furrow-cli

# The system, once.
if [ ! -e "$guest/boot-base/complete" ]; then
    say "guest: making a minimal Debian with systemd (230 MB, once)"
    rm -rf "$guest/boot-base"
    suite="$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)"
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
        [ ! -f "$file" ] || cat "$file"
    done | mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' \
        --include=systemd-sysv,udev,kmod,e2fsprogs,fuse3,util-linux,file \
        "$suite" "$guest/boot-base" - || fail "mmdebstrap cannot make a system of the suite $suite"
    touch "$guest/boot-base/complete"
fi

rm -rf "$tree"
cp -a "$guest/boot-base" "$tree"
rm -rf "$tree"/var/{lib/apt,cache} "$tree"/usr/share/{doc,locale,man} "$tree/complete"
env DESTDIR="$tree" PREFIX=/usr SBINDIR=/usr/sbin UNITDIR=/usr/lib/systemd/system \
    RULESDIR=/usr/lib/udev/rules.d scripts/install.sh "$target_dir/debug/furrow" >/dev/null
install -m 755 scripts/guest-boot-steps.sh "$tree/usr/sbin/guest-boot-steps"

# The drivers that udev loads, and ublk, which nothing asks for.
mkdir -p "$tree/usr/lib/modules/$version"
[ -e "${modules[0]}/modules.dep" ] || depmod -b "$kernel/usr" "$version"
for module in nvme ublk_drv ext4; do
    modprobe -d "$kernel/usr" -S "$version" --show-depends "$module"
done | while read -r _ file _; do
    to="$tree/usr/lib/modules/$version/${file##*/modules/"$version"/}"
    mkdir -p "$(dirname "$to")"
    xz -dc "$file" >"${to%.xz}"
done
depmod -b "$tree/usr" "$version" 2>/dev/null
echo ublk_drv >"$tree/etc/modules-load.d/furrow.conf"

# What an administrator writes: nothing names a drive.
mkdir -p "$tree"/etc/furrow/raid "$tree"/srv/{tank,pool,data}
echo 'OPTIONS=--ublk --events /run/tank.events --hook /usr/sbin/tell' >"$tree/etc/furrow/raid/tank.conf"
echo 'OPTIONS=--ublk' >"$tree/etc/furrow/raid/pool.conf"
printf '#!/bin/sh\necho "$@" >>/run/tank.hooked\n' >"$tree/usr/sbin/tell"
chmod 755 "$tree/usr/sbin/tell"
cat >"$tree/etc/fstab" <<'END'
/dev/furrow/tank  /srv/tank  ext4         nofail,x-systemd.device-timeout=0,x-systemd.requires=furrow-raid@tank.service   0  0
LABEL=onpool      /srv/pool  fuse.furrow  _netdev,x-systemd.device-timeout=0,x-systemd.requires=furrow-raid@pool.service  0  0
LABEL=data        /srv/data  fuse.furrow  nofail,x-systemd.device-timeout=0                    0  0
END
# An array may take longer to start than systemd waits for a device: here it does, when a member is missing. The
# drive's own line has a timeout only for this, since a busy host may need more than 30 seconds for it.
mkdir -p "$tree/etc/systemd/system.conf.d"
printf '[Manager]\nDefaultDeviceTimeoutSec=30s\n' >"$tree/etc/systemd/system.conf.d/devices.conf"
cat >"$tree/etc/systemd/system/guest-boot-steps.service" <<'END'
[Unit]
# After everything else, as far as it got.
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/usr/sbin/guest-boot-steps
StandardOutput=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=infinity
[Install]
WantedBy=default.target
END
# Says that programs run, before udev and before anything touches a drive.
cat >"$tree/etc/systemd/system/guest-begins.service" <<'END'
[Unit]
DefaultDependencies=no
Before=sysinit.target systemd-udevd.service systemd-udev-trigger.service
[Service]
Type=oneshot
ExecStart=/bin/echo GUEST begins
StandardOutput=tty
TTYPath=/dev/ttyS0
END
mkdir -p "$tree/etc/systemd/system"/{multi-user,default,sysinit}.target.wants
ln -s ../guest-begins.service "$tree/etc/systemd/system/sysinit.target.wants/"
for name in tank pool; do
    ln -s /usr/lib/systemd/system/furrow-raid@.service \
        "$tree/etc/systemd/system/multi-user.target.wants/furrow-raid@$name.service"
done
ln -s ../guest-boot-steps.service "$tree/etc/systemd/system/default.target.wants/"
ln -sf /usr/lib/systemd/system/multi-user.target "$tree/etc/systemd/system/default.target"
ln -sf /dev/null "$tree/etc/systemd/system/systemd-firstboot.service"
ln -sf /dev/null "$tree/etc/systemd/system/serial-getty@ttyS0.service"
echo furrow >"$tree/etc/hostname"
echo 0123456789abcdef0123456789abcdef >"$tree/etc/machine-id"
(cd "$tree" && find . | cpio --quiet -o -H newc) >"$guest/boot-initramfs"

# Nine drives with soft zones, since QEMU forgets the zones of its zoned drives when it ends: four for an array and two that come into it, two for another one, one for a mount.
for number in 0 1 2 3 4 5 6 7 8; do
    [ -z "${FURROW_GUEST_STEP:-}" ] || continue
    rm -f "$guest/boot-drive-$number"
    truncate -s 512M "$guest/boot-drive-$number"
done

# Boots. $1: what the guest is to do; then the numbers of drives, in the order in which they are put in.
boot() {
    local step="$1" console="$guest/boot-$1" number drives=() started=$SECONDS
    shift
    for number in "$@"; do
        drives+=(-drive "file=$guest/boot-drive-$number,if=none,id=file$number,format=raw"
            -device "nvme,drive=file$number,serial=furrow$number,logical_block_size=4096,physical_block_size=4096")
    done
    local more=""
    [ "$step" != make ] || more="fstab=no systemd.mask=furrow-raid@tank.service systemd.mask=furrow-raid@pool.service"
    local try
    for try in 1 2 3; do
        : >"$console"
        timeout "${FURROW_GUEST_TIMEOUT:-900}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 3G \
            -nodefaults -no-reboot -display none -kernel "${modules[0]}/vmlinuz" -initrd "$guest/boot-initramfs" \
            -append "console=ttyS0 quiet panic=-1 rdinit=/lib/systemd/systemd furrow=$step $more" \
            -serial "file:$console" "${drives[@]}" || fail "the guest did not end in order: see $console"
        # Without KVM, QEMU sometimes runs a jump label that the kernel is just patching. If no program has run yet, no
        # drive was touched.
        grep -q '^GUEST begins' "$console" || ! grep -q 'int3' "$console" || [ "$try" = 3 ] && break
        mv "$console" "$console.panic-$try"
        say "guest: the kernel panicked in QEMU before it ran a program: see $console.panic-$try; again"
    done
    tr -d '\r' <"$console" | sed -n '/^GUEST /s/^GUEST //p'
    grep -q '^GUEST end' "$console" || fail "the guest did not get to its end: see $console"
    ! grep -q '^GUEST FAIL' "$console" || fail "a step failed: see $console"
    say "guest: $step, $((SECONDS - started)) s"
}

# FURROW_GUEST_STEP: only this boot, on the drives as the last run left them.
if [ -n "${FURROW_GUEST_STEP:-}" ]; then
    boot "$FURROW_GUEST_STEP" 8 7 6 5 4 3 2 1 0
    exit
fi
boot make 0 1 2 3 4 5 6 7 8
# The drives have other names each time.
boot again 8 7 6 5 4 3 2 1 0
# A dead disk: member 0.
boot without 5 3 8 1 4 6 7 2
