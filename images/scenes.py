"""Functions that the scenes of repairs.py and unheard.py share."""

import os
import signal
import sys
import time

from members import Member, Members, until

KEY, HOLDER = "app:D", "dan"


def check(what: str, is_so: bool, said: object = "") -> None:
    if not is_so:
        sys.exit(f"FAILED: {what}; {said}")


def granted(set_: Members, key: str = KEY, owner: str = HOLDER) -> int:
    """Acquires the lock. The grant is confirmed, and on the disks of all running servers."""
    tokens = []

    def is_granted() -> bool:
        tokens[:] = [set_.grants(key, owner)]
        return tokens[0] is not None

    until("a confirmed grant", is_granted, members=set_)
    until("the replicas have it", lambda: set_.follow(key), members=set_)
    return tokens[0]


def leaders(set_: Members) -> list[str]:
    return [one.name for one in set_.servers if one.process and one.info("replication").get("role") == "master"]


def replicas(set_: Members) -> list[Member]:
    primary = set_.primary()
    return [one for one in set_.servers if one is not primary]


def settle(servers: list[Member]) -> None:
    """Waits until no file is being rewritten, as happens after a full sync or a promotion."""
    busy = ("aof_rewrite_in_progress", "aof_rewrite_scheduled", "rdb_bgsave_in_progress")

    def is_settled(one: Member) -> bool:
        persistence = one.info("persistence")
        return all(persistence.get(field) == "0" for field in busy)

    until("no file is being rewritten", lambda: all(is_settled(one) for one in servers))


def is_held(set_: Members, token: int, key: str = KEY) -> bool:
    """Whether the lock is held. No other owner may have got it, on any server."""
    for one in set_.servers:
        said = one.ask("rlock.acquire", key, "eve", "lease", "1000") if one.process else None
        check(f"{one.name} granted {key} to a second owner", not isinstance(said, int), set_.logs(4))
    primary = set_.primary()
    said = primary.ask("rlock.check", key, token) if primary else None
    check(f"{key} is lost", said != 0, set_.logs(4))
    return said == 1


def stays_held(set_: Members, token: int) -> None:
    """Checks for half a minute that no other owner gets the lock, whatever the other members agree on."""
    for _ in range(60):
        is_held(set_, token)
        time.sleep(0.5)


def whole(set_: Members, token: int, key: str = KEY) -> None:
    until("all are whole, and the lock is held", lambda: is_held(set_, token, key) and set_.is_whole(), members=set_)


def freeze(one: Member) -> None:
    os.killpg(one.process.pid, signal.SIGSTOP)


def thaw(one: Member) -> None:
    os.killpg(one.process.pid, signal.SIGCONT)
