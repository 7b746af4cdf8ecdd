"""Starts the set of a compose or a Kubernetes file again after everything died, in every order that a table lists, with
real servers and Sentinels and with images/node.sh.

    orders.py table  SERVER-FOLDER MODULE FILE WORK-FOLDER [WORD...]    only the cells whose names contain each word
    orders.py random SERVER-FOLDER MODULE FILE WORK-FOLDER SEEDS [FIRST]

SERVER-FOLDER has redis-server and redis-cli. JOBS sets run at the same time (2). Needs root, Linux and iproute2.

In each cell of the table, a lock is held: its grant was confirmed by a replica, and is on the disks of the primary and
of that replica. Then everything loses power, some volumes are lost, and the members start in some order. No other owner
may get the lock, on any server and at any time. In the end, either its holder still holds it, with the same token; or
nothing is granted, the log of a member says why, and what the log asks for helps: the missing member is started, or
`node.sh promote` is run on a server that has the lock.
"""

import collections
import itertools
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

from members import NAME, PASSWORDS, Member, Members, connect_inside, inside, until

HERE = pathlib.Path(__file__).resolve().parent
KEY, HOLDER = "app:D", "dan"


# --- what happened before everything died

def nothing(set_: Members) -> dict:
    return {}


def first_is_stale(set_: Members) -> dict:
    """A failover; the first server of the list stays dead."""
    first = set_.primary()
    first.kill()
    until("another primary", lambda: set_.primary() not in (None, first), members=set_)
    return {"stale": first.name}


def replica_is_stale(set_: Members) -> dict:
    primary = set_.primary()
    stale = [one for one in set_.servers if one is not primary][1]
    stale.kill()
    until("it is missed", lambda: primary.info("replication").get("connected_slaves") == "1")
    return {"stale": stale.name}


def replica_is_stale_after_failover(set_: Members) -> dict:
    first = first_is_stale(set_)["stale"]
    set_.names[first].start()
    until("all are there", set_.is_whole, members=set_)
    primary = set_.primary()
    stale = [one for one in set_.servers if one is not primary and one.name != first][0]
    stale.kill()
    until("it is missed", lambda: primary.info("replication").get("connected_slaves") == "1")
    return {"stale": stale.name}


def only_one_sentinel_knows(set_: Members) -> dict:
    """A failover; the Sentinels that voted for it die before they hear of its outcome."""
    first = set_.primary()
    leader = set_.killed(first)
    for one in set_.sentinels:
        if one is not leader:
            one.kill()
    until("another primary", lambda: set_.primary() not in (None, first), members=set_)
    return {"stale": first.name, "knows": leader.name}


def promoted_is_alone(set_: Members) -> dict:
    """Both other servers died before they followed the promoted server. Then that one died as well, and the Sentinels
    voted in vain."""
    first = set_.primary()
    tokens = []

    def is_granted() -> bool:
        tokens[:] = [set_.grants(KEY, HOLDER)]
        return tokens[0] is not None

    until("a confirmed grant", is_granted, members=set_)
    until("both replicas have it", lambda: set_.follow(KEY), members=set_)
    time.sleep(2)
    other, promoted = [one for one in set_.servers if one is not first]
    other.kill()
    first.kill()
    until("another primary", lambda: set_.primary() is promoted, members=set_)
    before = {one.name: one.logged("-failover-abort") for one in set_.sentinels}
    promoted.kill()
    until("a vote in vain", lambda: any(one.logged("-failover-abort") > before[one.name] for one in set_.sentinels), members=set_)
    return {"stale": first.name, "primary": promoted.name, "token": tokens[0]}


HISTORIES = {
    "no failover": nothing,
    "first is stale": first_is_stale,
    "replica is stale": replica_is_stale,
    "replica is stale after failover": replica_is_stale_after_failover,
    "only one sentinel knows": only_one_sentinel_knows,
    "promoted is alone": promoted_is_alone,
}


def prepare(set_: Members, history: str) -> dict:
    for one in set_.all:
        one.start()
    until("the first start", set_.is_whole, members=set_)
    happened = HISTORIES[history](set_)
    if "token" not in happened:
        tokens = []

        def is_granted() -> bool:
            tokens[:] = [set_.grants(KEY, HOLDER)]
            return tokens[0] is not None

        until("a confirmed grant", is_granted, members=set_)
        happened |= {"token": tokens[0], "primary": set_.primary().name}
        # Give the promoted server time to rewrite its file, too, and the Sentinels time to hear of each other's
        # failover.
        time.sleep(0.3 if "knows" in happened else 4)
    facts = {"stale": "", "knows": set_.sentinels[0].name, **happened}
    facts["replica"] = [one.name for one in set_.servers if one.name not in (facts["primary"], facts["stale"])][0]
    set_.kill_all()
    if "knows" in happened:
        epochs = {one.name: one.data.joinpath("sentinel.conf").read_text().partition(f"config-epoch {NAME} ")[2].split()[0] for one in set_.sentinels}
        if sorted(epochs.values())[:2] != ["0", "0"] or set(epochs.values()) == {"0"}:
            sys.exit(f"not one Sentinel knows: {epochs}")
    return facts


# --- which volumes are lost

def losses(facts: dict, names: list[str]) -> dict[str, list[str]]:
    sentinels = [name for name in names if name.startswith("sentinel")]
    others = [name for name in sentinels if name != facts["knows"]]
    lost = {
        "nothing is lost": [],
        "a sentinel without its state": [facts["knows"]],
        "another sentinel without its state": others[:1],
        "two sentinels without their state": [facts["knows"], others[0]],
        "no sentinel has its state": sentinels,
        "the primary is empty": [facts["primary"]],
        "the replica is empty": [facts["replica"]],
        "primary and a sentinel are empty": [facts["primary"], facts["knows"]],
    }
    if facts["stale"]:
        lost["the stale server is empty"] = [facts["stale"]]
    return lost


# --- in which order the members start: pairs of seconds and names; a name with a - dies again

def orders(facts: dict, names: list[str]) -> dict[str, list[tuple[float, str]]]:
    servers = [name for name in names if name.startswith("server")]
    sentinels = [name for name in names if name.startswith("sentinel")]
    stale = facts["stale"] or servers[0]
    others = [name for name in sentinels if name != facts["knows"]]

    def at(**seconds: float) -> list[tuple[float, str]]:
        given = {name.replace("_", "-"): when for name, when in seconds.items()}
        return [(given.get(name, given.get(name.split("-")[0], 0)), name) for name in names]

    def last(*late: str, seconds: float) -> list[tuple[float, str]]:
        return [(seconds if name in late else 0, name) for name in names]

    return {
        "all at once": at(),
        "sentinels after 1 s": at(sentinel=1),
        "sentinels after 3 s": at(sentinel=3),
        "sentinels after 10 s": at(sentinel=10),
        "sentinels 8 s earlier": at(server=8),
        # In Kubernetes, the names of the servers do not resolve in the meantime.
        "sentinels twice before the servers": [
            *[(0, name) for name in sentinels], *[(9, f"-{name}") for name in sentinels], *[(10, name) for name in names],
        ],
        "the stale or first server first": last(*[name for name in servers if name != stale], seconds=8),
        "the primary after 8 s": last(facts["primary"], seconds=8),
        "one sentinel first": last(*sentinels[1:], seconds=6),
        "the sentinel that knows after 10 s": last(facts["knows"], seconds=10),
        "the others that know nothing after 10 s": last(*others, seconds=10),
        "one after the other": [(1.5 * place, name) for place, name in enumerate(names)],
        # With podManagementPolicy Parallel, the pods of two StatefulSets start in any order: each waits for its
        # machine, its volume and its image.
        "as parallel StatefulSets": list(zip([1.9, 0, 4.2, 3.3, 0.6, 2.4], names)),
        "one after the other, backward": [(1.5 * place, name) for place, name in enumerate(reversed(names))],
        "never the primary": [(0, name) for name in names if name != facts["primary"]],
        "never the sentinel that knows": [(0, name) for name in names if name != facts["knows"]],
    }


def may_halt(facts: dict, history: str, loss: str, order: str) -> bool:
    """Whether a member or volume is missing without which no member can know which server has every lock."""
    absent = [facts["primary"]] if order == "never the primary" else []
    no_primary = facts["primary"] in absent or "primary" in loss
    stateless = {"two sentinels without their state": 2, "no sentinel has its state": 3}.get(loss, int("a sentinel" in loss or "another" in loss))
    if order == "never the sentinel that knows" and loss not in ("a sentinel without its state", "no sentinel has its state", "two sentinels without their state", "primary and a sentinel are empty"):
        stateless += 1
    one_knows = history == "only one sentinel knows"
    unknown = one_knows and (order == "never the sentinel that knows" or stateless > 0)
    return no_primary or stateless >= 2 or unknown


def play(set_: Members, facts: dict, steps: list[tuple[float, str]], lost: list[str], allowed: bool) -> str:
    for name in lost:
        set_.names[name].lose_data()
    steps = sorted(steps, key=lambda step: step[0])
    began = time.monotonic()
    probes = itertools.count()

    def goes_on() -> bool:
        """Starts the members that are due. Returns whether locks are granted again. No other owner may get the lock."""
        while steps and time.monotonic() - began >= steps[0][0]:
            name = steps.pop(0)[1]
            if name.startswith("-"):
                set_.names[name[1:]].kill()
            else:
                set_.names[name].start()
        for server in set_.servers:
            said = server.ask("rlock.acquire", KEY, "eve", "lease", "1000")
            if isinstance(said, int):
                raise Lost(f"{server.name} granted the lock to a second owner")
        if steps or set_.grants(f"app:probe:{next(probes)}", "prober") is None:
            return False
        said = set_.primary().ask("rlock.check", KEY, facts["token"]) if set_.primary() else None
        if said == 0:
            raise Lost(f"{set_.primary().name} does not have the lock")
        return said == 1

    def wait(seconds: float, may_say_why: bool = False) -> bool:
        last = steps[-1][0] if steps else 0
        while time.monotonic() - began < last + seconds:
            if goes_on():
                return True
            if may_say_why and time.monotonic() - began > last + 15 and any(one.reason() for one in set_.all):
                return False
            time.sleep(0.25)
        return False

    def rests() -> str:
        """Checks that nothing changes within three seconds."""
        until_then = time.monotonic() + 3
        while time.monotonic() < until_then:
            goes_on()
            time.sleep(0.25)
        return f"held after {time.monotonic() - began - 3:.0f} s"

    if wait(600, allowed):
        return rests()
    why = [one.reason() for one in set_.all if one.reason()]
    if not allowed:
        raise Lost("nothing is granted:\n" + set_.logs())
    if not why:
        raise Lost("nothing is granted, and no log says why:\n" + set_.logs())
    missing = [one for one in set_.all if not one.process]
    began = time.monotonic()
    if missing and not lost:
        missing[0].start()
        helped = f"after the start of {missing[0].name}"
    else:
        server = set_.names[facts["primary"] if facts["primary"] not in lost else facts["replica"]]
        if not server.process:
            server = set_.names[facts["replica"]]
        helped = f"after promote on {server.name}"
        said = server.run("promote")
        rival = [one for one in set_.servers if f"{one.known_as} is the primary" in said.stderr]
        if rival:
            rival[0].kill()
            helped = f"after {rival[0].name} was stopped, and promote on {server.name}"
            said = server.run("promote")
        if said.returncode:
            raise Lost(f"promote: {said.stderr}")
        if rival:
            until(f"{server.name} takes over", lambda: set_.primary() is server, members=set_)
            for one in set_.servers:
                if not one.process:
                    one.start()
    if not wait(600):
        raise Lost(f"nothing is granted {helped}; before: {why}\n" + set_.logs())
    for one in set_.servers:
        if not one.process:
            one.start()
    return f"halts ({why[0][:110]}); {rests()} {helped}"


class Lost(Exception):
    pass


# --- random sequences

def random_play(set_: Members, seed: int, steps: int = 14) -> str:
    """Random deaths, power failures, lost states of a Sentinel, and starts. In the end, every granted lock must be
    held, and no other owner may ever have got one."""
    chance = random.Random(seed)
    for one in set_.all:
        one.start()
    until("the first start", set_.is_whole, members=set_)
    granted: dict[str, int] = {}
    did = collections.Counter()
    trail = []

    def try_all(seconds: float) -> None:
        until_then = time.monotonic() + seconds
        while True:
            key = f"app:k{len(granted)}"
            token = set_.grants(key, "holder")
            if token is not None:
                granted[key] = token
                did["grants"] += 1
            for key in chance.sample(sorted(granted), min(3, len(granted))):
                for server in set_.servers:
                    said = server.ask("rlock.acquire", key, "thief", "lease", "1000")
                    if isinstance(said, int):
                        raise Lost(f"{server.name} granted {key} to a second owner after {trail}\n{set_.logs(12)}")
            if time.monotonic() >= until_then:
                return
            time.sleep(0.2)

    try_all(0.5)
    for _ in range(steps):
        running = [one for one in set_.all if one.process]
        dead = [one for one in set_.all if not one.process]
        what = chance.choice(["death", "death", "power", "start", "start", "state"])
        if what == "death" and running:
            one = chance.choice(running)
            # A grant that one replica confirmed survives the death of the primary, but not the death of both before the
            # other replica has it, too.
            until("the replicas follow", lambda: not set_.primary() or set_.follow(""), members=set_)
            one.kill()
            trail.append(f"-{one.name}")
        elif what == "power":
            set_.kill_all()
            trail.append("power")
            for one in chance.sample(set_.all, chance.randint(0, len(set_.all))):
                one.start()
                trail.append(f"+{one.name}")
                time.sleep(chance.choice([0, 0, 0, 1]))
        elif what == "state" and len([one for one in set_.sentinels if one.data.joinpath("sentinel.conf").exists()]) == 3:
            one = chance.choice(set_.sentinels)
            one.kill()
            one.lose_data()
            one.start()
            trail.append(f"empty {one.name}")
        elif dead:
            one = chance.choice(dead)
            one.start()
            trail.append(f"+{one.name}")
        else:
            continue
        did[what] += 1
        before = did["grants"]
        try_all(chance.choice([0, 0.5, 2, 9]))
        running = [one for one in set_.all if one.process]
        if did["grants"] == before and not any(one.reason() for one in running):
            did["steps without a grant and without a reason yet"] += 1
    dead = [one for one in set_.all if not one.process]
    chance.shuffle(dead)
    for one in dead:
        one.start()
        time.sleep(chance.choice([0, 0, 1, 3]))
    end = time.monotonic() + 600
    while not set_.is_whole():
        try_all(0.5)
        if time.monotonic() > end:
            why = [one.reason() for one in set_.all if one.reason()]
            if not why:
                raise Lost(f"halts, and no log says why, after {trail}\n{set_.logs(12)}")
            did["halts"] += 1
            raise Lost(f"halts with all members: {why} after {trail}\n{set_.logs(12)}")
    primary = set_.primary()
    missing = [key for key, token in granted.items() if primary.ask("rlock.check", key, token) != 1]
    if missing:
        raise Lost(f"{len(missing)} of {len(granted)} grants are lost after {trail}")
    return f"{len(granted)} grants held; " + ", ".join(f"{count} {what}" for what, count in sorted(did.items()) if what != "grants")


# --- the runs

def one_set(server: str, module: str, file: str, work: pathlib.Path, folder: pathlib.Path) -> Members:
    place = work / "here"
    connect_inside(folder, place)
    return Members(file, place, pathlib.Path(server).resolve(), pathlib.Path(module).resolve())


def one_job(words: list[str]) -> None:
    """Runs one job inside the namespaces of one set."""
    kind, server, module, file, work_name, folder, *rest = words
    work = pathlib.Path(work_name)
    if kind == "cell":
        shutil.copytree(work / "prepared" / rest[0] / "data", pathlib.Path(folder) / "data")
    set_ = one_set(server, module, file, work, pathlib.Path(folder))
    try:
        if kind == "prepare":
            facts = prepare(set_, rest[0])
            pathlib.Path(folder, "facts").write_text(repr(facts))
        elif kind == "cell":
            history, loss, order = rest
            facts = eval((work / "prepared" / history / "facts").read_text())
            names = [one.name for one in set_.all]
            allowed = may_halt(facts, history, loss, order)
            print(play(set_, facts, orders(facts, names)[order], losses(facts, names)[loss], allowed))
        else:
            print(random_play(set_, int(rest[0])))
    except Lost as why:
        sys.exit(f"FAILED: {why}")
    finally:
        set_.kill_all()


def run_all(jobs: list[tuple[str, list[str]]], at_once: int) -> int:
    """Runs all jobs: each is a name and the words for this program. Prints a line for each; returns how many failed."""
    running: dict[subprocess.Popen, str] = {}
    failed = 0
    waiting = list(jobs)
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name, words = waiting.pop(0)
                process = subprocess.Popen(inside("inside", *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **PASSWORDS})
                running[process] = name
            for process in [one for one in running if one.poll() is not None]:
                name = running.pop(process)
                said = process.stdout.read().strip()
                failed += process.returncode != 0
                print(f"{name}: {said}", flush=True)
            time.sleep(0.1)
    finally:
        for process in running:
            process.kill()
    return failed


def main(kind: str, *words: str) -> None:
    if kind == "inside":
        one_job(list(words))
        return
    server, module, file, work_name, *rest = words
    work = pathlib.Path(work_name).resolve()
    common = [server, module, file, str(work)]
    at_once = int(os.environ.get("JOBS", "2"))
    start = time.monotonic()
    if kind == "random":
        first = int(rest[1]) if len(rest) > 1 else 1
        jobs = [(f"seed {seed}", ["random", *common, str(work / f"seed-{seed}"), str(seed)]) for seed in range(first, first + int(rest[0]))]
    else:
        names = [f"server-{number}" for number in range(3)] + [f"sentinel-{number}" for number in range(3)]
        cells = []
        any_facts = {"primary": names[0], "stale": names[1], "replica": names[2], "knows": names[3]}
        for history, order in itertools.product(HISTORIES, orders(any_facts, names)):
            facts = {**any_facts, "stale": "" if history == "no failover" else names[1]}
            cells += [(history, loss, order) for loss in losses(facts, names)]
        cells.sort(key=lambda cell: list(losses(any_facts, names)).index(cell[1]))
        cells = [cell for cell in cells if all(word in ", ".join(cell) for word in rest)]
        needed = sorted({cell[0] for cell in cells})
        if run_all([(f"before: {history}", ["prepare", *common, str(work / "prepared" / history), history]) for history in needed], at_once):
            sys.exit("FAILED: the set did not start")
        jobs = [(", ".join(cell), ["cell", *common, str(work / f"cell-{number}"), *cell]) for number, cell in enumerate(cells)]
    failed = run_all(jobs, at_once)
    print(f"{len(jobs) - failed} of {len(jobs)} passed, in {time.monotonic() - start:.0f} s")
    sys.exit(failed > 0)


main(*sys.argv[1:])
