"""Starts what the tests talk to: simulated engines and the gateway in front of them, each a real process on loopback.

An engine tells its address itself; the gateway gets a free port and is ready once it lists its workers as healthy.
"""

import contextlib
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

RELEASE = Path(__file__).resolve().parent.parent / "target" / "release"
SMG = os.environ.get("SMG_BIN", str(RELEASE / "smg"))
LAB = os.environ.get("LAB_BIN", str(RELEASE / "lab"))
MODEL = "demo-model"
PATIENCE = 20.0


class Engine:
    """`lab engine`: it prints `ready URL` once it serves."""

    def __init__(self, model=MODEL):
        self.process = subprocess.Popen(
            [LAB, "engine", "--port", "0", "--model", model],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        )
        line = self.process.stdout.readline()
        if not line.startswith("ready http://"):
            self.stop()
            raise RuntimeError(f"the engine said {line!r} instead of its address")
        self.url = line.split()[1]

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Gateway:
    """`smg launch` in front of the engines, with sticky sessions over round robin."""

    def __init__(self, engines, log, flags=()):
        self.port, self.metrics_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = Path(log)
        command = [
            SMG, "launch", "--host", "127.0.0.1", "--port", str(self.port),
            "--prometheus-host", "127.0.0.1", "--prometheus-port", str(self.metrics_port),
            "--policy", "round_robin", "--routing-key-override", *flags,
            "--worker-urls", *[engine.url for engine in engines],
        ]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            self.wait_for_workers(len(engines))
        except BaseException:
            self.stop()
            raise

    def healthy_workers(self):
        try:
            with urllib.request.urlopen(f"{self.url}/workers", timeout=5) as reply:
                listed = json.load(reply)["workers"]
        except (urllib.error.URLError, ConnectionError):
            return None  # not listening yet
        return sum(worker["is_healthy"] for worker in listed)

    def wait_for_workers(self, wanted):
        """Until exactly so many workers are healthy."""
        end = time.monotonic() + PATIENCE
        while (healthy := self.healthy_workers()) != wanted:
            said = self.log.read_text(errors="replace")[-2000:]
            if self.process.poll() is not None:
                raise RuntimeError(f"the gateway ended with {self.process.returncode}:\n{said}")
            if time.monotonic() > end:
                raise TimeoutError(f"{healthy} healthy workers instead of {wanted}:\n{said}")
            time.sleep(0.05)

    def stop(self):
        self.process.kill()
        self.process.wait()


@dataclass
class Fleet:
    engines: list
    gateway: Gateway


@contextlib.contextmanager
def fleet(log, engines=3, flags=()):
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(engines):
            started.append(Engine())
            stack.callback(started[-1].stop)
        gateway = Gateway(started, log, flags)
        stack.callback(gateway.stop)
        yield Fleet(started, gateway)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
