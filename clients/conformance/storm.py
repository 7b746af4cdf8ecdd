#!/usr/bin/env python3
"""A storm: many workers of one package use few keys while faults happen. Connections are cut, silent and late; the
server is killed and stopped; the process sleeps and forks; and waits are abandoned. An observer with its own connection
to the server compares what the package believes with what the server knows. See README.md."""

import collections
import concurrent.futures
import os
import random
import signal
import sys
import threading
import time

from long_runs import arguments, played
from resp import Refused, ask, lock_info
from runner import Runner
from servers import KINDS, TROUBLE, until
from stalls import kept_waiting, waits

#: The errors that a worker may get in a storm.
EXPECTED = {"Cancelled", "Unavailable", "Lost", "NotHeld", "Deadlock", "NoReplicas"}
COMMANDS = ("RLOCK.ACQUIRE", "RLOCK.RELEASE", "RLOCK.RENEW", "RLOCK.CANCEL", "RLOCK.INFO", "RLOCK.PLACE", "SUBSCRIBE")


class Usage:
    """The resources of a process: threads, descriptors, kilobytes."""

    def __init__(self, pid):
        status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
        self.threads = int(status["Threads"])
        self.kilobytes = int(status.get("VmRSS", "0 kB").split()[0])  # missing if the process has just ended
        self.files = len(os.listdir(f"/proc/{pid}/fd"))

    def __str__(self):
        return f"{self.threads} threads, {self.files} files, {self.kilobytes / 1024:.0f} MB"


def target(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""  # it was closed in the meantime


class Control:
    """Time that a call could not use, in ms, since the beginning: the storm had stopped the process, a thread of the
    process was ready while the kernel ran others, or a sleeping thread of this driver woke up too late."""

    EVERY = 0.25

    def __init__(self, pid):
        self.pid = pid
        self.waited = {}
        self.samples = [(time.monotonic(), 0.0)]
        self.lost = 0.0
        self.lock = threading.Lock()
        threading.Thread(target=self._sample, daemon=True).start()

    def add(self, ms):
        with self.lock:
            self.lost += ms
            self.samples.append((time.monotonic(), self.lost))

    def between(self, began):
        """The time since `began`, counted from the last sample before it. The next sample may itself be overdue."""
        with self.lock:
            before = next((lost for at, lost in reversed(self.samples) if at <= began), 0.0)
            overdue = time.monotonic() - self.samples[-1][0] - self.EVERY
            return self.lost - before + max(0.0, overdue * 1000)

    def _sample(self):
        while True:
            began = time.monotonic()
            time.sleep(self.EVERY)
            late = (time.monotonic() - began - self.EVERY) * 1000
            waited = kept_waiting(self.pid)
            self.add(late + max(waits(self.waited, waited), default=0))
            self.waited = waited


class Storm:
    def __init__(self, runner, topology, args):
        self.runner, self.topology, self.args = runner, topology, args
        self.random = random.Random(args.seed)
        self.keys = [f"storm:{number}" for number in range(args.keys)]
        self.is_over = threading.Event()
        self.counts = collections.Counter()
        self.wrong = []
        self.usage = []
        self.latest = 0.0
        self.control = Control(runner.process.pid)
        self.lock = threading.Lock()

    def ask(self, patience=90, **request):
        with self.lock:
            future = self.runner.ask(request)
        return future if patience == 0 else future.result(patience)

    def found(self, problem):
        with self.lock:
            is_new = problem not in self.wrong
            self.wrong.append(problem)
        if is_new:
            print(f"WRONG  {problem}", flush=True)

    # --- a worker

    def work(self, number):
        chance = random.Random(f"{self.args.seed}:{number}")
        name = f"w{number}"
        while not self.is_over.is_set():
            key = chance.randrange(len(self.keys))
            kind = "session" if "session" in self.runner.features and chance.random() < 0.1 else "lock"
            wait = chance.choice((0, 50, 500, 2000, 5000, 20000))
            try:
                self.turn(chance, name, f"{kind}{key}", self.keys[key], wait, name)
            except (concurrent.futures.TimeoutError, TimeoutError):
                self.found(f"{name}: no reply to something that waits for {wait} ms")
                return
            except (AssertionError, ConnectionError):
                if not self.is_over.is_set():
                    self.found("the runner has ended")
                return

    def turn(self, chance, name, lock, key, wait, hold):
        began = time.monotonic()
        acquiring = self.ask(0, **{"as": name, "do": "acquire", "lock": lock, "wait": wait, "hold": hold})
        if "cancel" in self.runner.features and wait and chance.random() < 0.25:
            try:
                acquiring.result(chance.random() * wait / 1000)
            except (concurrent.futures.TimeoutError, TimeoutError):
                self.counts["cancels"] += 1
                self.ask(do="cancel", of=acquiring.id)
        reply = acquiring.result(90)
        self.late(name, "acquire", wait or 3000, began)
        if not reply.get("ok"):
            return self.outcome("acquire", reply)
        self.counts["grants"] += 1
        self.look(key, hold, reply["token"], lock.startswith("session"))
        # Sometimes the pause exceeds a third of the lease, so that renewals are due.
        time.sleep(chance.choice((0, 0, 0.01, 0.1, 1.5)))
        self.look(key, hold, reply["token"], lock.startswith("session"))
        self.outcome("release", self.ask(**{"as": name, "do": "release", "hold": hold}))

    def outcome(self, what, reply):
        error = reply.get("error")
        if error and error not in EXPECTED:
            self.found(f"{what}: {error}: {reply.get('text')}")
        self.counts[f"{what} {error or ('ok' if reply.get('ok') else 'not')}"] += 1

    def late(self, name, what, limit, began):
        """The remaining slack is for this driver, which reads the replies of all workers."""
        took = (time.monotonic() - began) * 1000
        late = took - limit - self.control.between(began)
        self.latest = max(self.latest, late)
        if late > self.args.slack:
            self.found(f"{name}: {what} took {took:.0f} ms, though it may take {limit}, and {took - limit - late:.0f} were lost")

    def look(self, key, hold, token, is_session):
        """If the package believes that it holds the lock both before and after the server was asked, the server must
        agree. A session may end earlier on the server, when its connection breaks. The package believes in it until it
        notices, which takes longer in a process that sleeps."""
        before = self.state(hold)
        if not before.get("held"):
            return
        try:
            is_held = ask(self.topology.primary(key), "RLOCK.CHECK", key, token, timeout=20.0)
        except (OSError, Refused, StopIteration):
            return  # no server can say
        end = time.monotonic()
        if is_session and not is_held:
            end += self.args.asleep / 1000
        while (believes := self.state(hold).get("held")) and time.monotonic() < end:
            time.sleep(0.01)
        if believes and not is_held:
            kind = "session" if is_session else "lock"
            self.found(f"{hold} believes that it holds {key} ({kind}) with {token}, and the server does not")
        self.counts["looks"] += 1

    def state(self, hold):
        return self.ask(do="state", hold=hold)

    # --- the weather

    def weather(self):
        proxy = self.topology.proxy.fault
        chance = self.random
        while not self.is_over.wait(chance.uniform(0.3, 2)):
            kind = chance.choice(("cut", "mute", "keep", "deaf", "late", "drop", "stop", "kill", "sleep", "fork"))
            self.counts[f"fault {kind}"] += 1
            try:
                if kind in ("cut", "mute", "keep"):
                    proxy({"proxy": kind, "of": chance.choice(COMMANDS), "times": chance.choice((1, 1, 3))})
                    self.is_over.wait(chance.uniform(0, 2))
                    proxy({"proxy": "deliver"})
                elif kind in ("deaf", "late"):
                    proxy({"proxy": kind, "ms": chance.choice((50, 400))})
                    self.is_over.wait(chance.uniform(0.1, 3))
                elif kind == "drop":
                    proxy({"proxy": "drop"})
                elif kind == "fork":
                    if "fork" in self.runner.features:
                        lock = f"lock{chance.randrange(len(self.keys))}"
                        self.ask(**{"as": "forker", "do": "fork", "lock": lock, "wait": 200})
                else:
                    self.asleep(kind, chance.uniform(0.2, 2.5))
                proxy({"proxy": "heal"})
            except TROUBLE as problem:
                self.found(f"the weather: {problem!r}")

    def asleep(self, kind, seconds):
        if kind == "sleep":
            self.runner.process.send_signal(signal.SIGSTOP)
        else:
            self.topology.fault({"server": kind}, self.keys[0])
        self.is_over.wait(seconds)
        if kind == "sleep":
            # Added first: otherwise a call could return and count as late before the pause is known.
            self.control.add(seconds * 1000)
            self.runner.process.send_signal(signal.SIGCONT)
        else:
            self.topology.fault({"server": "go" if kind == "stop" else "start"}, self.keys[0])

    # --- all of it

    def open(self):
        self.ask(do="open", client="c", **self.topology.opening)
        for number, key in enumerate(self.keys):
            for kind in ("lock", "session"):
                lease = self.random.choice((2000, 4000, 8000))
                self.ask(do="lock", lock=f"{kind}{number}", client="c", key=key, lease=lease, **({"session": True} if kind == "session" else {}))

    def run(self):
        ask(self.topology.one.address, "CONFIG", "SET", "maxclients", "4000", "rlock.max-waiters", "5000")
        self.open()
        workers = [threading.Thread(target=self.work, args=(number,), daemon=True) for number in range(self.args.workers)]
        weather = threading.Thread(target=self.weather, daemon=True)
        for thread in (*workers, weather):
            thread.start()
        end = time.monotonic() + self.args.seconds
        while time.monotonic() < end and not self.wrong and self.runner.process.poll() is None:
            time.sleep(min(1.0, max(0.0, end - time.monotonic())))
            if self.runner.process.poll() is None:
                self.usage.append(Usage(self.runner.process.pid))
        self.is_over.set()
        weather.join(60)
        self.topology.heal()
        for thread in workers:
            thread.join(90)
        if not self.wrong:
            self.leaves_nothing()
        return not self.wrong

    def leaves_nothing(self):
        """Checks that nothing remains: no hold, no waiter, and no more resources than an idle package needs."""
        for key in self.keys:
            info = until(f"{key} is free", lambda: self.freed(key), 30)
            if info["holders"] or info["waiters"]:
                self.found(f"left behind: {info}")
        first, last = self.usage[len(self.usage) // 2 :], None
        most = max(usage.threads for usage in first)
        rest = lambda: Usage(self.runner.process.pid)
        try:
            # Idle threads of a pool end after a while, and idle connections may do so, too.
            until("", lambda: self.connections() <= self.args.connections and rest().threads <= most, 30)
        except AssertionError:
            self.found(f"{self.connections()} connections and {rest()} are left of {most} threads")
        last = rest()
        half = sum(usage.kilobytes for usage in first[:5]) / len(first[:5])
        if last.kilobytes > half * 1.25 + 32 * 1024:
            self.found(f"memory grows: {half / 1024:.0f} MB after half of the time, {last.kilobytes / 1024:.0f} MB at the end")
        self.ask(do="close", client="c")
        if "close" in self.runner.features:
            try:
                until("", lambda: self.connections() == 0, 15)
            except AssertionError:
                self.found(f"{self.connections()} connections after close")
        print(f"       half-way {first[0]}; at rest {last}; closed {rest()}; latest call {self.latest:.0f} ms late", flush=True)

    def freed(self, key):
        info = lock_info(self.topology.primary(key), key)
        return info if not info["holders"] and not info["waiters"] else None

    def connections(self):
        """The runner's own connections to the server. The proxy has more, because it keeps some that the runner has
        closed, for `deliver`."""
        process = f"/proc/{self.runner.process.pid}"
        port = int(self.topology.proxy.address.rsplit(":", 1)[1])
        rows = [line.split() for name in ("tcp", "tcp6") for line in open(f"{process}/net/{name}").readlines()[1:]]
        sockets = {f"socket:[{row[9]}]" for row in rows if int(row[2].rsplit(":", 1)[1], 16) == port}
        return sum(target(f"{process}/fd/{name}") in sockets for name in os.listdir(f"{process}/fd"))


def main():
    parser = arguments(__doc__)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--keys", type=int, default=20)
    parser.add_argument("--slack", type=int, default=1500, help="how late a call may return, in ms, beyond what the process could not use")
    parser.add_argument("--asleep", type=int, default=3000, help="how late a broken connection may be noticed, in ms, for the same reason")
    parser.add_argument("--connections", type=int, default=64, help="how many connections an idle package may keep")
    args = parser.parse_args()

    def play(name, command, folder):
        runner = Runner(name, command)
        topology = KINDS["standalone"](args.server, args.module, folder)
        storm = Storm(runner, topology, args)
        try:
            is_well = storm.run()
        except AssertionError as problem:
            is_well = False
            storm.found(str(problem))
        wrong = "" if is_well else f"the runner said: {runner.said()}"
        runner.end()
        topology.close()
        return storm.counts, wrong

    return played(args, play)


if __name__ == "__main__":
    sys.exit(main())
