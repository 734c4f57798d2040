# The guest's part `faults`: commands of an SMR disk that time out or fail, and a disk that is gone. Read by
# scripts/guest-init.sh. scsi_debug has the faults (its `error` in debugfs): how often, for which command of
# SCSI, and what becomes of it.

# Commands of SCSI.
write=0x8a
read=0x88
report=0x95

# The next commands do not end: the kernel gives each up after its time-out, and sends it again some times.
# $1: how many, $2: which
hang() { echo "0 -$1 $2" >"$errors"; }

# The next commands end with a lost link (DID_TRANSPORT_FAILFAST), which the kernel passes on at once.
# $1: how many, $2: which
unlink_disk() { echo "2 -$1 $2 0xf 0 0 0 0 0" >"$errors"; }

# The next commands end with a fault of the medium. $1: how many, $2: which, $3: what the disk says of it
spoil() { echo "2 -$1 $2 0 0 2 3 $3 0" >"$errors"; }

# True if all faults that were asked for have come; removes their rules.
came() {
    local rules=0 left=0 kind count command rest
    cat "$errors" >/run/rules
    cat /run/rules
    while read -r kind count command rest; do
        case "$kind" in [0-9]*) ;; *) continue ;; esac
        rules=$((rules + 1))
        left=$((left - count))
        echo "- $kind $command" >"$errors"
    done </run/rules
    [ "$rules" -gt 0 ] && [ "$left" = 0 ]
}

# Writes and syncs 4 MiB while faults come, and reads them back from the disk. $1: name of the file
file_written() {
    dd if=/dev/urandom of=/run/data bs=1M count=4 2>/dev/null &&
        dd if=/run/data of="/mnt/$1" bs=1M conv=fsync && came && file_read "$1" && cp /run/data "/run/$1"
}

# Reads a file back, not from the kernel's cache. $1: name of the file
file_read() {
    echo 3 >/proc/sys/vm/drop_caches
    cmp /run/data "/mnt/$1"
}

# Reads a file from the disk while the link is lost: a new mount has nothing in its cache. $1: name of the file
file_found() {
    furrow umount /mnt && furrow mount "$disk" /mnt --log /run/log || return 1
    unlink_disk 3 $read
    cmp "/run/$1" "/mnt/$1" && came
}

# True if so many zones failed so far. $1: how many
zones_failed() {
    furrow stat --json /mnt >/run/stat
    grep -o '"zone_failures": *[0-9]*' /run/stat
    [ "$(sed -n 's/.*"zone_failures": *\([0-9]*\).*/\1/p' /run/stat | head -n 1)" = "$1" ]
}

# Everything that was written is there.
all_there() {
    local file
    for file in slow given-up link report medium; do cmp "/run/$file" "/mnt/$file" || return 1; done
}

faults() {
    local disk=/dev/sda errors wait=0
    load sd_mod
    [ -e "$disk" ] || load scsi_debug zbc=managed zone_size_mb=16 zone_nr_conv=4 zone_max_open=24 \
        dev_size_mb=1024 sector_size=4096
    sleep 3
    errors="/sys/kernel/debug/scsi_debug/$(basename "$(readlink -f /sys/block/sda/device)")/error"
    step "faults: the disk can have them" test -w "$errors"
    conformance "$disk" 1 1 >/dev/null
    step "faults: mkfs" furrow mkfs "$disk"
    step "faults: mount" furrow mount "$disk" /mnt --log /run/log
    hang 1 $write
    step "faults: a write takes the kernel's time-out of 30 s" file_written slow
    step "faults: no zone is lost" zones_failed 0
    echo 1 >/sys/block/sda/device/timeout
    hang 7 $write
    step "faults: the kernel gives a write up" file_written given-up
    step "faults: no zone is lost" zones_failed 0
    unlink_disk 4 $write
    step "faults: the link is lost for writes" file_written link
    step "faults: no zone is lost" zones_failed 0
    unlink_disk 2 $write
    unlink_disk 3 $report
    step "faults: the link is lost for writes and for reports of zones" file_written report
    step "faults: no zone is lost" zones_failed 0
    # The kernel sends each write six times, and Furrow three times; several are in flight.
    spoil 180 $write 0xc
    step "faults: the medium takes no writes" file_written medium
    step "faults: zones are lost, and nothing else" sh -c "furrow stat --json /mnt | grep '\"zone_failures\": [1-9]' &&
        grep 'zone [0-9]* failed: ' /run/log"
    step "faults: the link is lost for reads" file_found link
    step "faults: all is there" all_there
    step "faults: umount" furrow umount /mnt
    step "faults: fsck" furrow fsck "$disk"
    sed 's/^/GUEST   /' /run/log
    gone
}

# The disk is gone while it is written to, and comes back.
gone() {
    step "gone: mount" furrow mount "$disk" /mnt --log /run/log
    step "gone: write and sync" sh -c "dd if=/run/data of=/mnt/before bs=1M conv=fsync"
    echo 1 >/sys/block/sda/device/delete
    step "gone: a write fails, and does not wait" sh -c \
        "! timeout 60 dd if=/run/data of=/mnt/after bs=1M conv=fsync 2>/run/said && ! grep -i terminated /run/said && cat /run/said"
    sed 's/^/GUEST   /' /run/out
    step "gone: the log says so" grep 'writing has stopped' /run/log
    step "gone: the daemon lives" sh -c "furrow df /mnt"
    step "gone: umount" sh -c "furrow umount /mnt || umount /mnt"
    echo "- - -" >/sys/class/scsi_host/host0/scan
    wait=0
    while ! ls /dev/sd? >/dev/null 2>&1 && [ "$wait" -lt 30 ]; do sleep 1; wait=$((wait + 1)); done
    disk="$(ls /dev/sd? | head -n 1)"
    step "gone: the disk is back, mount" furrow mount "$disk" /mnt --log /run/log
    step "gone: what was synced is there" sh -c "cmp /run/data /mnt/before"
    step "gone: and everything before" all_there
    step "gone: umount again" furrow umount /mnt
    step "gone: fsck" furrow fsck "$disk"
}
