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
    cargo build --quiet --locked -p furrow-capi "$@"
    make --no-print-directory -s -C plugins/rocksdb PROFILE="$profile" TARGET="$(realpath "$target_dir")" \
        "${goal[@]}"
}

case "${1:-build}" in
build)
    goal=()
    build release --release
    say "$target_dir/release/libfurrow_rocksdb.so"
    ;;
test)
    cargo build --quiet --locked -p furrow-cli
    goal=(all test)
    build debug
    ;;
*) fail "unknown: $1; scripts/rocksdb.sh build or test" ;;
esac
