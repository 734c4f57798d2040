# The guest's part `md`: a volume beside Linux md on the same plain drives (docs/research/against-md.md). Read by
# scripts/guest-init.sh.

# What the plain drives were asked so far: bytes written and read; writes, reads, flushes, discards.
drives_asked() {
    cat /sys/block/vd[a-e]/stat | awk '{
        written += $7 * 512; read += $3 * 512; writes += $5; reads += $1; flushes += $16; discards += $12
    } END { printf "%.0f %.0f %d %d %d %d\n", written, read, writes, reads, flushes, discards }'
}

# Ticks of the processor that were not idle.
busy_ticks() { awk '/^cpu /{ print $2 + $3 + $4 + $7 + $8 }' /proc/stat; }

# Requests of fio with a sync of the device at the end, each turn with places of its own, the same for every
# array. Prints the rate; fails if fio did. $1: seed, which fio takes only if it shall not repeat places, $2: KiB of a
# request, $3: requests, then what fio does
requests() {
    local seed="$1" size="$2" count="$3"
    shift 3
    fio --name=requests --filename="$device" --bs="${size}k" --number_ios="$count" --size="${region}M" \
        --randrepeat=0 --randseed="$seed" --ioengine=io_uring --direct=1 --end_fsync=1 --minimal "$@" | tail -n 1 |
        awk -F ';' '{ printf "%d\n", $8 + $49; failed = $5 } END { exit !NR || failed }'
}

# A phase: three turns of requests, and a pause in which the array writes what it puts off. Prints what the drives
# were asked for each byte and request, the rates, and the processor's time. $1: its name, $2: turns, then as for
# requests without the seed
phase() {
    local name="$1" turns="$2" turn=0 before ticks
    shift 2
    : >/run/rates
    before="$(drives_asked)"
    ticks="$(busy_ticks)"
    while [ "$turn" -lt "$turns" ]; do
        turn=$((turn + 1))
        seed=$((seed + 1))
        requests "$seed" "$@" >>/run/rates || tell "FAIL md: $array: $name"
    done
    ticks=$(($(busy_ticks) - ticks))
    sleep 6
    tell "  | $array | $name | $(echo "$before $(drives_asked)" | awk -v requests=$(($2 * turns)) \
        -v bytes=$(($1 * 1024)) -v ticks="$((ticks - idle * turns))" '{
            printf "%.3f | %.3f", ($7 - $1) / requests / bytes, ($8 - $2) / requests / bytes
            for (field = 3; field <= 6; field++) printf " | %.3f", ($(field + 6) - $field) / requests
            printf " | %.0f", ticks * 10000 / requests }') | $(sort -n /run/rates | tr '\n' ' ')|"
}

# The sum of the first 128 MiB, past the kernel's cache.
contents() { /bin/dd if="$device" bs=1M count=128 iflag=direct 2>/dev/null | /bin/cksum; }
same_contents() { contents | cmp - /run/sum; }

# The phases on the first $region MiB of $device. $1: stops the array and assembles it again, $2: compares data with parity, $3: takes a drive out
phases() {
    seed=0
    # What fio takes for its start.
    idle="$(busy_ticks)"
    requests 1 4 1 --rw=randread >/dev/null
    requests 1 4 1 --rw=randread >/dev/null
    idle=$((($(busy_ticks) - idle) / 2))
    phase "1 MiB, first fill" 1 1024 "$region" --rw=write --iodepth=4
    phase "1 MiB" 3 1024 128 --rw=write --iodepth=4
    phase "4 KiB" 3 4 8192 --rw=randwrite --iodepth=16
    phase "4 KiB, sync" 3 4 1024 --rw=randwrite --iodepth=4 --sync=1
    phase "4 KiB read" 3 4 8192 --rw=randread --iodepth=16
    phase "4 KiB, everything once" 1 4 $((region * 256)) --rw=randwrite --iodepth=16
    phase "4 KiB, after that" 3 4 8192 --rw=randwrite --iodepth=16
    contents >/run/sum
    step "md: $array: stop it and assemble it" "$1"
    step "md: $array: data and parity agree" "$2"
    step "md: $array: a drive fails" "$3"
    step "md: $array: the same bytes without it" same_contents
    phase "4 KiB, degraded" 3 4 8192 --rw=randwrite --iodepth=16
    step "md: $array: what is written then is read" fio --name=check --filename="$device" --bs=4k --size="${region}M" \
        --number_ios=2048 --rw=randwrite --iodepth=16 --ioengine=io_uring --direct=1 --verify=crc32c
}

# Empties the plain drives.
plain_drives() {
    local drive
    for drive in /dev/vd[a-e]; do blkdiscard -f "$drive" || return 1; done
}

volume_again() { furrow raid stop plain && furrow raid assemble --ublk --log /run/log /dev/vd[a-d]; }
volume_agrees() { furrow raid scrub plain --wait; }
volume_fails() { furrow raid fail plain 1; }

md_again() {
    local cache
    cache="$(cat /sys/block/md0/md/stripe_cache_size)"
    mdadm --stop $device && mdadm --assemble $device $members &&
        echo "$cache" >/sys/block/md0/md/stripe_cache_size
}
md_agrees() {
    echo check >/sys/block/md0/md/sync_action
    while ! grep -q idle /sys/block/md0/md/sync_action; do sleep 0.5; done
    cat /sys/block/md0/md/last_sync_action /sys/block/md0/md/mismatch_cnt
    grep -qx 0 /sys/block/md0/md/mismatch_cnt
}
md_fails() { mdadm $device --fail /dev/vdb; }

# md as one of the arrays. $1: its name, $2: stripe_cache_size, or "default", then options of mdadm
md_array() {
    local cache="$2"
    array="$1"
    device=/dev/md0
    members="$(echo /dev/vd[a-d])"
    shift 2
    case "$*" in *--write-journal*) members="$members /dev/vde" ;; esac
    step "md: $array: empty drives" plain_drives
    step "md: $array: create" mdadm --create $device --run --level=5 --raid-devices=4 --assume-clean "$@" /dev/vd[a-d]
    [ "$cache" = default ] || echo "$cache" >/sys/block/md0/md/stripe_cache_size
    tell "  $array: $(($(cat /sys/block/md0/size) / 2048)) MiB, chunk $(cat /sys/block/md0/md/chunk_size)," \
        "stripe cache $(cat /sys/block/md0/md/stripe_cache_size)," \
        "$(cat /sys/block/md0/md/consistency_policy), $(cat /sys/block/vda/queue/scheduler)"
    phases md_again md_agrees md_fails
    step "md: $array: stop" mdadm --stop $device
}

# A volume on soft zones as one of the arrays. $1: its name
volume_array() {
    local drive
    array="$1"
    device=/dev/ublkb0
    step "md: $array: empty drives" plain_drives
    for drive in /dev/vd[a-d]; do
        step "md: $array: soft zones on $drive" furrow device create --soft "$drive" --zone-size 4MiB
    done
    step "md: $array: create" furrow raid create --level 5 --name plain /dev/vd[a-d]
    sed 's/^/GUEST   /' /run/out
    step "md: $array: assemble it" furrow raid assemble --ublk --log /run/log /dev/vd[a-d]
    phases volume_again volume_agrees volume_fails
    tell "  memory of the daemon: $(sed -n 's/^VmHWM: *//p' "/proc/$(furrow raid status --json |
        sed -n 's/^ *"pid": *\([0-9]*\).*/\1/p' | head -n 1)/status")"
    step "md: $array: stop" furrow raid stop --force plain
}

# A volume on soft zones beside Linux md, one after the other on the same plain drives. The volume has 467 MiB:
# it is 96 % full, then half full. What is written costs md the same wherever it goes.
md() {
    local array device members idle region seed
    load ublk_drv
    load virtio_blk
    load raid456
    sleep 2
    tell "  | array | phase | written | read | writes | reads | flushes | discards | processor us | a second |"
    region=224
    volume_array "furrow, half full"
    region=448
    volume_array "furrow"
    md_array "md, bitmap" default --chunk=64 --bitmap=internal
    md_array "md, bitmap, cache 4096" 4096 --chunk=64 --bitmap=internal
    md_array "md, ppl" default --chunk=64 --consistency-policy=ppl
    md_array "md, journal" default --chunk=64 --write-journal=/dev/vde
    md_array "md" default --chunk=64 --bitmap=none
}
