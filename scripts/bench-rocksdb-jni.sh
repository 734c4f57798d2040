#!/usr/bin/env bash
# RocksJava with BlobDB on a store, against ext4: scripts/bench-rocksdb-jni.sh [PAIRS [MIB [VERSION]]]
#
# The store is on an emulated zoned drive in an image file, ext4 on a loop device in another image file on the
# same disk (below TMPDIR). A flush of either reaches that disk (sync=on of the drive), and both images are
# written in full before use. Store and ext4 take turns and begin anew each time. With values of 1 KiB and of
# 16 KiB, a program (StoreTest.java) fills a database with MIB (512), reads all of it at random, replaces as
# much at random, and reads again, with the write-ahead log on and nothing synced but the flush that ends each
# writing step, which is timed. Prints medians of operations a second, and of the ratios of the pairs.
# OPTIONS: of `furrow run`. scripts/setup.sh rocksdb-jni installs what it needs; root, for the loop mount.
. "$(dirname "$0")/lib.sh"

pairs="${1:-5}" mib="${2:-512}" version="${3:-$ROCKSDBJNI_VERSION}"
furrow="$(realpath -m "$target_dir")/release/furrow"
name="rocksdbjni-$version"
[ -e "$(dirname "$furrow")/java/$name" ] || fail "no plugin for $name: run 'make rocksdb-jni VERSION=$version'"
[ "$(id -u)" -eq 0 ] || fail "mounting an ext4 image needs root"
fetch_jars "$name" "org.rocksdb:rocksdbjni:$version"
work="$(mktemp -d)"
cleanup() {
    umount "$work/ext4" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
mkdir "$work/ext4"
javac -d "$work" -cp "$jars/$name/$name.jar" plugins/rocksdb/java/StoreTest.java
java=("$(command -v java)" -Xmx256m -cp "$jars/$name/$name.jar:$work" StoreTest bench)
read -ra options <<<"${OPTIONS:-}"
# Files that wait to be collected need space, too.
space=$((mib * 8 + 2048))

# $1: name of the result, the rest: command
bench() {
    local result="$1"
    shift
    sync
    "$@" >"$work/$result" 2>"$work/log" || { tail -5 "$work/log"; fail "StoreTest bench failed: $result"; }
}

for pair in $(seq 1 "$pairs"); do
    for value in 1024 16384; do
        keys=$((mib * 1048576 / value))
        dd if=/dev/zero of="$work/ext4.img" bs=1M count="$space" conv=fsync status=none
        mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0,nodiscard "$work/ext4.img"
        mount -o loop "$work/ext4.img" "$work/ext4"
        bench "ext4.$value.$pair" "${java[@]}" "$work/ext4/db" "$value" "$keys"
        umount "$work/ext4"
        rm "$work/ext4.img"
        "$furrow" device create "$work/store.zns" -o "capacity=${space}MiB,zone-size=64MiB,max-active=14" >/dev/null
        "$furrow" kv mkfs "$work/store.zns" >/dev/null
        # Written again as it is: it has no holes then.
        dd if="$work/store.zns" of="$work/store.zns" bs=1M conv=notrunc,fsync status=none
        bench "store.$value.$pair" "$furrow" run --store "$work/store.zns,sync=on" "${options[@]}" -- \
            "${java[@]}" /db "$value" "$keys"
        rm "$work/store.zns"
    done
    say "pair $pair of $pairs is done" >&2
done
python3 - "$work" "$pairs" <<'END'
import statistics, sys
work, pairs = sys.argv[1], int(sys.argv[2])
print(f"{'value':>6}  {'':10}{'ext4':>10}{'store':>10}{'ratio':>8}  ratios of the pairs")
for value in 1024, 16384:
    rates = {}
    for who in "ext4", "store":
        for pair in range(1, pairs + 1):
            for line in open(f"{work}/{who}.{value}.{pair}"):
                name, rate = line.split()
                rates.setdefault(name, {}).setdefault(who, []).append(int(rate))
    for name, each in rates.items():
        ratios = [store / ext4 for store, ext4 in zip(each["store"], each["ext4"])]
        print(f"{value:>6}  {name:10}{statistics.median(each['ext4']):>10.0f}{statistics.median(each['store']):>10.0f}"
              f"{statistics.median(ratios):>8.2f}  {min(ratios):.2f} to {max(ratios):.2f}")
END
