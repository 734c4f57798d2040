#!/usr/bin/env bash
# Soft zones on this machine's disk against ext4 on the same disk: scripts/soft.sh [ROUNDS]
#
# Furrow on soft zones and ext4 on a loop device each have an allocated file of 4 GiB in a folder of the disk
# (FURROW_SOFT_DIR, else the target folder); they take turns, and the medians of ROUNDS (3) are printed with the
# ratio. A RAID-5 of four soft drives, by NBD, is held against a plain file. Then a day's habits: git
# commits, and PostgreSQL, whose mount's daemon is killed under them; all that was acknowledged must be there.
# PostgreSQL is left out where it is not installed (FURROW_SOFT_FIGURES=0 leaves out the figures).
. "$(dirname "$0")/lib.sh"

rounds="${1:-3}"
problem="$(fuse_problem)"
[ -z "$problem" ] || fail "no mount is possible: $problem"
for tool in fio losetup mkfs.ext4 python3 git; do have "$tool" || fail "missing: $tool"; done
[ -n "${FURROW_SOFT_BUILT:-}" ] || cargo build --release --locked -p furrow-cli
furrow="$(realpath "$target_dir")/release/furrow"

mkdir -p "${FURROW_SOFT_DIR:-$target_dir}"
work="$(realpath "${FURROW_SOFT_DIR:-$target_dir}")/soft.$$"
mkdir -p "$work"/{furrow,back,ext4}
chmod 755 "$work"
loop=""
# PostgreSQL's sockets: their paths must be short.
sockets="$(mktemp -d)"
pg_bin="$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1)"
as_postgres() { (cd / && setpriv --reuid=postgres --regid=postgres --init-groups "$@"); }
cleanup() {
    [ -z "$pg_bin" ] || as_postgres "$pg_bin/pg_ctl" -D "$work/furrow/pg" stop -m immediate >/dev/null 2>&1 || true
    "$furrow" raid stop --force soft >/dev/null 2>&1 || true
    "$furrow" umount -l "$work/furrow" >/dev/null 2>&1 || true
    "$furrow" umount -l "$work/back" >/dev/null 2>&1 || true
    umount -l "$work/ext4" 2>/dev/null || true
    [ -z "$loop" ] || losetup -d "$loop" 2>/dev/null || true
    rm -rf "$work" "$sockets"
}
trap cleanup EXIT

# The rate of a run of fio: IOPS, or MB/s for blocks of 1 MiB. Writes count, or reads where none are written.
rate() {
    fio --output-format=json --output="$work/fio.json" --group_reporting --fallocate=none "$@" >/dev/null ||
        fail "fio $*"
    python3 - "$work/fio.json" <<'END'
import json, sys
text = open(sys.argv[1]).read()
job = json.loads(text[text.index("{"):])["jobs"][0]
side = job["write"] if job["write"]["total_ios"] else job["read"]
large = side["io_bytes"] / side["total_ios"] > 100000
print(side["bw_bytes"] / 1e6 if large else side["iops"])
END
}

# The jobs on a file system. $1: job, $2: folder
on_files() {
    local file=(--name=job --filename="$2/file" --size=1G)
    case "$1" in
    "1 MiB, buffered, an fsync at the end (MB/s)") rate "${file[@]}" --rw=write --bs=1M --ioengine=psync --end_fsync=1 ;;
    "4 KiB at random and fsync (1/s)") rate "${file[@]}" --rw=randwrite --bs=4k --ioengine=psync --fsync=1 --runtime=6 --time_based ;;
    "4 KiB at random and fsync, 8 threads, one file (1/s)") rate "${file[@]}" --rw=randwrite --bs=4k --ioengine=psync --fsync=1 --runtime=6 --time_based --thread --numjobs=8 ;;
    "4 KiB at random and fsync, 8 threads, 8 files (1/s)") rate --name=job --directory="$2" --filename_format='file.$jobnum' --size=64M --rw=randwrite --bs=4k --ioengine=psync --fsync=1 --runtime=6 --time_based --thread --numjobs=8 ;;
    "4 KiB at random, buffered, an fsync at the end (1/s)") rate "${file[@]}" --rw=randwrite --bs=4k --ioengine=psync --io_size=200M --end_fsync=1 ;;
    "4 KiB reads at random, direct, 4 threads (1/s)") rate "${file[@]}" --rw=randread --bs=4k --ioengine=psync --direct=1 --runtime=6 --time_based --thread --numjobs=4 ;;
    esac
}

# The jobs on a block device. $1: job, then options that name it
on_blocks() {
    local job="$1"
    shift
    case "$job" in
    "1 MiB, 4 at once (MB/s)") rate --name=job --size=1G "$@" --rw=write --bs=1M --iodepth=4 --end_fsync=1 ;;
    "4 KiB at random, 16 at once (1/s)") rate --name=job --size=1G "$@" --rw=randwrite --bs=4k --iodepth=16 --runtime=6 --time_based --end_fsync=1 ;;
    "4 KiB reads at random, 16 at once (1/s)") rate --name=job --size=1G "$@" --rw=randread --bs=4k --iodepth=16 --runtime=6 --time_based ;;
    esac
}

# A table of medians of what is in $work/rates: lines of "job<tab>contestant<tab>rate". $1: the one to compare with
table() {
    python3 - "$work/rates" "$1" <<'END'
import statistics, sys
rates = {}
for line in open(sys.argv[1]):
    job, who, rate = line.rstrip("\n").split("\t")
    rates.setdefault(job, {}).setdefault(who, []).append(float(rate))
for job, of in rates.items():
    peer = statistics.median(of[sys.argv[2]])
    for who, values in of.items():
        middle = statistics.median(values)
        print(f"{job:54} {who:26} {middle:10.0f}  ({min(values):.0f} to {max(values):.0f})  {middle / peer:6.2f}")
END
}

figures() {
    local round job who
    "$furrow" device create --soft "$work/furrow.soft" --size 4GiB >/dev/null
    "$furrow" mkfs "$work/furrow.soft" >/dev/null
    "$furrow" mount -o nowriteback_cache "$work/furrow.soft" "$work/furrow" --log "$work/log"
    "$furrow" device create --soft "$work/back.soft" --size 4GiB >/dev/null
    "$furrow" mkfs "$work/back.soft" >/dev/null
    "$furrow" mount -o writeback_cache "$work/back.soft" "$work/back" --log "$work/log"
    fallocate -l 4G "$work/ext4.image"
    loop="$(losetup --show --find --direct-io=on "$work/ext4.image")"
    mkfs.ext4 -q "$loop"
    mount "$loop" "$work/ext4"
    for round in $(seq "$rounds"); do
        for job in "1 MiB, buffered, an fsync at the end (MB/s)" "4 KiB at random and fsync (1/s)" \
            "4 KiB at random and fsync, 8 threads, one file (1/s)" "4 KiB at random and fsync, 8 threads, 8 files (1/s)" \
            "4 KiB at random, buffered, an fsync at the end (1/s)" \
            "4 KiB reads at random, direct, 4 threads (1/s)"; do
            for who in ext4 furrow back; do
                printf '%s\t%s\t%s\n' "$job" "${who/back/furrow, writeback_cache}" "$(on_files "$job" "$work/$who")"
            done
        done
    done >"$work/rates"
    say "files, $rounds rounds: median (least to most), over ext4 on a loop device"
    table ext4
    "$furrow" umount "$work/furrow"
    "$furrow" umount "$work/back"
    umount "$work/ext4"
    losetup -d "$loop"
    loop=""
    rm "$work"/*.soft "$work/ext4.image"

    local drives=()
    for number in 1 2 3 4; do
        "$furrow" device create --soft "$work/d$number.soft" --size 1GiB >/dev/null
        drives+=("$work/d$number.soft")
    done
    "$furrow" raid create --level 5 --name soft "${drives[@]}" >/dev/null
    "$furrow" raid assemble --listen "unix:$work/socket" --log "$work/log" "${drives[@]}" >/dev/null
    fallocate -l 1G "$work/plain"
    for round in $(seq "$rounds"); do
        for job in "1 MiB, 4 at once (MB/s)" "4 KiB at random, 16 at once (1/s)" "4 KiB reads at random, 16 at once (1/s)"; do
            printf '%s\t%s\t%s\n' "$job" "a plain file, direct" \
                "$(on_blocks "$job" --ioengine=libaio --direct=1 --filename="$work/plain")"
            printf '%s\t%s\t%s\n' "$job" "RAID-5 of 4, by NBD" \
                "$(on_blocks "$job" --ioengine=nbd --uri="nbd+unix:///soft?socket=$work/socket")"
        done
    done >"$work/rates"
    say "a volume, $rounds rounds: median (least to most), over a plain file on the disk"
    table "a plain file, direct"
    "$furrow" raid stop soft >/dev/null
    rm "$work"/*.soft "$work/plain"
}

# Kills the daemon of the mount, and mounts again.
kill_daemon() {
    kill -9 "$("$furrow" df --json "$work/furrow" | sed -n 's/^ *"pid": *\([0-9]*\).*/\1/p')"
    while stat -f "$work/furrow/." >/dev/null 2>&1; do sleep 0.05; done
}
mount_again() {
    "$furrow" umount "$work/furrow"
    "$furrow" mount -o "$1" "$work/habits.soft" "$work/furrow" --log "$work/log"
}

habits_of_git() {
    local number
    git -C "$work/furrow" init --quiet repository
    local git=(git -C "$work/furrow/repository" -c user.name=test -c user.email=test@localhost -c core.fsync=all)
    # git renames the branch and leaves its directory unsynced: the last commit alone may be lost, as on
    # any file system. So the directory is synced before a commit counts.
    (for number in $(seq 1000); do
        head -c 20000 /dev/urandom >"$work/furrow/repository/file-$((number % 40))" &&
            "${git[@]}" add . && "${git[@]}" commit --quiet -m "$number" &&
            sync "$work/furrow/repository/.git/refs/heads" &&
            "${git[@]}" rev-parse HEAD >>"$work/commits" || exit 0
    done) 2>/dev/null &
    local writer=$!
    sleep 6
    kill_daemon
    wait "$writer"
    mount_again "$1"
    # A program that dies leaves its locks; git says to remove them.
    rm -f "$work"/furrow/repository/.git/*.lock "$work"/furrow/repository/.git/refs/heads/*.lock
    "${git[@]}" fsck --full --no-dangling >"$work/said" 2>&1 || fail "git fsck: $(cat "$work/said")"
    local at=0
    for number in $(cat "$work/commits"); do
        at=$((at + 1))
        "${git[@]}" merge-base --is-ancestor "$number" HEAD ||
            fail "commit $at of $(wc -l <"$work/commits"), $number, is lost"
    done
    say "git, $1: $(wc -l <"$work/commits") commits before the kill, none lost, fsck clean"
    rm "$work/commits"
}

habits_of_postgres() {
    local number writer bench sums
    mkdir "$work/furrow/pg"
    rm -f "$work/postgres.log"
    install -o postgres /dev/null "$work/postgres.log"
    chown postgres "$sockets"
    chown postgres "$work/furrow/pg"
    as_postgres "$pg_bin/initdb" -D "$work/furrow/pg" --data-checksums >/dev/null 2>&1
    local start=("$pg_bin/pg_ctl" -D "$work/furrow/pg" -w -l "$work/postgres.log"
        -o "-c listen_addresses= -c unix_socket_directories=$sockets -p 54329" start)
    local psql=("$pg_bin/psql" -h "$sockets" -p 54329 -qAt -d postgres)
    as_postgres "${start[@]}" >/dev/null
    as_postgres "$pg_bin/pgbench" -h "$sockets" -p 54329 -q -i -s 5 postgres 2>/dev/null
    as_postgres "$pg_bin/pgbench" -h "$sockets" -p 54329 -n -c 4 -T 8 postgres 2>/dev/null >"$work/said"
    local speed
    speed="$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' "$work/said" | head -n 1)"
    as_postgres "${psql[@]}" -c "create table acknowledged (n int)"
    (as_postgres "$pg_bin/pgbench" -h "$sockets" -p 54329 -n -c 4 -T 60 postgres >/dev/null 2>&1) &
    bench=$!
    (for number in $(seq 100000); do
        as_postgres "${psql[@]}" -c "insert into acknowledged values ($number)" 2>/dev/null || exit 0
        echo "$number" >>"$work/acknowledged"
    done) &
    writer=$!
    sleep 6
    kill_daemon
    as_postgres "$pg_bin/pg_ctl" -D "$work/furrow/pg" stop -m immediate >/dev/null 2>&1 || true
    pkill -9 -f -- "-p 54329" || true
    wait "$writer" "$bench" 2>/dev/null || true
    mount_again "$1"
    # The locks of a server that died, of which a zombie may be left.
    rm -f "$work/furrow/pg/postmaster.pid" "$sockets"/.s.PGSQL.*
    as_postgres "${start[@]}" >/dev/null || fail "PostgreSQL does not start: $(tail -n 20 "$work/postgres.log")"
    local last kept
    last="$(tail -n 1 "$work/acknowledged")"
    kept="$(as_postgres "${psql[@]}" -c "select count(distinct n) from acknowledged where n <= $last")"
    [ "$kept" = "$last" ] || fail "PostgreSQL: $last rows acknowledged, $kept found"
    sums="$(as_postgres "${psql[@]}" -c "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)
        and (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history)")"
    [ "$sums" = t ] || fail "PostgreSQL: the sums of its tables differ"
    as_postgres "$pg_bin/pg_ctl" -D "$work/furrow/pg" -w stop >/dev/null
    as_postgres "$pg_bin/pg_checksums" -D "$work/furrow/pg" --check >"$work/said" || fail "$(cat "$work/said")"
    say "PostgreSQL, $1: pgbench $speed transactions a second; $last rows acknowledged before the kill, none lost; sums and checksums right"
    rm "$work/acknowledged"
}

[ "${FURROW_SOFT_FIGURES:-1}" = 0 ] || figures
for options in nowriteback_cache writeback_cache; do
    "$furrow" device create --soft "$work/habits.soft" --size 2GiB >/dev/null
    "$furrow" mkfs "$work/habits.soft" >/dev/null
    "$furrow" mount -o "$options" "$work/habits.soft" "$work/furrow" --log "$work/log"
    habits_of_git "$options"
    if [ -n "$pg_bin" ] && have setpriv; then habits_of_postgres "$options"; else say "PostgreSQL is not installed: left out"; fi
    "$furrow" umount "$work/furrow"
    "$furrow" fsck "$work/habits.soft"
    rm "$work/habits.soft"
done
