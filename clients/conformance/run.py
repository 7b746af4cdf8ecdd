#!/usr/bin/env python3
"""Plays the script against runners, on real servers. See README.md."""

import argparse
import concurrent.futures
import functools
import glob
import json
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor

import results
from access import Access
from resp import Refused, ask, lock_info, section
from servers import KINDS, TROUBLE, free_port, until
from worlds import WORLDS, Lacking, at_most

HERE = pathlib.Path(__file__).parent
SLACK = 250
LATE = 50  # from clients/ALGORITHM.md: a client does not wait for a reply that is later than this


def unix_ms():
    return time.time() * 1000


class Runner:
    """One runner's process, and its replies as futures."""

    def __init__(self, name, command, world=None, environment=None):
        self.name = name
        self.errors = tempfile.TemporaryFile()
        self.world = world
        pipe, words = subprocess.PIPE, shlex.split(command)
        if world is not None:
            words = world.around(words)
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=self.errors, text=True, env=os.environ | (environment or {}))
        self.futures, self.last_id = {}, 0
        self.hello = Future()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.features = set(self.hello.result(60)["features"]) | {"standalone", "replicated"}
        except (concurrent.futures.TimeoutError, ConnectionError):
            raise SystemExit(f"the runner {name} does not start: {self.said()}") from None

    def _read(self):
        for line in self.process.stdout:
            try:
                reply = json.loads(line)
            except ValueError:
                print(f"{self.name} wrote no JSON: {line!r}", file=sys.stderr)
                continue
            future = self.hello if "hello" in reply else self.futures.pop(reply.pop("id"), None)
            if future:
                future.at = unix_ms()
                future.set_result(reply)
        for future in (self.hello, *self.futures.values()):
            if not future.done():
                future.set_exception(ConnectionError("the runner has ended"))

    def ask(self, request):
        self.last_id += 1
        future = Future()
        future.id, future.began = self.last_id, time.monotonic()
        self.futures[self.last_id] = future
        try:
            self.process.stdin.write(json.dumps({"id": self.last_id, **request}) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise AssertionError(f"the runner has ended: {error}") from None
        return future

    def complaints(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def said(self):
        return self.complaints()[-3000:]

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        if self.world is not None:
            self.world.close()


class Play:
    """One scenario on one topology with one runner."""

    count = 0

    def __init__(self, scenario, topology, runner, threads, stalled):
        self.scenario, self.topology, self.runner, self.threads = scenario, topology, runner, threads
        self.stalled = stalled  # for how long threads have waited for a processor since the scenario began, in ms
        Play.count += 1
        self.prefix = f"{topology.access.prefix}conf:{runner.process.pid}:{Play.count}:"
        self.started = {}
        refused = f"127.0.0.1:{free_port()}"  # nobody listens there
        self.saved = {"slack": SLACK, "refused": refused, "hostname": socket.gethostname(), "pid": runner.process.pid, "len": len, "all": all, "str": str}
        self.killed = self.closed = False

    def run(self):
        self.request({"do": "open", "client": "c", **self.scenario.get("open", {}), "gives": {"ok": True}})
        for number, step in enumerate(self.scenario["steps"], 1):
            try:
                self.step(step)
            except (AssertionError, *TROUBLE) as error:
                raise AssertionError(f"step {number}: {json.dumps(step)}\n    {error}") from None
        if not self.killed:
            self.topology.heal()
        if not self.killed and not self.closed:
            self.request({"do": "close", "client": "c", "gives": {"ok": True}})

    def put(self, value):
        """The value, with `@` and `$` filled in."""
        if isinstance(value, str) and value[:1] == "@":
            return self.prefix + value[1:]
        if isinstance(value, str) and value[:1] == "$":
            return self.saved[value[1:]]
        if isinstance(value, list):
            return [self.put(item) for item in value]
        if isinstance(value, dict):
            return {key: self.put(item) for key, item in value.items()}
        return value

    def step(self, step):
        kind = next(iter(step))
        getattr(self, "step_" + kind)(step)

    def step_do(self, step):
        self.request(step)

    def request(self, step):
        ours = ("gives", "save", "start") if step["do"] in ("lost", "observed") else ("gives", "save", "start", "within")
        request = {k: self.put(v) for k, v in step.items() if k not in ours}
        self.closed = self.closed or (request["do"], request.get("client")) == ("close", "c")
        if request["do"] == "open":
            request = {**self.topology.opening, **request}
            if host := request.pop("host", None):
                request["addresses"] = [f"{host}:{address.rsplit(':', 1)[1]}" for address in request["addresses"]]
            if request.pop("other-names", False):
                others = [address.replace("127.0.0.1", "localhost") for address in request["addresses"]]
                request["addresses"] = others[:0:-1] or others
        future = self.runner.ask(request)
        if "start" in step:
            self.started[step["start"]] = future
        else:
            self.check_reply(future, step)

    def check_reply(self, future, step):
        bound = 10000 + step["within"] if step.get("do") in ("lost", "observed") else step.get("within", 15000 if "do" in step else 10000)
        try:
            reply = future.result(bound / 1000)
        except concurrent.futures.TimeoutError:
            raise AssertionError("no reply in time") from None
        except (ConnectionError, Refused) as error:
            raise AssertionError(str(error)) from None
        if "gives" in step:
            wanted = self.put(step["gives"])
            assert matches(reply, wanted), f"it gave {json.dumps(reply)}"
        for name, path in step.get("save", {}).items():
            self.saved[name] = found(reply, path)

    def step_await(self, step):
        future = self.started[step["await"]]
        self.check_reply(future, step)
        took = (time.monotonic() - future.began) * 1000
        # A blocked wait ends one round trip early (clients/ALGORITHM.md). That is a few milliseconds, and longer if
        # threads had to wait for a processor.
        early = step.get("after", 0) - took - 10
        assert early <= 0 or early <= self.stalled(), f"after {took:.1f} ms already"
        if "saves_time" in step:
            self.saved[step["saves_time"]] = future.at

    def step_pending(self, step):
        future = self.started[step["pending"]]
        assert not future.done(), f"it has the reply {future.result()}"

    def step_cancel(self, step):
        self.request({"do": "cancel", "of": self.started[step["cancel"]].id, "gives": {"ok": True}})

    def step_say(self, step):
        words = self.put(step["say"])
        key = self.put(step["key"]) if "key" in step else next((w for w in words if str(w).startswith(self.prefix)), self.prefix)
        if "start" in step:
            address = self.said_at
            future = self.threads.submit(ask, address, *words, timeout=60)
            future.began = time.monotonic()
            future.add_done_callback(lambda done: setattr(done, "at", unix_ms()))
            self.started[step["start"]] = future
            time.sleep(0.05)  # this only helps: steps that need the request in the queue check for it
            return
        try:
            reply = until_primary(lambda: ask(self.topology.primary(key), *words))
        except Refused as refused:
            assert "error" in step and str(refused).startswith(step["error"]), f"it replied {refused}"
            return
        assert "error" not in step, f"it replied {reply}"
        assert "gives" not in step or reply == step["gives"], f"it replied {reply!r}"

    @property
    def said_at(self):
        return self.topology.primary(self.prefix)

    def step_info(self, step):
        key, wanted, seen = self.put(step["info"]), self.put(step["until"]), [None]

        def is_so():
            seen[0] = lock_info(self.topology.primary(key), key)
            return matches(seen[0], wanted)

        try:
            until("", is_so, step.get("within", 10000) / 1000)
        except AssertionError:
            raise AssertionError(f"RLOCK.INFO stays {json.dumps(seen[0])}") from None
        for name, path in step.get("save", {}).items():
            self.saved[name] = found(seen[0], path)

    def step_blocked(self, step):
        def waits():
            told = section(self.said_at, "rlock").get("rlock_tells", 0)
            return int(section(self.said_at, "clients")["blocked_clients"]) + int(told)

        until(f"{step['blocked']} waits", lambda: waits() == step["blocked"], 5)

    def step_many(self, step):
        for number in range(step["many"]):
            self.step(numbered(step["step"], str(number)))

    def step_connects(self, step):
        self.saved[step["connects"]] = self.topology.proxy.accepted

    def step_threads(self, step):
        self.saved[step["threads"]] = len(os.listdir(f"/proc/{self.runner.process.pid}/task"))

    def step_lines(self, step):
        """How many lines the runner has written to its standard error."""
        self.saved[step["lines"]] = self.runner.complaints().count("\n")

    def step_at_most(self, step):
        """Limits how many threads and processes the runner may have from now on."""
        at_most(self.runner.process.pid, step["at_most"])

    def step_names(self, step):
        self.runner.world.delay = step["names"] / 1000

    def step_connected(self, step):
        """Saves how many connections the server has, without the one that asks."""
        self.saved[step["connected"]] = len(ask(self.said_at, "CLIENT", "LIST").splitlines()) - 1

    def step_closed(self, step):
        """Waits until the connections that the proxy has accepted since `first` are closed."""
        first = self.put(step["closed"])
        is_so = lambda: all(number <= first for number in tuple(self.topology.proxy.open))
        until("the connections are closed", is_so, step.get("within", 10000) / 1000)

    def step_clock(self, step):
        self.saved[step["clock"]] = unix_ms()

    def step_check(self, step):
        right = eval(step["check"], {"__builtins__": {}}, dict(self.saved))  # this is safe: the script is our own
        known = {k: v for k, v in self.saved.items() if k in step["check"]}
        assert right, f"it is not so: {known}"

    def step_sleep(self, step):
        time.sleep(step["sleep"] / 1000)

    def step_server(self, step):
        self.topology.fault(step, self.put(step.get("key", "@k")))

    def step_replicated(self, step):
        self.topology.replicated(self.put(step["replicated"]))

    def step_proxy(self, step):
        self.topology.proxy.fault(step)

    def step_runner(self, step):
        match step["runner"]:
            case "stop":
                self.runner.process.send_signal(signal.SIGSTOP)
            case "go":
                self.runner.process.send_signal(signal.SIGCONT)
            case "kill":
                self.runner.process.kill()
                self.runner.process.wait()
                self.killed = True


def until_primary(do):
    """Calls `do`, and repeats it while no primary answers."""
    end = time.monotonic() + 20
    while True:
        try:
            return do()
        except (OSError, StopIteration):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def found(value, path):
    """The part of a reply at the path `a.0.b`."""
    for name in path.split("."):
        try:
            value = value[int(name) if isinstance(value, list) else name]
        except (KeyError, IndexError):
            raise AssertionError(f"{json.dumps(value)} has no {name}") from None
    return value


def numbered(step, number):
    """The value, with `#` replaced by that number."""
    return json.loads(json.dumps(step).replace("#", number))


def matches(value, wanted):
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(key in value and matches(value[key], part) for key, part in wanted.items())
    if isinstance(wanted, list):
        return isinstance(value, list) and len(value) == len(wanted) and all(map(matches, value, wanted))
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def tokens(docs):
    """The commands and the words of their options in a reply of COMMAND DOCS."""
    for name, about in zip(docs[::2], docs[1::2]):
        yield name.upper()
        yield from _tokens(about)


def _tokens(about):
    if isinstance(about, list):
        yield from (after for word, after in zip(about, about[1:]) if word == "token")
        for part in about:
            yield from _tokens(part)


def kept_waiting(*pids):
    """For how long each thread of these processes was ready but did not run, in ms."""
    waited = {}
    for pid in pids:
        for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
            try:
                waited[path] = int(pathlib.Path(path).read_text().split()[1]) / 1e6
            except (OSError, IndexError):
                pass  # the thread has ended
    return waited


def waits(before, after):
    """For how long each thread waited between two results of `kept_waiting`."""
    return [ms - before.get(thread, 0) for thread, ms in after.items()]


class Session:
    """Everything that the driver runs. Servers are started when they are first needed, and used for every runner."""

    def __init__(self, args, runners, folder):
        self.args, self.runners, self.folder = args, runners, folder
        self.access = Access(getattr(args, "as"), args.tls)
        self.access.prepare(folder)
        self.topologies = {}
        self.threads = ThreadPoolExecutor(16)
        self.counts = {"ok": 0, "FAILED": 0, "n/a": 0}
        self.skipped = Counter()
        self.rows = []  # as `results.py` has them
        files = sorted((HERE / "script").glob(f"{args.files}.json"))
        self.scenarios = [scenario for file in files for scenario in json.loads(file.read_text())]

    def topology(self, kind):
        if kind not in self.topologies:
            self.topologies[kind] = KINDS[kind](self.args.server, self.args.module, self.folder, self.access)
        return self.topologies[kind]

    def play_all(self):
        for text in self.runners:
            name, _, command = text.partition("=")
            runner = Runner(name, command, environment=self.access.environment)
            for kind in self.args.on.split(","):
                for scenario in self.scenarios:
                    if self.wants(scenario, kind):
                        runner = self.play(scenario, kind, runner, command)
            runner.end()
        return self.counts, self.skipped

    def wants(self, scenario, kind):
        return (
            kind in scenario.get("on", ["standalone"])
            and (scenario.get("short") or not self.args.short)
            and re.search(self.args.only, scenario["name"])
            and self.may_play(json.dumps(scenario))
        )

    def may_play(self, steps):
        """Whether a scenario with these steps is played. The user of docs/operations.md may use locks, but no keys with
        data, and the proxy cannot recognize commands in encrypted data."""
        return not (self.access.user and ('"churn"' in steps or '"user"' in steps)) and not (self.access.tls and '"proxy"' in steps)

    def knows(self, word, address):
        """Asks the server whether it has that option of RLOCK.ACQUIRE, or that command."""
        known = ask(address, "COMMAND", "DOCS", "RLOCK.ACQUIRE", *([word] if "." in word else []))
        return word in set(tokens(known))

    def play(self, scenario, kind, runner, command):
        lacks = {kind, *scenario.get("needs", [])} - runner.features
        if lacks:
            lacking = f"lacks {', '.join(sorted(lacks))}"
            self.tell("n/a", runner, kind, scenario, lacking, lacking)
            return runner
        word = scenario.get("module")
        if word and not self.knows(word, self.topology(kind).primary("k")):
            self.skipped[f"{kind}: {scenario['name']}: the server has no {word}"] += 1
            return runner
        if "world" in scenario:
            return self.play_in_world(scenario, kind, runner, command)
        return self.repeat(scenario, kind, runner, command)

    def play_in_world(self, scenario, kind, runner, command):
        """Plays the scenario with a separate runner. Returns the runner that the other scenarios share."""
        try:
            own = self.repeat(scenario, kind, None, command, runner.name, WORLDS[scenario["world"]])
        except Lacking as reason:
            self.skipped[f"{kind}: {scenario['name']}: {reason}"] += 1
        else:
            own.end()
        return runner

    def repeat(self, scenario, kind, runner, command, name=None, world=None):
        start = time.monotonic()
        for tries in range(3):
            if runner is None or runner.process.poll() is not None:
                runner = Runner(name or runner.name, command, world and world(), self.access.environment)
            before = self.kept_waiting(runner, kind)
            stalled = functools.partial(self.stalled, runner, kind, before)
            try:
                Play(scenario, self.topology(kind), runner, self.threads, stalled).run()
                note = f"repeated {tries}" if tries else ""
                self.tell("ok", runner, kind, scenario, f"{time.monotonic() - start:.1f} s", note)
                break
            except Lacking as reason:
                self.skipped[f"{kind}: {scenario['name']}: {reason}"] += 1
                break
            except AssertionError as error:
                waited = stalled()
                said = f"{error}\n    {runner.said()}".rstrip()
                runner.end()
                self.mend(kind)
            # A result about time means nothing if the machine was too busy to run one of the processes.
            if waited <= LATE or tries == 2:
                self.tell("FAILED", runner, kind, scenario, said)
                break
            print(f"again  {runner.name} {kind}: {scenario['name']} (threads waited {waited:.0f} ms for a processor: {said})")
        return runner

    def kept_waiting(self, runner, kind):
        """The threads of the driver, the runner and the servers."""
        servers = (server.process.pid for server in self.topology(kind).servers)
        return kept_waiting(os.getpid(), runner.process.pid, *servers)

    def stalled(self, runner, kind, before):
        # A reply passes through the server, the proxy and the runner, so the delays of all three add up.
        return sum(waits(before, self.kept_waiting(runner, kind)))

    def mend(self, kind):
        """Repairs the servers after a failure, or replaces them."""
        try:
            self.topologies[kind].heal()
        except (AssertionError, SystemExit, *TROUBLE) as problem:
            print(f"new servers for {kind}: {problem}", file=sys.stderr)
            self.topologies.pop(kind).close()

    def tell(self, result, runner, kind, scenario, more, note=""):
        self.counts[result] += 1
        self.rows.append((kind, scenario["name"], runner.name, result, note))
        sys.stdout.write(f"{result:6} {runner.name} {kind}: {scenario['name']} ({more})\n")
        sys.stdout.flush()

    def bench(self):
        for text in self.runners:
            name, _, command = text.partition("=")
            runner = Runner(name, command)
            topology = self.topology("standalone")
            address = topology.primary("k")
            ask(address, "CONFIG", "SET", "appendonly", "no")  # with it, the benchmark would measure the disk
            direct = {**topology.opening, "addresses": [address]}
            runner.ask({"do": "open", "client": "b", **direct}).result(30)
            for ms in (self.args.bench / 5, self.args.bench):  # the first run compiles and connects
                reply = runner.ask({"do": "bench", "client": "b", "key": "bench:k", "ms": int(ms)}).result(60 + ms / 500)
            time, cpu = reply["bare"] / reply["package"], reply["packageCpu"] / reply["bareCpu"]
            print(
                f"{name}: {time:.2f}x the time ({reply['package']:.0f} and {reply['bare']:.0f} pairs a second),"
                f" {cpu:.2f}x the CPU time ({reply['packageCpu']:.0f} and {reply['bareCpu']:.0f} µs a pair) of the bare commands",
                flush=True,
            )
            runner.end()

    def close(self):
        for topology in self.topologies.values():
            topology.close()
        self.threads.shutdown(wait=False, cancel_futures=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="redis-server or valkey-server")
    parser.add_argument("--module", required=True, help="librlock.so")
    parser.add_argument("--runner", action="append", required=True, help="NAME=COMMAND; may be given several times")
    parser.add_argument("--on", default="standalone,replicated,sentinel,cluster")
    parser.add_argument("--short", action="store_true", help="only the scenarios for `make test`")
    parser.add_argument("--only", default="", metavar="REGEX", help="only scenarios whose name matches this")
    parser.add_argument("--files", default="*", help="only the scenarios of these files, for example '9-*'")
    parser.add_argument("--bench", type=int, default=0, metavar="MS", help="play no scenarios; measure the cost of a pair on a free lock")
    parser.add_argument("--as", metavar="USER", help="log in as this user of docs/operations.md instead of the default user")
    parser.add_argument("--tls", action="store_true", help="the runners' clients, the servers and Sentinel use TLS")
    parser.add_argument("--results", metavar="FILE", help="a CSV file that gets the results, see results.py")
    parser.add_argument("--jobs", type=int, default=1, help="play this many runners at a time, each with its own servers")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlock-conformance-") as folder:

        def play(number, runners):
            session = Session(args, runners, f"{folder}/{number}")
            try:
                return session.bench() if args.bench else session.play_all()
            finally:
                rows.extend(session.rows)
                session.close()

        rows = []
        if args.bench or args.jobs == 1:
            played = [play(0, args.runner)]
        else:
            with ThreadPoolExecutor(args.jobs) as pool:
                played = list(pool.map(play, range(len(args.runner)), [[runner] for runner in args.runner]))
    if args.bench:
        return 0
    if args.results:
        results.merge(args.results, args.server, rows)
    skipped = sum((more for _, more in played), Counter())
    for what, times in skipped.items():
        print(f"SKIPPED {what} ({times} runner{'s' * (times > 1)})")
    ok, bad, none = (sum(counts[name] for counts, _ in played) for name in ("ok", "FAILED", "n/a"))
    print(f"{ok} passed, {bad} failed, {skipped.total()} skipped, {none} n/a")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
