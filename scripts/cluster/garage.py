"""Garage: three nodes, S3 clients of ours, and a record of what they were told."""
import json
import os
import random
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import boto3
import botocore.config
import botocore.exceptions

from drives import Failure, end, free_port, start, wait_for

BUCKET = "furrow"
WRITERS = 3
# Objects that one writer keeps alive.
KEPT = 40
# Tables that have to be the same on all nodes. A repair of blocks knows those of which rows of
# block_ref have come.
TABLES = ("object", "bucket_v2", "key", "version", "block_ref")


class Garage:
    name = "garage"

    def __init__(self, folder, drives, seed, program, flushes):
        self.folder, self.drives, self.seed, self.program = folder, drives, seed, program
        self.flushes = flushes
        self.nodes, self.peers = {}, {}
        self.ports = {d.number: [free_port() for _ in range(3)] for d in drives}
        draw = random.Random(f"garage {seed}")
        self.secret = draw.randbytes(32).hex()
        self.token = draw.randbytes(32).hex()
        self.key = ("GK" + draw.randbytes(12).hex(), draw.randbytes(32).hex())
        # What each name may hold: versions, or None for nothing. Several if an answer was lost.
        self.may_hold = {}
        self.retired = set()
        self.versions = 0
        self.wrong, self.absent = [], 0
        self.lock = threading.Lock()
        self.rounds = 0
        self.rate = 12
        self.writers = []
        self.bucket = None

    def path(self, number, *rest):
        return os.path.join(self.drives[number - 1].directory, "garage", *rest)

    def config(self, number):
        return os.path.join(self.folder, f"garage{number}.toml")

    def log(self, number):
        return os.path.join(self.folder, f"garage{number}.log")

    def write_config(self, number):
        rpc, s3, admin = self.ports[number]
        peers = [peer for other, peer in self.peers.items() if other != number]
        flushes = str(self.flushes).lower()
        with open(self.config(number), "w", encoding="utf-8") as file:
            os.chmod(self.config(number), 0o600)
            file.write(f"""metadata_dir = "{self.path(number, 'meta')}"
data_dir = "{self.path(number, 'data')}"
db_engine = "lmdb"
metadata_fsync = {flushes}
data_fsync = {flushes}
replication_factor = 3
consistency_mode = "consistent"
rpc_secret = "{self.secret}"
rpc_bind_addr = "127.0.0.1:{rpc}"
rpc_public_addr = "127.0.0.1:{rpc}"
bootstrap_peers = {json.dumps(peers)}
[s3_api]
s3_region = "garage"
api_bind_addr = "127.0.0.1:{s3}"
[admin]
api_bind_addr = "127.0.0.1:{admin}"
admin_token = "{self.token}"
""")

    def tell(self, number, *arguments, seconds=30):
        command = [self.program, "-c", self.config(number), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise Failure(f"garage {' '.join(arguments)}: no answer") from error
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split())[-300:]
            raise Failure(f"garage {' '.join(arguments)}: {said}")
        return done.stdout

    def set_up(self):
        for number in self.ports:
            os.makedirs(self.path(number, "meta"))
            os.makedirs(self.path(number, "data"))
            self.write_config(number)
            self.start(number)
        for number in self.ports:
            # The first start of a node makes its identity.
            if not wait_for(lambda n=number: self.health(n), 60, 0.3):
                raise Failure(f"garage: node {number} does not start, see {self.log(number)}")
            self.peers[number] = self.tell(number, "node", "id", "-q").split()[0]
            # An operator keeps it: with it, an empty node is the same node.
            for name in ("node_key", "node_key.pub"):
                shutil.copy(self.path(number, "meta", name), self.kept(number, name))
        for number in self.ports:
            # For later starts; those that run now are told of each other.
            self.write_config(number)
            if number > 1:
                self.tell(1, "node", "connect", self.peers[number])
        if not wait_for(lambda: self.connected() == 3, 60, 0.3):
            raise Failure("garage: the nodes do not find each other")
        for number, peer in self.peers.items():
            self.tell(1, "layout", "assign", "-z", f"zone{number}", "-c", "1G", peer[:64])
        self.tell(1, "layout", "apply", "--version", "1")
        if not wait_for(self.healthy, 60, 0.3):
            raise Failure("garage: the cluster does not become healthy")
        self.tell(1, "key", "import", "--yes", "-n", "test", *self.key)
        self.tell(1, "bucket", "create", BUCKET)
        found = self.admin(1, f"/v2/GetBucketInfo?globalAlias={BUCKET}")
        self.bucket = json.loads(found)["id"]
        self.tell(1, "bucket", "allow", "--read", "--write", "--owner", BUCKET, "--key", "test")
        self.wait_whole(60)

    def kept(self, number, name):
        return os.path.join(self.folder, f"garage{number}.{name}")

    def refill(self, number):
        """Makes the directories of a node whose drive is empty: its identity, and nothing else."""
        for name in ("meta", "data"):
            os.makedirs(self.path(number, name), exist_ok=True)
        for name in ("node_key", "node_key.pub"):
            shutil.copy(self.kept(number, name), self.path(number, "meta", name))
            os.chmod(self.path(number, "meta", name), 0o600)

    def after_refill(self, number):
        """Has an empty node take all it lacks from its peers."""
        if not wait_for(self.healthy, 60, 0.3):
            raise Failure(f"garage: node {number} does not join")
        # Rows are sent by those that have them.
        self.tell(number, "repair", "--all-nodes", "--yes", "tables")
        if not wait_for(self.tables_agree, 120, 0.5):
            raise Failure(f"garage: the tables of node {number} are not filled: {self.sizes()}")
        self.repair_blocks(number)

    def repair_blocks(self, number):
        """Has a node fetch the blocks that it lacks, now. A block that is queued keeps its time,
        which is up to ten minutes away for a node that has just got its rows; so the queue is
        emptied first. What waits to be removed comes into it again."""
        # Rows are put into the queue with a delay of two seconds.
        time.sleep(3)
        self.tell(number, "repair", "--yes", "clear-resync-queue")
        self.tell(number, "repair", "--yes", "blocks")
        if not wait_for(lambda: self.has_blocks([number]), 300, 1):
            raise Failure(f"garage: node {number} lacks {self.missing_blocks([number])} blocks")

    def mend(self, number, found):
        """Removes damaged blocks and has Garage fetch them. False if more than blocks is damaged.

        Garage replaces a block that is missing, or that it reads and finds wrong. It leaves one
        that cannot be read, so the file has to go.
        """
        if found["damaged"] == 0:
            return True
        data = self.path(number, "data") + os.sep
        paths = {finding.get("path") for finding in found["findings"]}
        if found.get("more_findings") or None in paths:
            return False
        # What lies elsewhere on the drive is not Garage's.
        ours = {path for path in paths if path.startswith(self.path(number) + os.sep)}
        if not all(path.startswith(data) and os.path.isfile(path) for path in ours):
            return False
        for path in ours:
            os.remove(path)
        self.repair_blocks(number)
        return True

    def start(self, number):
        environment = dict(os.environ, RUST_LOG="garage=info")
        self.nodes[number] = start([self.program, "-c", self.config(number), "server"],
                                   self.log(number), env=environment)

    def is_alive(self, number):
        node = self.nodes.get(number)
        return node is not None and node.poll() is None

    def kill(self, number):
        if self.is_alive(number):
            self.nodes[number].kill()
            self.nodes[number].wait(30)

    def stop(self, number):
        end(self.nodes.get(number), 20)

    # What a node says of itself.

    def admin(self, number, path):
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[number][2]}{path}",
                                         headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read().decode()

    def health(self, number):
        try:
            return json.loads(self.admin(number, "/v2/GetClusterHealth"))
        except (OSError, ValueError):
            return {}

    def connected(self):
        return min(self.health(n).get("connectedNodes", 0) for n in self.ports)

    def healthy(self):
        return all(self.health(n).get("status") == "healthy"
                   and self.health(n).get("connectedNodes") == 3 for n in self.ports)

    def statistics(self, number):
        """The tables and the blocks of a node, in numbers; nothing if it does not answer."""
        try:
            answer = json.loads(self.admin(number, "/v2/GetNodeStatistics?node=self"))
            return next(iter(answer["success"].values()))
        except (OSError, ValueError, StopIteration):
            return None

    def idle(self, number):
        """Whether a node has no rows to compare or to insert. Its queue of blocks says nothing:
        of the blocks in it some are due in two minutes, others in ten."""
        found = self.statistics(number)
        return found is not None and not any(
            t["merkleQueueLen"] + t["insertQueueLen"] for t in found["tableStats"])

    def missing_blocks(self, numbers):
        """How many blocks of all objects these nodes lack, each with its node."""
        missing = 0
        for name, held in list(self.may_hold.items()):
            if held == {None}:
                continue
            query = urllib.parse.urlencode({"bucketId": self.bucket, "key": name})
            try:
                versions = json.loads(self.admin(1, f"/v2/InspectObject?{query}"))["versions"]
            except urllib.error.HTTPError:
                # Nothing is there. Whether something should be is asked in verify().
                continue
            # No node has the content of an upload that was interrupted.
            hashes = [block["hash"] for version in versions if not version["uploading"]
                      for block in version.get("blocks", [])]
            missing += sum(not self.has_block(n, block) for n in numbers for block in hashes)
        return missing

    def has_block(self, number, block):
        file = self.path(number, "data", block[:2], block[2:4], block)
        return os.path.exists(file) or os.path.exists(file + ".zst")

    def has_blocks(self, numbers):
        try:
            return self.missing_blocks(numbers) == 0
        except (OSError, ValueError):
            return False

    def sizes(self):
        found = [self.statistics(n) or {"tableStats": []} for n in self.ports]
        return [{table["tableName"]: table["items"] for table in one["tableStats"]
                 if table["tableName"] in TABLES} for one in found]

    def tables_agree(self):
        sizes = self.sizes()
        return bool(sizes[0]) and all(size == sizes[0] for size in sizes)

    def whole(self):
        numbers = list(self.ports)
        return (self.healthy() and self.tables_agree() and all(map(self.idle, numbers))
                and self.has_blocks(numbers))

    def wait_whole(self, seconds):
        """Waits until all nodes hold the same; asks half-way for the repair that runs daily."""
        if wait_for(self.whole, seconds / 2, 1):
            return
        for number in self.ports:
            self.tell(number, "repair", "--yes", "tables")
        for number in self.ports:
            self.repair_blocks(number)
        if not wait_for(self.whole, seconds, 1):
            health = [self.health(n).get("status") for n in self.ports]
            missing = [self.missing_blocks([n]) for n in self.ports]
            raise Failure(f"garage: not whole: {health}, blocks missing {missing} {self.sizes()}")

    # The clients.

    def client(self, number):
        settings = botocore.config.Config(
            connect_timeout=3, read_timeout=20, retries={"max_attempts": 0},
            s3={"addressing_style": "path"}, max_pool_connections=8)
        return boto3.session.Session().client(
            "s3", endpoint_url=f"http://127.0.0.1:{self.ports[number][1]}", config=settings,
            region_name="garage", aws_access_key_id=self.key[0],
            aws_secret_access_key=self.key[1])

    def content(self, version):
        """What a version holds: small ones are in Garage's tables, others files, some several."""
        draw = random.Random(f"{self.seed} {version}")
        kind = draw.random()
        if kind < 0.3:
            length = draw.randrange(0, 3000)
        elif kind < 0.8:
            length = draw.randrange(4000, 200_000)
        else:
            length = draw.randrange(500_000, 3_000_000)
        return draw.randbytes(length)

    @staticmethod
    def read(client, name):
        """What is under a name, or None for nothing; raises what makes it unreadable."""
        try:
            return client.get_object(Bucket=BUCKET, Key=name)["Body"].read()
        except client.exceptions.NoSuchKey:
            return None

    def which(self, name, bytes_read):
        """The version that was read: one that the name may hold, or "wrong"."""
        for version in self.may_hold[name]:
            expected = None if version is None else self.content(version)
            if expected == bytes_read:
                return version
        return "wrong"

    def begin_load(self):
        self.rounds += 1
        self.loading = True
        self.counts = {"acknowledged": 0, "unknown": 0, "read": 0}
        self.began = time.monotonic()
        self.writers = [threading.Thread(target=self.writer, args=(w,)) for w in range(WRITERS)]
        for thread in self.writers:
            thread.start()

    def writer(self, which):
        draw = random.Random(f"{self.seed} {self.rounds} {which}")
        clients = [self.client(n) for n in self.ports]
        while self.loading:
            time.sleep(WRITERS / self.rate * draw.random())
            mine = [name for name, held in self.may_hold.items()
                    if name.startswith(f"w{which}/") and name not in self.retired]
            alive = [name for name in mine if self.may_hold[name] != {None}]
            kind = draw.random()
            client = draw.choice(clients)
            if kind < 0.25 and alive:
                self.read_one(client, draw.choice(alive))
            elif kind < 0.35 + 0.3 * (len(alive) > KEPT) and alive:
                self.change(client, draw.choice(alive), None)
            else:
                with self.lock:
                    self.versions += 1
                    version = self.versions
                if kind < 0.6 and mine:
                    name = draw.choice(mine)
                else:
                    name = f"w{which}/{draw.randrange(8)}/object-{version}"
                self.change(client, name, version)

    def read_one(self, client, name):
        try:
            held = self.read(client, name)
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError,
                ConnectionError, OSError):
            return
        self.counts["read"] += 1
        if self.which(name, held) != "wrong":
            return
        if held is None:
            self.absent += 1
        else:
            self.wrong.append(f"garage: {name}, read during the load: wrong bytes")

    def change(self, client, name, version):
        """Writes a version, or removes the object for None. Only an answer counts."""
        before = self.may_hold.get(name, {None})
        with self.lock:
            self.may_hold[name] = before | {version}
        try:
            if version is None:
                client.delete_object(Bucket=BUCKET, Key=name)
            else:
                client.put_object(Bucket=BUCKET, Key=name, Body=self.content(version))
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, OSError):
            # It may still happen, even later: the name is not used again.
            self.counts["unknown"] += 1
            self.retired.add(name)
            return
        self.may_hold[name] = {version}
        self.counts["acknowledged"] += 1

    def end_load(self):
        self.loading = False
        for thread in self.writers:
            thread.join(120)
        seconds = time.monotonic() - self.began
        self.counts["a_second"] = round(self.counts["acknowledged"] / seconds, 1)
        return self.counts

    def verify(self):
        """Reads all objects and the listing from each node; the problems found, each one line."""
        problems, self.wrong = self.wrong, []
        for number in self.ports:
            problems += self.verify_node(number)
        return problems

    def verify_node(self, number):
        client = self.client(number)
        problems = []

        def look(name):
            said = ""
            for _ in range(3):
                try:
                    held = self.read(client, name)
                except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError,
                        OSError) as error:
                    said = str(error)
                    time.sleep(1)
                    continue
                if self.which(name, held) != "wrong":
                    return
                what = "is lost" if held is None else f"wrong bytes ({len(held)} of them)"
                problems.append(f"garage {number}: {name} {what}, expected version "
                                f"{self.may_hold[name]}")
                return
            problems.append(f"garage {number}: {name} cannot be read: {said}"[:300])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(look, list(self.may_hold)))
        # Each node filters its rows before they are merged: until a node that was away has been told
        # of a removal, it may list what a request for the object itself does not find.
        missing, stale = set(), []
        for attempt in range(10):
            try:
                listed = set()
                for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
                    listed.update(entry["Key"] for entry in page.get("Contents", []))
            except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
                return problems + [f"garage {number}: no listing: {error}"[:300]]
            if attempt == 0:
                missing = {name for name, held in self.may_hold.items()
                           if None not in held and name not in listed}
            stale = [name for name, held in self.may_hold.items()
                     if held == {None} and name in listed]
            if not stale:
                break
            time.sleep(1)
        problems += [f"garage {number}: the listing lacks {name}" for name in missing]
        problems += [f"garage {number}: the listing has {name}, which was removed"
                     for name in stale]
        for name in listed - set(self.may_hold):
            problems.append(f"garage {number}: {name} is listed and was never written")
        return problems

    def held(self):
        return f"{sum(held != {None} for held in self.may_hold.values())} objects"

    def finish(self):
        self.loading = False
        for node in self.nodes.values():
            if node.poll() is None:
                node.kill()
                node.wait(30)
