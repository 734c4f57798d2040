"""Kafka: three brokers that are controllers too, a client, and a record of what it was told."""
import base64
import os
import queue
import subprocess
import threading
import time
import uuid

from drives import Failure, end, free_port, start, wait_for

TOPIC = "furrow"
PARTITIONS = 4


# The simple compiler: a run is short, and shares its processors with all nodes.
JAVA = ["java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1"]


def compile_java(folder, jars, name):
    """Compiles a program of this directory and what it uses; returns where the classes are."""
    classes = os.path.join(folder, "classes")
    here = os.path.dirname(os.path.abspath(__file__))
    subprocess.run(["javac", "-nowarn", "-d", classes, "-cp", f"{jars}/*", "-sourcepath", here,
                    os.path.join(here, f"{name}.java")], check=True)
    return classes


class Kafka:
    name = "kafka"

    def __init__(self, folder, drives, seed, jars, flushes):
        self.folder, self.drives, self.seed, self.jars = folder, drives, seed, jars
        self.flushes = flushes
        self.brokers = {}
        self.ports = {d.number: (free_port(), free_port()) for d in drives}
        self.acked, self.unknown, self.attempted = {}, {}, 0
        self.answers = queue.Queue()
        self.stopped = threading.Event()
        self.client = None
        self.rate = 150
        # Small, so that a round writes several.
        self.segment_bytes = 4 << 20

    def path(self, number):
        return os.path.join(self.drives[number - 1].directory, "kafka")

    def properties(self, number):
        return os.path.join(self.folder, f"kafka{number}.properties")

    def log(self, number):
        return os.path.join(self.folder, f"kafka{number}.log")

    def tool(self, *arguments):
        command = [*JAVA, "-Xmx128m", "-cp", f"{self.jars}/*", "kafka.tools.StorageTool"]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise Failure(f"kafka StorageTool: {done.stderr.strip()[-300:]}")

    def set_up(self):
        voters = ",".join(f"{n}@127.0.0.1:{c}" for n, (_, c) in self.ports.items())
        flush = "log.flush.interval.messages=1" if self.flushes else ""
        for number, (port, control) in self.ports.items():
            with open(self.properties(number), "w", encoding="utf-8") as file:
                file.write(f"""process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={self.path(number)}
broker.rack=rack{number}
replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector
default.replication.factor=3
min.insync.replicas=2
{flush}
log.segment.bytes={self.segment_bytes}
log.index.size.max.bytes=262144
offsets.topic.num.partitions=1
offsets.topic.replication.factor=3
log.cleaner.dedupe.buffer.size=4194304
log.cleaner.threads=1
auto.create.topics.enable=false
num.network.threads=2
num.io.threads=4
replica.lag.time.max.ms=10000
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=1000
""")
        # As `random-uuid` of the tool makes it, which would cost the start of a virtual machine.
        self.cluster = "F" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        for number in self.ports:
            self.refill(number)
        classes = compile_java(self.folder, self.jars, "ClusterClient")
        for number in self.ports:
            self.start(number)
        brokers = ",".join(f"127.0.0.1:{p}" for p, _ in self.ports.values())
        with open(os.path.join(self.folder, "kafka-client.log"), "ab") as log:
            self.client = subprocess.Popen(
                [*JAVA, "-Xmx200m", "-cp", f"{self.jars}/*:{classes}", "ClusterClient",
                 brokers], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                start_new_session=True)
        threading.Thread(target=self.listen, daemon=True).start()
        made = wait_for(lambda: self.ask(f"topic {TOPIC} {PARTITIONS}", "topic", 60), 120, 1)
        if not made:
            raise Failure("kafka: the topic could not be made")
        self.wait_whole(120)

    def refill(self, number):
        """Makes the directory of a broker whose drive is empty; its peers give it all it had."""
        os.makedirs(self.path(number), exist_ok=True)
        self.tool("format", "-t", self.cluster, "-c", self.properties(number))

    def mend(self, number, found):
        """A broker is mended by a refill, unless nothing is damaged."""
        return found["damaged"] == 0

    def start(self, number):
        command = [*JAVA, "-Xms128m", "-Xmx384m", "-cp", f"{self.jars}/*", "kafka.Kafka",
                   self.properties(number)]
        self.brokers[number] = start(command, self.log(number), cwd=self.folder)

    def is_alive(self, number):
        broker = self.brokers.get(number)
        return broker is not None and broker.poll() is None

    def kill(self, number):
        if self.is_alive(number):
            self.brokers[number].kill()
            self.brokers[number].wait(30)

    def stop(self, number):
        end(self.brokers.get(number), 20)

    # The client.

    def listen(self):
        for line in self.client.stdout:
            words = line.split()
            if words[0] == "ack":
                self.acked[int(words[1])] = (int(words[2]), int(words[3]))
            elif words[0] == "unknown":
                self.unknown[int(words[1])] = words[2]
            elif words[0] == "stopped":
                self.attempted = int(words[1])
                self.stopped.set()
            else:
                self.answers.put(words)

    def tell(self, line):
        self.client.stdin.write(line + "\n")
        self.client.stdin.flush()

    def ask(self, line, expected, seconds):
        """Sends a command; its answer, or None if it failed."""
        while not self.answers.empty():
            self.answers.get()
        self.tell(line)
        try:
            answer = self.answers.get(timeout=seconds)
        except queue.Empty:
            return None
        return answer if answer[0] == expected else None

    def begin_load(self):
        self.stopped.clear()
        self.before = (len(self.acked), time.monotonic())
        self.tell(f"load {TOPIC} {self.attempted} {self.seed} {self.rate}")

    def end_load(self):
        """Ends the load; how many records were acknowledged, by second."""
        self.tell("stop")
        seconds = time.monotonic() - self.before[1]
        if not self.stopped.wait(90):
            raise Failure("kafka: the producer does not end")
        count = len(self.acked) - self.before[0]
        return {"acknowledged": count, "a_second": round(count / seconds)}

    def whole(self):
        """True if each replica is in sync, of the topic and of the metadata."""
        answer = self.ask(f"state {TOPIC}", "state", 20)
        if not answer or int(answer[1]) < 3:
            return False
        return all(int(lag.split(":")[1]) < 20 for lag in answer[2:])

    def wait_whole(self, seconds):
        if not wait_for(self.whole, seconds, 0.5):
            raise Failure(f"kafka: not in sync after {seconds} s")

    def ready_to_refill(self, number):
        """True if the other two controllers have all metadata, so that an empty third may vote."""
        answer = self.ask(f"state {TOPIC}", "state", 20)
        if not answer:
            return False
        lags = dict(word.split(":") for word in answer[2:])
        return all(int(lag) < 20 for other, lag in lags.items() if int(other) != number)

    def verify(self):
        """Reads each replica; the problems found, each one line."""
        problems = []
        for number in self.ports:
            problems += self.verify_replica(number)
        return problems

    def verify_replica(self, number):
        problems, found, attempts = [], {}, 0
        while not self.answers.empty():
            self.answers.get()
        self.tell(f"read {TOPIC} rack{number} 60 {self.seed}")
        while True:
            try:
                words = self.answers.get(timeout=90)
            except queue.Empty as error:
                raise Failure("kafka: the client is silent") from error
            if words[0] == "record":
                found[int(words[1]), int(words[2])] = int(words[3])
            elif words[0] == "bad":
                problems.append(f"kafka {number}: wrong bytes: {' '.join(words[1:])}")
            else:
                break
            attempts += 1
        if words[2:] != ["done"]:
            problems.append(f"kafka {number}: cannot be read: {' '.join(words[2:])}"[:300])
        missing = [n for n, where in self.acked.items() if found.get(where) != n]
        for record in missing[:5]:
            where = self.acked[record]
            problems.append(f"kafka {number}: record {record}, acknowledged at {where}, is lost: "
                            f"there is {found.get(where)}")
        if len(missing) > 5:
            problems.append(f"kafka {number}: {len(missing)} acknowledged records are lost")
        for where, record in found.items():
            if record >= self.attempted:
                problems.append(f"kafka {number}: record {record} at {where} was never written")
        return problems

    def held(self):
        return f"{len(self.acked)} records"

    def finish(self):
        if self.client is not None:
            self.client.stdin.close()
            end(self.client, 5)
        for broker in self.brokers.values():
            if broker.poll() is None:
                broker.kill()
                broker.wait(30)
