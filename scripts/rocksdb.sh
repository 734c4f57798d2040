#!/usr/bin/env bash
# The RocksDB plugin: scripts/rocksdb.sh build|test
#
# build: target/release/libfurrow_rocksdb.so. test: the same in the profile of tests, its own tests,
# and stock db_bench and ldb on a store.
. "$(dirname "$0")/lib.sh"

# Builds the core and the plugin. $1: directory of the profile, the rest: arguments of cargo
build() {
    local profile="$1"
    shift
    cargo build --quiet --locked "$@"
    make --no-print-directory -s -C plugins/rocksdb PROFILE="$profile" TARGET="$(realpath "$target_dir")" \
        "${goal[@]}"
}

# Stock programs on a store: what one writes another reads; a wrong URI is an error.
stock() {
    local furrow="$target_dir/debug/furrow" images="$target_dir/debug/rocksdb-plugin/images"
    local drive="$images/stock.zns" out="$images/stock.txt" found
    mkdir -p "$images"
    rm -f "$drive"
    "$furrow" device create "$drive" --option capacity=256MiB,zone-size=4MiB,max-active=14 >/dev/null
    "$furrow" kv mkfs "$drive" >/dev/null
    "$furrow" run --store "$drive" --policy baza --same-victim -- db_bench \
        --benchmarks=fillseq,overwrite --db=/bench --num=2000 --value_size=8192 --threads=1 \
        --enable_blob_files=true --min_blob_size=1024 --enable_blob_garbage_collection=true \
        --write_buffer_size=1048576 --blob_file_size=1048576 --compression_type=none \
        >"$out" 2>&1 || { cat "$out"; fail "db_bench failed"; }
    found="$("$furrow" run -- ldb --fs_uri="furrow://$drive" --db=/bench scan --hex 2>/dev/null |
        grep -c '^0x')"
    [ "$found" = 2000 ] || fail "ldb finds $found keys of the 2000 that db_bench wrote"
    # The second fill destroys what the first made: in the store, not on the host.
    mkdir -p "$images/host"
    touch "$images/host/CURRENT"
    "$furrow" run --store "$drive" -- db_bench --benchmarks=fillseq,fillrandom --threads=1 \
        --db="$(realpath "$images")/host" --num=1000 --seed=7 >"$out" 2>&1 ||
        { cat "$out"; fail "db_bench failed"; }
    found="$("$furrow" run --store "$drive" -- ldb --db="$(realpath "$images")/host" scan --hex \
        2>/dev/null | grep -c '^0x')"
    [ "$found" -gt 500 ] && [ "$found" -lt 800 ] ||
        fail "$found keys after random writes to a new database, about 632 of 1000 are expected"
    [ -e "$images/host/CURRENT" ] || fail "a file of the host was destroyed instead of the store's"
    rm -r "$images/host"
    "$furrow" kv fsck "$drive" >"$out" || { cat "$out"; fail "the store is damaged"; }
    ! "$furrow" run -- db_bench --fs_uri=furrow:///no/such.zns >"$out" 2>&1 ||
        fail "a store that is not there was taken"
    grep -q "no such file" "$out" || { cat "$out"; fail "a wrong URI is not explained"; }
    rm -f "$drive" "$out"
    say "stock db_bench and ldb on a store: 2000 keys, clean"
}

case "${1:-build}" in
build)
    goal=()
    build release --release -p furrow-capi
    say "$target_dir/release/libfurrow_rocksdb.so"
    ;;
test)
    goal=(all test)
    # With the features that the other tests have, so that little is built again.
    build debug --workspace
    stock
    ;;
*) fail "unknown: $1; scripts/rocksdb.sh build or test" ;;
esac
