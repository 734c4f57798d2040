#!/usr/bin/env python3
"""Kafka and Garage on three Furrow mounts, broken on purpose: scripts/cluster/run.py COMMAND

    rounds N --seed S --engine garage|kafka|both
        N rounds of faults. After each one, every acknowledged record, object and listing is read
        from each of the three nodes and compared. One line a round, then a summary. Exit status 1
        if anything was lost, wrong or not repaired. --on ext4: the control, the same cluster on
        ext4 in image files, which only the faults of CONTROL can strike. --no-flushes: Kafka and
        Garage acknowledge what they have not flushed, and promise nothing if all nodes lose it; the
        rounds with a loss are counted, and only a fault of the file system is a failure
    demo --engine garage|kafka|both
        the engines on the same three mounts: data, a power cut, a drive replaced, all compared
    bench --engine garage|kafka|both
        speed on three mounts against three ext4 file systems on the same disk, taking turns:
        --rounds N pairs, --seconds N for each operation, --clients N producers or threads,
        --size SIZE of each image, --disk DIRECTORY for the images, --mount-options A,B of Furrow

    --furrow FILE, --garage FILE, --jars DIRECTORY   the programs; scripts/cluster.sh gives them
    --kinds A,B       only these faults
    --keep            keep the working directory; one with a loss is kept in any case
    --json FILE       the summary as JSON

What a fault is: see FAULTS. A round repeats with its seed, up to the timing of the machine.
"""
import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time

from bench import bench
from cluster import NODES, Cluster
from drives import Drive, Ext4, Failure, wait_for

VERSION = 1
# What a node or its drive meets.
FAULTS = {
    "daemon-kill": "SIGKILL for the mount's daemon",
    "node-kill": "SIGKILL for the node",
    "power-cut": "the drive's power fails at some command",
    "all-kill": "SIGKILL for all nodes and all daemons at once",
    "all-power": "the same, and the power of all drives fails",
    "replace": "the drive vanishes at some command, and an empty one takes its place",
    "flip": "bits of 40 written blocks change",
    "offline": "two written zones go offline",
    "full": "the drive is filled to the last block",
    "slow": "every third command of the drive takes 20 ms more",
}
# Those that need no drive. The kernel outlives the nodes, and what they had not synced with it: on
# ext4 these are faults of the engines alone.
CONTROL = ("node-kill", "all-kill")
# Those after which a node may lack what it acknowledged: one node at a time, or the copies end.
DESTRUCTIVE = ("replace", "flip", "offline")
# Those that may come second, on another node.
SECOND = ("daemon-kill", "node-kill", "power-cut", "slow")
WHAT = {"kafka": "records", "garage": "changes of objects"}
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Rounds on one cluster: Kafka's topic grows.
ROUNDS_A_CLUSTER = 20


class Round:
    """One round: faults prepared, load, faults, recovery, and the comparison."""

    def __init__(self, cluster, faults, draw):
        self.cluster, self.faults, self.draw = cluster, faults, draw
        self.problems, self.notes = [], []
        self.kinds = {node: kind for kind, node in faults if node}

    def run(self):
        begun = time.monotonic()
        for kind, node in self.faults:
            self.prepare(kind, node)
        for engine in self.cluster.engines:
            engine.begin_load()
        try:
            self.strike()
            self.recover([n for n in NODES if self.kinds.get(n) not in DESTRUCTIVE])
            time.sleep(1)
        finally:
            counts = {engine.name: engine.end_load() for engine in self.cluster.engines}
        self.recover([n for n in NODES if self.kinds.get(n) in DESTRUCTIVE])
        for engine in self.cluster.engines:
            engine.wait_whole(120)
        compared = time.monotonic()
        for engine in self.cluster.engines:
            self.problems += engine.verify()
        self.seconds = round(time.monotonic() - begun, 1)
        self.notes.append(f"compared in {time.monotonic() - compared:.1f} s")
        return counts

    # Before the load: faults that an image takes only while nobody uses it.

    def prepare(self, kind, node):
        if kind not in ("power-cut", "replace", "slow", "flip", "offline"):
            return
        drive, draw = self.cluster.drives[node], self.draw
        self.cluster.stop_node(node)
        if kind == "power-cut":
            drive.fault("power-cut", "--nth", str(draw.randrange(100, 2500)))
        elif kind == "replace":
            drive.fault("disappear", "--nth", str(draw.randrange(100, 2500)))
        elif kind == "slow":
            drive.fault("slow", "--every", "3", "--delay-us", "20000")
        else:
            self.damage(kind, drive)
        problem = drive.mount()
        if problem:
            self.notes.append(f"node {node} mount refused: {problem[-160:]}")
            if kind not in ("flip", "offline", "power-cut", "replace"):
                self.problems.append(f"furrow {node}: mount refused: {problem}")
            return
        self.cluster.start_node(node)
        # A node with an injured drive may not come up; the load goes on without it.
        wait_for(lambda: not self.cluster.is_alive(node)
                 or all(e.whole() for e in self.cluster.engines), 25, 0.5)

    def damage(self, kind, drive):
        """Flips bits or takes zones offline: of files' content, or of anything written."""
        draw = self.draw
        zones = [zone for zone in drive.map() if zone["written"] > 0]
        content = [zone for zone in zones if zone["use"].startswith("data-")]
        if content and draw.random() < 0.6:
            zones = content
            self.notes.append("in content")
        if kind == "offline":
            for zone in draw.sample(zones, min(2, len(zones))):
                drive.fault("zone-offline", "--zone", str(zone["zone"]))
                self.notes.append(f"zone {zone['zone']} ({zone['use']})")
            return
        first = {zone["zone"]: zone["start_lba"] for zone in drive.zones()}
        for zone in draw.choices(zones, weights=[z["written"] for z in zones], k=40):
            block = first[zone["zone"]] + draw.randrange(zone["written"])
            drive.fault("bit-flip", "--lba", f"{block}+1")

    def strike(self):
        """The load for some seconds, and the faults that come in the middle of it."""
        lasts = 6 + 3 * self.draw.random()
        moments = sorted(((1 + self.draw.random() * 3, kind, node) for kind, node in self.faults),
                         key=lambda moment: moment[0])
        begun = time.monotonic()
        for moment, kind, node in moments:
            time.sleep(max(0.0, begun + moment - time.monotonic()))
            if kind == "daemon-kill":
                self.cluster.drives[node].kill()
            elif kind == "node-kill":
                for engine in self.cluster.engines:
                    engine.kill(node)
            elif kind in ("all-kill", "all-power"):
                self.cluster.crash(NODES)
                lasts = moment
            elif kind == "full":
                self.fill(node)
        time.sleep(max(0.0, begun + lasts - time.monotonic()))

    def fill(self, node):
        """Fills a drive, leaves it so for two seconds, and frees it."""
        path = os.path.join(self.cluster.drives[node].directory, "filler")
        block = self.draw.randbytes(1 << 20)
        written = 0
        try:
            file = os.open(path, os.O_CREAT | os.O_WRONLY)
            try:
                while True:
                    written += os.write(file, block)
            except OSError as error:
                self.notes.append(f"{written >> 20} MiB until {error.strerror!r}")
            finally:
                os.close(file)
            time.sleep(2)
            os.remove(path)
        except OSError as error:
            self.problems.append(f"furrow {node}: the filler: {error}")

    # After it.

    def recover(self, numbers):
        """Brings nodes back: those whose drive is whole, or the one that is to be refilled."""
        cut = any(kind == "all-power" for kind, _ in self.faults)
        everyone = any(kind.startswith("all-") for kind, _ in self.faults)
        down = [n for n in numbers if not self.cluster.is_alive(n) or self.kinds.get(n)]
        refilled = []
        for number in down:
            kind, drive = self.kinds.get(number), self.cluster.drives[number]
            died = [e.name for e in self.cluster.engines if not e.is_alive(number)]
            if kind in ("flip", "offline"):
                self.mend(number, died)
                continue
            if kind in ("power-cut", "full", "slow", None) and died and not everyone:
                self.notes.append(f"{'+'.join(died)} {number} had ended")
            for engine in self.cluster.engines:
                if kind == "slow":
                    engine.stop(number)
                else:
                    engine.kill(number)
            if kind == "slow":
                drive.unmount()
            else:
                drive.detach()
            if cut:
                drive.cut_power()
            if kind in ("power-cut", "replace") and self.pending(drive):
                self.notes.append(f"{kind} of {number} had not struck")
            drive.clear_faults()
            if kind == "replace":
                self.wait_for_others(number)
                drive.create()
                drive.mount_or_fail()
                for engine in self.cluster.engines:
                    engine.refill(number)
                self.cluster.start_node(number)
                refilled.append(number)
                continue
            problem = drive.mount()
            if problem:
                # Nothing that a drive acknowledged may be lost by a kill or a cut.
                self.problems.append(f"{drive.name} {number}: mount refused: {problem}")
                raise Failure(problem)
            self.cluster.start_node(number)
        for number in refilled:
            self.after_refill(number, self.cluster.engines)

    @staticmethod
    def pending(drive):
        return bool(json.loads(drive.run("device", "fault", "list", drive.image, "--json").stdout)
                    ["faults"])

    def wait_for_others(self, number):
        """An empty node may come only when the others have everything."""
        for engine in self.cluster.engines:
            if hasattr(engine, "ready_to_refill") and \
                    not wait_for(lambda e=engine: e.ready_to_refill(number), 60, 0.5):
                raise Failure(f"{engine.name}: the other nodes do not get ready")

    def after_refill(self, number, engines):
        for engine in engines:
            if hasattr(engine, "after_refill"):
                engine.after_refill(number)

    def mend(self, number, died):
        """What an operator does about a damaged drive: each engine's own procedure."""
        cluster, drive = self.cluster, self.cluster.drives[number]
        if died:
            self.notes.append(f"{'+'.join(died)} {number} had ended")
        found = None
        if drive.is_alive() and drive.is_mounted():
            try:
                found = drive.scrub()
                self.notes.append(f"scrub: {found['damaged']} damaged")
            except Failure as error:
                # If the root directory is among what is lost, no command reaches the daemon.
                self.notes.append(str(error)[-100:])
            # Before anything is mended: no node may serve wrong bytes.
            if not died:
                for engine in cluster.engines:
                    said = engine.verify()
                    self.problems += [line for line in said if "wrong bytes" in line
                                      or "never written" in line]
                    errors = [line for line in said if "cannot be read" in line]
                    if errors:
                        self.notes.append(f"{engine.name}: {len(errors)} errors before the mend")
        self.wait_for_others(number)
        refill = []
        for engine in cluster.engines:
            if found and engine.is_alive(number) and engine.mend(number, found):
                self.notes.append(f"{engine.name} mended {len(found['findings'])} findings")
                left = drive.scrub()["damaged"]
                if left:
                    self.problems.append(f"furrow {number}: {left} still damaged when mended")
                continue
            engine.kill(number)
            refill.append(engine)
        if not refill:
            return
        try:
            if found is None:
                raise OSError("not mounted")
            for engine in refill:
                shutil.rmtree(engine.path(number))
                self.notes.append(f"{engine.name} refilled")
        except OSError as error:
            # The directory itself is damaged, or the mount was refused: as if replaced.
            self.notes.append(f"drive made anew ({error.strerror or error})")
            refill = cluster.engines
            for engine in refill:
                engine.kill(number)
            drive.detach()
            drive.create()
            drive.mount_or_fail()
        for engine in refill:
            engine.refill(number)
            engine.start(number)
        self.after_refill(number, refill)


def plan(seed, count, kinds):
    """The faults of each round: every kind in turn, and a third of the rounds with two or more."""
    draw = random.Random(f"plan {seed}")
    rounds, order = [], []
    for index in range(count):
        order = order or draw.sample(kinds, len(kinds))
        kind = order.pop()
        node = 0 if kind.startswith("all-") else draw.choice(NODES)
        faults = [(kind, node)]
        seconds = [k for k in SECOND if k in kinds]
        if index % 3 == 2 and node and seconds:
            other = draw.choice([n for n in NODES if n != node])
            faults.append((draw.choice(seconds), other))
        rounds.append(faults)
    return rounds


def named(faults):
    return " + ".join(f"{kind} {node}" if node else kind for kind, node in faults)


def engines_of(options):
    return ["kafka", "garage"] if options.engine == "both" else [options.engine]


def drive_of(options):
    """Makes what a node has its data on: small, so that rounds fill and clean it."""
    if getattr(options, "on", "furrow") == "ext4":
        return lambda folder, number: Ext4(folder, number, "512MiB")
    return lambda folder, number: Drive(options.furrow, folder, number, "512MiB")


def rounds(options, work):
    engines = engines_of(options)
    results, lost, unfinished, failures, cluster = [], 0, 0, 0, None
    begun = time.monotonic()
    try:
        for index, faults in enumerate(plan(options.seed, options.count, options.kinds)):
            if cluster is None or index % ROUNDS_A_CLUSTER == 0:
                if cluster is not None:
                    cluster.finish()
                    shutil.rmtree(cluster.folder)
                cluster = Cluster(os.path.join(work, f"cluster{index}"), options, engines,
                                  options.seed * 1000 + index, drive_of(options))
                cluster.set_up()
            one = Round(cluster, faults, random.Random(f"{options.seed} {index}"))
            counts, ended = {}, True
            try:
                counts = one.run()
            except Failure as error:
                one.problems.append(f"the round did not end, nothing was compared: {error}")
                ended = False
            # Without flushes the engines may lose something; the file system may not.
            failed = [line for line in one.problems
                      if options.flushes or line.startswith(f"{options.on} ")]
            failures += bool(failed)
            done = ", ".join(f"{name} {c['acknowledged']} acknowledged"
                             for name, c in counts.items())
            held = ", ".join(engine.held() for engine in cluster.engines)
            state = "kept" if not one.problems else "LOST" if ended else "NOT COMPARED"
            seconds = f", {one.seconds} s" if ended else ""
            print(f"round {index + 1:3} {named(faults)}: {done}; {held} {state}{seconds} "
                  f"({'; '.join(one.notes)})", flush=True)
            for problem in one.problems[:20]:
                print(f"          {problem}", flush=True)
            results.append({"round": index + 1, "faults": [list(f) for f in faults],
                            "counts": counts, "problems": one.problems, "notes": one.notes,
                            "seconds": one.seconds if ended else None})
            if one.problems:
                lost += ended
                unfinished += not ended
                # The next round has a new cluster. One that failed stays as it is for a look.
                cluster.finish()
                if failed:
                    options.keep = True
                elif not options.keep:
                    shutil.rmtree(cluster.folder)
                cluster = None
    finally:
        if cluster is not None:
            cluster.finish()
    by_kind = {}
    for result in results:
        for kind, _ in result["faults"]:
            entry = by_kind.setdefault(kind, {"rounds": 0, "lost": 0})
            entry["rounds"] += 1
            entry["lost"] += bool(result["problems"])
    summary = {"version": VERSION, "on": options.on, "engine": options.engine, "seed": options.seed,
               "flushes": options.flushes, "rounds": len(results), "with_two_faults_or_more": sum(
                   len(r["faults"]) > 1 or r["faults"][0][0].startswith("all-") for r in results),
               "lost": lost, "not_compared": unfinished, "faults": by_kind,
               "acknowledged": {name: sum(r["counts"].get(name, {}).get("acknowledged", 0)
                                          for r in results) for name in engines},
               "seconds": round(time.monotonic() - begun), "results": results}
    print(f"\n{options.engine} on {options.on}{'' if options.flushes else ', without flushes'}: "
          f"{len(results)} rounds, seed {options.seed}, "
          f"{summary['with_two_faults_or_more']} with two faults or more, "
          f"{summary['seconds']} s; acknowledged {summary['acknowledged']}; rounds with a loss: "
          f"{lost}; not compared: {unfinished}")
    for kind in FAULTS:
        if kind in by_kind:
            print(f"  {kind:12} {by_kind[kind]['rounds']:3} rounds, {by_kind[kind]['lost']} with "
                  f"a loss or not compared")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(summary, file, indent=2)
            file.write("\n")
    return 1 if failures else 0


def demo(options, work):
    begun = time.monotonic()

    def say(line):
        print(f"{time.monotonic() - begun:5.0f} s  {line}", flush=True)

    cluster = Cluster(os.path.join(work, "demo"), options, engines_of(options), options.seed,
                      drive_of(options))
    problems = []
    try:
        say("three emulated zoned drives of 512 MiB, three mounts")
        cluster.set_up()
        say(f"three nodes each of {' and '.join(engines_of(options))} have their data there")
        counts = {}

        def load(seconds, during=None):
            for engine in cluster.engines:
                engine.begin_load()
            time.sleep(seconds / 2)
            if during:
                during()
            time.sleep(seconds / 2)
            for engine in cluster.engines:
                counts.setdefault(engine.name, 0)
                counts[engine.name] += engine.end_load()["acknowledged"]
            say("acknowledged so far: " + ", ".join(
                f"{count} {WHAT[name]}" for name, count in counts.items()))

        def compare():
            for engine in cluster.engines:
                engine.wait_whole(120)
                found = engine.verify()
                problems.extend(found)
                say(f"{engine.name}: {engine.held()}, read from each of three nodes: "
                    f"{len(found)} wrong")

        def cut():
            cluster.crash([2])
            say("node 2: the power of machine and drive fails in the middle of the load")

        load(8)
        load(8, cut)
        drive = cluster.drives[2]
        drive.detach()
        drive.cut_power()
        drive.mount_or_fail()
        cluster.start_node(2)
        say("node 2: mounted again, started")
        compare()

        def vanish():
            cluster.crash([3])
            say("node 3: the drive is gone")

        load(8, vanish)
        drive = cluster.drives[3]
        drive.detach()
        mender = Round(cluster, [], random.Random(0))
        mender.wait_for_others(3)
        drive.create()
        drive.mount_or_fail()
        for engine in cluster.engines:
            engine.refill(3)
        cluster.start_node(3)
        say("node 3: an empty drive in its place, the engines fill it from their peers")
        mender.after_refill(3, cluster.engines)
        compare()
    finally:
        cluster.finish()
    for problem in problems[:20]:
        print(problem)
    say(f"stopped. Acknowledged: {counts}. Lost or wrong: {len(problems)}")
    options.keep |= bool(problems)
    return 1 if problems else 0


def stop(received, _):
    """Ends the run in good order; a second signal would leave mounts behind."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + received)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--furrow", required=True, type=os.path.abspath)
    shared.add_argument("--garage", type=os.path.abspath)
    shared.add_argument("--jars", type=os.path.abspath)
    shared.add_argument("--engine", choices=["kafka", "garage", "both"], default="both")
    shared.add_argument("--seed", type=int, default=1)
    shared.add_argument("--keep", action="store_true")
    shared.add_argument("--json")
    shared.set_defaults(flushes=True)
    one = commands.add_parser("rounds", parents=[shared])
    one.add_argument("count", type=int)
    one.add_argument("--kinds")
    one.add_argument("--on", choices=["furrow", "ext4"], default="furrow")
    one.add_argument("--no-flushes", dest="flushes", action="store_false")
    commands.add_parser("demo", parents=[shared])
    one = commands.add_parser("bench", parents=[shared])
    one.add_argument("--rounds", type=int, default=5)
    one.add_argument("--seconds", type=int, default=10)
    one.add_argument("--clients", type=int, default=4)
    one.add_argument("--size", default="2GiB")
    one.add_argument("--disk", type=os.path.abspath)
    one.add_argument("--mount-options", default="cache=256MiB")
    options = parser.parse_args()
    if options.command == "rounds":
        possible = CONTROL if options.on == "ext4" else tuple(FAULTS)
        options.kinds = options.kinds.split(",") if options.kinds else list(possible)
        for kind in options.kinds:
            if kind not in FAULTS:
                parser.error(f"unknown fault {kind}; there are {', '.join(FAULTS)}")
            if kind not in possible:
                parser.error(f"{kind} needs an emulated drive or the daemon of a mount; --on ext4 "
                             f"has {' and '.join(possible)}")
    ext4 = options.command == "bench" or getattr(options, "on", None) == "ext4"
    if ext4 and os.geteuid() != 0:
        parser.error("mounting ext4 in an image needs root")
    if options.command == "bench":
        if min(options.rounds, options.seconds, options.clients) < 1:
            parser.error("--rounds, --seconds and --clients are at least 1")
    # What was started ends with this, however it ends.
    for number in STOPS:
        signal.signal(number, stop)
    work = tempfile.mkdtemp(prefix="furrow-cluster-", dir=getattr(options, "disk", None))
    try:
        if options.command == "bench":
            return bench(options, work, engines_of(options))
        return (rounds if options.command == "rounds" else demo)(options, work)
    except Failure as error:
        options.keep = True
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    finally:
        if options.keep:
            print(f"kept: {work}")
        else:
            shutil.rmtree(work)


if __name__ == "__main__":
    sys.exit(main())
