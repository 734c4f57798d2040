#!/usr/bin/env bash
# Power cuts under file systems of the kernel and under Furrow, on one emulated drive, in a guest (docs/research/court.md).
#
# scripts/court.sh [FILE SYSTEM...]: xfs, btrfs, f2fs, dm-zoned (ext4 on it), furrow, or all. Records workloads,
# cuts the power in the recordings, mounts what is left and compares it with what was promised.
# scripts/court.sh replay FILE-SYSTEM SEED CUT: one cut of an earlier run, whose recordings are kept in
# target/court/recordings.
#
# FURROW_COURT_SEEDS: seeds of workloads (1 2 3). FURROW_COURT_CUTS: cuts of each (100).
# FURROW_COURT_CALLS: calls of each (300). FURROW_COURT_DEFECT: cuts with flushes ignored, which must be
# noticed (10). FURROW_COURT_CHURN: percent of the file system that another file takes, which is
# overwritten meanwhile, so that zones are cleaned (0). FURROW_GUEST_KERNEL, FURROW_GUEST_TOOLS: see
# scripts/guest-lib.sh.
#
# scripts/court.sh case NAME [FILE SYSTEM [OPTION...]]: the minimal case of a defect, on the file system that has it or
# on another one: btrfs-dup, btrfs-hang, f2fs-node, f2fs-first-fsync. Options are those of 'furrow-court case', or of
# 'furrow-court stuck' for btrfs-hang. It fails if the defect is seen.
#
# scripts/court.sh compare [FILE SYSTEM...]: the same work on each, and on furrow-library, counted at the drive
# (docs/research/side-by-side.md). FURROW_COURT_RUNS: runs, of which the median is taken (5).
# scripts/court.sh times [FILE SYSTEM...]: the same in small on a drive that is slowed down by two factors.
# FURROW_COURT_SLOW: the factors (500 1000).
. "$(dirname "$0")/lib.sh"
. scripts/guest-lib.sh

guest="$(realpath -m "$target_dir")/court"
mkdir -p "$guest/recordings"
task=trial
size=0
if [ "${1:-}" = replay ]; then
    [ $# = 4 ] || fail "usage: scripts/court.sh replay FILE-SYSTEM SEED CUT"
    task="replay $2 $3 $4"
    kinds="$2"
    size=$(($(stat -c %s "$guest/recordings/$2-$3" 2>/dev/null || echo 0) / 1048576 + 2))
    [ -e "$guest/recordings/$2-$3" ] || fail "no recording $guest/recordings/$2-$3"
elif [ "${1:-}" = case ]; then
    [ $# -ge 2 ] || fail "usage: scripts/court.sh case NAME [FILE SYSTEM [OPTION...]]"
    task=case
    case "$2" in
    btrfs-hang) command="furrow-court stuck ${*:3}" && [ $# -gt 2 ] || command="furrow-court stuck btrfs" ;;
    *) command="furrow-court case ${*:2}" ;;
    esac
    kinds="$2"
elif [ "${1:-}" = compare ] || [ "${1:-}" = times ]; then
    task="$1"
    shift
    # dm-zoned only if it is asked for: it has not come to the end of this work within the limit.
    kinds="${*:-xfs btrfs f2fs furrow furrow-library}"
else
    kinds="${*:-xfs btrfs f2fs dm-zoned furrow}"
fi
[ -n "${FURROW_GUEST_KERNEL:-}" ] || [ ! -e "$target_dir/guest/kernel/complete" ] ||
    FURROW_GUEST_KERNEL="$target_dir/guest/kernel"
[ -n "${FURROW_GUEST_TOOLS:-}" ] || [ ! -e "$target_dir/guest/tools/complete" ] ||
    [ ! -e "$target_dir/guest/tools/usr/sbin/dmzadm" ] ||
    FURROW_GUEST_TOOLS="$target_dir/guest/tools"

for tool in qemu-system-x86_64 cpio xz depmod modprobe; do
    have "$tool" || fail "missing: $tool. Run: scripts/setup.sh test-guest"
done
find_kernel
find_tools
# FURROW_GUEST_BUILT=1: the programs are there.
[ -n "${FURROW_GUEST_BUILT:-}" ] ||
    cargo build --quiet --locked --release --package furrow-cli --package furrow-court

rm -rf "$guest/tree"
mkdir -p "$guest/tree"/{bin,dev,proc,sys,run,mnt,modules}
add_program "$target_dir/release/furrow"
add_program "$target_dir/release/furrow-court"
add_tools mkfs.xfs mkfs.btrfs mkfs.f2fs mkfs.ext4 btrfs dmzadm dmsetup
add_shell
add_modules virtio_blk ublk_drv xfs btrfs f2fs dm_zoned ext4
# dmzadm looks for its module there, although it is loaded.
install -D -m 644 -t "$guest/tree/lib/modules/$version" "${modules[0]}/modules.dep.bin"
install -m 755 scripts/court-init.sh "$guest/tree/init"
cat >"$guest/tree/settings" <<END
task="$task"
kinds="$kinds"
seeds="${FURROW_COURT_SEEDS:-1 2 3}"
cuts=${FURROW_COURT_CUTS:-100}
calls=${FURROW_COURT_CALLS:-300}
defect=${FURROW_COURT_DEFECT:-10}
runs=${FURROW_COURT_RUNS:-5}
size=$size
patience=${FURROW_COURT_PATIENCE:-1200}
churn=${FURROW_COURT_CHURN:-0}
slow="${FURROW_COURT_SLOW:-500 1000}"
command="${command:-}"
END
pack_guest

# Recordings come and go as an archive on a drive.
rm -f "$guest/drive"
truncate -s 128G "$guest/drive"
[ "${task%% *}" != replay ] ||
    tar -C "$guest/recordings" -cf - "$2-$3" | dd of="$guest/drive" conv=notrunc bs=1M status=none

console="$guest/console"
: >"$console"
started=$SECONDS
timeout "${FURROW_COURT_TIMEOUT:-7200}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 \
    -m 4G -nodefaults -no-reboot -display none -kernel "${modules[0]}/vmlinuz" \
    -initrd "$guest/initramfs" -append "console=ttyS0 quiet panic=-1" -serial "file:$console" \
    -drive "file=$guest/drive,if=none,id=d,format=raw" -device virtio-blk-pci,drive=d ||
    fail "the guest did not end in time: see $console"
tr -d '\r' <"$console" | sed -n '/^GUEST /s/^GUEST //p'
grep -q '^GUEST end' "$console" || fail "the guest did not get to its end: see $console"
if [ "$task" = trial ]; then
    for place in $(seq 0 127); do
        magic="$(dd if="$guest/drive" bs=1 skip=$((place * 1024 * 1024 * 1024 + 257)) count=5 \
            status=none | tr -d '\0')"
        [ "$magic" = ustar ] || break
        # tar ends before what dd reads.
        { dd if="$guest/drive" bs=1M skip=$((place * 1024)) count=1024 status=none 2>/dev/null ||
            true; } | tar -C "$guest/recordings" -xf -
    done
fi
rm -f "$guest/drive"
say "court: kernel $version, $((SECONDS - started)) s"
! grep -q '^GUEST FAIL' "$console" || fail "a promise was broken or a run failed: see $console"
