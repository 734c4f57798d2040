#!/usr/bin/env bash
# A source tree on an emulated zoned drive, killed five times under load, checked: what `make demo`
# runs. `furrow demo` does everything that is shown; this script finds the tree and unpacks it.
#
# FURROW_DEMO_SOURCE=DIR takes another tree of files, where there is no package of one.
. "$(dirname "$0")/lib.sh"

# Image and unpacked sources, in KiB.
needed=$((6 * 1024 * 1024))

work="$target_dir/demo"
# The path is shown on every line: keep it short.
work="${work#"$root/"}"
mkdir -p "$work"
free="$(df --output=avail -k "$work" | tail -n 1)"
[ "$free" -ge "$needed" ] ||
    fail "$work has $((free >> 20)) GiB free, 6 GiB are needed: free some, or set CARGO_TARGET_DIR"

source_tree="${FURROW_DEMO_SOURCE:-}"
if [ -z "$source_tree" ]; then
    archive="$(kernel_archive)"
    [ -n "$archive" ] ||
        fail "no kernel sources: install linux-source, or set FURROW_DEMO_SOURCE to a tree of files"
    source_tree="$work/$(basename "${archive%.tar.*}")"
    if [ ! -e "$source_tree.unpacked" ]; then
        say "unpacking $archive"
        rm -rf "$source_tree"
        mkdir -p "$source_tree"
        tar -xf "$archive" -C "$source_tree"
        : >"$source_tree.unpacked"
    fi
fi

say "building furrow, optimised (a few minutes the first time)"
cargo build --release --locked -p furrow-cli
export PATH="$target_dir/release:$PATH"
status=0
furrow demo "$source_tree" --work "$work" "$@" || status=$?
say "$work keeps $(du -sh "$work" | cut -f 1): 'rm -r $work' frees them" >&2
exit "$status"
