# The guest's part `streams`: soft zones on a drive with write streams. Read by scripts/guest-init.sh.

# Bytes that each of the 16 reclaim unit handles of a drive has taken, a line each, by what is left of the
# handle's reclaim unit of 16 GiB. $1: device
placed() {
    /bin/nvme fdp status "$1" | awk '/RUAMW/ { printf "%d\n", (4194304 - $NF) * 4096 }'
}

# Says which reclaim unit handle each zone was written in, by the kernel's trace of all writes to a drive.
# True if the journal had the first handle for itself, and each zone one that no other zone had at the same
# time. So short a run resets no zone, which could get another handle then. $1: device, $2: file for the bytes
# of each handle, as `placed` prints them
traced() {
    local first
    # `first` of the superblock (docs/inside/soft-zones-format.md), in blocks.
    first=$(($(dd if="$1" bs=1 skip=144 count=8 2>/dev/null | od -An -t u8)))
    # The first block, one less than the number of blocks, the placement identifier times 65536.
    sed -n "s/.*nvme_setup_cmd: $(basename "$1" n1): .*nvme_cmd_write slba=\([0-9]*\), len=\([0-9]*\), .*dsmgmt=\([0-9]*\).*/\1 \2 \3/p" \
        $trace/trace | awk -v first="$first" -v file="$2" '{
            handle = int($3 / 65536); bytes[handle] += ($2 + 1) * 4096
            if ($1 < first) { journal += handle == 0; wrong += handle != 0; next }
            zone = int(($1 - first) / 4096); wrong += handle == 0
            if (zone in of) { wrong += of[zone] != handle } else { of[zone] = handle; begun[zone] = NR; zones[handle]++ }
            ended[zone] = NR
        } END {
            for (handle = 0; handle < 16; handle++) {
                printf "%d\n", bytes[handle] >file
                if (!zones[handle]) continue
                used++; written += zones[handle]
                printf "handle %d: %d zones, %.1f MB\n", handle, zones[handle], bytes[handle] / 1e6
            }
            for (one in of) {
                now = 0
                for (two in of) if (begun[two] <= begun[one] && begun[one] <= ended[two]) {
                    now++
                    if (one != two && of[one] == of[two]) { print "zones", one, two, "at once in handle", of[one]; wrong++ }
                }
                most = now > most ? now : most
            }
            printf "journal: handle 0, %.1f MB; %d zones in %d handles, at most %d zones at once; %d writes or zones wrong\n",
                bytes[0] / 1e6, written, used, most, wrong
            exit !(journal > 0 && used > 2 && wrong == 0)
        }'
}

# Soft zones on a drive with write streams (FDP).
streams() {
    local drive none queue number trace=/sys/kernel/tracing
    drive="$(drive_of furrow9 nvme)"
    none="$(drive_of furrow10 nvme)"
    queue=/sys/block/${drive##*/}/queue
    mount -t tracefs trace $trace
    echo 32768 >$trace/buffer_size_kb
    step "streams: the kernel has 16 for the drive" grep -x 16 "$queue/max_write_streams"
    step "streams: make soft zones" furrow device create --soft "$drive" --zone-size 16MiB
    placed "$drive" >/run/before
    step "streams: what was made is the journal's" \
        awk 'NR == 1 ? $1 == 0 : $1 > 0 { exit 1 }' /run/before
    step "streams: device check names them" sh -c \
        "furrow device check $drive | grep 'write streams: 16: 1 for the journal, 15 for zones'"
    file_system "$drive" 1000
    placed "$drive" >/run/placed
    echo 1 >$trace/events/nvme/nvme_setup_cmd/enable
    step "streams: mount for files" furrow mount "$drive" /mnt --log /run/log
    for number in 1 2 3 4 5 6; do
        dd if=/dev/urandom of="/mnt/file-$number" bs=1M count=24 conv=fsync 2>/dev/null &
    done
    step "streams: six files at once" wait
    cat /mnt/file-* | sha256sum >/run/before
    step "streams: umount" furrow umount /mnt
    echo 0 >$trace/events/nvme/nvme_setup_cmd/enable
    placed "$drive" | awk 'NR == FNR { before[FNR] = $1; next } { print $1 - before[FNR] }' /run/placed - >/run/taken
    step "streams: the journal and each zone have a handle" traced "$drive" /run/traced
    sed 's/^/GUEST   /' /run/out
    step "streams: the drive says the same of each handle's bytes" cmp /run/taken /run/traced
    step "streams: mount again" furrow mount "$drive" /mnt --log /run/log
    cat /mnt/file-* | sha256sum >/run/after
    step "streams: the same bytes" cmp /run/before /run/after
    step "streams: umount at last" furrow umount /mnt
    step "streams: fsck" furrow fsck "$drive"
    # The kernel refuses writes in streams that the device does not have, or has no more.
    step "streams: another drive has none" grep -x 0 "/sys/block/${none##*/}/queue/max_write_streams"
    echo 4 >/run/four
    mount --bind /run/four "/sys/block/${none##*/}/queue/max_write_streams"
    echo 'res == -22' >$trace/events/io_uring/io_uring_complete/filter
    echo >$trace/trace
    echo 1 >$trace/events/io_uring/io_uring_complete/enable
    step "streams: make soft zones on it, with refused streams" \
        furrow device create --soft "$none" --zone-size 16MiB
    file_system "$none" 300
    step "streams: the kernel refused some writes" grep -c io_uring_complete $trace/trace
    sed 's/^/GUEST   /' /run/out
    echo 0 >$trace/events/io_uring/io_uring_complete/enable
    umount "/sys/block/${none##*/}/queue/max_write_streams"
}
