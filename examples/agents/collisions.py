#!/usr/bin/env python3
"""Thirty scripted agents edit one git repository: with claims of `rlock mcp`, and with lease files.

An edit is what an editor does: it reads a file, thinks, and writes the whole file with one more line. An edit collides
if it begins while another living agent edits the same file. It is lost if its line is not in the file at the end, by
`git diff`.

An agent claims all files of a task before it edits them. Some agents think for longer than a lease lasts, and some are
killed in the middle of an edit: another agent goes on for them. `--calm` leaves both out.

    cargo build --profile tools -p rlock-cli    # and `make run`, in another terminal
    RLOCK=target/tools/rlock RLOCK_URL=redis://127.0.0.1:6380 python3 examples/agents/collisions.py --seeds 5

Exits with 1 if an edit with claims collided or was lost, if a claim is left, or if the lease files lost nothing, as
then the run shows nothing.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

FILES = [f"{folder}/{name}.txt" for folder in ("core", "web", "docs") for name in "abcd"]
# Seconds. Tools give a lease minutes, because agents work for minutes: this is about a thousand times faster.
LEASE, THINK, POLL = 0.5, (0.005, 0.04), 0.02
SLOW, DEADLY = 0.1, 0.04  # of the edits, and of the tasks


class Claims:
    """`rlock mcp`, as an editor starts it for its agent."""

    def __init__(self, repository, agent):
        words = [os.environ.get("RLOCK", "rlock"), "mcp", "--root", repository, "--agent", agent]
        self.server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.calls = 0
        client = {"name": "collisions", "version": "1"}
        self.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        self.send({"method": "notifications/initialized"})

    def send(self, message):
        print(json.dumps({"jsonrpc": "2.0", **message}), file=self.server.stdin, flush=True)

    def ask(self, method, words):
        self.calls += 1
        self.send({"id": self.calls, "method": method, "params": words})
        for line in self.server.stdout:
            answer = json.loads(line)
            if answer.get("id") == self.calls:
                return answer["result"]
        raise SystemExit("rlock mcp has ended")

    def call(self, tool, **words):
        answer = self.ask("tools/call", {"name": tool, "arguments": words})["structuredContent"]
        if answer.keys() & {"lost", "error", "trouble"}:
            raise SystemExit(f"{tool}: {answer}")
        return answer

    def take(self, task):
        answer = self.call("claim_paths", paths=task.paths)
        while answer["state"] == "waiting":
            answer = self.call("wait", claim=answer["claim"])
        if answer["state"] != "held":
            raise SystemExit(f"no claim: {answer}")

    def give_back(self, task):
        self.call("release")

    def killed(self):
        """Sometimes `rlock mcp` is killed first; otherwise it learns of the agent's death by the end of its input."""
        if random.random() < 0.5:
            self.server.kill()

    def are_left(self):
        return any(path["state"] != "free" for path in self.call("who", paths=FILES)["paths"])


class Leases:
    """A file with the agent's name and an expiry time for each file that is leased; nobody renews it."""

    def __init__(self, repository, agent):
        self.agent, self.folder = agent, pathlib.Path(repository, ".agent-locks")
        self.folder.mkdir(exist_ok=True)

    def lease(self, name):
        return self.folder / f"{name.replace('/', '_')}.json"

    def read(self, lease):
        """None if there is no lease, or none that can be read."""
        try:
            return json.loads(lease.read_text())
        except (OSError, ValueError):
            return None

    def text(self):
        return json.dumps({"agent": self.agent, "expires_at": time.time() + LEASE})

    def take(self, task):
        """All or none: an agent that waited while it has some leases would lose their time."""
        while not all(self.try_take(self.lease(name)) for name in task.files):
            self.give_back(task)
            time.sleep(random.uniform(0.5, 1.5) * POLL)

    def give_back(self, task):
        for lease in map(self.lease, task.files):
            if (self.read(lease) or {}).get("agent") == self.agent:
                lease.unlink(missing_ok=True)

    def killed(self):
        pass


class Checked(Leases):
    """An agent writes its lease if it finds none, or one that has expired."""

    def try_take(self, lease):
        found = self.read(lease)
        if found and found["expires_at"] > time.time():
            return False
        lease.write_text(self.text())
        return True


class Exclusive(Leases):
    """The usual repair: the file is created with O_EXCL, and one that is older than a lease is removed first."""

    def try_take(self, lease):
        try:
            with open(lease, "x") as file:
                file.write(self.text())
            return True
        except FileExistsError:
            pass
        try:
            if time.time() - lease.stat().st_mtime > LEASE:
                lease.unlink()
        except FileNotFoundError:
            pass
        return False


WAYS = {"claims": Claims, "checked": Checked, "exclusive": Exclusive}
Task = collections.namedtuple("Task", "paths files thinks dies")


def tasks(chance, count, is_calm):
    for _ in range(count):
        files = sorted(chance.sample(FILES, chance.randint(1, 3)))
        paths = files
        if chance.random() < 1 / 6:
            paths = [files[0].split("/")[0]]
            files = [name for name in FILES if name.startswith(paths[0])]
        is_slow = [not is_calm and chance.random() < SLOW for _ in files]
        thinks = [chance.uniform(1.5, 2.5) * LEASE if slow else chance.uniform(*THINK) for slow in is_slow]
        yield Task(paths, files, thinks, not is_calm and chance.random() < DEADLY)


class Journal:
    """One line for each event, in the order in which they happened: the file is opened for appending."""

    def __init__(self, folder, agent=""):
        self.agent, self.path = agent, pathlib.Path(folder, "journal")
        self.file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, event, name=""):
        os.write(self.file, f"{self.agent} {event} {name}\n".encode())

    def read(self):
        """Returns how many edits began, ended and collided, and how many agents were killed."""
        counts, inside = collections.Counter(), collections.defaultdict(set)
        for line in self.path.read_text().splitlines():
            agent, event, name = line.split(" ")
            counts[event] += 1
            if event == "begins":
                counts["collides"] += bool(inside[name])
                inside[name].add(agent)
            elif event == "ends":
                inside[name].remove(agent)
            else:
                for agents in inside.values():
                    agents.discard(agent)
        return counts


def works(repository, folder, way, agent, todo):
    """The life of one agent, in a process of its own."""
    means, journal = WAYS[way](repository, agent), Journal(folder, agent)
    for task in todo:
        means.take(task)
        for name, thinks in zip(task.files, task.thinks):
            journal.write("begins", name)
            file = pathlib.Path(repository, name)
            text = file.read_text()
            time.sleep(thinks)
            if task.dies:
                journal.write("dies")
                means.killed()
                os.kill(os.getpid(), signal.SIGKILL)
            part = file.with_suffix(f".{agent}")
            part.write_text(f"{text}{agent} {time.time()}\n")
            part.rename(file)
            journal.write("ends", name)
        means.give_back(task)


def lives(repository, folder, way, agent, todo):
    """An agent, and after its death another one that does what is left."""
    while todo:
        at = next((at for at, task in enumerate(todo) if task.dies), len(todo)) + 1
        if in_process(works, repository, folder, way, f"{agent}.{len(todo)}", todo[:at]) not in (0, -signal.SIGKILL):
            raise SystemExit(f"agent {agent} failed")
        todo = todo[at:]


def begun(work, *words):
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work(*words)
        code = 0
    except SystemExit as ends:
        print(ends, file=sys.stderr)
    finally:
        os._exit(code)


def in_process(work, *words):
    return os.waitstatus_to_exitcode(os.waitpid(begun(work, *words), 0)[1])


def run(way, seed, options):
    """Returns the counts of one run."""
    with tempfile.TemporaryDirectory(prefix="rlock-agents-") as folder:
        repository = os.path.join(folder, f"repository-{os.getpid()}-{seed}")
        for name in FILES:
            file = pathlib.Path(repository, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        git = ["git", "-C", repository, "-c", "user.name=all", "-c", "user.email=all@example.org"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "before"]):
            subprocess.run([*git, *words], check=True)
        chances = [random.Random(f"{seed} {at}") for at in range(options.agents)]
        plans = [list(tasks(chance, options.tasks, options.calm)) for chance in chances]
        agents = [begun(lives, repository, folder, way, f"agent-{at}", plan) for at, plan in enumerate(plans)]
        if any([os.waitpid(agent, 0)[1] for agent in agents]):
            raise SystemExit(f"{way}, seed {seed}: an agent failed")
        counts = Journal(folder).read()
        changed = subprocess.run([*git, "diff", "--numstat"], check=True, capture_output=True, text=True).stdout
        counts["lost"] = counts["ends"] - sum(int(line.split()[0]) for line in changed.splitlines())
        if way == "claims":
            looks, end = Claims(repository, "checker"), time.time() + 10
            while looks.are_left() and time.time() < end:
                time.sleep(POLL)
            counts["left"] = looks.are_left()
            looks.server.communicate()
        return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1, help="how many runs with each way")
    parser.add_argument("--agents", type=int, default=30)
    parser.add_argument("--tasks", type=int, default=10, help="of each agent")
    parser.add_argument("--calm", action="store_true", help="nobody thinks for long, and nobody is killed")
    options = parser.parse_args()
    sums = {}
    for way in WAYS:
        sums[way] = sum((run(way, seed, options) for seed in range(options.seeds)), collections.Counter())
        said = "{begins} edits began, {dies} agents were killed, {collides} edits collided, {lost} were lost"
        print(f"{way}:", said.format_map(sums[way]), flush=True)
    claims, leases = sums.pop("claims"), list(sums.values())
    is_empty = not claims["begins"] or not (options.calm or all(each["collides"] and each["lost"] for each in leases))
    return 1 if is_empty or claims["collides"] or claims["lost"] or claims["left"] else 0


if __name__ == "__main__":
    sys.exit(main())
