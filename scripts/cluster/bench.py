"""Kafka and Garage on three Furrow mounts against three ext4 file systems on the same disk.

The disk is one file, written in full before, on a loop device with direct I/O: the host's disk has
what a flush of it acknowledges. On it is ext4 without a journal, which only holds the images: soft
zones for Furrow, and a loop device for ext4, both with direct I/O. So a flush costs both sides one
flush of the disk, and neither the commit of a journal below, which the host's own file system would
add to the one and not to the other: a loop device calls fsync, and soft zones fdatasync. The images
are written in full before use for the same reason.
"""
import json
import os
import shutil
import statistics
import subprocess
import time

from cluster import NODES, Cluster
from drives import Ext4, Failure, Soft, end, in_bytes, wait_for
from kafka import JAVA, compile_java

VERSION = 1
SIDES = ("furrow", "ext4")
CLOCK = os.sysconf("SC_CLK_TCK")
# Counters of `furrow stat` that a step is measured by.
COUNTERS = ("fsyncs", "user_bytes", "host_bytes", "data_bytes", "node_bytes", "sync_bytes",
            "checkpoint_bytes", "delta_bytes", "table_bytes", "read_bytes", "write_commands",
            "checkpoints", "clean_victims", "space_waits")


def command(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise Failure(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


class Disk:
    """The disk of all images."""

    def __init__(self, folder, size):
        self.file = os.path.join(folder, "disk")
        self.directory = os.path.join(folder, "images")
        self.size, self.device = size, None

    def set_up(self):
        folder = os.path.dirname(self.file)
        free = shutil.disk_usage(folder).free
        if free < self.size * 1.05:
            raise Failure(f"{folder} has {free >> 20} MiB free; the images need {self.size >> 20} "
                          f"(smaller: --size; elsewhere: --disk)")
        os.mkdir(self.directory)
        with open(self.file, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, self.size)
        self.device = command("losetup", "-f", "--show", "--direct-io=on", self.file)
        with open(f"/sys/block/{os.path.basename(self.device)}/loop/dio", encoding="ascii") as dio:
            if dio.read().strip() != "1":
                raise Failure(f"{folder} has no direct I/O; name another by --disk")
        command("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-T", "largefile",
                "-E", "lazy_itable_init=0", self.device)
        command("mount", "-o", "noatime", self.device, self.directory)
        for name in NODES:
            path = os.path.join(self.directory, str(name))
            with open(path, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, self.size // 3 - (64 << 20))
            fill(path)
        for name in NODES:
            os.remove(os.path.join(self.directory, str(name)))

    def close(self):
        if os.path.ismount(self.directory) and not wait_for(
                lambda: subprocess.run(["umount", "-q", self.directory]).returncode == 0, 10):
            command("umount", "-l", self.directory)
        # Asked by the file: a signal may have come before its device was known here. One that is
        # still in use goes when its last user does.
        for device in command("losetup", "-n", "-O", "NAME", "-j", self.file).split():
            command("losetup", "-d", device)
        if os.path.exists(self.file):
            os.remove(self.file)

    def statistics(self):
        """What the disk has done since it was made."""
        with open(f"/sys/block/{os.path.basename(self.device)}/stat", encoding="ascii") as file:
            words = [int(word) for word in file.read().split()]
        return {"read_bytes": words[2] * 512, "writes": words[4], "written_bytes": words[6] * 512,
                "flushes": words[15], "flush_ms": words[16]}


def fill(path):
    """Writes a file again as it is: it has no holes then, and its blocks are written ones."""
    with open(path, "r+b", buffering=0) as file:
        at = 0
        while chunk := os.pread(file.fileno(), 4 << 20, at):
            at += os.pwrite(file.fileno(), chunk, at)
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def flush_times(folder):
    """Median milliseconds to write 4 KiB and flush, as ext4's loop device does, and soft zones."""
    path, found = os.path.join(folder, "probe"), {}
    with open(path, "wb") as file:
        file.write(bytes(8 << 20))
    fill(path)
    handle = os.open(path, os.O_RDWR)
    for name, flush in (("fsync", os.fsync), ("fdatasync", os.fdatasync)) * 2:
        for block in range(100):
            begun = time.perf_counter()
            os.pwrite(handle, b"\1" * 4096, block * 8192)
            flush(handle)
            found.setdefault(name, []).append(1000 * (time.perf_counter() - begun))
    os.close(handle)
    os.remove(path)
    return {name: round(statistics.median(times), 3) for name, times in found.items()}


def processor(pid):
    """Seconds of processor that a process has used."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            words = file.read().rsplit(")", 1)[1].split()
    except OSError as error:
        raise Failure(f"process {pid} has ended") from error
    return (int(words[11]) + int(words[12])) / CLOCK


def machine():
    """Seconds that all processors of the machine were busy, also in the kernel's own threads."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / CLOCK


def furrow_statistics(drives):
    """Sums over all mounts: counters, and number and time of the requests of each kind."""
    sums = {}
    for drive in drives:
        said = json.loads(drive.run("stat", "--json", drive.directory).stdout)
        for name in COUNTERS:
            sums[name] = sums.get(name, 0) + said["counters"].get(name, 0)
        for kind in said["operations"]:
            for name in ("count", "total_ns"):
                key = f"{kind['name']}_{name}"
                sums[key] = sums.get(key, 0) + kind[name]
    return sums


def difference(after, before):
    return {name: round(value - before.get(name, 0), 3) for name, value in after.items()}


class KafkaLoad:
    """Producers that wait for all replicas, and a consumer in the rack of each replica."""

    SIZES = (("1 KiB", 1 << 10), ("100 KiB", 100 << 10))

    def __init__(self, cluster, options):
        self.engine, self.options = cluster.engines[0], options
        # Not the small ones of the rounds: Kafka's own are of 1 GiB.
        self.engine.segment_bytes = 128 << 20

    def pids(self):
        return [self.engine.brokers[n].pid for n in NODES], self.engine.client.pid

    def ask(self, line, expected, seconds):
        self.engine.tell(line)
        try:
            words = self.engine.answers.get(timeout=seconds)
        except Exception as error:
            raise Failure(f"kafka: no answer to {line}") from error
        if words[0] != expected:
            raise Failure(f"kafka: {line}: {' '.join(words)}"[:300])
        return [int(word) for word in words[1:]]

    def produce(self, topic, length, seconds, share=0.3):
        limit = int(in_bytes(self.options.size) * share)
        words = self.ask(f"produce {topic} {length} {seconds} {self.options.clients} 16 {limit}",
                         "produced", seconds + 120)
        return answer(*words)

    def consume(self, topic, length):
        seconds = self.options.seconds
        records, *words = self.ask(f"consume {topic} {seconds} rack1 rack2 rack3", "consumed",
                                   seconds + 120)
        # The latencies are those of polls, each with many records.
        return dict(answer(*words), count=records, polls=words[0])

    def set_up(self):
        """Starts the nodes, and lets their programs be compiled before anything is measured."""
        self.engine.set_up()
        for name in ("warm", "t0", "t1"):
            self.ask(f"topic {name} 4", "topic", 60)
        self.produce("warm", 10_000, max(1, self.options.seconds // 3), 0.1)

    def steps(self):
        for number, (name, length) in enumerate(self.SIZES):
            yield (f"kafka produce {name}",
                   lambda n=number, b=length: self.produce(f"t{n}", b, self.options.seconds))
            yield f"kafka consume {name}", lambda n=number, b=length: self.consume(f"t{n}", b)

    def close(self):
        pass


def answer(count, failed, total, microseconds, p50, p99):
    return {"count": count, "failed": failed, "bytes": total,
            "seconds": microseconds / 1e6, "p50_us": p50, "p99_us": p99}


class GarageLoad:
    """Threads that put and get objects by the S3 protocol, each request at the next node."""

    SIZES = (("1 MiB", 1 << 20), ("4 KiB", 4 << 10))

    def __init__(self, cluster, options):
        self.engine, self.options = cluster.engines[0], options
        self.folder, self.client = cluster.folder, None

    def pids(self):
        return [self.engine.nodes[n].pid for n in NODES], self.client.pid

    def set_up(self):
        """Starts the nodes, and lets the client be compiled before anything is measured."""
        from garage import BUCKET
        self.engine.set_up()
        classes = compile_java(self.folder, self.options.jars, "S3Bench")
        ports = [str(self.engine.ports[n][1]) for n in NODES]
        with open(os.path.join(self.folder, "s3-client.log"), "ab") as log:
            self.client = subprocess.Popen(
                [*JAVA, "-Xmx200m", "-cp", classes, "S3Bench", BUCKET, *self.engine.key, *ports],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                start_new_session=True)
        seconds = max(1, self.options.seconds // 3)
        self.put("warm", 100_000, seconds, 0.1)
        self.get("warm", seconds)

    def ask(self, line):
        self.client.stdin.write(line + "\n")
        self.client.stdin.flush()
        words = self.client.stdout.readline().split()
        if not words or words[0] != line.split()[0]:
            raise Failure(f"garage: {line}: {' '.join(words)}"[:300])
        return answer(*(int(word) for word in words[1:]))

    def put(self, prefix, length, seconds, share=0.3):
        limit = int(in_bytes(self.options.size) * share)
        return self.ask(f"put {prefix} {length} {seconds} {self.options.clients} {limit}")

    def get(self, prefix, seconds):
        return self.ask(f"get {prefix} {seconds} {self.options.clients}")

    def steps(self):
        seconds = self.options.seconds
        for name, length in self.SIZES:
            prefix = f"o{length}-"
            yield (f"garage put {name}",
                   lambda p=prefix, b=length: self.put(p, b, seconds))
            yield f"garage get {name}", lambda p=prefix: self.get(p, seconds)

    def close(self):
        if self.client is not None:
            self.client.stdin.close()
            end(self.client, 5)


LOADS = {"kafka": KafkaLoad, "garage": GarageLoad}


def measure(load, cluster, disk, side, call):
    """Runs a step; its answer, and what everything that took part has done meanwhile."""
    nodes, client = load.pids()
    drives = list(cluster.drives.values())

    def look():
        cpu = {"nodes": sum(processor(pid) for pid in nodes), "client": processor(client),
               "machine": machine()}
        if side == "furrow":
            cpu["daemons"] = sum(processor(drive.daemon.pid) for drive in drives)
        return cpu, disk.statistics(), furrow_statistics(drives) if side == "furrow" else {}

    before = look()
    result = call()
    after = look()
    if result["count"] == 0:
        raise Failure(f"{cluster.engines[0].name} on {side}: nothing was done")
    result["rate"] = result["count"] / result["seconds"]
    result["cpu_seconds"] = difference(after[0], before[0])
    result["disk"] = difference(after[1], before[1])
    if side == "furrow":
        result["furrow"] = difference(after[2], before[2])
    return result


def run_side(options, work, disk, side, engine, number):
    """One cluster of one engine on one kind of file system, from nothing to its removal."""
    def place(folder, node):
        if side == "ext4":
            return Ext4(folder, node, options.size, images=disk.directory, direct=True)
        return Soft(options.furrow, folder, node, options.size, images=disk.directory,
                    options=options.mount_options)

    cluster = Cluster(os.path.join(work, f"{engine}-{side}-{number}"), options, [engine], number,
                      place)
    load, results = LOADS[engine](cluster, options), {}
    try:
        for drive in cluster.drives.values():
            drive.create()
            fill(drive.image)
            drive.mount_or_fail()
        load.set_up()
        # What setting up has left in memory would be written during the first step.
        os.sync()
        for name, call in load.steps():
            results[name] = measure(load, cluster, disk, side, call)
            if results[name]["failed"]:
                print(f"{name} on {side}: {results[name]['failed']} failed", flush=True)
    finally:
        try:
            load.close()
        finally:
            cluster.finish()
    for drive in cluster.drives.values():
        os.remove(drive.image)
    shutil.rmtree(cluster.folder)
    return results


def median(results, value):
    return statistics.median(value(result) for result in results)


def summary_of(name, pairs):
    """One operation in all rounds: medians of each side, and of the ratios of the pairs."""
    found = {"operation": name,
             "ratios": [round(p["furrow"]["rate"] / p["ext4"]["rate"], 3) for p in pairs]}
    found["ratio"] = round(statistics.median(found["ratios"]), 3)
    for side in SIDES:
        results = [pair[side] for pair in pairs]
        one = found[side] = {key: round(median(results, lambda r, k=key: r[k]), 1)
                             for key in ("rate", "p50_us", "p99_us")}
        one["megabytes_a_second"] = round(
            median(results, lambda r: r["bytes"] / r["seconds"] / 1e6), 1)
        one["failed"] = sum(r["failed"] for r in results)
        # A thousand operations: seconds of processor are milliseconds for each.
        one["cpu_ms"] = {who: round(median(results, lambda r, w=who: 1000 * r["cpu_seconds"][w]
                                           / r["count"]), 4) for who in results[0]["cpu_seconds"]}
        one["disk_flushes"] = round(median(results, lambda r: r["disk"]["flushes"] / r["count"]), 4)
        one["disk_flush_ms"] = round(median(results, lambda r: r["disk"]["flush_ms"]
                                            / max(1, r["disk"]["flushes"])), 3)
        one["disk_kib"] = round(median(results, lambda r: r["disk"]["written_bytes"] / 1024
                                       / r["count"]), 3)
    results = [pair["furrow"]["furrow"] for pair in pairs]
    found["furrow"]["fsyncs"] = sum(r["fsyncs"] for r in results)
    found["furrow"]["fsync_ms"] = round(median(results, lambda r: r.get("fsync_total_ns", 0) / 1e6
                                               / max(1, r.get("fsync_count", 0))), 3)
    return found


def print_table(summaries, heads, cells):
    """A table with a row for each operation. `cells` makes those of ext4 and of Furrow a row."""
    print("\n" + "\n".join(heads))
    for one in summaries:
        print(f"{one['operation']:22}{cells(one, one['ext4'], one['furrow'])}")


def print_tables(summaries):
    print_table(
        summaries,
        [f"{'operations a second':22}{'ext4':>9}{'furrow':>9}{'ratio':>7}{'p99 ext4':>15}"
         f"{'p99 furrow':>15}"],
        lambda one, ext4, furrow: f"{ext4['rate']:>9,.0f}{furrow['rate']:>9,.0f}"
                                  f"{one['ratio']:>7.2f}{ext4['p99_us'] / 1000:>12.1f} ms"
                                  f"{furrow['p99_us'] / 1000:>12.1f} ms")

    def processor_cells(_, ext4, furrow):
        ext4, furrow = ext4["cpu_ms"], furrow["cpu_ms"]
        return (f"{ext4['nodes']:>8.3f}{ext4['client']:>8.3f}{ext4['machine']:>8.3f}"
                f"{furrow['daemons']:>10.3f}{furrow['nodes']:>8.3f}{furrow['client']:>8.3f}"
                f"{furrow['machine']:>8.3f}")

    print_table(
        summaries,
        [f"{'ms of processor for':22}{'ext4':>24}{'furrow':>34}",
         f"{'one operation':22}{'nodes':>8}{'client':>8}{'machine':>8}{'daemons':>10}{'nodes':>8}"
         f"{'client':>8}{'machine':>8}"],
        processor_cells)

    def both(ext4, furrow, name, digits):
        return f"{ext4[name]:.{digits}f}/{furrow[name]:.{digits}f}"

    print_table(
        summaries,
        [f"{'the disk, for':22}{'flushes':>13}{'KiB written':>16}{'a flush':>14}{'an fsync':>13}",
         f"{'one operation':22}{'ext4/furrow':>13}{'ext4/furrow':>16}{'ext4/furrow':>14}"
         f"{'of furrow':>13}"],
        lambda _, ext4, furrow: f"{both(ext4, furrow, 'disk_flushes', 2):>13}"
                                f"{both(ext4, furrow, 'disk_kib', 1):>16}"
                                f"{both(ext4, furrow, 'disk_flush_ms', 1):>11} ms"
                                f"{furrow['fsync_ms']:>10.1f} ms")


def bench(options, work, engines):
    begun = time.monotonic()
    disk = Disk(work, 3 * in_bytes(options.size) * 21 // 20 + (256 << 20))
    pairs, results = {}, []
    try:
        disk.set_up()
        probe = flush_times(disk.directory)
        print(f"4 KiB written and flushed on the disk: {probe['fsync']} ms by fsync (ext4's loop "
              f"device),\n{probe['fdatasync']} ms by fdatasync (soft zones)", flush=True)
        for number in range(options.rounds):
            order = SIDES if number % 2 == 0 else SIDES[::-1]
            for engine in engines:
                found = {side: run_side(options, work, disk, side, engine, number)
                         for side in order}
                results.append({"round": number + 1, "engine": engine, "order": order, **found})
                for name in found["ext4"]:
                    pair = {side: found[side][name] for side in SIDES}
                    pairs.setdefault(name, []).append(pair)
                    print(f"round {number + 1}, {time.monotonic() - begun:5.0f} s: {name}: "
                          f"ext4 {pair['ext4']['rate']:,.0f}, furrow "
                          f"{pair['furrow']['rate']:,.0f} a second", flush=True)
    finally:
        disk.close()
    summaries = [summary_of(name, each) for name, each in pairs.items()]
    print_tables(summaries)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"version": VERSION, "engine": options.engine, "rounds": options.rounds,
                       "seconds_an_operation": options.seconds, "clients": options.clients,
                       "size": options.size, "mount_options": options.mount_options,
                       "flush_ms": probe, "seconds": round(time.monotonic() - begun),
                       "operations": summaries, "results": results}, file, indent=2)
            file.write("\n")
    return 0
