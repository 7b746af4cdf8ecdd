#!/usr/bin/env python3
"""Rolling restarts: three instances of a service under load. One at a time is terminated, drains and starts again, or
is killed and starts again. Their journal shows whether a body ever ran without its lock. See README.md."""

import collections
import http.client
import itertools
import os
import pathlib
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

from long_runs import arguments, played
from resp import ask, lock_info
from servers import KINDS, free_port, until

INSTANCES, LOADS = 3, 12
#: Requests for a key go to a path of its kind: the lock has a lease of 5 s, or a session.
PATHS = ("plain/hot:1", "plain/hot:2", "session/hot:3", "session/hot:4")
STARTS = DRAINS = 60.0  # seconds, at most; far less on a machine that has nothing else to do
#: How long until what killed instances held has ended: the longest lease is the default one of `check`.
ENDS = 40.0


class Journal:
    """One line for each event, in the order in which they happened: all open the file for appending."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "journal")
        self.file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *words):
        os.write(self.file, (" ".join(map(str, words)) + "\n").encode())

    def read(self):
        return [line.split() for line in pathlib.Path(self.path).read_text().splitlines()]


class Checker:
    """Reads the events. Instances write `PID came ID`, `PID enters ID KEY TOKEN` and `PID leaves ID KEY CHECK CHECK`;
    this driver writes `PID terminates`, `PID kills`, `ID answers STATUS` and `ID breaks PID`."""

    def __init__(self, events):
        self.counts, self.wrong = collections.Counter(), []
        self.inside, self.tokens, self.by = {}, {}, {}
        self.ending, self.dead = set(), set()
        for who, what, *words in events:
            if who not in self.dead:
                getattr(self, what)(who, *words)

    def came(self, pid, request):
        self.by[request] = pid

    def enters(self, pid, request, key, token):
        self.counts["bodies"] += 1
        if key in self.inside:
            self.wrong.append(f"{request} entered {key} while {self.inside[key]} was inside")
        if int(token) <= self.tokens.get(key, 0):
            self.wrong.append(f"{request} entered {key} with token {token}, after {self.tokens[key]}")
        self.inside[key], self.tokens[key] = (pid, request), int(token)

    def leaves(self, pid, request, key, first, last):
        if self.inside.get(key) == (pid, request):
            del self.inside[key]
        if (first, last) != ("1", "1"):
            self.wrong.append(f"{request} worked without {key}: RLOCK.CHECK replied {first} at first, {last} at last")

    def terminates(self, pid):
        self.counts["terminated"] += 1
        self.ending.add(pid)

    def kills(self, pid):
        self.counts["killed"] += 1
        self.dead.add(pid)
        self.inside = {key: body for key, body in self.inside.items() if body[0] != pid}

    def answers(self, request, status):
        self.counts[status] += 1
        pid = self.by.get(request)
        # 423: the lock was not free in time.
        if status not in ("200", "423") and not (status == "503" and pid in self.ending):
            self.wrong.append(f"{request} was answered with {status} by {pid}")

    def breaks(self, request, pid):
        if self.by.get(request, pid) in self.dead:
            self.counts["lost with a killed instance"] += 1
        elif request not in self.by:
            self.counts["reset before a handler had it"] += 1
        else:
            self.wrong.append(f"{request} was accepted by {pid}, and never answered")


class Instance:
    def __init__(self, number, command, folder, environment):
        self.command, self.log = command, pathlib.Path(folder, f"instance-{number}")
        self.log.touch()
        self.port = free_port()
        self.environment = {**os.environ, **environment, "HTTP_PORT": str(self.port)}
        self.process = None

    def start(self):
        with self.log.open("ab") as log:
            words = shlex.split(self.command)
            nothing = subprocess.DEVNULL
            self.process = subprocess.Popen(words, env=self.environment, stdin=nothing, stdout=log, stderr=log)
        until(f"{self.log} answers", self.answers, STARTS)

    def answers(self):
        if self.process.poll() is not None:
            raise AssertionError("an instance does not start")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        connection.request("GET", "/")
        return connection.getresponse().status

    def end(self, how):
        self.process.send_signal(how)
        self.process.wait(DRAINS)

    def said(self):
        return self.log.read_text(errors="replace")[-4000:]


class Rolling:
    def __init__(self, command, topology, folder, args):
        self.address, self.args = topology.servers[0].address, args
        self.chance = random.Random(args.seed)
        self.journal, self.requests = Journal(folder), itertools.count()
        environment = {"PORT": self.address.split(":")[1], "JOURNAL": self.journal.path}
        self.instances = [Instance(number, command, folder, environment) for number in range(INSTANCES)]
        self.over = threading.Event()
        self.wrong, self.longest = [], 0.0

    def run(self):
        for instance in self.instances:
            instance.start()
        chances = [random.Random(f"{self.args.seed} {number}") for number in range(LOADS)]
        loads = [threading.Thread(target=self.load, args=(chance,)) for chance in chances]
        for load in loads:
            load.start()
        end = time.monotonic() + self.args.seconds
        try:
            for instance in itertools.cycle(self.instances):
                time.sleep(self.chance.uniform(0.5, 1.5))
                if time.monotonic() > end:
                    break
                if self.args.force:
                    ask(self.address, "RLOCK.FORCE", self.chance.choice(PATHS).split("/")[1])
                self.ends(instance, is_killed=self.chance.random() < 0.2)
                instance.start()
        finally:
            self.over.set()
            for load in loads:
                load.join()
        for instance in self.instances:
            self.ends(instance, is_killed=False)
        until("no hold is left", lambda: not any(self.owners()), ENDS)
        checker = Checker(self.journal.read())
        return {**checker.counts, "longest drain": f"{self.longest:.1f} s"}, [*self.wrong, *checker.wrong]

    def ends(self, instance, is_killed):
        pid, began = instance.process.pid, time.monotonic()
        self.journal.write(pid, "kills" if is_killed else "terminates")
        instance.end(signal.SIGKILL if is_killed else signal.SIGTERM)
        if is_killed:
            return
        self.longest = max(self.longest, time.monotonic() - began)
        self.wrong += [f"{owner} has left a hold or a wait" for owner in self.owners() if f"/{pid}/" in owner]
        self.wrong += re.findall(".*still (?:held|holds|run).*", instance.said())

    def owners(self):
        """Everybody who holds or waits."""
        keys, cursor = [], None
        while cursor != "0":
            cursor, more = ask(self.address, "SCAN", cursor or "0")
            keys += more
        infos = [lock_info(self.address, key) for key in keys]
        return [row["owner"] for info in infos for row in (*info["holders"], *info["waiters"])]

    def load(self, chance):
        while not self.over.is_set():
            instance, name = chance.choice(self.instances), f"r{next(self.requests)}"
            connection = http.client.HTTPConnection("127.0.0.1", instance.port, timeout=90)
            try:
                connection.connect()
            except OSError:
                time.sleep(0.01)  # it does not listen now
                continue
            pid = instance.process.pid
            try:
                connection.request("POST", f"/{chance.choice(PATHS)}?request={name}&ms={chance.randint(20, 200)}")
                self.journal.write(name, "answers", connection.getresponse().status)
            except (OSError, http.client.HTTPException):
                self.journal.write(name, "breaks", pid)
            finally:
                connection.close()


def main():
    parser = arguments(__doc__)
    parser.add_argument("--force", action="store_true", help="end holds by force: must find bodies without their locks")
    args = parser.parse_args()

    def play(_name, command, folder):
        topology = KINDS["standalone"](args.server, args.module, os.path.join(folder, "server"))
        rolling = Rolling(command, topology, folder, args)
        try:
            figures, wrong = rolling.run()
        except (AssertionError, subprocess.TimeoutExpired) as problem:
            figures, wrong = {}, [str(problem)]
        for instance in rolling.instances:
            if instance.process:
                instance.process.kill()
        topology.close()
        return figures, "\n".join([*wrong[:20], *(each.said() for each in rolling.instances)]) if wrong else ""

    return played(args, play)


if __name__ == "__main__":
    sys.exit(main())
