#!/bin/busybox sh
# The first process of the guest of scripts/court.sh: loads drivers, carries out the task of /settings, and
# turns the guest off. Each line for the host begins with GUEST.
/bin/busybox --install -s /bin
# There is no udev, so dmsetup makes its nodes itself.
export PATH=/bin HOME=/ DM_DISABLE_UDEV=1
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs -o size=3G run /run

echo 1 >/proc/sys/kernel/printk

tell() { echo "GUEST $*"; }
show() { sed 's/^/GUEST   /' /run/out; }

for module in virtio_blk ublk_drv xfs btrfs f2fs dm_zoned ext4; do
    while read -r name; do insmod "/modules/$name" 2>/dev/null; done <"/modules/order-$module"
done
. /settings
mkdir -p /run/recordings
# Writing back begins early, so that a workload of seconds has it.
echo 100 >/proc/sys/vm/dirty_expire_centisecs
echo 50 >/proc/sys/vm/dirty_writeback_centisecs
tell "kernel $(uname -r), task $task, $kinds"

# Where the threads of whatever may hang are in the kernel.
stacks() {
    local thread
    for thread in /proc/[0-9]*/task/[0-9]*; do
        case "$(cat "$thread/comm" 2>/dev/null)" in
        furrow* | mount | umount | dmesg | f2fs* | xfs* | btrfs* | ublk* | dm*)
            echo "$thread $(cat "$thread/comm"): $(tr '\n' ' ' <"$thread/stack" | sed 's/\[<0>\] //g')"
            ;;
        esac
    done
}

# Runs a command, at most $patience seconds. $1: what a failure is called, then the command
step() {
    local name="$1" begun process
    shift
    begun=$(cut -d ' ' -f 1 /proc/uptime)
    (
        "$@" >/run/out 2>&1 &
        process=$!
        end=$(($(cut -d . -f 1 /proc/uptime) + patience))
        while kill -0 $process 2>/dev/null; do
            sleep 0.5
            if [ "$(cut -d . -f 1 /proc/uptime)" -gt "$end" ]; then
                echo "it does not end" >>/run/out
                stacks >>/run/out
                kill -9 $process
                break
            fi
        done
        wait $process
    )
    if [ $? = 0 ]; then tell "ok   $name ($begun to $(cut -d ' ' -f 1 /proc/uptime) s)"; else
        tell "FAIL $name"
        dmesg | tail -n 20 >>/run/out
    fi
    show
}

case "$task" in
trial)
    place=0
    for kind in $kinds; do
        for seed in $seeds; do
            recording=/run/recordings/$kind-$seed
            dmesg -c >/dev/null
            step "$kind $seed: record" furrow-court record "$kind" "$recording" --seed "$seed" \
                --calls "$calls" --churn "$churn"
            [ "$defect" = 0 ] || step "$kind $seed: flushes ignored are noticed" \
                furrow-court try "$recording" --cuts "$defect" --ignore-flushes
            [ "$cuts" = 0 ] || step "$kind $seed: cuts" furrow-court try "$recording" --cuts "$cuts"
            # Each goes to the host in a GiB of its own, with what tar adds.
            # Not by sync, which would wait for a file system that hangs.
            step "$kind $seed: the recording is short enough to be kept" \
                test "$(($(stat -c %s "$recording") / 1048576))" -lt 1023
            tar -C /run/recordings -cf - "$kind-$seed" |
                head -c 1073741824 | dd of=/dev/vda bs=1M seek=$((place * 1024)) conv=fsync 2>/dev/null
            place=$((place + 1))
            rm "$recording"
        done
    done
    ;;
replay*)
    set -- $task
    # busybox's tar reads its input to the end, and the drive is long.
    dd if=/dev/vda bs=1M count="$size" 2>/dev/null | tar -C /run/recordings -xf -
    step "$2 $3 cut $4" furrow-court try "/run/recordings/$2-$3" --first "$4" --cuts 1
    ;;
case)
    # So few calls write nothing back by themselves.
    echo 3000 >/proc/sys/vm/dirty_expire_centisecs
    echo 500 >/proc/sys/vm/dirty_writeback_centisecs
    export TMPDIR=/run
    step "$command" $command
    ;;
compare)
    for kind in $kinds; do
        step "$kind: compare" furrow-court compare "$kind" --runs "$runs"
    done
    ;;
times)
    patience=$((patience * 10))
    for kind in $kinds; do
        step "$kind: times" furrow-court times "$kind" --runs "$runs" --slow $slow
    done
    ;;
esac
tell end
poweroff -f
