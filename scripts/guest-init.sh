#!/bin/busybox sh
# The guest's first process: loads drivers, runs the parts named on the kernel's command line, and
# turns the guest off. Started by scripts/guest.sh; each line for the host begins with GUEST.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run

echo 1 >/proc/sys/kernel/printk

tell() { echo "GUEST $*"; }

# Loads a module and what it needs. $1: module, then its parameters
load() {
    local module="$1"
    shift
    while read -r name; do
        if [ "$name" = "$module.ko" ]; then insmod "/modules/$name" "$@"; else
            insmod "/modules/$name" 2>/dev/null
        fi
    done <"/modules/order-$module"
}

# Runs a step and reports it. $1: name, then the command
step() {
    local name="$1" begun
    shift
    begun=$(cut -d ' ' -f 1 /proc/uptime)
    if "$@" >/run/out 2>&1; then
        tell "ok   $name ($begun to $(cut -d ' ' -f 1 /proc/uptime) s)"
    else
        tell "FAIL $name"
        sed 's/^/GUEST   /' /run/out | tail -n 40
        dmesg | tail -n 20
    fi
}

# The suite of rules on a drive; differences are shown. $1: device, $2: cases that differ, each
# explained in docs/real-drives.md
conform() {
    step "$1: the rules of zones, $2 cases differ" \
        sh -c "conformance $1 >/run/table && grep -q ', $2 differ' /run/table"
    grep -v '| equal |' /run/table | cut -c 1-300 | sed 's/^/GUEST   /'
}

# The daemon's process id.
pid_of() { furrow df --json "$1" | sed -n 's/^ *"pid": *\([0-9]*\).*/\1/p'; }

# A file system on a drive: made, used, killed, recovered. $1: device, $2: operations of fsx
file_system() {
    step "$1: device show" furrow device show "$1"
    sed 's/^/GUEST   /' /run/out
    step "$1: mkfs" furrow mkfs "$1"
    step "$1: a second mkfs is refused" sh -c "! furrow mkfs $1"
    step "$1: mount" furrow mount "$1" /mnt --log /run/log
    step "$1: in use is refused" sh -c "! furrow device report $1"
    step "$1: fsx, $2 operations" fsx -q -f /fsx.toml -N "$2" -S 1 -P /run /mnt/file
    step "$1: fill and sync" sh -c 'dd if=/dev/urandom of=/mnt/big bs=1M count=60 && sync /mnt/big'
    cat /mnt/file /mnt/big | sha256sum >/run/before
    step "$1: sync" furrow sync /mnt
    kill -9 "$(pid_of /mnt)"
    while stat /mnt/file >/dev/null 2>&1; do sleep 0.2; done
    step "$1: umount after kill" furrow umount /mnt
    step "$1: mount recovers" furrow mount "$1" /mnt --log /run/log
    cat /mnt/file /mnt/big | sha256sum >/run/after
    step "$1: the same bytes after the kill" cmp /run/before /run/after
    step "$1: umount" furrow umount /mnt
    step "$1: fsck" furrow fsck "$1"
}

nvme() {
    conform /dev/nvme0n1 3
    file_system /dev/nvme0n1 2000
}

null() {
    load null_blk zoned=1 nr_devices=1 gb=1 bs=4096 memory_backed=1 zone_size=16 zone_capacity=12 \
        zone_nr_conv=0 zone_max_open=12 zone_max_active=24
    conform /dev/nullb0 3
    file_system /dev/nullb0 500
}

smr() {
    load sd_mod
    load scsi_debug zbc=managed zone_size_mb=16 zone_nr_conv=4 zone_max_open=24 dev_size_mb=1024 \
        sector_size=4096
    sleep 3
    conform /dev/sda 4
    file_system /dev/sda 500
}

# A RAID-5 of four drives over NBD. The host removes one between two writes.
array() {
    local nbd=/dev/nbd0
    load nbd nbds_max=1
    ifconfig lo 127.0.0.1 up
    step "array: check of a member" furrow device check /dev/nvme1n1
    sed 's/^/GUEST   /' /run/out
    step "array: create" furrow raid create --level 5 --name guest \
        /dev/nvme1n1 /dev/nvme2n1 /dev/nvme3n1 /dev/nvme4n1
    step "array: assemble" furrow raid assemble --listen tcp:127.0.0.1:10809 \
        /dev/nvme1n1 /dev/nvme2n1 /dev/nvme3n1 /dev/nvme4n1
    step "array: a client of the kernel" nbd-client -b 4096 -N guest 127.0.0.1 10809 "$nbd"
    dd if=/dev/urandom of=/run/data bs=1M count=64 2>/dev/null
    step "array: write" dd if=/run/data of="$nbd" bs=1M conv=fsync
    # The kernel numbers the drives in the order in which they answer, so the host is told by serial.
    local serial
    serial="$(tr -d ' ' </sys/block/nvme3n1/device/serial)"
    echo "REMOVE nvme${serial#furrow}"
    local wait=0
    while [ -e /dev/nvme3n1 ] && [ "$wait" -lt 30 ]; do sleep 1; wait=$((wait + 1)); done
    step "array: the drive is gone" test ! -e /dev/nvme3n1
    dd if=/dev/urandom of=/run/more bs=1M count=16 2>/dev/null
    step "array: write without it" dd if=/run/more of="$nbd" bs=1M seek=64 conv=fsync
    echo 3 >/proc/sys/vm/drop_caches
    step "array: read without it" sh -c "dd if=$nbd bs=1M count=64 | cmp - /run/data"
    step "array: read what was written since" \
        sh -c "dd if=$nbd bs=1M skip=64 count=16 | cmp - /run/more"
    step "array: status is degraded" sh -c "! furrow raid status >/run/status"
    sed 's/^/GUEST   /' /run/status
    nbd-client -d "$nbd" >/dev/null 2>&1
    step "array: stop" furrow raid stop --force guest
}

load nvme
sleep 2
tell "kernel $(uname -r), drives: $(ls /dev | grep -E '^nvme[0-9]n1$' | tr '\n' ' ')"
parts="$(sed -n 's/.*furrow=\([a-z,]*\).*/\1/p' /proc/cmdline | tr ',' ' ')"
for part in $parts; do "$part"; done
tell end
poweroff -f
