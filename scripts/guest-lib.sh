# Sourced by the scripts that boot a guest: its kernel, its programs, its modules. $guest is the folder for
# all of it.

# Fetches the kernel and a shell, once.
fetch_kernel() {
    [ ! -e "$guest/kernel/complete" ] || return 0
    say "guest: fetching Debian's newest kernel (130 MB, once)"
    local version apt
    other_suite sid "$guest/apt"
    mkdir -p "$guest/kernel"
    # Missing parts of the suite (such as security updates) do not matter.
    apt-get "${apt[@]}" update >/dev/null 2>&1 || true
    version="$(apt-cache "${apt[@]}" depends linux-image-amd64 2>/dev/null |
        sed -n 's/.*Depends: linux-image-\([0-9].*-amd64\)$/\1/p' | head -n 1)"
    [ -n "$version" ] ||
        fail "no linux-image-amd64 in the suite sid of this machine's sources: set FURROW_GUEST_KERNEL"
    (cd "$guest/apt" && apt-get "${apt[@]}" download "linux-binary-$version" \
        "linux-modules-$version" busybox-static >/dev/null) ||
        fail "cannot download the kernel $version: is there a network?"
    local package
    for package in "$guest"/apt/*.deb; do
        dpkg -x "$package" "$guest/kernel"
        rm "$package"
    done
    touch "$guest/kernel/complete"
}

# Fetches the programs of the kernel's file systems, of dm-zoned and of md, once: of the kernel's suite, since older
# ones do not know zones. Sets $tools. FURROW_GUEST_TOOLS names a folder with the unpacked packages.
find_tools() {
    tools="${FURROW_GUEST_TOOLS:-$guest/tools}"
    # An older set of them has no dmzadm.
    [ ! -e "$tools/complete" ] || [ ! -e "$tools/usr/sbin/dmzadm" ] || return 0
    [ -z "${FURROW_GUEST_TOOLS:-}" ] || return 0
    say "guest: fetching xfsprogs, btrfs-progs, f2fs-tools, dm-zoned-tools and mdadm (14 MB, once)"
    local apt package
    other_suite sid "$guest/apt"
    mkdir -p "$guest/packages" "$tools"
    # Of an older set: what is unpacked from here on is whole only at the end.
    rm -f "$tools/complete"
    apt-get "${apt[@]}" update >/dev/null 2>&1 || true
    (cd "$guest/packages" && apt-get "${apt[@]}" download xfsprogs btrfs-progs f2fs-tools mdadm libc6 \
        libuuid1 libblkid1 liburcu8t64 libinih1 libedit2 libbsd0 libmd0 libtinfo6 libzstd1 \
        liblzo2-2 zlib1g libudev1 libcap2 libgcrypt20 libgpg-error0 libselinux1 libpcre2-8-0 \
        libmount1 dm-zoned-tools dmsetup libdevmapper1.02.1 libkmod2 libssl3t64 e2fsprogs \
        libext2fs2t64 libcom-err2 >/dev/null) || fail "cannot download the programs: set FURROW_GUEST_TOOLS"
    for package in "$guest"/packages/*.deb; do
        dpkg -x "$package" "$tools"
        rm "$package"
    done
    touch "$tools/complete"
}

# Fetches a QEMU whose NVMe drives have Flexible Data Placement (8.0 or later), and nvme-cli, once: of Debian
# trixie. Sets $machine, the command of that QEMU, and $newer: a folder with two folders of unpacked packages,
# qemu and tools. FURROW_GUEST_QEMU names another one.
find_streams() {
    local apt package
    newer="${FURROW_GUEST_QEMU:-$guest/newer}"
    if [ ! -e "$newer/complete" ] && [ -z "${FURROW_GUEST_QEMU:-}" ]; then
        say "guest: fetching QEMU and nvme-cli of Debian trixie (45 MB, once)"
        other_suite trixie "$guest/apt-trixie"
        mkdir -p "$newer"/{packages,qemu,tools}
        apt-get "${apt[@]}" update >/dev/null 2>&1 || true
        # Libraries and firmware: none of the programs that configure packages.
        (cd "$newer/packages" && apt-get "${apt[@]}" download $(apt-cache "${apt[@]}" depends --recurse \
            --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
            qemu-system-x86 | grep -E '^(lib|zlib1g|qemu-|seabios|ipxe-)' | sort -u) >/dev/null) ||
            fail "cannot download QEMU: set FURROW_GUEST_QEMU"
        for package in "$newer"/packages/*.deb; do dpkg -x "$package" "$newer/qemu"; done
        rm "$newer"/packages/*.deb
        (cd "$newer/packages" && apt-get "${apt[@]}" download nvme-cli libnvme1t64 libjson-c5 libssl3t64 \
            libkeyutils1 libc6 zlib1g libzstd1 >/dev/null) || fail "cannot download nvme-cli: set FURROW_GUEST_QEMU"
        for package in "$newer"/packages/*.deb; do dpkg -x "$package" "$newer/tools"; done
        rm -r "$newer/packages"
        touch "$newer/complete"
    fi
    # It needs the libraries of its suite, and finds its firmware only where it would be installed.
    machine=("$newer/qemu/usr/lib64/ld-linux-x86-64.so.2"
        --library-path "$newer/qemu/usr/lib/x86_64-linux-gnu" "$newer/qemu/usr/bin/qemu-system-x86_64"
        -L "$newer/qemu/usr/share/qemu" -L "$newer/qemu/usr/share/seabios")
}

# Copies programs of find_tools with all its libraries, the C library included, which the programs of this
# machine then use as well: call it after add_program. $@: programs
add_tools() {
    local program file
    for program in "$@"; do
        for file in "$tools"/usr/{s,}bin/"$program"; do
            [ ! -e "$file" ] || install -D -m 755 "$file" "$guest/tree/bin/$program"
        done
    done
    mkdir -p "$guest/tree/lib/x86_64-linux-gnu" "$guest/tree/lib64"
    for file in "$tools"/usr/lib/x86_64-linux-gnu/*.so*; do
        [ ! -f "$file" ] || cp -L "$file" "$guest/tree/lib/x86_64-linux-gnu/"
    done
    cp -L "$tools"/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 "$guest/tree/lib64/"
}

# Copies a program with the libraries it needs into the guest. $1: program
add_program() {
    install -D -m 755 "$1" "$guest/tree/bin/$(basename "$1")"
    # Debug information would make the guest boot slowly.
    ! have strip || strip --strip-debug "$guest/tree/bin/$(basename "$1")"
    local library
    for library in $(ldd "$1" | grep -o '/[^ ]*'); do
        install -D -m 755 "$library" "$guest/tree$library"
    done
}

# Sets $kernel, $modules and $version: the kernel that FURROW_GUEST_KERNEL names, or the newest.
find_kernel() {
    kernel="${FURROW_GUEST_KERNEL:-}"
    if [ -z "$kernel" ]; then
        fetch_kernel
        kernel="$guest/kernel"
    fi
    modules=("$kernel"/usr/lib/modules/*)
    [ -e "${modules[0]}/vmlinuz" ] || fail "no kernel in $kernel/usr/lib/modules"
    version="$(basename "${modules[0]}")"
}

# Copies modules and what they need into the guest, with the order to load them in. $@: modules
add_modules() {
    local module file name
    mkdir -p "$guest/tree/modules"
    [ -e "${modules[0]}/modules.dep" ] || depmod -b "$kernel/usr" "$version"
    for module in "$@"; do
        modprobe -d "$kernel/usr" -S "$version" --show-depends "$module" | while read -r _ file _; do
            name="$(basename "${file%.xz}")"
            [ -e "$guest/tree/modules/$name" ] || xz -dc "$file" >"$guest/tree/modules/$name"
            grep -qx "$name" "$guest/tree/modules/order-$module" 2>/dev/null ||
                echo "$name" >>"$guest/tree/modules/order-$module"
        done
    done
}

# Copies the shell and makes the folders of the guest.
add_shell() {
    install -D -m 755 "$(find "$kernel" -type f -name busybox -perm -u+x | head -n 1)" \
        "$guest/tree/bin/busybox"
}

# Packs the guest.
pack_guest() {
    (cd "$guest/tree" && find . | cpio --quiet -o -H newc) >"$guest/initramfs"
}
