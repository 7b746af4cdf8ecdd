"""Fills a server of a Kubernetes file to its maxmemory, in a memory cgroup with the file's limit. At the same time, the
server is copied by a rewrite of its file and by a full sync, and every lock is being renewed. The kernel must not kill
the server, which must refuse new locks with -OOM, and renew and release those that are held. Then, if the file has a
Sentinel, the script connects a thousand applications to it, under its own limit.

    memory.py SERVER-FOLDER MODULE FILE WORK-FOLDER

Needs root and Linux.
"""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time

import yaml

UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}
WAITERS, BATCH, APPLICATIONS = 5000, 500, 1000
SETTINGS = "appendonly yes\nappendfsync always\nsave \"\"\nmaxmemory-policy noeviction\nbind 127.0.0.1\nmaxclients 12000\n"


def limits(file: str) -> dict[str, int]:
    """The limit of each StatefulSet's container, in bytes."""
    found = {}
    for one in yaml.safe_load_all(pathlib.Path(file).read_text()):
        if one["kind"] == "StatefulSet":
            limit = one["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
            found[one["metadata"]["name"]] = int(limit[:-2]) * UNITS[limit[-2:]]
    return found


def maxmemory_of(file: str) -> str:
    return re.search(r"(?:RLOCK_MAXMEMORY:|maxmemory) (\w+)", pathlib.Path(file).read_text())[1]


class Cgroup:
    """A memory cgroup of version 1 or 2, whichever limits memory on this machine."""

    def __init__(self, name: str, limit: int):
        first = pathlib.Path("/sys/fs/cgroup/memory")
        self.is_first = first.is_dir()
        self.folder = (first if self.is_first else pathlib.Path("/sys/fs/cgroup")) / f"{name}-{os.getpid()}"
        self.folder.mkdir()
        self.folder.joinpath("memory.limit_in_bytes" if self.is_first else "memory.max").write_text(str(limit))

    def kills(self) -> int:
        text = self.folder.joinpath("memory.oom_control" if self.is_first else "memory.events").read_text()
        return int(re.search(r"oom_kill (\d+)", text)[1])

    def peak(self) -> int:
        """The peak in mebibytes, including the page cache."""
        return int(self.folder.joinpath("memory.max_usage_in_bytes" if self.is_first else "memory.peak").read_text()) >> 20

    def close(self) -> None:
        for _ in range(50):
            try:
                self.folder.rmdir()
                break
            except OSError:
                time.sleep(0.1)

    def run(self, words: list, log) -> subprocess.Popen:
        enter = f'echo $$ >{self.folder}/cgroup.procs && exec "$@"'
        return subprocess.Popen(["sh", "-c", enter, "sh", *map(str, words)], stdout=log, stderr=log)


class Client:
    def __init__(self, port: int):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.replies = self.socket.makefile("rb")

    def send(self, lines: list[str]) -> None:
        self.socket.sendall("".join(f"{line}\r\n" for line in lines).encode())

    def ask(self, *lines: str) -> list[str]:
        """The first line of each reply. Use `text` for commands with longer replies."""
        self.send(list(lines))
        return [self.replies.readline().decode().strip() for _ in lines]

    def text(self, line: str) -> str:
        size = int(self.ask(line)[0][1:])
        return self.replies.read(size + 2).decode()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(words: list, port: int, run) -> Client:
    run(words)
    for _ in range(300):
        try:
            client = Client(port)
            if client.ask("PING") == ["+PONG"]:
                return client
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit("FAILED: a server did not start")


def main(server: str, module: str, file: str, work: str) -> None:
    settings = pathlib.Path(work, "server.conf")
    settings.write_text(f"loadmodule {pathlib.Path(module).resolve()}\n{SETTINGS}")
    binary = pathlib.Path(server).resolve() / "redis-server"
    for name, limit in limits(file).items():
        if name.endswith("sentinel"):
            connect_applications(binary, pathlib.Path(work), limit)
        else:
            fill(binary, settings, limit, maxmemory_of(file))


def connect_applications(binary: pathlib.Path, folder: pathlib.Path, limit: int) -> None:
    cgroup, port = Cgroup("rlock-sentinel", limit), free_port()
    settings = folder / "sentinel.conf"
    settings.write_text("bind 127.0.0.1\nsentinel monitor locks 127.0.0.1 1 2\n")
    log = open(folder / "log", "ab")
    started = []
    try:
        words = [binary, settings, "--sentinel", "--port", port]
        client = start(words, port, lambda all_words: started.append(cgroup.run(all_words, log)))
        applications = [Client(port) for _ in range(APPLICATIONS)]
        for one in applications:
            one.send(["SUBSCRIBE +switch-master"])
        for one in applications:
            if one.replies.readline() != b"*3\r\n":
                sys.exit("FAILED: an application is not connected")
        if client.ask("PING") != ["+PONG"] or cgroup.kills() or started[0].poll() is not None:
            sys.exit("FAILED: the kernel killed the Sentinel")
        print(f"a Sentinel with {APPLICATIONS} applications: limit {limit >> 20} MiB, {cgroup.peak()} MiB used at most")
    finally:
        for one in started:
            one.kill()
            one.wait()
        cgroup.close()


def fill(binary: pathlib.Path, settings: pathlib.Path, limit: int, maxmemory: str) -> None:
    folder = settings.parent
    cgroup, port, other = Cgroup("rlock-server", limit), free_port(), free_port()
    log = open(folder / "log", "ab")
    started = []
    try:
        (folder / "first").mkdir()
        (folder / "second").mkdir()
        words = [binary, settings, "--port", port, "--dir", folder / "first", "--maxmemory", maxmemory]
        client = start(words, port, lambda all_words: started.append(cgroup.run(all_words, log)))
        client.ask("RLOCK.ACQUIRE held holder LEASE 86400000")
        waiting = [Client(port) for _ in range(WAITERS)]
        for number, one in enumerate(waiting):
            one.send([f"RLOCK.ACQUIRE held waiter-{number} BLOCK 86400000"])
        count, said = 0, ["+"]
        while not any(reply.startswith("-OOM") for reply in said):
            said = client.ask(*[f"RLOCK.ACQUIRE lock:{count + step} owner LEASE 86400000" for step in range(BATCH)])
            count += sum(reply.startswith(":") for reply in said)
            if not all(reply.startswith((":", "-OOM")) for reply in said):
                sys.exit(f"FAILED: {said[-1]}")

        # Any of the last batch of requests may have been refused.
        count -= BATCH
        # While the server is copied twice, every page of its memory is written to: this is the most memory that it can
        # need.
        renewed, step, replica = 0, 0, None
        while not replica or "link_status:up" not in replica.text("INFO replication"):
            step += 1
            if step > 1000:
                sys.exit("FAILED: the replica does not get the copy")
            if step == 2:
                client.ask("BGREWRITEAOF")
            if step > 2 and not replica and "aof_rewrite_in_progress:0" in client.text("INFO persistence"):
                words = [binary, settings, "--port", other, "--dir", folder / "second", "--replicaof", f"127.0.0.1 {port}"]
                replica = start(words, other, lambda all_words: started.append(subprocess.Popen(list(map(str, all_words)), stdout=log, stderr=log)))
            for place in range(step * 97 % BATCH, count, count // 20000 + 1):
                client.send([f"RLOCK.RENEW lock:{place} owner LEASE 86400000"])
                renewed += 1
            for _ in range(step * 97 % BATCH, count, count // 20000 + 1):
                reply = client.replies.readline()
                if reply[:1] != b":":
                    sys.exit(f"FAILED: a held lock is not renewed: {reply}")
        memory = client.text("INFO memory")
        peak = int(re.search(r"used_memory_peak:(\d+)", memory)[1]) >> 20
        rss = int(re.search(r"used_memory_rss:(\d+)", memory)[1]) >> 20
        if cgroup.kills() or started[0].poll() is not None:
            sys.exit(f"FAILED: the kernel killed it, {peak} MiB used at most, {rss} MiB resident")
        if client.ask("RLOCK.RELEASE lock:1 owner") != [":0"]:
            sys.exit("FAILED: a full server does not release")
        print(f"{count + BATCH} locks and {WAITERS} waiters, {renewed} renewals during two copies: -OOM, and not killed: limit {limit >> 20} MiB,"
              f" maxmemory {maxmemory}, {peak} MiB used at most, {rss} MiB resident")
    finally:
        for one in started:
            one.kill()
            one.wait()
        cgroup.close()
        shutil.rmtree(folder / "first", ignore_errors=True)
        shutil.rmtree(folder / "second", ignore_errors=True)


main(*sys.argv[1:])
