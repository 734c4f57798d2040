#!/usr/bin/env bash
# RocksJava with BlobDB on a store, against ext4: scripts/bench-rocksdb-jni.sh [PAIRS [MIB [VERSION]]]
#
# The store is on soft zones in an image file, ext4 on a loop device in another image file on the same disk
# (below TMPDIR), both with direct I/O. Both images are written in full before use, they take turns, and each
# begins anew. With values of 1 KiB and of 16 KiB, a program (StoreTest.java) fills a database with MIB (512),
# reads all of it at random, replaces as much at random, and reads again, with the write-ahead log on and
# nothing synced but the flush that ends each writing step, which is timed. What a store holds is not in the
# kernel's page cache, so ext4 is tried twice: as it is, and with RocksDB's direct reads. Prints medians of
# operations a second, and of the ratios of the pairs, and their range. OPTIONS: of `furrow run`.
# scripts/setup.sh rocksdb-jni installs what it needs; root, for the loop mount.
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
        for way in "" direct; do
            dd if=/dev/zero of="$work/ext4.img" bs=1M count="$space" conv=fsync status=none
            mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0,nodiscard "$work/ext4.img"
            mount -o loop "$work/ext4.img" "$work/ext4"
            losetup --direct-io=on "$(findmnt -n -o SOURCE "$work/ext4")"
            bench "ext4$way.$value.$pair" "${java[@]}" "$work/ext4/db" "$value" "$keys" $way
            umount "$work/ext4"
            rm "$work/ext4.img"
        done
        "$furrow" device create --soft "$work/store.soft" --size "${space}MiB" --zone-size 64MiB >/dev/null
        "$furrow" kv mkfs "$work/store.soft" >/dev/null
        # Written again as it is: it has no holes then.
        dd if="$work/store.soft" of="$work/store.soft" bs=1M conv=notrunc,fsync status=none
        bench "store.$value.$pair" "$furrow" run --store "$work/store.soft" "${options[@]}" -- \
            "${java[@]}" /db "$value" "$keys"
        rm "$work/store.soft"
    done
    say "pair $pair of $pairs is done" >&2
done
python3 - "$work" "$pairs" <<'END'
import statistics, sys
work, pairs = sys.argv[1], int(sys.argv[2])
print(f"{'':18}{'operations a second':>30}{'store over ext4':>20}{'store over direct':>20}")
print(f"{'value':>6}  {'':10}{'ext4':>10}{'direct':>10}{'store':>10}")
for value in 1024, 16384:
    rates = {}
    for who in "ext4", "ext4direct", "store":
        for pair in range(1, pairs + 1):
            for line in open(f"{work}/{who}.{value}.{pair}"):
                name, rate = line.split()
                rates.setdefault(name, {}).setdefault(who, []).append(int(rate))
    for name, each in rates.items():
        line = f"{value:>6}  {name:10}" + "".join(f"{statistics.median(one):>10.0f}" for one in each.values())
        for other in "ext4", "ext4direct":
            ratios = [store / ext4 for store, ext4 in zip(each["store"], each[other])]
            line += f"{statistics.median(ratios):>8.2f} {min(ratios):.2f} to {max(ratios):.2f}".rjust(20)
        print(line)
END
