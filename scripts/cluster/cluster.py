"""Three nodes: their engines, and the file systems that these have their data on."""
import contextlib
import os

NODES = (1, 2, 3)


class Cluster:
    """The engines, on one place for each node: Drive(...) or Ext4(...) of its number."""

    def __init__(self, folder, options, engines, seed, place):
        self.folder = folder
        os.makedirs(folder)
        self.drives = {n: place(folder, n) for n in NODES}
        drives = list(self.drives.values())
        self.engines = []
        if "kafka" in engines:
            from kafka import Kafka
            self.engines.append(Kafka(folder, drives, seed, options.jars, options.flushes))
        if "garage" in engines:
            # Needs boto3, which a run of Kafka alone does not.
            from garage import Garage
            self.engines.append(Garage(folder, drives, seed, options.garage,
                                       options.flushes))

    def set_up(self):
        for drive in self.drives.values():
            drive.create()
            drive.mount_or_fail()
        for engine in self.engines:
            engine.set_up()

    def finish(self):
        # What one of them cannot end must not keep the others running.
        with contextlib.ExitStack() as stack:
            for drive in self.drives.values():
                stack.callback(drive.unmount)
            for engine in self.engines:
                stack.callback(engine.finish)

    def stop_node(self, number):
        for engine in self.engines:
            engine.stop(number)
        self.drives[number].unmount()

    def start_node(self, number):
        for engine in self.engines:
            engine.start(number)

    def is_alive(self, number):
        return self.drives[number].is_alive() and all(e.is_alive(number) for e in self.engines)

    def crash(self, numbers):
        """Nodes and daemons die as close to each other as signals can be sent."""
        for number in numbers:
            self.drives[number].die()
            for engine in self.engines:
                engine.kill(number)
        for number in numbers:
            self.drives[number].kill()
