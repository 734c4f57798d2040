#!/usr/bin/env bash
# Compares a mount on a timed drive with the drive's model: scripts/realtime.sh [SCALE]
#
# With timing=realtime the emulated drive answers when the drive it models would have. Where this
# host is too slow for that, a time scale makes the drive slower: SCALE times (default 40), for
# everything faster than one small zone. fio writes through FUSE; resets and finishes are timed
# by hand. Prints the model's figure, the measured one, and the ratio.
. "$(dirname "$0")/lib.sh"

scale="${1:-40}"
problem="$(fuse_problem)"
[ -z "$problem" ] || fail "no mount is possible: $problem"
have fio || fail "missing: fio. Install the package fio."
cargo build --release --locked -p furrow-cli
furrow="$target_dir/release/furrow"

mkdir -p "$target_dir"
work="$target_dir/realtime.$$"
mount="$work/mnt"
mkdir -p "$mount"
cleanup() {
    "$furrow" umount -l "$mount" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT

# One line of the result. $1: name, $2: unit, $3: expected, $4: measured
line() {
    awk -v what="$1" -v unit="$2" -v model="$3" -v found="$4" 'BEGIN {
        printf "%-52s %10.2f %10.2f %-6s %7.3f\n", what, model, found, unit, found / model }'
}

# MB/s that fio writes to new files on the mount, including an fsync at the end of each. fio does
# not allocate first: that would write everything twice.
# $1: MiB of each, the rest: files
fio_rate() {
    local size="$1" file jobs=()
    shift
    for file in "$@"; do jobs+=(--name="$file" --filename="$mount/$file"); done
    sync
    fio --fallocate=none --rw=write --bs=1M --size="${size}M" --end_fsync=1 --ioengine=psync --group_reporting \
        --output-format=json --output="$work/fio.json" "${jobs[@]}"
    written
}

# MB/s that fio writes to files on the mount, over 12 s after a warm-up of 4 s.
fio_steady() {
    local file jobs=()
    for file in "$@"; do jobs+=(--name="$file" --filename="$mount/$file"); done
    sync
    fio --fallocate=none --rw=write --bs=1M --size=1G --time_based --ramp_time=4 --runtime=12 --ioengine=psync \
        --group_reporting --output-format=json --output="$work/fio.json" "${jobs[@]}"
    written
}

# Rate of the last run of fio, in MB/s.
written() {
    awk '/"write" :/ { write = 1 } write && /"bw_bytes"/ { gsub(/[^0-9]/, ""); print $0 / 1e6; exit }' \
        "$work/fio.json"
}

# A fresh file system on a timed drive. $1: preset, $2: options, $3: width, $4: options of timing
mounted() {
    rm -f "$work/disk.zns"
    "$furrow" device create "$work/disk.zns" --preset "$1" -o "$2" >/dev/null
    "$furrow" mkfs "$work/disk.zns" --width "$3" >/dev/null
    "$furrow" mount "$work/disk.zns,timing=realtime,$4" "$mount"
}

# Milliseconds of the drive's time that a command to zone 0 takes. $1: scale, the rest: command
zone_time() {
    local slow="$1"
    shift
    "$furrow" device zone "$work/disk.zns,timing=realtime,time-scale=$slow" --json "$@" |
        awk -v slow="$slow" '/"nanoseconds"/ { gsub(/[^0-9]/, ""); print $0 / 1e6 / slow }'
}

printf '%-52s %10s %10s %-6s %7s\n' "" model measured "" ratio

# One zone: each stream has permits for one. A buffer of 24 MiB would drain to the zone before and
# hide the rate, so it is 1 MiB here.
mounted pm1731a zones=64,zone-size=96MiB,max-active=10,max-open=10 1 time-scale=1,model.buffer=1MiB
line "pm1731a, one zone through FUSE, scale 1" MB/s 45 "$(fio_rate 180 file)"
"$furrow" umount "$mount"

# The drive's peak needs 55 zones busy all the time: several superzones of 16. A stream gets them
# after a second of writing, so the first second is not counted. One file, then four.
for files in "one" "one two three four"; do
    mounted pm1731a zones=4096,zone-size=4MiB 16 "time-scale=$scale"
    # shellcheck disable=SC2086 # a list
    line "pm1731a, files at once: $(wc -w <<<"$files"), scale $scale" MB/s \
        "$(awk -v s="$scale" 'BEGIN { print 2440 / s }')" "$(fio_steady $files)"
    "$furrow" umount "$mount"
done

mounted zn540-1t zones=64,zone-size=64MiB 1 "time-scale=$scale"
line "zn540-1t, one zone = its peak, scale $scale" MB/s \
    "$(awk -v s="$scale" 'BEGIN { print 1150 * 1.048576 / s }')" "$(fio_rate 160 file)"
"$furrow" umount "$mount"

# The closed forms of the published measurements, for a zone of 64 MiB that is half full.
rm -f "$work/disk.zns"
"$furrow" device create "$work/disk.zns" --preset zn540-1t \
    -o zones=8,zone-size=64MiB,zone-capacity=64MiB >/dev/null
zone_time 1 write 0 --bytes 32MiB >/dev/null
line "zn540-1t, finish of half a zone of 64 MiB, scale 10" ms \
    "$(awk 'BEGIN { print 2.55 + 32 / 1186 * 1000 }')" "$(zone_time 10 finish 0)"
line "zn540-1t, reset of a zone that held 32 MiB, scale 10" ms \
    "$(awk 'BEGIN { print 1.63 + 13.73 * 32 / 1077 }')" "$(zone_time 10 reset 0)"
