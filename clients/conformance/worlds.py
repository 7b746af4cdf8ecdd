"""Special environments for a runner: names resolve slowly, clocks have different starting points, or there are few
threads. Some of these need a Linux machine and its superuser; elsewhere the scenario is skipped, with the reason."""

import atexit
import os
import resource
import shutil
import socket
import struct
import tempfile
import threading
import time


class Lacking(Exception):
    """This machine cannot provide the environment."""


class World:
    def __init__(self):
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            raise Lacking("needs the superuser, and unshare")

    def around(self, words):
        """The arguments of a command that runs in this world."""
        raise NotImplementedError

    def close(self):
        pass


class SlowNames(World):
    """The runner uses its own name server, which resolves every name to this machine, after `delay` seconds."""

    def __init__(self):
        super().__init__()
        self.delay = 0.0
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for last in range(2, 255):
            try:
                self.socket.bind((f"127.0.53.{last}", 53))
                break
            except OSError:
                pass
        else:
            raise Lacking("needs port 53 of an address of this machine")
        self.file = tempfile.NamedTemporaryFile("w", prefix="rlock-resolv-")
        self.file.write(f"nameserver {self.socket.getsockname()[0]}\noptions timeout:30 attempts:1\n")
        self.file.flush()
        threading.Thread(target=self._serve, daemon=True).start()

    def around(self, words):
        script = f'mount --bind {self.file.name} /etc/resolv.conf && exec "$@"'
        # A JVM remembers names for half a minute by default.
        forget = "JAVA_TOOL_OPTIONS=-Dsun.net.inetaddr.ttl=0"
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", "env", forget, *words]

    def _serve(self):
        while True:
            try:
                query, peer = self.socket.recvfrom(1024)
            except OSError:
                return
            threading.Thread(target=self._answer, args=(query, peer, self.delay), daemon=True).start()

    def _answer(self, query, peer, delay):
        time.sleep(delay)
        end = 12
        while query[end]:
            end += query[end] + 1
        question = query[12 : end + 5]
        is_v4 = question[-4:-2] == b"\0\1"
        head = query[:2] + struct.pack(">HHHHH", 0x8180, 1, int(is_v4), 0, 0)
        record = b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4" + socket.inet_aton("127.0.0.1") if is_v4 else b""
        try:
            self.socket.sendto(head + question + record, peer)
        except OSError:
            pass  # the socket was closed

    def close(self):
        self.socket.close()
        self.file.close()


class OtherClocks(World):
    """Clocks that do not show the time of day start at other values, each at a different one, so that no two can be
    compared."""

    def around(self, words):
        return ["unshare", "--time", "--boottime", "1000000", "--monotonic", "5000000", *words]


class OwnRunner:
    """No special environment, but a separate runner, so that threads of earlier scenarios do not count."""

    def around(self, words):
        return words

    def close(self):
        pass


WORLDS = {"slow names": SlowNames, "other clocks": OtherClocks, "own runner": OwnRunner}


def at_most(pid, count):
    """Limits how many threads the process may have from now on."""
    for root in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup"):
        folder = f"{root}/rlock-{pid}"
        try:
            os.mkdir(folder)
        except OSError:
            continue
        atexit.register(_remove, folder)
        if os.path.exists(f"{folder}/pids.max"):
            _write(f"{folder}/pids.max", count)
            _write(f"{folder}/cgroup.procs", pid)
            return
    if os.geteuid() == 0:
        raise Lacking("needs a cgroup that counts processes")
    others = sum(_threads(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != pid)
    resource.prlimit(pid, resource.RLIMIT_NPROC, (others + count, others + count))


def _write(path, value):
    with open(path, "w") as file:
        file.write(str(value))


def _remove(folder):
    try:
        os.rmdir(folder)
    except OSError:
        pass  # the process is still running, or the folder has already been removed


def _threads(pid):
    """The number of threads of a process, if it belongs to this user."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) if os.stat(f"/proc/{pid}").st_uid == os.geteuid() else 0
    except OSError:
        return 0  # the process has ended
