#!/usr/bin/env bash
# Tests real zoned drives in a guest: a current Debian kernel in QEMU, without KVM.
#
# scripts/guest.sh [PART...]: runs the parts given, or these: nvme, null, smr, rings, ublk, passthrough, array
# (see scripts/guest-init.sh). `long` stands for the long ones: faults, mapped, posix, rebuild, volume, store, transports. Neither has
# `streams`, which needs a newer QEMU than Debian bookworm's and fetches one, and `md`: a volume beside Linux md on
# the same drives, 40 minutes.
# FURROW_GUEST_PROFILE=release tests release builds. The kernel is fetched by an
# apt of its own below the target folder, whose configuration and lists are not the machine's; nothing is
# installed. Where the network does not give it, FURROW_GUEST_KERNEL names a folder with the unpacked
# packages linux-binary-* and linux-modules-*, and busybox-static.
. "$(dirname "$0")/lib.sh"
. scripts/guest-lib.sh

# The first part that needs ublk sees that its module is not loaded; the array loses a drive for good.
parts="${*:-nvme null smr rings ublk passthrough array}"
[ "$parts" != long ] || parts="faults mapped posix rebuild volume store transports"
profile="${FURROW_GUEST_PROFILE:-debug}"

# True if one of the parts $@ is to run.
runs() {
    local part
    for part in "$@"; do
        case " $parts " in *" $part "*) return 0 ;; esac
    done
    return 1
}
guest="$(realpath -m "$target_dir")/guest"
mkdir -p "$guest"

machine=(qemu-system-x86_64)
for tool in qemu-system-x86_64 cpio xz depmod modprobe fsx python3; do
    have "$tool" || fail "missing: $tool. Run: scripts/setup.sh test-guest"
done

! runs posix || have pjdfstest || fail "missing: pjdfstest. Run: scripts/setup.sh test-guest-long"
! runs mapped || have dmsetup || fail "missing: dmsetup. Run: scripts/setup.sh test-guest-long"
! runs transports md || have fio || fail "missing: fio. Run: scripts/setup.sh test-guest-long"
find_kernel
! runs streams || find_streams

# FURROW_GUEST_BUILT=1: the programs are there.
if [ -z "${FURROW_GUEST_BUILT:-}" ]; then
    optimised=()
    [ "$profile" = debug ] || optimised=(--profile "$profile")
    cargo build --quiet --locked "${optimised[@]}" --package furrow-cli
    cargo build --quiet --locked "${optimised[@]}" --package furrow-linux --examples
    ! runs rings || cargo test --quiet --locked "${optimised[@]}" --package furrow-fuse --test all --no-run
    ! runs store || case "$profile" in
    debug) scripts/rocksdb.sh test ;;
    *) scripts/rocksdb.sh build ;;
    esac
fi
rm -rf "$guest/tree"
mkdir -p "$guest/tree"/{bin,dev,proc,sys,run,mnt,modules}
add_program "$target_dir/$profile/furrow"
add_program "$target_dir/$profile/examples/conformance"
add_program "$target_dir/$profile/examples/in_flight"
add_program "$target_dir/$profile/examples/pointers"
add_program "$(command -v fsx)"
if runs rings; then
    # The tests of mounts, in the program that was built last.
    tests="$(find "$target_dir/$profile/deps" -name 'all-*' -type f -executable -printf '%T@ %p\n' | sort -rn |
        while read -r _ program; do
            case "$("$program" --list 2>/dev/null)" in *rings::*) echo "$program" && break ;; esac
        done)"
    [ -n "$tests" ] || fail "the tests of mounts are not built"
    install -D "$tests" "$guest/mounts"
    add_program "$guest/mounts"
fi
# What the shell's own commands cannot do, and the kernel's file systems where the machine has them.
for program in dd blkdiscard mke2fs mkfs.btrfs setpriv setfacl cp cksum; do
    ! have "$program" || add_program "$(command -v "$program")"
done
add_shell
install -m 755 scripts/guest-init.sh "$guest/tree/init"
for part in faults streams md; do
    ! runs "$part" || install -D -m 644 "scripts/guest-$part.sh" "$guest/tree/parts/$part"
done
fsx_configuration 262144 >"$guest/tree/fsx.toml"
add_modules nvme null_blk sd_mod scsi_debug nbd ublk_drv ext4 btrfs
if runs posix; then
    add_program "$(command -v pjdfstest)"
    mkdir -p "$guest/tree/etc"
    printf '%s\n' root:x:0:0::/: daemon:x:1:1::/: nobody:x:65534:65534::/: >"$guest/tree/etc/passwd"
    printf '%s\n' root:x:0: daemon:x:1: nogroup:x:65534: >"$guest/tree/etc/group"
    pjdfstest_configuration true 0.02 >"$guest/tree/remount.toml"
    pjdfstest_configuration false 0.02 >"$guest/tree/pjdfstest.toml"
fi
if runs store; then
    for program in db_bench ldb; do add_program "$(command -v "$program")"; done
    install -m 755 "$target_dir/$profile/libfurrow_rocksdb.so" "$guest/tree/bin/"
fi
! runs transports md || add_program "$(command -v fio)"
if runs mapped; then
    add_program "$(command -v dmsetup)"
    add_modules dm-mod
fi
! runs volume || add_program "$(command -v e2fsck)"
# The last programs: a newer C library comes with them, which all programs then use.
if runs streams; then
    tools="$newer/tools"
    add_tools nvme
fi
if runs volume md; then
    find_tools
    [ -e "$tools/usr/sbin/mdadm" ] || ! runs md ||
        fail "no mdadm in $tools: remove the folder, and it is fetched again"
    add_tools mkfs.xfs mdadm
    add_modules xfs virtio_blk raid456
fi
pack_guest

# Options of QEMU.
drives=()
# An image for a drive, with nothing in it. $1: file, $2: its name in QEMU, $3: size, $4: more of its options
image() {
    rm -f "$guest/$1"
    truncate -s "$3" "$guest/$1"
    drives+=(-drive "file=$guest/$1,if=none,id=$2,format=raw${4:+,$4}")
}

# Five NVMe drives with zones: one alone, four for an array. Capacity below size, few open zones. One more
# has blocks of 512 bytes.
block=4096
for number in 0 1 2 3 4 8; do
    [ "$number" != 8 ] || block=512
    image "drive-$number" "file$number" 1G
    drives+=(-device "nvme,id=nvme$number,serial=furrow$number,zoned.zasl=5"
        -device "nvme-ns,drive=file$number,bus=nvme$number,zoned=true,zoned.zone_size=16M,zoned.zone_capacity=12M,zoned.max_open=14,zoned.max_active=28,logical_block_size=$block,physical_block_size=$block")
done

# Three more for NVMe commands as they are: out-of-band bytes, zones of no power of two, and a drive
# that needs 2 ms for each command and keeps nothing.
if runs passthrough; then
    for number in 5 6; do image "drive-$number" "file$number" 1G; done
    drives+=(-drive driver=null-co,latency-ns=2000000,size=1G,read-zeroes=on,if=none,id=file7)
    zones=logical_block_size=4096,physical_block_size=4096,zoned=true,zoned.max_open=14,zoned.max_active=28
    for number in 5 6 7; do
        drives+=(-device "nvme,id=nvme$number,serial=furrow$number,zoned.zasl=5")
    done
    drives+=(-device "nvme-ns,drive=file5,bus=nvme5,$zones,zoned.zone_size=16M,zoned.zone_capacity=12M,ms=64"
        -device "nvme-ns,drive=file6,bus=nvme6,$zones,zoned.zone_size=12M"
        -device "nvme-ns,drive=file7,bus=nvme7,$zones,zoned.zone_size=16M")
fi

# Two without zones: one with 16 write streams, and one without any. A reclaim unit is larger than all
# that is written, so what is left of a handle's unit says how much the handle took.
if runs streams; then
    for number in 9 10; do image "drive-$number" "file$number" 1G discard=unmap; done
    blocks=logical_block_size=4096,physical_block_size=4096
    drives+=(-device nvme-subsys,id=placing,fdp=on,fdp.nruh=16,fdp.nrg=1,fdp.runs=16G
        -device nvme,id=nvme9,serial=furrow9,subsys=placing
        -device "nvme-ns,drive=file9,bus=nvme9,fdp.ruhs=0-15,$blocks"
        -device nvme,id=nvme10,serial=furrow10 -device "nvme-ns,drive=file10,bus=nvme10,$blocks")
fi

# Four plain drives, and one more for md's journal.
limit=900
if runs md; then
    limit=7200
    for number in 0 1 2 3 4; do
        image "plain-$number" "plain$number" 256M discard=unmap
        drives+=(-device "virtio-blk-pci,drive=plain$number,physical_block_size=4096")
    done
fi

console="$guest/console"
: >"$console"
rm -f "$guest/monitor"
started=$SECONDS
timeout "${FURROW_GUEST_TIMEOUT:-$limit}" "${machine[@]}" -accel tcg,thread=multi -cpu max -smp 2 -m 3G -nodefaults -no-reboot \
    -display none -kernel "${modules[0]}/vmlinuz" -initrd "$guest/initramfs" \
    -append "console=ttyS0 quiet panic=-1 fuse.enable_uring=1 furrow=${parts// /,}" \
    -serial "file:$console" -monitor "unix:$guest/monitor,server,nowait" "${drives[@]}" &
qemu=$!
trap 'kill "$qemu" 2>/dev/null || true' EXIT

# The guest asks for a drive's removal by a line on its console.
removed=""
while kill -0 "$qemu" 2>/dev/null; do
    if [ -z "$removed" ] && grep -q '^REMOVE ' "$console"; then
        removed="$(sed -n 's/^REMOVE \([a-z0-9]*\).*/\1/p' "$console" | head -n 1)"
        python3 - "$guest/monitor" "device_del $removed" <<'END'
import socket, sys, time
monitor = socket.socket(socket.AF_UNIX)
monitor.connect(sys.argv[1])
monitor.sendall((sys.argv[2] + "\n").encode())
time.sleep(1)
END
    fi
    sleep 0.5
done
tr -d '\r' <"$console" | sed -n '/^GUEST /s/^GUEST //p'
grep -q '^GUEST end' "$console" || fail "the guest did not get to its end: see $console"
! grep -q '^GUEST FAIL' "$console" || fail "a part failed: see $console"
say "guest: kernel $version, $((SECONDS - started)) s"
