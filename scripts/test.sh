#!/usr/bin/env bash
# Runs the tests: scripts/test.sh [lint|long]
#
# Without an argument: the steps for each change. lint: the quick part. long: all of it, then the
# steps that take hours, for nights (FURROW_SECONDS for each search by seed, default 1800).
#
# Every step runs even if an earlier one failed, so one run shows all failures. The last lines say
# which steps passed, failed or were skipped, and why.
. "$(dirname "$0")/lib.sh"

passed=() failed=() skipped=()
started=$SECONDS tier="${1:-short}"
case "$tier" in
lint | short | long) ;;
*) fail "unknown tier '$tier': lint or long, or nothing for the tests of each change" ;;
esac

# Steps that the short tier leaves to the long one. docs/HACKING.md lists them.
long_only="pjdfstest, fsx beyond 5000 operations, RocksDB of a newer Debian, the plugin's long forms,
         crash sweeps beyond their first seeds, simulations beyond theirs, damaged images, the fuzzer
         of NBD, power cuts under fio, Kafka on three mounts"

spent_file="$(mktemp)"
trap 'rm -f "$spent_file"' EXIT

# Sets $spent to the processor seconds of all steps so far. The shell itself has to ask: a subshell
# has its own children.
read_spent() {
    times >"$spent_file"
    spent="$(awk 'NR == 2 { gsub("s", ""); for (i = 1; i <= 2; i++) { split($i, t, "m"); sum += 60 * t[1] + t[2] }
        printf "%d", sum }' "$spent_file")"
}

# Runs one step. $1: its name, the rest: the command
step() {
    local name="$1" from=$SECONDS before
    read_spent
    before=$spent
    shift
    say
    say "=== $name: $*"
    if "$@"; then
        read_spent
        passed+=("$name ($((SECONDS - from)) s, $((spent - before)) s of processor)")
    else
        failed+=("$name: $*")
        say "=== $name FAILED"
    fi
}

# $1: name, $2: why
skip() {
    say
    say "=== $1: skipped, $2"
    skipped+=("$1: $2")
}

summary() {
    local line
    say
    say "=== Summary, after $((SECONDS - started)) s"
    for line in ${passed[@]+"${passed[@]}"}; do say "passed   $line"; done
    for line in ${skipped[@]+"${skipped[@]}"}; do say "skipped  $line"; done
    [ "$tier" != short ] || say "not run  (make test-long): $long_only"
    for line in ${failed[@]+"${failed[@]}"}; do say "FAILED   $line"; done
    if [ ${#failed[@]} -gt 0 ]; then
        say "FAILED: ${#failed[@]} of $((${#passed[@]} + ${#failed[@]})) steps"
        exit 1
    fi
    if [ ${#skipped[@]} -gt 0 ]; then
        say "OK: ${#passed[@]} steps passed, ${#skipped[@]} skipped (see above)"
    else
        say "OK: ${#passed[@]} steps passed, nothing skipped"
    fi
}

step formatting cargo fmt --all --check
step clippy cargo clippy --quiet --workspace --all-targets --locked -- -D warnings
step dependencies cargo deny --locked check --hide-inclusion-graph bans licenses sources
if [ "$tier" = lint ]; then
    summary
    exit
fi

# Tests that mount skip themselves if FURROW_WITHOUT_FUSE=1 and fail without FUSE otherwise, so that
# a machine without /dev/fuse is noticed.
problem="$(fuse_problem)"
if [ -n "$problem" ] && [ "${FURROW_WITHOUT_FUSE:-}" != 1 ]; then
    failed+=("mounts: $problem; FURROW_WITHOUT_FUSE=1 skips what needs a mount")
fi

# Tests of commands mostly wait for them.
step tests env RUST_TEST_THREADS=$((3 * $(nproc))) cargo test --quiet --workspace --locked --no-fail-fast
# A change of an engine must not change figures of claims unnoticed.
gate() {
    build_as_tests && "$target_dir/debug/furrow-lab" gate docs --no-cache
}
step claims gate
# Every interleaving of the code that threads share.
step interleavings env RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" cargo test --quiet --locked \
    -p furrow-rt --lib --target-dir "$target_dir/loom" loom_tests
step crashes scripts/crash.sh slice
step rocksdb scripts/rocksdb.sh test
if [ -z "$problem" ]; then
    step fsx scripts/fsx.sh 5000 1
    [ "$tier" != long ] || step pjdfstest scripts/pjdfstest.sh
else
    skip "mount tests, fsx, pjdfstest" "$problem (FURROW_WITHOUT_FUSE=${FURROW_WITHOUT_FUSE:-})"
fi
[ "$tier" = long ] || {
    summary
    exit
}

seconds="${FURROW_SECONDS:-1800}"
step "all sweeps" scripts/crash.sh full
sim=(cargo run --quiet --release --locked -p furrow-sim -- damage --seconds "$seconds")
step "damaged images" "${sim[@]}"
step "repaired images" "${sim[@]}" --repair
step "damaged stores" "${sim[@]}" --subject kv
step "NBD fuzzer" cargo run --quiet --release --locked -p furrow-nbd --example fuzz -- \
    --seconds "$seconds"
step "power cuts" scripts/power-cut.sh 20
step "plugin, long" make --no-print-directory -C plugins/rocksdb test PROFILE=debug \
    TARGET="$(realpath "$target_dir")" KILLS=200 CUTS=2000 SEED=7 DEFECTS="SkippedFlush StaleTail"
step "newer RocksDB" scripts/rocksdb.sh newer trixie
step "java, long" env KILLS=200 scripts/rocksdb-jni.sh test 7.8.3
[ -n "$problem" ] || step "fsx, long" scripts/fsx.sh 100000 1 2 3 4
cluster() {
    cargo build --quiet --release --locked -p furrow-cli &&
        scripts/cluster.sh rounds 20 --engine kafka --seed 1
}
[ -n "$problem" ] || step cluster cluster

summary
