#!/usr/bin/env bash
# Everything that must hold: scripts/test.sh [lint]
#
# Every step runs even if an earlier one failed, so one run shows all that is wrong. The last lines
# say what passed, what failed, what was skipped and why.
. "$(dirname "$0")/lib.sh"

passed=() failed=() skipped=()
started=$SECONDS

# Runs one step. $1: its name, the rest: the command
step() {
    local name="$1" from=$SECONDS
    shift
    say
    say "=== $name: $*"
    if "$@"; then
        passed+=("$name ($((SECONDS - from)) s)")
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
if [ "${1:-}" = lint ]; then
    summary
    exit
fi

# Tests that mount skip themselves if FURROW_WITHOUT_FUSE=1 and fail without FUSE otherwise, so
# that a machine that lost /dev/fuse is not taken for one where mounts work.
problem="$(fuse_problem)"
if [ -n "$problem" ] && [ "${FURROW_WITHOUT_FUSE:-}" != 1 ]; then
    failed+=("mounts: $problem; FURROW_WITHOUT_FUSE=1 skips what needs a mount")
fi

step tests cargo test --quiet --workspace --locked --no-fail-fast
# Every interleaving of the code that threads share.
step interleavings env RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" cargo test --quiet --locked \
    -p furrow-rt --lib --target-dir "$target_dir/loom" loom_tests
step crashes scripts/crash.sh slice
step rocksdb scripts/rocksdb.sh test
if [ -z "$problem" ]; then
    step fsx scripts/fsx.sh 5000 1
    step pjdfstest scripts/pjdfstest.sh
else
    skip "mount tests, fsx, pjdfstest" "$problem (FURROW_WITHOUT_FUSE=${FURROW_WITHOUT_FUSE:-})"
fi

summary
