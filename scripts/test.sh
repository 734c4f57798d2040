#!/usr/bin/env bash
# Runs the tests: scripts/test.sh [lint|long]
#
# Without an argument: the steps for each change. lint: the quick part. long: all of it, then the
# steps that take hours, for nights (FURROW_SECONDS for each search by seed, default 1800).
#
# Every step runs even if an earlier one failed, so one run shows all failures. The last lines say
# which steps passed, failed or were skipped, and why.
. "$(dirname "$0")/lib.sh"

started=$SECONDS tier="${1:-short}"
case "$tier" in
lint | short | long) ;;
*) fail "unknown tier '$tier': lint or long, or nothing for the tests of each change" ;;
esac

# Steps that the short tier leaves to the long one. docs/HACKING.md lists them.
long_only="pjdfstest, fsx beyond 5000 operations, RocksDB of a newer Debian, the plugin's long forms,
         crash sweeps beyond their first seeds, simulations beyond theirs, damaged images, the fuzzer
         of NBD, power cuts under fio, Kafka on three mounts, packages in an overlay"

# What the lanes say, and how each step ended: a line of `passed`, `FAILED` or `skipped` and the rest.
results="$(mktemp -d)"
trap 'rm -rf "$results"' EXIT
: >"$results/ended"

# Sets $spent to the processor seconds of all steps of this lane so far. The lane's shell itself has
# to ask: a subshell has its own children.
read_spent() {
    local file="$results/spent.$BASHPID"
    times >"$file"
    spent="$(awk 'NR == 2 { gsub("s", ""); for (i = 1; i <= 2; i++) { split($i, t, "m"); sum += 60 * t[1] + t[2] }
        printf "%d", sum }' "$file")"
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
        say "passed   $name ($((SECONDS - from)) s, $((spent - before)) s of processor)" >>"$results/ended"
    else
        say "FAILED   $name: $*" >>"$results/ended"
        say "=== $name FAILED"
    fi
}

# $1: name, $2: why
skip() {
    say
    say "=== $1: skipped, $2"
    say "skipped  $1: $2" >>"$results/ended"
}

# Most steps leave a processor idle, so two lanes of steps run side by side. The second says what it
# has to say when it is done.
# $1: the function with the second lane's steps, $2: that with the first's
side_by_side() {
    local second
    "$1" >"$results/$1" 2>&1 &
    second=$!
    # In a shell of its own too, or the second lane's processor time would be counted here.
    ("$2") || say "FAILED   $2: it ended early" >>"$results/ended"
    wait "$second" || say "FAILED   $1: it ended early" >>"$results/ended"
    cat "$results/$1"
}

summary() {
    local ended failed
    ended="$(wc -l <"$results/ended")"
    failed="$(grep -c '^FAILED' "$results/ended" || true)"
    say
    say "=== Summary, after $((SECONDS - started)) s"
    grep -v '^FAILED' "$results/ended" || true
    [ "$tier" != short ] || say "not run  (make test-long): $long_only"
    if [ "$failed" -gt 0 ]; then
        grep '^FAILED' "$results/ended"
        say "FAILED: $failed of $ended steps"
        exit 1
    fi
    if grep -q '^skipped' "$results/ended"; then
        say "OK: $(grep -c '^passed' "$results/ended") steps passed, $(grep -c '^skipped' "$results/ended") skipped (see above)"
    else
        say "OK: $ended steps passed, nothing skipped"
    fi
}

lint() {
    step formatting cargo fmt --all --check
    # In a folder of its own: cargo lets no two builds into one.
    step clippy cargo clippy --quiet --workspace --all-targets --locked --target-dir "$target_dir/clippy" \
        -- -D warnings
    step prose python3 scripts/prose.py
    step pictures python3 scripts/pictures.py --check
    step dependencies cargo deny --locked check --hide-inclusion-graph bans licenses sources
}
if [ "$tier" = lint ]; then
    lint
    summary
    exit
fi

# Tests that mount skip themselves if FURROW_WITHOUT_FUSE=1 and fail without FUSE otherwise, so that
# a machine without /dev/fuse is noticed.
problem="$(fuse_problem)"
if [ -n "$problem" ] && [ "${FURROW_WITHOUT_FUSE:-}" != 1 ]; then
    say "FAILED   mounts: $problem; FURROW_WITHOUT_FUSE=1 skips what needs a mount" >>"$results/ended"
fi

# While the tests are built; no test waits for what has a deadline meanwhile.
checks() {
    lint
    # Every interleaving of the code that threads share.
    step interleavings env RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" cargo test --quiet --locked \
        -p furrow-rt --lib --target-dir "$target_dir/loom" loom_tests
}
build() {
    step "building the tests" cargo test --workspace --locked --no-run
}
side_by_side checks build
# Tests of commands mostly wait for them.
step tests env RUST_TEST_THREADS=$((3 * $(nproc))) cargo test --quiet --workspace --locked --no-fail-fast

# A change of an engine must not change figures of claims unnoticed.
gate() {
    "$target_dir/debug/furrow-lab" gate docs/research --no-cache
}
sweeps() {
    step claims gate
    step crashes scripts/crash.sh slice
}
programs() {
    step rocksdb scripts/rocksdb.sh test
    # The jar is the only thing that comes from Maven's repository, once.
    if (fetch_jars "rocksdbjni-$ROCKSDBJNI_VERSION" "org.rocksdb:rocksdbjni:$ROCKSDBJNI_VERSION"); then
        step java scripts/rocksdb-jni.sh smoke "$ROCKSDBJNI_VERSION"
    else
        skip java "RocksDB for Java cannot be fetched (see above)"
    fi
    if [ -n "$problem" ]; then
        skip "fsx, pjdfstest" "$problem (FURROW_WITHOUT_FUSE=${FURROW_WITHOUT_FUSE:-})"
        return
    fi
    step fsx scripts/fsx.sh 5000 1
    [ "$tier" = long ] || return 0
    step pjdfstest scripts/pjdfstest.sh
    step overlay scripts/overlay.sh
}
build_as_tests
side_by_side programs sweeps
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
