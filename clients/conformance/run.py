#!/usr/bin/env python3
"""Plays the script against runners, on real servers. See README.md."""

import argparse
import functools
import json
import os
import pathlib
import re
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import results
from access import Access
from play import Play
from resp import ask
from runner import Runner
from servers import KINDS, TROUBLE
from stalls import kept_waiting, waits
from worlds import WORLDS, Lacking

HERE = pathlib.Path(__file__).parent
LATE = 50  # from clients/ALGORITHM.md: a client does not wait for a reply that is later than this


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
