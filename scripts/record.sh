#!/usr/bin/env bash
# Records a small run of RocksDB on a store in memory, for replays: scripts/record.sh KIND FILE [SEED]
#
# KIND: db_bench (Debian's: random writes and overwrites of two threads, all synced, blob files and
# their collection) or workload (plugins/rocksdb/workload.cc: updates and inserts, none synced). Of
# content only length and checksum are recorded. PROFILE=debug uses the build of the tests, the
# default is release.
. "$(dirname "$0")/lib.sh"

kind="${1:-}" file="${2:-}" seed="${3:-1}"
[ -n "$file" ] || fail "usage: scripts/record.sh db_bench|workload FILE [SEED]"
built="$(realpath "$target_dir")/${PROFILE:-release}"
drive=mem:capacity=64MiB,zone-size=1MiB,max-active=14,max-open=14
[ -x "$built/furrow" ] || fail "$built/furrow is not built: make build rocksdb"
out="$(mktemp)"
trap 'rm -f "$out"' EXIT
case "$kind" in
db_bench)
    have db_bench || fail "missing: db_bench; run scripts/setup.sh test"
    "$built/furrow" run --store "$drive" --policy shared --record "$file" -- db_bench \
        --benchmarks=fillrandom,overwrite --sync=true --db=/bench --num=160 --threads=2 --seed="$seed" \
        --value_size=1200 --compression_type=none --enable_blob_files=true --min_blob_size=1000 \
        --enable_blob_garbage_collection=true --blob_garbage_collection_age_cutoff=0.5 \
        --write_buffer_size=131072 --blob_file_size=131072 --target_file_size_base=65536 \
        --max_bytes_for_level_base=131072 --max_background_jobs=4 --open_files=20 \
        >"$out" 2>&1 || { cat "$out"; fail "db_bench failed"; }
    ;;
workload)
    make --no-print-directory -s -C plugins/rocksdb PROFILE="${PROFILE:-release}" \
        TARGET="$(realpath "$target_dir")" workload
    "$built/rocksdb-plugin/workload" "furrow://$drive?policy=shared,record=$file" workload=a records=120 \
        operations=360 value=2000 blob=65536 memtable=65536 table=65536 level=131072 wal=1 threads=2 \
        seed="$seed" >"$out" 2>&1 || { cat "$out"; fail "the workload failed"; }
    ;;
*) fail "unknown: $kind; scripts/record.sh db_bench or workload" ;;
esac
"$built/furrow" kv trace "$file"
