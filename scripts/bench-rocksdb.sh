#!/usr/bin/env bash
# Stock db_bench on a store on an untimed drive in memory, against ext4 on an image in memory:
# scripts/bench-rocksdb.sh [PAIRS [VALUE [KEYS]]]
#
# Store and ext4 take turns, with the same options: WAL on, nothing synced. Prints medians of
# operations a second, and of the ratios of the pairs. Needs root, for the loop mount.
. "$(dirname "$0")/lib.sh"

pairs="${1:-5}" value="${2:-131072}" keys="${3:-12000}"
furrow="$target_dir/release/furrow"
scripts/rocksdb.sh build
[ "$(id -u)" -eq 0 ] || fail "mounting an ext4 image needs root"
work="$(mktemp -d)"
cleanup() {
    umount "$work/ext4" 2>/dev/null || true
    # The loop device keeps its image open for a moment longer.
    for _ in $(seq 50); do
        umount "$work" 2>/dev/null && break
        sleep 0.1
    done
    rmdir "$work"
}
trap cleanup EXIT
mount -t tmpfs -o size=7g tmpfs "$work"
mkdir "$work/ext4"

# $1: name of the result, the rest: arguments of db_bench
bench() {
    local name="$1"
    shift
    "$@" --benchmarks=fillseq,fillrandom,readrandom,overwrite --use_existing_db=0 \
        --num="$keys" --key_size=16 --value_size="$value" --seed=7 --enable_blob_files=true \
        --min_blob_size=512 --enable_blob_garbage_collection=true --compression_type=none \
        --write_buffer_size=67108864 --blob_file_size=67108864 >"$work/$name.txt" 2>&1 ||
        { tail -5 "$work/$name.txt"; fail "db_bench failed on $name"; }
}

for pair in $(seq 1 "$pairs"); do
    truncate -s 6G "$work/ext4.img"
    mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$work/ext4.img"
    mount -o loop "$work/ext4.img" "$work/ext4"
    bench "ext4.$pair" db_bench --db="$work/ext4/db"
    umount "$work/ext4"
    rm "$work/ext4.img"
    bench "furrow.$pair" "$furrow" run --store mem:capacity=6GiB,zone-size=64MiB --policy shared -- \
        db_bench --db=/db
done
python3 - "$work" "$pairs" <<'END'
import re, statistics, sys
work, pairs = sys.argv[1], int(sys.argv[2])
rates = {}
for who in ["ext4", "furrow"]:
    for pair in range(1, pairs + 1):
        text = open(f"{work}/{who}.{pair}.txt").read()
        for name, rate in re.findall(r"^(\w+) +: +[\d.]+ micros/op (\d+) ops/sec", text, re.M):
            rates.setdefault(name, {}).setdefault(who, []).append(int(rate))
print(f"{'':12}{'ext4':>10}{'store':>10}{'ratio':>8}  ratios of the pairs")
for name, each in rates.items():
    ratios = [f / e for f, e in zip(each["furrow"], each["ext4"])]
    print(f"{name:12}{statistics.median(each['ext4']):>10.0f}{statistics.median(each['furrow']):>10.0f}"
          f"{statistics.median(ratios):>8.2f}  {min(ratios):.2f} to {max(ratios):.2f}")
END
