#!/bin/busybox sh
# The guest's first process: loads drivers, runs the parts named on the kernel's command line, and
# turns the guest off. Started by scripts/guest.sh; each line for the host begins with GUEST.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t debugfs debug /sys/kernel/debug
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

# The cases in which a kind of drive differs from the rules of zones, each explained in docs/inside/drive-tests.md:
# command, state before, what the rules say, what the drive does. $1: the kind
differences() {
    local good='Successful Completion (000h)' transition='Invalid Zone State Transition (1BFh)'
    local unwritten='Deallocated or Unwritten Logical Block (287h)'
    case "$1" in
    null) echo "close | explicitly open | $good | then Empty at 0, not Closed at 0" ;;
    smr)
        echo "close | empty | $transition | answers $good"
        echo "close | explicitly open | $good | then Empty at 0, not Closed at 0"
        echo "close | full | $transition | answers $good"
        echo "open | full | $transition | answers $good"
        ;;
    soft-by-ublk)
        echo "read beyond the pointer | full | $unwritten | answers Unrecovered Read Error (281h)"
        echo "read what is written | full | $unwritten | answers Unrecovered Read Error (281h)"
        ;;
    equal) ;;
    *) echo "no such kind of drive: $1" ;;
    esac
}

# The suite of rules on a drive. It fails if other cases differ than those of the drive's kind. $1: device, $2: kind;
# "equal" differs in none, $3: blocks of which all lengths are a multiple; 1 without it
conform() {
    differences "$2" >/run/known
    step "$1: the rules of zones, $(wc -l </run/known) cases differ, as known" sh -c \
        "conformance $1 1 1500 ${3:-1} >/run/table && sed -n 's/^differs: //p' /run/table >/run/found &&
            diff -u /run/known /run/found"
    grep -v '| equal |' /run/table | grep -v '^differs: ' | cut -c 1-300 | sed 's/^/GUEST   /'
}

# Writes where the kernel's write pointers are wrong; what the kernel does is shown. $1: block device, $2: the
# same drive by its commands, if it has such
pointers_of() {
    step "$1: the kernel's write pointers are not the drive's" pointers "$@"
    sed 's/^/GUEST   /' /run/out
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
    while stat -f /mnt >/dev/null 2>&1; do sleep 0.2; done
    step "$1: umount after kill" furrow umount /mnt
    step "$1: mount recovers" furrow mount "$1" /mnt --log /run/log
    cat /mnt/file /mnt/big | sha256sum >/run/after
    step "$1: the same bytes after the kill" cmp /run/before /run/after
    step "$1: umount" furrow umount /mnt
    step "$1: fsck" furrow fsck "$1"
}

# The node of the drive with this serial number: the kernel numbers drives in the order in which they
# answer. $1: serial, $2: "nvme" or "ng"
drive_of() {
    local one
    for one in /sys/class/nvme/nvme*; do
        if grep -q "^$1 *$" "$one/serial"; then
            echo "/dev/$2${one##*nvme}n1"
        fi
    done
}

nvme() {
    local drive
    drive="$(drive_of furrow0 nvme)"
    pointers_of "$drive"
    conform "$drive" equal
    file_system "$drive" 2000
    # Blocks of 512 bytes.
    drive="$(drive_of furrow8 nvme)"
    conform "$drive" equal
    file_system "$drive" 300
}

null() {
    load null_blk zoned=1 nr_devices=1 gb=1 bs=4096 memory_backed=1 zone_size=16 zone_capacity=12 \
        zone_nr_conv=0 zone_max_open=12 zone_max_active=24
    pointers_of /dev/nullb0
    conform /dev/nullb0 null
    file_system /dev/nullb0 2000
    partitions
}

# A drive with conventional zones and a smaller last zone, and a part of it by device mapper, where zones have
# other places.
mapped() {
    local made=/sys/kernel/config/nullb/nullb8 drive zone=32768
    load null_blk nr_devices=0
    load dm-mod
    mountpoint -q /sys/kernel/config || mount -t configfs config /sys/kernel/config
    mkdir "$made"
    # 62 zones of 16 MiB, and half a zone.
    for setting in size=1000 blocksize=4096 memory_backed=1 zoned=1 zone_size=16 zone_nr_conv=3 \
        zone_max_open=12 zone_max_active=24 power=1; do
        echo "${setting#*=}" >"$made/${setting%%=*}"
    done
    drive=/dev/nullb8
    [ -e "$drive" ] || drive="/dev/nullb$(cat "$made/index")"
    step "mapped: the smaller last zone is left out" sh -c \
        "furrow device show --json $drive | grep -q '\"zones\": 62'"
    conform "$drive" null
    file_system "$drive" 300
    # Two conventional zones and 40 others, from the second zone on.
    echo "0 $((42 * zone)) linear $drive $zone" >/run/map
    step "mapped: by device mapper" dmsetup create --noudevrules --noudevsync map /run/map
    step "mapped: the drive below is in use" sh -c "! furrow mkfs --force $drive"
    step "mapped: 42 zones" sh -c "furrow device show --json /dev/dm-0 | grep -q '\"zones\": 42'"
    conform /dev/dm-0 null
    file_system /dev/dm-0 2000
    step "mapped: remove the map" dmsetup remove --noudevrules --noudevsync map
    # It empties all zones.
    conformance "$drive" 1 1 >/dev/null
    # 40 other zones, and two conventional ones behind them.
    printf '%s\n' "0 $((40 * zone)) linear $drive $((3 * zone))" "$((40 * zone)) $((2 * zone)) linear $drive 0" >/run/map
    step "mapped: conventional zones last" dmsetup create --noudevrules --noudevsync map /run/map
    step "mapped: conventional zones behind others are offline" sh -c \
        "furrow device show --json /dev/dm-0 | grep -q '\"offline\": 2' &&
            furrow device show --json /dev/dm-0 | grep -q '\"conventional_zones\": 0'"
    # The suite of rules needs zones that can be reset.
    file_system /dev/dm-0 300
    step "mapped: remove the map again" dmsetup remove --noudevrules --noudevsync map
}

# Soft zones take the place of partitions, by force, and only of such that nobody uses.
partitions() {
    local made=/sys/kernel/config/nullb/nullb9 drive
    mountpoint -q /sys/kernel/config || mount -t configfs config /sys/kernel/config
    mkdir "$made"
    echo 512 >"$made/size"
    echo 0 >"$made/zoned"
    echo 1 >"$made/memory_backed"
    echo 512 >"$made/blocksize"
    echo 1 >"$made/power"
    # Newer kernels name it as it was made, older ones by its number.
    drive=/dev/nullb9
    [ -e "$drive" ] || drive="/dev/nullb$(cat "$made/index")"
    # One partition of Linux, 450 MiB from sector 2048 on.
    {
        dd if=/dev/zero bs=446 count=1
        printf '\0\0\0\0\203\0\0\0\0\10\0\0\0\20\16\0'
        dd if=/dev/zero bs=48 count=1
        printf '\125\252'
    } 2>/dev/null | dd of="$drive" conv=notrunc 2>/dev/null
    step "partitions: make one on $drive" sh -c "blockdev --rereadpt $drive; test -e ${drive}p1"
    step "partitions: refused" sh -c \
        "! furrow device create --soft $drive 2>/run/said && grep 'it is partitioned (.*p1): delete the partitions, or' /run/said"
    load ext4
    step "partitions: mount it" sh -c "/bin/mke2fs -q -t ext4 ${drive}p1 && mount -t ext4 ${drive}p1 /mnt"
    step "partitions: refused by force, too, while one is mounted" sh -c \
        "! furrow device create --soft --force $drive 2>/run/said && grep 'in use: mounted' /run/said && ls /mnt/lost+found"
    umount /mnt
    step "partitions: soft zones by force" furrow device create --soft --force "$drive" --zone-size 16MiB
    step "partitions: the kernel has forgotten them" test ! -e "${drive}p1"
    file_system "$drive" 300
}

smr() {
    load sd_mod
    # Up to this delay a flush takes no 50 ms; without it a command takes 4 ms.
    load scsi_debug zbc=managed zone_size_mb=16 zone_nr_conv=4 zone_max_open=24 dev_size_mb=1024 \
        sector_size=4096 ndelay=10000
    sleep 3
    conform /dev/sda smr
    file_system /dev/sda 2000
}

# NVMe commands as they are.
passthrough() {
    local plain oob odd slow
    plain="$(drive_of furrow0 ng)"
    oob="$(drive_of furrow5 ng)"
    odd="$(drive_of furrow6 ng)"
    slow="$(drive_of furrow7 ng)"
    step "passthrough: zones of no power of two have no block device" \
        test ! -e "$(drive_of furrow6 nvme)"
    # Another part may have left a file system.
    conformance "$plain" 1 1 >/dev/null
    step "$plain: check" furrow device check "$plain"
    sed 's/^/GUEST   /' /run/out
    pointers_of "$(drive_of furrow0 nvme)" "$plain"
    conform "$plain" equal
    conform "$odd" equal
    # QEMU 7.2 keeps all out-of-band bytes of a command only if they are a multiple of 512; else the
    # first ones, as many as exceed the last multiple, and zeros.
    conform "$oob" equal 8
    file_system "$plain" 1000
    # The suite empties the drive.
    conform "$plain,order=queued" equal
    file_system "$plain,order=queued" 1000
    file_system "$odd" 500
    step "passthrough: its block device is held" sh -c "furrow mount $plain,order=queued /mnt --log /run/log &&
        ! furrow device report $(drive_of furrow0 nvme) && furrow umount /mnt"
    step "passthrough: order=queued is refused for a block device" sh -c \
        "! furrow device show $(drive_of furrow0 nvme),order=queued 2>/run/said && grep 'order=queued is for' /run/said"
    appending_array "$(drive_of furrow1 ng)" "$(drive_of furrow2 ng)" "$(drive_of furrow3 ng)" \
        "$(drive_of furrow4 ng)"
    for drive in "$(drive_of furrow7 nvme)" "$slow" "$slow,order=queued"; do
        step "$drive: in flight" in_flight "$drive" 1000
        sed 's/^/GUEST   /' /run/out
    done
}

# A RAID-5 whose members take appends. $@: four generic devices
appending_array() {
    load ublk_drv
    step "appends: create an array" furrow raid create --level 5 --name appending "$@"
    step "appends: assemble it" furrow raid assemble --ublk --log /run/log "$@"
    dd if=/dev/urandom of=/run/data bs=1M count=64 2>/dev/null
    step "appends: write it" dd if=/run/data of=/dev/ublkb0 bs=1M conv=fsync
    step "appends: small writes" \
        /bin/dd if=/run/data of=/dev/ublkb0 bs=4K count=2000 seek=20000 oflag=direct
    echo 3 >/proc/sys/vm/drop_caches
    step "appends: the same bytes" sh -c "dd if=/dev/ublkb0 bs=1M count=64 | cmp - /run/data"
    step "appends: stop it" furrow raid stop appending
    step "appends: assemble it again" furrow raid assemble --ublk --log /run/log "$@"
    step "appends: the same bytes again" sh -c "dd if=/dev/ublkb0 bs=1M count=64 | cmp - /run/data &&
        dd if=/dev/ublkb0 bs=4K skip=20000 count=2000 >/run/back &&
        dd if=/run/data bs=4K count=2000 | cmp - /run/back"
    step "appends: stop it at last" furrow raid stop appending
    for drive in "$@"; do
        step "appends: empty $drive" conformance "$drive" 1 1
    done
}

# A RAID-5 of four drives over NBD. The host removes one between two writes.
array() {
    local nbd=/dev/nbd0 one two three four
    one="$(drive_of furrow1 nvme)"
    two="$(drive_of furrow2 nvme)"
    three="$(drive_of furrow3 nvme)"
    four="$(drive_of furrow4 nvme)"
    load nbd nbds_max=1
    ifconfig lo 127.0.0.1 up
    step "array: check of a member" furrow device check "$one"
    sed 's/^/GUEST   /' /run/out
    step "array: create" furrow raid create --level 5 --name guest \
        "$one" "$two" "$three" "$four"
    step "array: assemble" furrow raid assemble --listen tcp:127.0.0.1:10809 \
        "$one" "$two" "$three" "$four"
    step "array: a client of the kernel" nbd-client -b 4096 -N guest 127.0.0.1 10809 "$nbd"
    dd if=/dev/urandom of=/run/data bs=1M count=64 2>/dev/null
    step "array: write" dd if=/run/data of="$nbd" bs=1M conv=fsync
    echo "REMOVE nvme3"
    local wait=0
    while [ -e "$three" ] && [ "$wait" -lt 30 ]; do sleep 1; wait=$((wait + 1)); done
    step "array: the drive is gone" test ! -e "$three"
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

# Mounts whose requests come by io_uring, which this machine's owner, the command line, has allowed.
rings() {
    step "rings: they are allowed" grep -q Y /sys/module/fuse/parameters/enable_uring
    mkdir -p /tmp
    mount -t tmpfs tmp /tmp
    # Two need python3 and Perl's modules.
    step "rings: the tests of mounts" sh -c "mounts rings:: --skip they_lead_to_their_files \
        --skip direct_io_and_maps_see_one_file >/run/tests 2>&1"
    grep -A 3 -E 'panicked|^test result' /run/tests | head -n 40 | sed 's/^/GUEST   /'
    step "rings: none was left out" sh -c "! grep 'by io_uring' /run/tests"
    umount /tmp
}

# Starts a server of a block device and waits until it serves. $1: drive, then options
serve() {
    # The last server's line would be taken for this one's.
    rm -f /run/served
    furrow device serve "$@" --ublk >/run/served 2>&1 &
    server=$!
    local wait=0
    while ! grep -qs 'served as' /run/served && [ "$wait" -lt 300 ] && kill -0 "$server" 2>/dev/null; do
        sleep 0.2
        wait=$((wait + 1))
    done
    tell "  $(cat /run/served)"
    grep -q 'served as' /run/served
}

# True once nothing of device $1 is left in /dev.
device_gone() {
    local wait=0
    while [ -e "/dev/ublkb$1" ] && [ "$wait" -lt 100 ]; do sleep 0.2; wait=$((wait + 1)); done
    [ ! -e "/dev/ublkb$1" ]
}

# An emulated drive and a volume as block devices of the kernel.
ublk() {
    local queue=/sys/block/ublkb0/queue image=/run/drive.zns
    furrow device create "$image" -o \
        zones=64,zone-size=16MiB,zone-capacity=12MiB,max-open=14,max-active=28
    step "ublk: without the module it is named" \
        sh -c "! furrow device serve $image --ublk 2>/run/said && grep 'modprobe ublk_drv' /run/said"
    load ublk_drv
    furrow device create /run/odd.zns -o zones=64,zone-size=12MiB
    step "ublk: zones of an odd size are refused" sh -c \
        "! furrow device serve /run/odd.zns --ublk 2>/run/said && grep 'power of two' /run/said"
    step "ublk: serve" serve "$image"
    step "ublk: it is zoned, with the drive's limits" sh -c "grep host-managed $queue/zoned &&
        grep -x 14 $queue/max_open_zones && grep -x 28 $queue/max_active_zones &&
        grep -x 64 $queue/nr_zones && grep -x 32768 $queue/chunk_sectors &&
        grep -x 131072 $queue/zone_append_max_bytes"
    # PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE (linux/sched.h).
    step "ublk: the kernel does not make the server wait for memory that the server's work would free" \
        sh -c "flags=\$(cut -d ' ' -f 9 /proc/$server/stat) && [ \$((flags & 0x180000)) = \$((0x180000)) ]"
    step "ublk: the drive is in use" sh -c "! furrow device show $image"
    conform /dev/ublkb0 equal
    file_system /dev/ublkb0 500
    kill -TERM "$server"
    step "ublk: SIGTERM ends the server in order" wait "$server"
    step "ublk: and removes the device" test ! -e /dev/ublkb0 -a ! -e /dev/ublkc0
    step "ublk: what was written is on the drive" furrow fsck "$image"
    [ ! -e /bin/mkfs.btrfs ] || zoned_btrfs
    soft_zones
    killed_server
    volume_device
}

# A file system of the kernel's on an emulated drive; its data are zone appends.
zoned_btrfs() {
    local image=/run/btrfs.zns
    furrow device create "$image" -o zones=64,zone-size=16MiB,max-open=14,max-active=28
    dd if=/dev/urandom of=/run/data bs=1M count=40 2>/dev/null
    load btrfs
    step "ublk: serve a drive for btrfs" serve "$image"
    step "ublk: mkfs.btrfs, zoned" /bin/mkfs.btrfs -q -f -O zoned /dev/ublkb0
    step "ublk: mount btrfs" mount -t btrfs /dev/ublkb0 /mnt
    step "ublk: files on btrfs" sh -c "cp /run/data /mnt/a && cp -r /modules /mnt/b && sync"
    step "ublk: remove some" sh -c "rm /mnt/b/*.ko && sync"
    step "ublk: umount btrfs" umount /mnt
    kill -TERM "$server"
    step "ublk: the server of btrfs ends in order" wait "$server"
    step "ublk: serve the same drive again" serve "$image"
    step "ublk: mount btrfs again" mount -t btrfs /dev/ublkb0 /mnt
    step "ublk: the same bytes on btrfs" cmp /run/data /mnt/a
    step "ublk: umount btrfs again" umount /mnt
    step "ublk: the drive has what btrfs wrote" furrow device report /dev/ublkb0
    sed 's/^/GUEST   /' /run/out | head -n 12
    kill -TERM "$server"
    step "ublk: the last server ends in order" wait "$server"
    rm "$image"
}

# Soft zones as a zoned block device of the kernel.
soft_zones() {
    local file=/run/plain.soft
    step "ublk: make soft zones" furrow device create --soft "$file" --size 512MiB --zone-size 16MiB
    step "ublk: serve soft zones" serve "$file"
    conform /dev/ublkb0 soft-by-ublk
    file_system /dev/ublkb0 300
    kill -TERM "$server"
    step "ublk: the server of soft zones ends in order" wait "$server"
    step "ublk: what was written is in the file" furrow fsck "$file"
    rm "$file"
}

# A server that is killed while it is written to.
killed_server() {
    local image=/run/slow.zns
    furrow device create "$image" -o zones=64,zone-size=16MiB,zone-capacity=12MiB
    step "ublk: serve a drive that takes time" serve "$image,timing=realtime,time-scale=5000"
    dd if=/dev/zero of=/dev/ublkb0 bs=64K count=100 oflag=direct 2>/run/dd &
    local writer=$!
    sleep 1
    kill -9 "$server"
    wait "$server"
    step "ublk: a killed server's device goes" device_gone 0
    wait "$writer" && tell "FAIL ublk: the writer of a killed server's device ended without an error"
    step "ublk: its writer gets an error" grep 'dd: error writing' /run/dd
    tell "  $(head -n 1 /run/dd)"
    step "ublk: the number is free again" serve "$image"
    step "ublk: it is the same number" grep -q 'as /dev/ublkb0,' /run/served
    kill -INT "$server"
    step "ublk: Ctrl-C ends the server in order" wait "$server"
    step "ublk: and removes the device once more" test ! -e /dev/ublkb0 -a ! -e /dev/ublkc0
}

# A volume whose daemon is killed under a writer and started again.
kept_volume() {
    local device=/dev/ublkb0 writer
    step "ublk: assemble the array, to be kept" furrow raid assemble --ublk --keep --log /run/log \
        /run/d1.zns /run/d2.zns /run/d3.zns /run/d4.zns
    [ ! -e /bin/mke2fs ] || step "ublk: mount ext4 to be kept" mount -t ext4 $device /mnt
    [ -e /bin/mke2fs ] || mkdir -p /mnt
    step "ublk: write without a flush" dd if=/run/data of=/mnt/direct bs=64K count=64 oflag=direct
    (for number in 1 2 3 4 5 6 7 8; do
        dd if=/run/data of="/mnt/kept-$number" bs=1M count=4 conv=fsync || exit 1
    done) 2>/run/dd &
    writer=$!
    sleep 0.5
    kill -9 "$(furrow raid status --json | sed -n 's/^ *"pid": *\([0-9]*\).*/\1/p' | head -n 1)"
    sleep 2
    step "ublk: the device is kept" test -b $device
    tell "  written before the kill: $(grep -c 'records out' /run/dd) of 8 files"
    step "ublk: the volume does not go on without what waits in the device" sh -c \
        "! furrow raid assemble --log /run/log /run/d1.zns /run/d2.zns /run/d3.zns /run/d4.zns \
            2>/run/said && grep '$device waits .*--drop-kept' /run/said"
    step "ublk: nor does a member" sh -c \
        "! furrow device serve /run/d1.zns --ublk 2>/run/said && grep '$device waits' /run/said"
    step "ublk: a device that may be written is not taken over read-only" sh -c \
        "! furrow raid assemble --ublk --keep --read-only --log /run/log \
            /run/d1.zns /run/d2.zns /run/d3.zns /run/d4.zns 2>/run/said &&
            grep 'was kept with .*--read-only' /run/said"
    step "ublk: assemble it once more" furrow raid assemble --ublk --keep --log /run/log \
        /run/d1.zns /run/d2.zns /run/d3.zns /run/d4.zns
    cp /run/out /run/assembled
    sed 's/^/GUEST   /' /run/assembled
    wait "$writer" || tell "FAIL ublk: the writer got an error: $(tail -n 2 /run/dd)"
    step "ublk: it was the same device" grep "$device" /run/assembled
    step "ublk: umount, the writer noticed nothing" umount /mnt
    step "ublk: mount what was kept" mount -t ext4 $device /mnt
    for number in 1 2 3 4 5 6 7 8; do
        dd if=/run/data bs=1M count=4 2>/dev/null | cmp - "/mnt/kept-$number" ||
            tell "FAIL ublk: kept-$number differs"
    done
    step "ublk: what was not flushed was kept" \
        sh -c "dd if=/run/data bs=64K count=64 | cmp - /mnt/direct"
    step "ublk: umount what was kept" umount /mnt
    step "ublk: stop what was kept" furrow raid stop served
    step "ublk: a kept device is removed in order" device_gone 0
    step "ublk: assemble the array, to be dropped" furrow raid assemble --ublk --keep --log /run/log \
        /run/d1.zns /run/d2.zns /run/d3.zns /run/d4.zns
    kill -9 "$(furrow raid status --json | sed -n 's/^ *"pid": *\([0-9]*\).*/\1/p' | head -n 1)"
    # At once: the kernel may not have noticed yet.
    step "ublk: drop what was kept" furrow raid assemble --drop-kept --log /run/log \
        /run/d1.zns /run/d2.zns /run/d3.zns /run/d4.zns
    step "ublk: what was dropped is gone" device_gone 0
    step "ublk: stop the array without its device" furrow raid stop served
}

# A RAID-5 volume as a block device.
volume_device() {
    local device=/dev/ublkb0 number
    for number in 1 2 3 4; do
        furrow device create "/run/d$number.zns" -o zones=32,zone-size=8MiB,max-open=14,max-active=28
    done
    step "ublk: create an array" furrow raid create --level 5 --name served \
        /run/d1.zns /run/d2.zns /run/d3.zns /run/d4.zns
    step "ublk: assemble it" furrow raid assemble --ublk --log /run/log \
        /run/d1.zns /run/d2.zns /run/d3.zns /run/d4.zns
    sed 's/^/GUEST   /' /run/out
    dd if=/dev/urandom of=/run/data bs=1M count=24 2>/dev/null
    step "ublk: it has flush and FUA, discard and write zeroes" \
        sh -c "cd /sys/block/ublkb0/queue; grep -x 'write back' write_cache && grep -x 1 fua &&
            grep -x none zoned && [ \$(cat discard_max_bytes) -gt 0 ] &&
            [ \$(cat write_zeroes_max_bytes) -gt 0 ]"
    step "ublk: write the volume" dd if=/run/data of=$device bs=1M conv=fsync
    echo 3 >/proc/sys/vm/drop_caches
    step "ublk: read it" sh -c "dd if=$device bs=1M count=24 | cmp - /run/data"
    step "ublk: synchronous direct writes (FUA)" \
        /bin/dd if=/run/data of=$device bs=64K count=32 seek=512 oflag=direct,dsync
    step "ublk: read them" sh -c "dd if=$device bs=64K skip=512 count=32 iflag=direct >/run/back &&
        dd if=/run/data bs=64K count=32 | cmp - /run/back"
    step "ublk: discard" blkdiscard -o 1048576 -l 1048576 $device
    step "ublk: what was discarded reads as zeroes" \
        sh -c "dd if=$device bs=1M skip=1 count=1 iflag=direct >/run/back &&
            dd if=/dev/zero bs=1M count=1 | cmp - /run/back"
    step "ublk: write zeroes" /bin/blkdiscard -f -z -o 4194304 -l 65536 $device
    step "ublk: they are zeroes, and their neighbours are not" \
        sh -c "dd if=$device bs=64K skip=64 count=1 iflag=direct >/run/back &&
            dd if=/dev/zero bs=64K count=1 | cmp - /run/back &&
            dd if=$device bs=64K skip=65 count=1 iflag=direct >/run/back &&
            dd if=/run/data bs=64K skip=65 count=1 | cmp - /run/back"
    step "ublk: what is beyond the end is refused" sh -c \
        "! dd if=/run/data of=$device bs=4096 count=1 oflag=direct seek=\$((\$(cat /sys/block/ublkb0/size) / 8))"
    if [ -e /bin/mke2fs ]; then
        load ext4
        step "ublk: mkfs.ext4" /bin/mke2fs -q -t ext4 -F $device
        step "ublk: mount ext4" mount -t ext4 -o discard $device /mnt
        step "ublk: files on ext4" sh -c "cp /run/data /mnt/a && cp -r /modules /mnt/b && sync"
        step "ublk: remove some" sh -c "rm /mnt/b/*.ko && sync && fstrim /mnt"
        step "ublk: umount ext4" umount /mnt
        step "ublk: mount ext4 again" mount -t ext4 $device /mnt
        step "ublk: the same bytes" cmp /run/data /mnt/a
        step "ublk: umount ext4 again" umount /mnt
    fi
    step "ublk: status names the device" sh -c "furrow raid status >/run/status; grep $device /run/status"
    step "ublk: stop the array" furrow raid stop served
    step "ublk: the device is gone" device_gone 0
    step "ublk: assemble the array again" furrow raid assemble --ublk --log /run/log \
        /run/d1.zns /run/d2.zns /run/d3.zns /run/d4.zns
    if [ -e /bin/mke2fs ]; then
        step "ublk: mount ext4 on it" mount -t ext4 $device /mnt
        step "ublk: the same bytes once more" cmp /run/data /mnt/a
        step "ublk: umount ext4 at last" umount /mnt
    fi
    step "ublk: stop it again" furrow raid stop served
    kept_volume
}

# One turn of fio. Prints requests a second, requests of the kernel for each, and the microseconds of
# processor that the daemon and that all programs had for each. $1: device, $2: what fio does, $3: bytes of
# a request, $4: requests at once, $5: the daemon
turn() {
    local name="${1##*/}" asked
    busy() { awk '/^cpu /{ print $2 + $3 + $4 + $7 + $8 }' /proc/stat; }
    own() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }
    sent() { awk '{ print $1 + $5 }' "/sys/block/$1/stat"; }
    set -- "$@" "$(busy)" "$(own "$5")" "$(sent "$name")"
    asked="$(fio --name=turn --filename="$1" --rw="$2" --bs="$3" --iodepth="$4" --ioengine=io_uring \
        --direct=1 --size=128M --time_based --runtime=6 --minimal | tail -n 1)"
    echo "$asked" | awk -F ';' -v ticks="$(($(busy) - $6))" -v own="$(($(own "$5") - $7))" \
        -v sent="$(($(sent "$name") - $8))" '{
            rate = $8 + $49; count = ($6 + $47) * 1024 / SIZE
            printf "%d %.2f %.0f %.0f\n", rate, sent / count, own * 10000 / count, ticks * 10000 / count }' \
        SIZE="$(echo "$3" | sed 's/k/ * 1024/; s/m/ * 1048576/' | while read -r sum; do echo $((sum)); done)"
}

# The same volume by ublk and by NBD, in turn, three times.
transports() {
    local devices=/dev/ublkb0 what daemon round
    load ublk_drv
    load nbd nbds_max=1
    ifconfig lo 127.0.0.1 up
    for number in 1 2 3 4; do
        furrow device create "/run/t$number.zns" -o zones=64,zone-size=4MiB,max-open=14,max-active=28
    done
    step "transports: create an array" furrow raid create --level 5 --name both \
        /run/t1.zns /run/t2.zns /run/t3.zns /run/t4.zns
    step "transports: assemble it" furrow raid assemble --ublk --listen tcp:127.0.0.1:10809 \
        --log /run/log /run/t1.zns /run/t2.zns /run/t3.zns /run/t4.zns
    step "transports: a client of the kernel" nbd-client -b 4096 -N both 127.0.0.1 10809 /dev/nbd0
    daemon="$(furrow raid status --json | sed -n 's/^ *"pid": *\([0-9]*\).*/\1/p' | head -n 1)"
    step "transports: fill" dd if=/dev/urandom of=/dev/ublkb0 bs=1M count=128 oflag=direct
    tell "  requests a second, the kernel's requests for each; processor for each, of the daemon and of all, us"
    for what in "randwrite 4k 16" "randread 4k 16" "randwrite 4k 1" "randread 4k 1" "write 1m 4" "read 1m 4"; do
        for device in /dev/ublkb0 /dev/nbd0; do : >"/run/turns-${device##*/}"; done
        for round in 1 2 3; do
            for device in /dev/ublkb0 /dev/nbd0; do
                turn "$device" $what "$daemon" >>"/run/turns-${device##*/}"
            done
        done
        for device in ublkb0 nbd0; do
            tell "  | $what | $device | $(sort -n "/run/turns-$device" | sed -n 2p | sed 's/ / | /g') | $(
                sort -n "/run/turns-$device" | sed -n '1p;3p' | cut -d ' ' -f 1 | tr '\n' ' ')|"
        done
    done
    nbd-client -d /dev/nbd0 >/dev/null 2>&1
    step "transports: stop" furrow raid stop both
}

# The rules of POSIX on a mount.
posix() {
    local drive
    drive="$(drive_of furrow0 nvme)"
    mkdir -p /run/other /tmp
    chmod 1777 /tmp
    conformance "$drive" 1 1 >/dev/null
    step "posix: mkfs" furrow mkfs "$drive"
    step "posix: mount" furrow mount "$drive" /mnt --log /run/log
    mount -t tmpfs other /run/other
    step "posix: pjdfstest, read-only remounts" pjdfstest -c /remount.toml -p /mnt -s /run/other erofs
    step "posix: pjdfstest" pjdfstest -c /pjdfstest.toml -p /mnt -s /run/other
    grep '^Summary' /run/out | sed 's/^/GUEST   /'
    # A FUSE server cannot tell Linux how many links a file can have.
    awk '$2 == "skipped" { print $1 }' /run/out | grep -v '::erofs_' >/run/skipped
    step "posix: one was skipped, link_count_max" sh -c "echo link::link_count_max | cmp - /run/skipped"
    umount /run/other
    step "posix: umount" furrow umount /mnt
    step "posix: fsck" furrow fsck "$drive"
}

# A drive of an array fails, is replaced and rebuilt.
rebuild() {
    local one two three four five
    one="$(drive_of furrow1 nvme)"
    two="$(drive_of furrow2 nvme)"
    three="$(drive_of furrow3 nvme)"
    four="$(drive_of furrow4 nvme)"
    five="$(drive_of furrow0 nvme)"
    load ublk_drv
    for drive in "$one" "$two" "$three" "$four" "$five"; do conformance "$drive" 1 1 >/dev/null; done
    step "rebuild: create" furrow raid create --level 5 --name mended "$one" "$two" "$three" "$four"
    step "rebuild: assemble" furrow raid assemble --ublk --log /run/log "$one" "$two" "$three" "$four"
    dd if=/dev/urandom of=/run/data bs=1M count=200 2>/dev/null
    step "rebuild: write" dd if=/run/data of=/dev/ublkb0 bs=1M conv=fsync
    step "rebuild: a drive fails" furrow raid fail mended 2
    step "rebuild: write without it" \
        /bin/dd if=/run/data of=/dev/ublkb0 bs=64K count=512 seek=6400 oflag=direct,dsync
    step "rebuild: replace it" furrow raid replace mended 2 "$five"
    step "rebuild: rebuild" furrow raid rebuild mended --pause 0 --wait
    step "rebuild: scrub" furrow raid scrub mended --wait
    step "rebuild: another drive fails" furrow raid fail mended 0
    echo 3 >/proc/sys/vm/drop_caches
    step "rebuild: the same bytes from the new one" sh -c "dd if=/dev/ublkb0 bs=1M count=200 | cmp - /run/data &&
        dd if=/dev/ublkb0 bs=64K skip=6400 count=512 >/run/back && dd if=/run/data bs=64K count=512 | cmp - /run/back"
    step "rebuild: stop" furrow raid stop --force mended
    rm /run/data /run/back
}

# File systems of the kernel on a volume. $1: file system
on_volume() {
    load "$1"
    case "$1" in
    ext4) step "volume: mkfs.ext4" /bin/mke2fs -q -t ext4 -F /dev/ublkb0 ;;
    xfs) step "volume: mkfs.xfs" mkfs.xfs -q -f /dev/ublkb0 ;;
    esac
    step "volume: mount $1" mount -t "$1" -o discard /dev/ublkb0 /mnt
    step "volume: fsx on $1, 5000 operations" fsx -q -f /fsx.toml -N 5000 -S 1 -P /run /mnt/file
    step "volume: files on $1" sh -c "cp -r /modules /mnt/a && cp -r /modules /mnt/b && rm -r /mnt/a && sync && fstrim /mnt"
    step "volume: umount $1" umount /mnt
    step "volume: stop the array below $1" furrow raid stop served
    step "volume: assemble it again" furrow raid assemble --ublk --log /run/log "$one" "$two" "$three" "$four"
    [ "$1" != ext4 ] || step "volume: e2fsck" e2fsck -fn /dev/ublkb0
    step "volume: mount $1 again" mount -t "$1" /dev/ublkb0 /mnt
    step "volume: the same files on $1" sh -c 'for file in /modules/*; do cmp "$file" "/mnt/b/${file##*/}" || exit 1; done'
    step "volume: umount $1 again" umount /mnt
}

volume() {
    local one two three four
    one="$(drive_of furrow1 nvme)"
    two="$(drive_of furrow2 nvme)"
    three="$(drive_of furrow3 nvme)"
    four="$(drive_of furrow4 nvme)"
    load ublk_drv
    for drive in "$one" "$two" "$three" "$four"; do conformance "$drive" 1 1 >/dev/null; done
    step "volume: create" furrow raid create --level 5 --name served "$one" "$two" "$three" "$four"
    step "volume: assemble" furrow raid assemble --ublk --log /run/log "$one" "$two" "$three" "$four"
    on_volume ext4
    on_volume xfs
    step "volume: scrub" furrow raid scrub served --wait
    step "volume: stop" furrow raid stop served
}

# Stock RocksDB on a store.
store() {
    local drive found
    drive="$(drive_of furrow0 nvme)"
    mkdir -p /tmp
    conformance "$drive" 1 1 >/dev/null
    step "store: kv mkfs" furrow kv mkfs "$drive"
    step "store: db_bench" furrow run --store "$drive" --policy baza --same-victim -- /bin/db_bench \
        --benchmarks=fillseq,overwrite,readrandom --db=/bench --num=4000 --reads=500 --threads=1 --seed=7 \
        --value_size=8192 --enable_blob_files=true --min_blob_size=1024 --blob_file_size=1048576 \
        --enable_blob_garbage_collection=true --write_buffer_size=1048576 --compression_type=none
    grep 'ops/sec' /run/out | sed 's/^/GUEST   /'
    step "store: fsck" furrow kv fsck "$drive"
    step "store: ldb reads it" sh -c "furrow run --store $drive -- /bin/ldb --db=/bench scan --hex >/run/keys"
    found="$(grep -c '^0x' /run/keys)"
    step "store: all keys are there, $found" test "$found" = 4000
}

load nvme
sleep 2
tell "kernel $(uname -r), drives: $(ls /dev | grep -E '^nvme[0-9]n1$' | tr '\n' ' ')"
parts="$(sed -n 's/.*furrow=\([a-z,]*\).*/\1/p' /proc/cmdline | tr ',' ' ')"
for part in $parts; do
    [ ! -e "/parts/$part" ] || . "/parts/$part"
    "$part"
done
tell end
poweroff -f
