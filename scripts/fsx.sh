#!/usr/bin/env bash
# Runs fsx, a test of file systems, on a mount: scripts/fsx.sh [OPERATIONS] [SEED...]
#
# Each seed is a run on its own file system, with syncs, reopened files, mapped reads and
# writes and dropped caches among the operations; fsx checks every read. Other files fill the drive
# to two thirds, so that cleaning runs all the time; these files are part of the check. Then
# everything must have the same hash after a remount, and again after the daemon was killed and the
# device mounted. FURROW_MOUNT_OPTIONS: options of the mounts, as "writeback_cache".
. "$(dirname "$0")/lib.sh"

operations="${1:-50000}"
options="${FURROW_MOUNT_OPTIONS:-rw}"
shift || true
[ $# -gt 0 ] || set -- 1 2

problem="$(fuse_problem)"
[ -z "$problem" ] || fail "no mount is possible: $problem"
have fsx || fail "missing: fsx. Run: cargo install --locked --version $FSX_VERSION fsx"
# With the features of the other tests, which have built the command already.
build_as_tests
furrow="$target_dir/debug/furrow"

work="$(mktemp -d)"
mount="$work/mnt"
mkdir "$mount"
cleanup() {
    "$furrow" umount -l "$mount" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

hash_of() { cat "$mount/file" "$mount"/ballast/* | sha256sum | cut -d ' ' -f 1; }

# A number of a mount's status.
status_of() { "$furrow" df --json "$mount" | sed -n "s/^ *\"$1\": *\([0-9]*\).*/\1/p"; }

# Fills two thirds of the drive, with files in between that are removed again.
fill() {
    mkdir "$mount/ballast" "$mount/gone"
    local number
    for number in $(seq 160); do
        head -c 2M /dev/urandom >"$mount/ballast/$number"
        head -c 512K /dev/urandom >"$mount/gone/$number"
    done
    "$furrow" sync "$mount"
    rm -r "$mount/gone"
}

number=0
for seed in "$@"; do
    number=$((number + 1))
    # Odd runs in a small file, where operations overlap; even ones in one of many nodes.
    if [ $((number % 2)) -eq 1 ]; then length=262144; else length=16777216; fi
    fsx_configuration "$length" >"$work/fsx.toml"
    rm -f "$work/disk.zns"
    "$furrow" device create "$work/disk.zns" -o capacity=512MiB,zone-size=2MiB >/dev/null
    "$furrow" mkfs "$work/disk.zns" >/dev/null
    "$furrow" mount -o "$options" "$work/disk.zns" "$mount" --log "$work/log"
    fill
    started=$SECONDS
    # Cleaning in the background may find nothing worth it in the seconds that fsx takes.
    "$furrow" gc "$mount" >/dev/null &
    gc=$!
    fsx -q -f "$work/fsx.toml" -N "$operations" -S "$seed" -P "$work" "$mount/file" ||
        fail "fsx found a difference: seed $seed, $operations operations, flen $length"
    seconds=$((SECONDS - started))
    wait "$gc"
    cleaned="$(status_of clean_victims)"
    [ "$cleaned" -gt 0 ] || fail "seed $seed: nothing was cleaned"
    first="$(hash_of)"
    "$furrow" umount "$mount"
    "$furrow" mount -o "$options" "$work/disk.zns" "$mount" --log "$work/log"
    second="$(hash_of)"
    [ "$first" = "$second" ] || fail "seed $seed: hash $first, after a remount $second"
    kill -9 "$(status_of pid)"
    # Waits until the kernel has noticed; the process may remain as a zombie.
    while stat -f "$mount" >/dev/null 2>&1; do sleep 0.05; done
    "$furrow" umount "$mount"
    "$furrow" mount -o "$options" "$work/disk.zns" "$mount" --log "$work/log"
    third="$(hash_of)"
    [ "$first" = "$third" ] || fail "seed $seed: hash $first, after a crash $third"
    "$furrow" umount "$mount"
    "$furrow" fsck "$work/disk.zns" >"$work/fsck" || fail "seed $seed: $(cat "$work/fsck")"
    say "fsx: $operations operations, seed $seed, file up to $length bytes: no difference," \
        "$seconds s; $cleaned superzones cleaned; hash ${first:0:16} equal across a remount and a kill, fsck clean"
done
