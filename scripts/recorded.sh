#!/usr/bin/env bash
# Records the runs of stock db_bench that claims Z20 to Z23 and R26 replay: scripts/recorded.sh DIR
#
# Then `furrow-lab keep Z20 Z21 Z22 Z23 R26 --seeds 1 --recorded DIR` keeps their figures, and
# docs/research/claims-recorded.md describes the recordings. Needs 10 GB of memory and 4 GB in DIR, and an
# idle machine: the time that threads spend between their calls is recorded, and other load would
# lengthen it.
# OPERATIONS (500000, of 50 million published) and VALUES (4096 of each of R26's eight clients, of
# 205000 published) set the length of the runs.
. "$(dirname "$0")/lib.sh"

dir="${1:-}" operations="${OPERATIONS:-500000}" values="${VALUES:-4096}"
[ -n "$dir" ] || fail "usage: scripts/recorded.sh DIR"
built="$(realpath "$target_dir")/${PROFILE:-release}"
[ -x "$built/furrow" ] || fail "$built/furrow is not built: make build rocksdb"
have db_bench || fail "missing: db_bench; run scripts/setup.sh test"
mkdir -p "$dir"
dir="$(realpath "$dir")"
memory=mem:capacity=6GiB,zone-size=96MiB,max-active=64,max-open=64
image="$dir/database.zns"

# $1: store, $2: name of the run, or nothing; the rest: arguments of db_bench
bench() {
    local uri="furrow://$1?policy=shared"
    [ -z "$2" ] || uri="$uri,record=$dir/$2.run"
    shift 2
    "$built/furrow" run -- db_bench --fs_uri="$uri" --db=/bench --key_size=16 --seed=7 "$@" \
        >"$dir/db_bench.txt" 2>&1 || { cat "$dir/db_bench.txt"; fail "db_bench failed"; }
    grep -h "ops/sec" "$dir/db_bench.txt"
}

# As published: 16 threads, values of 1 KB. Unpublished options have db_bench's defaults.
z() {
    bench "$@" --threads=16 --num="$operations" --value_size=1000
}
each=$((operations / 16))
z "$memory" fillseq --benchmarks=fillseq --writes="$each"
z "$memory" fillrandom --benchmarks=fillrandom --writes="$each"
rm -f "$image"
"$built/furrow" device create "$image" -o capacity=6GiB,zone-size=96MiB,max-active=64,max-open=64
"$built/furrow" kv mkfs "$image"
z "$image" "" --benchmarks=fillrandom,flush,waitforcompaction --writes="$each"
z "$image" readrandom --use_existing_db=1 --benchmarks=readrandom --reads=$((each / 4))
z "$image" overwrite --use_existing_db=1 --benchmarks=overwrite --writes="$each"
rm -f "$image"

# One of the eight published clients: 8 threads, values of 64 KiB, nothing compressed. Bulk load is
# the same without compactions.
r() {
    bench "$memory" "$@" --benchmarks=fillrandom --threads=8 --num="$values" --writes=$((values / 8)) \
        --value_size=65536 --compression_type=none
}
r clients
r bulk --disable_auto_compactions=1
rm -f "$dir/db_bench.txt"
