#!/usr/bin/env python3
"""The results of `run.py` and of rlock's own tests: `results/NAME.csv` for each server, and RESULTS.md, the page of all
results.

    results.py tests FILE SERVER < LINES    adds rlock's tests, from lines `ok rlock tests: name` and `FAILED …`
    results.py page                         writes RESULTS.md
"""

import csv
import datetime
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
COLUMNS = ("topology", "scenario", "runner", "result", "note", "date")

#: The topologies, and how the page abbreviates them.
TOPOLOGIES = {"standalone": "1", "replicated": "R", "sentinel": "S", "cluster": "C"}

RUNNERS = {
    "python-sync": "Python",
    "python-asyncio": "asyncio",
    "node-ioredis": "ioredis",
    "node-redis": "node-redis",
    "java-jedis": "Jedis",
    "java-lettuce": "Lettuce",
    "go": "Go",
    "rust": "Rust",
    "rust-sync": "Rust, threads",
}

#: The files of the script.
TITLES = {
    "1-locks": "Locks",
    "2-errors": "Errors",
    "3-waiting": "Waiting, and abandoned waits",
    "4-losing": "Losing a hold",
    "5-faults": "Connection and server faults",
    "6-acks": "Acknowledgments from replicas",
    "7-late": "Requests that arrive late",
    "7-names": "One server under two names",
    "7-undo": "Undo requests that arrive late",
    "8-any": "One of many",
    "8-bounds": "Limits on time, threads and connections",
    "8-drain": "A client that is drained",
    "8-once": "Once per interval",
    "8-outage": "A limit for outages",
    "8-several": "Several locks, and elections",
    "9-faults": "Faults that users found",
}

#: Why a scenario does not apply to a package.
REASONS = {
    "cancel": "Rust cannot interrupt a thread",
    "cancel-many": "only the main thread can be interrupted (Python), or none (Rust)",
    "actors": "each acquisition is its own owner, not each thread or task",
    "fork": "programs in this language do not fork, or not while an event loop is running",
    "close": "the package has nothing to close",
    "tls": "the runner is built without TLS",
    "loop": "users of the package have no event loop",
    "gc": "the language has no garbage collector",
    "session": "the package has no sessions",
}

#: The faults of a scenario, in the words of the page.
FAULTS = {
    ("server", "stop"): "the server falls silent",
    ("server", "kill"): "the server is killed",
    ("server", "crash"): "the primary is killed, and a replica is promoted",
    ("server", "hang"): "the primary falls silent, and a replica is promoted",
    ("server", "failover"): "a planned failover takes place",
    ("server", "move"): "the slot moves",
    ("server", "stop-replica"): "a replica falls silent",
    ("server", "kill-replica"): "a replica is killed",
    ("server", "stop-sentinel"): "Sentinel falls silent",
    ("proxy", "deaf"): "the network is cut",
    ("proxy", "late"): "replies are late",
    ("proxy", "drop"): "all connections break",
    ("runner", "stop"): "the process is suspended",
    ("runner", "kill"): "the process is killed",
    ("do", "fork"): "the process forks",
    ("do", "spawn"): "the process starts another program",
    ("do", "block"): "the event loop is blocked",
    ("do", "gc"): "garbage is collected",
    ("say", "RLOCK.FORCE"): "an operator uses `FORCE`",
    ("say", "CLIENT"): "the server closes the connection",
    ("say", "CONFIG"): "the server's settings change",
    ("say", "ACL"): "the user has few permissions",
}
BY_COMMAND = {
    "cut": "the reply to `{}` is lost",
    "mute": "a connection falls silent at `{}`",
    "keep": "`{}` arrives late",
}
#: Scenarios with at least this many repetitions test the repetition itself.
MANY = 20


def scenarios():
    """Each scenario of the script, with the name of its file."""
    for file in sorted((HERE / "script").glob("*.json")):
        for scenario in json.loads(file.read_text()):
            yield file.stem, scenario


def merge(path, program, rows):
    """Adds the new results from that server to earlier ones. Results of scenarios that the script no longer has are
    dropped."""
    path = pathlib.Path(path)
    old = read(path)[1] if path.exists() else []
    new = [(*row, today()) for row in rows]
    known = {scenario["name"]: number for number, (_, scenario) in enumerate(scenarios())}
    kept = {row[:3]: row for row in (*old, *new) if row[1] in known or row[2] == "rlock"}
    topologies, runners = list(TOPOLOGIES), [*RUNNERS, "rlock"]
    order = lambda row: (runners.index(row[2]), topologies.index(row[0]), known.get(row[1], 0), row[1])
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="") as file:
        file.write(f"# about server = {version(program)}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(sorted(kept.values(), key=order))


def read(path):
    """The name of the server, and the rows of the file."""
    first, *lines = pathlib.Path(path).read_text().splitlines()
    return first.removeprefix("# about server = "), [tuple(row) for row in csv.reader(lines)][1:]


def today():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")


def version(program):
    """The server's name and version, such as `Redis 7.0.15`."""
    words = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()
    return next(f"{words[0]} {word.removeprefix('v=')}" for word in words if word.startswith("v="))


def faults(scenario):
    """The faults of a scenario, in the order of its steps."""
    found = {"slow names": ["name resolution is slow"], "other clocks": ["clocks start from other values"]}.get(scenario.get("world"), [])
    found, ended = list(found), set()
    for step in steps_of(scenario["steps"]):
        kind = next(iter(step))
        what = step[kind][0] if kind == "say" else step[kind]
        if kind == "proxy" and what in BY_COMMAND:
            found.append("a reply is lost" if step["of"] == "a reply" else BY_COMMAND[what].format(step["of"]))
        elif kind == "at_most":
            found.append(f"the process may have at most {what} threads")
        elif kind == "cancel":
            found.append("the context or signal of the acquisition ends" if what in ended else "the wait is abandoned")
        elif kind == "await":
            ended.add(what)
        elif kind == "do" and what == "spawn" and step.get("how") == "fork":
            found.append(FAULTS["do", "fork"])
        elif kind == "do" and what == "close" and step["client"] == "c":
            found.append("the client is closed")
        elif kind in ("server", "proxy", "runner", "do", "say"):
            found.append(FAULTS.get((kind, what), ""))
    return "; ".join(dict.fromkeys(filter(None, found)))


def steps_of(steps):
    for step in steps:
        yield from steps_of([step["step"]]) if "many" in step else [step]


class Page:
    def __init__(self, servers):
        self.servers = servers
        self.cells = {}  # scenario, runner: the result and the note on each topology of each server
        self.letters = {}
        for server, rows in servers:
            for topology, scenario, runner, result, note, *_ in rows:
                self.cells.setdefault((scenario, runner), []).append((server, topology, result, note))

    def cell(self, scenario, runner):
        """The cell of the table: one word if all servers and topologies agree."""
        found = self.cells.get((scenario, runner), [])
        failed = [f"{server}, {topology}" for server, topology, result, _ in found if result == "FAILED"]
        if failed:
            return f"**failed** ({'; '.join(failed)})"
        lacking = {note for *_, result, note in found if result == "n/a"}
        words = ["ok"] if any(result == "ok" for _, _, result, _ in found) else []
        for note in sorted(lacking):
            for feature in note.removeprefix("lacks ").split(", "):
                words.append(self.letters.setdefault(feature, chr(ord("a") + len(self.letters))))
        return " ".join(dict.fromkeys(words)) or "not run"

    def lines(self):
        yield "# Results of the conformance script\n"
        yield "The [script](README.md) was played against each package, on these servers:\n"
        yield "| server | date | ok | does not apply | failed | repeated |\n|---|---|---|---|---|---|"
        for server, rows in self.servers:
            rows = [row for row in rows if row[2] != "rlock"]
            counts = [sum(row[3] == result for row in rows) for result in ("ok", "n/a", "FAILED")]
            again = sum("repeated" in row[4] for row in rows)
            days = ", ".join(sorted({row[5] for row in rows}))
            yield f"| {server} | {days} | {' | '.join(map(str, (*counts, again)))} |"
        yield (
            "\nOne result is one scenario with one package on one topology. *Repeated* counts the results that were ok only after a"
            "\nrepetition, because threads had waited for a processor for more than 50 ms in total during the first attempt. The"
            "\nfiles in `clients/conformance/results` list every result; `make clients-results` writes them and this page.\n\n"
            "In the tables, the *on* column says where a scenario is played: **1** is one server, **R** a primary with a replica,\n"
            "**S** Sentinel, and **C** Cluster. `ok` means that the scenario passed on both servers and on all of these topologies.\n"
            "A letter means that it does not apply to that package; [the reasons](#what-does-not-apply) are at the end.\n"
        )
        if any(row[3] == "FAILED" for _, rows in self.servers for row in rows):
            yield "The [roadmap](../../docs/roadmap.md#before-the-first-release) lists what failed, with the reason where it is known.\n"
        file = None
        for name, scenario in scenarios():
            if name != file:
                file = name
                yield f"\n## {TITLES[name]}\n"
                yield f"`script/{name}.json`\n"
                yield f"| scenario | what happens in it | on | {' | '.join(RUNNERS.values())} |"
                yield "|---" * (3 + len(RUNNERS)) + "|"
            on = "".join(TOPOLOGIES[kind] for kind in TOPOLOGIES if kind in scenario.get("on", ["standalone"]))
            cells = " | ".join(self.cell(scenario["name"], runner) for runner in RUNNERS)
            yield f"| {scenario['name']} | {faults(scenario)} | {on} | {cells} |"
        yield "\n## What does not apply\n"
        yield "| | reason |\n|---|---|"
        for feature, letter in self.letters.items():
            yield f"| {letter} | {REASONS[feature]} |"
        yield from self.of_rlock()

    def of_rlock(self):
        tests = dict.fromkeys(row[1] for _, rows in self.servers for row in rows if row[2] == "rlock")
        if not tests:
            return
        yield "\n## `rlock`\n"
        yield "`rlock` is built on the Rust package, so the script is not played against it. These are the results of its own tests (`clients/cli/tests`):\n"
        yield f"| test | {' | '.join(server for server, _ in self.servers)} |"
        yield "|---" * (1 + len(self.servers)) + "|"
        for test in tests:
            found = {server: result for server, _, result, _ in self.cells[test, "rlock"]}
            yield f"| {test.replace('_', ' ')} | {' | '.join(found.get(server, 'not run') for server, _ in self.servers)} |"


def main():
    match sys.argv[1:]:
        case ["tests", file, server]:
            rows = []
            for line in sys.stdin:
                result, _, rest = line.rstrip("\n").partition(" ")
                if result in ("ok", "FAILED") and rest.startswith("rlock tests: "):
                    rows.append(("standalone", rest.removeprefix("rlock tests: ").split("::")[-1], "rlock", result, ""))
            merge(file, server, rows)
        case ["page"]:
            servers = [read(file) for file in sorted((HERE / "results").glob("*.csv"))]
            (HERE / "RESULTS.md").write_text("\n".join(Page(servers).lines()) + "\n")
        case _:
            return __doc__
    return 0


if __name__ == "__main__":
    sys.exit(main())
