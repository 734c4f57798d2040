#!/usr/bin/env bash
# A RAID-5 of four emulated zoned drives, served over NBD to stock clients: what `make demo-raid` runs.
#
# A file system image is copied onto it, and a drive is pulled meanwhile; everything is read back and
# compared; the drive is replaced and rebuilt; a flipped bit is found and mended; and the array is
# assembled again from its drives in another order.
. "$(dirname "$0")/lib.sh"

# Drives and images, in KiB.
needed=$((3 * 1024 * 1024))

work="$target_dir/demo-raid"
# The path is shown on every line: keep it short.
work="${work#"$root/"}"
rm -rf "$work"
mkdir -p "$work"
free="$(df --output=avail -k "$work" | tail -n 1)"
[ "$free" -ge "$needed" ] ||
    fail "$work has $((free >> 20)) GiB free, 3 GiB are needed: free some, or set CARGO_TARGET_DIR"
for tool in nbdcopy nbdinfo mke2fs e2fsck; do
    have "$tool" || fail "missing: $tool; run scripts/setup.sh demo-raid"
done

say "building furrow, optimised (a few minutes the first time)"
cargo build --release --locked -p furrow-cli
export PATH="$target_dir/release:$PATH"
# Sockets of this run only: other arrays are not touched.
FURROW_RUN="$(mktemp -d)"
export FURROW_RUN
uri="nbd+unix:///demo?socket=$FURROW_RUN/demo.nbd"

# Every exit stops the daemon; the drives stay only after a failure.
finish() {
    local status=$?
    trap - EXIT INT TERM
    # Fails if the array has been stopped already.
    furrow raid stop demo --force >/dev/null 2>&1 || true
    rm -rf "$FURROW_RUN"
    # After a failure the files stay for inspection.
    [ "$status" -eq 1 ] || rm -rf "$work"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Shows a command, and runs it.
run() {
    say
    say "\$ $*"
    "$@"
}
# The same for a command that fails by design: status 1 says that an array is not healthy.
show_status() {
    say
    say "\$ furrow raid status demo"
    furrow raid status demo || true
}

# Reads $1 bytes of the volume back, and compares them with the image.
compare() {
    say
    say "\$ nbdcopy $uri $work/back.img; cmp"
    nbdcopy "$uri" "$work/back.img"
    cmp -n "$(stat -c %s "$work/disk.img")" "$work/disk.img" "$work/back.img" ||
        fail "the volume's content differs from the image"
    rm -f "$work/back.img"
    say "every byte is as it was written"
}

say
say "=== A disk image with a real file system: the sources of this repository"
mkdir -p "$work/tree"
git ls-files -z 2>/dev/null | xargs -0 -r cp --parents -t "$work/tree" 2>/dev/null ||
    cp -r crates docs scripts "$work/tree"
# Random content that does not compress, so that there is time to pull a drive.
head -c 300M /dev/urandom >"$work/tree/weight"
run mke2fs -q -t ext4 -d "$work/tree" "$work/disk.img" 512M
rm -rf "$work/tree"

say
say "=== Four drives and two for later"
for i in 0 1 2 3 4 5; do
    furrow device create "$work/d$i.zns" -o zones=48,zone-size=16MiB,oob=64,max-active=14,max-open=14
done
run furrow raid create --level 5 --name demo "$work"/d[0-3].zns
run furrow raid assemble "$work"/d[0-3].zns --events "$work/events" --log "$work/log"
show_status
run nbdinfo --size "$uri"

say
say "=== The image is copied onto it, and drive 2 is pulled on the way"
# At its 500th command from now: in the middle of the copy on every machine.
run furrow raid fault demo 2 add disappear --nth 500
run nbdcopy --flush "$work/disk.img" "$uri"
show_status
furrow raid status demo >/dev/null && fail "the copy ended before the drive was pulled"
compare

say
say "=== Replaced, and rebuilt"
run furrow raid replace demo 2 "$work/d4.zns"
run furrow raid rebuild demo --pause 2000
sleep 0.5
show_status
run furrow raid rebuild demo --pause 0 --wait
show_status

say
say "=== Another drive fails: the new one holds everything, and a spare takes over"
run furrow raid add-spare demo "$work/d5.zns"
run furrow raid fail demo 0
run furrow raid rebuild demo --wait
compare

say
say "=== A bit flips on drive 1, silently"
run furrow raid fault demo 1 add bit-flip --lba $((5 * 4096 + 100))+1
say
say "\$ furrow raid scrub demo --wait"
! furrow raid scrub demo --wait || fail "the scrub missed the flipped bit"
run furrow raid scrub demo --repair --wait
compare

say
say "=== Stopped, and assembled again in another order"
run furrow raid stop demo
# Drives 0 and 2 are stale and left out.
run furrow raid examine "$work"/d[13-5].zns
run furrow raid assemble "$work/d4.zns" "$work/d1.zns" "$work/d5.zns" "$work/d3.zns" --log "$work/log"
show_status
compare
nbdcopy "$uri" "$work/back.img"
truncate -s 512M "$work/back.img"
run e2fsck -fn "$work/back.img"
run furrow raid stop demo
say
say "=== Events on the way"
sed 's/^[^ ]* //' "$work/events"
