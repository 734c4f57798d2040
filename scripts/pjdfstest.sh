#!/usr/bin/env bash
# Runs pjdfstest, a test of the POSIX rules for file systems, on a mount: scripts/pjdfstest.sh
#
# The whole suite runs: with a second file system, users without permission, and the optional parts
# of Linux. Tests that remount read-only run separately, as earlier tests leave files open that
# forbid it.
# A skipped test fails the run unless docs/HACKING.md lists it. FURROW_MOUNT_OPTIONS: options of the
# mount, as "writeback_cache".
. "$(dirname "$0")/lib.sh"

# A FUSE server cannot tell Linux how many links a file can have: a test of the library makes
# 65,535.
may_skip="link::link_count_max"

options="${FURROW_MOUNT_OPTIONS:-rw}"
# With a write-back cache the kernel stamps changes by its tick of up to 10 ms.
case "$options" in *writeback_cache*) nap=0.02 ;; *) nap=0.001 ;; esac

problem="$(fuse_problem)"
[ -z "$problem" ] || fail "no mount is possible: $problem"
have pjdfstest || fail "missing: pjdfstest." \
    "Run: cargo install --locked --version $PJDFSTEST_VERSION pjdfstest"
# With the features of the other tests, which have built the command already.
build_as_tests
furrow="$target_dir/debug/furrow"

work="$(mktemp -d)"
mount="$work/mnt"
mkdir "$mount" "$work/other"
chmod 755 "$work"
cleanup() {
    umount "$work/other" 2>/dev/null || true
    "$furrow" umount -l "$mount" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

# $1: configuration; then patterns
judge() {
    local config="$1"
    shift
    local status=0
    pjdfstest -c "$config" -p "$mount" -s "$work/other" "$@" >"$work/out" 2>&1 || status=$?
    if [ "$status" -ne 0 ]; then
        grep -A 2 'FAILED' "$work/out" || tail -n 20 "$work/out"
        fail "pjdfstest failed, see above"
    fi
    grep '^Summary' "$work/out"
}

"$furrow" device create "$work/disk.zns" -o capacity=1GiB,zone-size=8MiB >/dev/null
"$furrow" mkfs "$work/disk.zns" >/dev/null
"$furrow" mount -o "$options" "$work/disk.zns" "$mount" --log "$work/log"
mount -t tmpfs none "$work/other"
started=$SECONDS
pjdfstest_configuration true "$nap" >"$work/remount.toml"
judge "$work/remount.toml" erofs
pjdfstest_configuration false "$nap" >"$work/all.toml"
judge "$work/all.toml"
"$furrow" umount "$mount"
"$furrow" fsck "$work/disk.zns" >"$work/fsck" || fail "fsck afterwards: $(cat "$work/fsck")"

skipped="$(awk '$2 == "skipped" { print $1 }' "$work/out" | grep -v '::erofs_' | sort | tr '\n' ' ')"
[ "${skipped% }" = "$may_skip" ] || fail "skipped: $skipped; expected: $may_skip"
say "pjdfstest: everything passed except $may_skip, which cannot run; $((SECONDS - started)) s, fsck clean"
