"""What a node has its data on: Furrow on an emulated zoned drive, and what befalls it; for speed,
Furrow on soft zones; or ext4."""
import json
import os
import random
import socket
import subprocess
import time


class Failure(Exception):
    """What ends a run: not a loss, but something that makes the next round meaningless."""


_ports = set()


def free_port():
    """A free port of the loopback, below those that the kernel hands to clients."""
    for _ in range(1000):
        port = random.SystemRandom().randrange(20000, 30000)
        if port in _ports:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _ports.add(port)
        return port
    raise Failure("no free port on the loopback")


def wait_for(true, seconds, step=0.1):
    """Waits until true() is; returns what it returned last."""
    end = time.monotonic() + seconds
    while True:
        found = true()
        if found or time.monotonic() > end:
            return found
        time.sleep(step)


def start(command, log, **more):
    """Starts a process in a session of its own: an interrupt of the harness must not reach it."""
    with open(log, "ab") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                                start_new_session=True, **more)


def end(process, seconds=20):
    """Ends a process: SIGTERM, and SIGKILL if that takes too long. True if SIGTERM was enough."""
    if process is None:
        return True
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
            return True
        except subprocess.TimeoutExpired:
            process.kill()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired as error:
        raise Failure(f"process {process.pid} does not end, even by SIGKILL") from error
    return False


def in_bytes(size):
    """The number that a size such as 512MiB stands for."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size.endswith(unit):
            return int(size[:-3]) << shift
    return int(size)


class Place:
    """A file system in an image file, mounted on a directory of its own."""

    name = suffix = ""

    def __init__(self, folder, number, size, images=None):
        self.number, self.size = number, size
        self.image = os.path.join(images or folder, f"drive{number}.{self.suffix}")
        self.directory = os.path.join(folder, f"mount{number}")
        os.makedirs(self.directory, exist_ok=True)

    def is_mounted(self):
        with open("/proc/self/mountinfo", encoding="utf-8") as table:
            return any(line.split()[4] == self.directory for line in table)

    def mount_or_fail(self):
        problem = self.mount()
        if problem:
            raise Failure(f"{self.name} {self.number}: mount: {problem}")


class Ext4(Place):
    """ext4 on a loop device. The kernel serves it, so that nothing can be killed but the node."""

    name, suffix = "ext4", "ext4"

    def __init__(self, folder, number, size, images=None, direct=False):
        super().__init__(folder, number, size, images)
        self.direct = direct

    def create(self):
        """A new, empty file system in the place of the old one."""
        if os.path.exists(self.image):
            os.remove(self.image)
        with open(self.image, "wb") as image:
            image.truncate(in_bytes(self.size))
        # Everything is initialised now: the kernel would do it in the background during a load.
        self.run("mkfs.ext4", "-q", "-F", "-b", "4096", "-E",
                 "lazy_itable_init=0,lazy_journal_init=0,nodiscard", self.image)

    def run(self, *command, check=True):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if check and done.returncode != 0:
            raise Failure(f"{' '.join(command)}: {done.stderr.strip()}")
        return done

    def mount(self):
        """Mounts; returns what went wrong, or nothing."""
        # The loop device goes with the mount.
        done = self.run("mount", "-o", "loop", self.image, self.directory, check=False)
        if done.returncode == 0 and self.direct:
            device = self.run("findmnt", "-n", "-o", "SOURCE", self.directory).stdout.strip()
            self.run("losetup", "--direct-io=on", device)
        return done.stderr.strip()

    def is_alive(self):
        return self.is_mounted()

    def die(self):
        pass

    def kill(self):
        pass

    def unmount(self):
        # A process that was killed may hold a file for a moment.
        while self.is_mounted():
            if not wait_for(lambda: self.run("umount", self.directory, check=False).returncode == 0
                            or not self.is_mounted(), 10):
                self.run("umount", "-l", self.directory)

    detach = unmount

    def clear_faults(self):
        pass


class Drive(Place):
    """Furrow on an emulated drive. A flush of it does not reach the host's disk."""

    name, suffix = "furrow", "zns"

    def __init__(self, furrow, folder, number, size, images=None, options="cache=64MiB"):
        super().__init__(folder, number, size, images)
        self.furrow, self.options = furrow, options
        self.log = os.path.join(folder, f"furrow{number}.log")
        self.daemon = None

    def run(self, *arguments, check=True, seconds=120):
        done = subprocess.run([self.furrow, *arguments], capture_output=True, text=True,
                              timeout=seconds)
        if check and done.returncode != 0:
            raise Failure(f"furrow {' '.join(arguments)}: {done.stderr.strip()}")
        return done

    def create(self):
        """A new, empty drive in the place of the old one."""
        if os.path.exists(self.image):
            os.remove(self.image)
        self.run("device", "create", self.image, "-o", f"capacity={self.size},zone-size=4MiB")
        self.run("mkfs", self.image)

    def is_alive(self):
        return self.daemon is not None and self.daemon.poll() is None

    def mount(self):
        """Mounts; returns what went wrong, or nothing."""
        before = os.path.getsize(self.log) if os.path.exists(self.log) else 0
        command = [self.furrow, "mount", "--foreground", "-o", self.options, self.image,
                   self.directory]
        self.daemon = start(command, self.log)
        wait_for(lambda: self.is_mounted() or self.daemon.poll() is not None, 120, 0.02)
        if self.daemon.poll() is None and self.is_mounted():
            return ""
        self.detach()
        with open(self.log, encoding="utf-8", errors="replace") as log:
            log.seek(before)
            said = log.read().strip().splitlines()
        return said[-1] if said else "the daemon ended without a word"

    def die(self):
        """SIGKILL for the daemon, without waiting for its end."""
        if self.is_alive():
            self.daemon.kill()

    def kill(self):
        if self.is_alive():
            self.daemon.kill()
            self.daemon.wait(30)

    def unmount(self):
        """Unmounts in good order; falls back to detach()."""
        if self.is_alive() and self.is_mounted():
            self.run("umount", self.directory, check=False, seconds=60)
        self.detach()

    def detach(self):
        """Takes away what is left of a mount whose daemon is dead, or whose drive is."""
        if self.is_alive():
            end(self.daemon, 10)
        while self.is_mounted():
            done = self.run("umount", "-l", self.directory, check=False)
            if done.returncode != 0 and self.is_mounted():
                raise Failure(f"furrow umount -l: {done.stderr.strip()}")
        self.daemon = None

    def fault(self, *arguments):
        self.run("device", "fault", "add", self.image, *arguments)

    def clear_faults(self):
        """Removes all pending faults."""
        listed = json.loads(self.run("device", "fault", "list", self.image, "--json").stdout)
        for index in reversed(range(len(listed.get("faults", [])))):
            self.run("device", "fault", "clear", self.image, str(index))

    def zones(self):
        return json.loads(self.run("device", "report", self.image, "--json").stdout)["zones"]

    def map(self):
        """What each zone of the drive is used for."""
        return json.loads(self.run("map", "--json", self.image).stdout)["zones"]

    def cut_power(self):
        """The power of a drive that nobody uses fails: what was not flushed is gone."""
        self.fault("power-cut", "--nth", "1")
        # A mount, since a check only reads: the fault would be gone with it.
        done = self.run("mount", self.image, self.directory, check=False)
        if done.returncode == 0:
            raise Failure(f"drive {self.number}: mounted in spite of a power cut")

    def scrub(self):
        """Reads everything on the mount; what is damaged (docs/use/json.md)."""
        done = self.run("scrub", "--json", self.directory, check=False, seconds=300)
        try:
            return json.loads(done.stdout)["scrub"]
        except (ValueError, KeyError) as error:
            raise Failure(f"furrow scrub: {done.stderr.strip()}") from error


class Soft(Drive):
    """Furrow on soft zones in an image: as on any SSD, a flush reaches the host's disk."""

    suffix = "soft"

    def create(self):
        if os.path.exists(self.image):
            os.remove(self.image)
        self.run("device", "create", "--soft", self.image, "--size", self.size)
        self.run("mkfs", self.image)
