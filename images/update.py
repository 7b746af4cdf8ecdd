"""Replaces every pod of a Kubernetes file's set, as an update of both StatefulSets does: the last pod first, and the next
one when the file's readiness probe has succeeded for this one. Uses real servers and Sentinels and images/node.sh.

    update.py SERVER-FOLDER MODULE FILE WORK-FOLDER

Each pod returns with its volume, but with another address. In the meantime, locks are acquired. None of them may be
lost or granted to a second owner, and a server may only be ready in the states that docs/high-availability.md names.
Needs root, Linux and iproute2.
"""

import pathlib
import random
import socket
import subprocess
import sys
import threading
import time

import yaml

from members import Member, Members, connect_inside, inside, until

# A failover takes up to ten seconds, and a busy machine twice as long.
LIMIT = 30


class Probes:
    def __init__(self, file: str):
        self.of = {}
        for one in yaml.safe_load_all(pathlib.Path(file).read_text()):
            if one["kind"] == "StatefulSet":
                kind = one["metadata"]["name"].removeprefix("rlock-")
                self.of[kind] = one["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]

    def says(self, member: Member) -> bool:
        probe = self.of[member.kind]
        if "tcpSocket" in probe:
            with socket.socket() as one:
                one.settimeout(1)
                return one.connect_ex((member.address, member.port)) == 0
        return self.runs(member, probe).returncode == 0

    def runs(self, member: Member, probe: dict) -> subprocess.CompletedProcess:
        path, word = probe["exec"]["command"]
        if path != "/usr/lib/rlock/node.sh":
            sys.exit(f"FAILED: the probe runs {path}")
        return member.run(word, probe["timeoutSeconds"])

    def reason(self, member: Member) -> str:
        """Why the probe fails; empty if it succeeds."""
        said = self.runs(member, self.of["server"])
        return said.stderr.strip() if said.returncode else ""


def check(what: str, is_so: bool, said: object = "") -> None:
    if not is_so:
        sys.exit(f"FAILED: {what}; {said}")


def states(set_: Members, probes: Probes) -> str:
    """Checks in which states a server is ready, and in which it is not."""
    primary = set_.primary()
    replica, other = [one for one in set_.servers if one is not primary]
    began = time.monotonic()
    for one in set_.servers:
        check("each server of a whole set is ready", probes.says(one), one.name)
    took = (time.monotonic() - began) / len(set_.servers)
    for one in set_.all:
        if one is not replica:
            one.kill()
    until("the link is down", lambda: replica.info("replication").get("master_link_status") == "down")
    said = probes.reason(replica)
    check("a replica without its link is not ready", "the link to the primary is down" in said, said)
    replica.kill()
    replica.start()
    until("it waits", lambda: "0 of 3 Sentinels" in replica.reason())
    check("a server that waits is not ready", not probes.says(replica))
    for one in [*set_.sentinels, other]:
        one.start()
    until("it may not be promoted", lambda: replica.info("replication").get("slave_priority") == "0", members=set_)
    said = probes.reason(replica)
    check("a replica that lacks something is not ready", "has not received and saved everything" in said, said)
    primary.start()
    until("all are whole again", set_.is_whole, members=set_)
    return f"the probe took {took * 1000:.0f} ms, and named the three states in which a server is not ready"


def update(set_: Members, kind: str, probes: Probes, log: list[str]) -> None:
    period = probes.of[kind]["periodSeconds"]
    members = [one for one in set_.all if one.kind == kind]
    for one in sorted(members, key=lambda member: member.name, reverse=True):
        one.end(30)
        time.sleep(0.5)
        one.start()
        began = time.monotonic()
        while not probes.says(one):
            if time.monotonic() - began > 120:
                log.append(f"FAILED: {one.name} was not ready")
                return
            time.sleep(period / 5)
        log.append(f"{one.name} ready after {time.monotonic() - began:.0f} s")
        if kind == "server":
            state = one.info("replication")
            if state.get("role") == "slave" and (state.get("slave_priority"), state.get("master_link_status")) != ("100", "up"):
                log.append(f"FAILED: {one.name} was ready with {state}")


def play(set_: Members, probes: Probes) -> str:
    for one in set_.all:
        one.start()
    until("the first start", set_.is_whole, members=set_)
    print(states(set_, probes), flush=True)
    log: list[str] = []
    updates = [threading.Thread(target=update, args=(set_, kind, probes, log)) for kind in ("server", "sentinel")]
    for one in updates:
        one.start()
    granted: dict[str, int] = {}
    longest, last = 0.0, time.monotonic()
    while any(one.is_alive() for one in updates) or time.monotonic() - last > 1:
        token = set_.grants(f"app:{len(granted)}", "holder")
        if token is not None:
            granted[f"app:{len(granted)}"] = token
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        for key in random.sample(sorted(granted), min(3, len(granted))):
            for server in set_.servers:
                said = server.ask("rlock.acquire", key, "thief", "lease", "1000")
                check(f"{server.name} granted {key} to a second owner", not isinstance(said, int), said)
        check("no lock is granted", time.monotonic() - last < LIMIT, set_.logs())
        time.sleep(0.1)
    until("all are whole", set_.is_whole, members=set_)
    failed = [line for line in log if line.startswith("FAILED")]
    check("; ".join(failed), not failed)
    primary = set_.primary()
    lost = [key for key, token in granted.items() if primary.ask("rlock.check", key, token) != 1]
    check("locks are lost", not lost, lost)
    return f"{len(granted)} grants, none lost, longest pause {longest:.1f} s; " + ", ".join(log)


def main(server: str, module: str, file: str, work: str, where: str = "") -> None:
    if where != "inside":
        sys.exit(subprocess.run(inside(server, module, file, work, "inside")).returncode)
    folder = pathlib.Path(work).resolve()
    connect_inside(folder, folder)
    set_ = Members(file, folder, pathlib.Path(server).resolve(), pathlib.Path(module).resolve())
    try:
        print(play(set_, Probes(file)), flush=True)
    finally:
        set_.kill_all()


main(*sys.argv[1:])
