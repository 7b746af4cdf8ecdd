"""Tests what an operator does to a set, and what can happen to its disks, with real servers and Sentinels and with
images/node.sh. (images/orders.py tests deaths and starts.)

    repairs.py SERVER-FOLDER MODULE FILE WORK-FOLDER [SCENE...]

Without SCENE, all scenes are played. JOBS sets run at the same time (2). Needs root, Linux and iproute2.

In each scene, a lock is held whose grant was confirmed. In the end, its holder must still hold it, with the same token,
and an operator's commands must never have made two servers primaries at the same time.
"""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import time

from members import NAME, PASSWORDS, Members, connect_inside, inside, until
from scenes import KEY, check, freeze, granted, is_held, leaders, replicas, settle, thaw, whole
from unheard import (
    another_opinion_and_power_failure, another_opinion_for_a_while, followed_and_primary_runs, followed_and_replica_runs,
    forgotten_and_late, forgotten_and_primary_is_down, forgotten_and_replica_is_down, forgotten_and_waiting, forgotten_for_ever,
    unheard_failover,
)

# --- node.sh promote

def promote_beside_a_primary(set_: Members) -> str:
    """`promote` while another server is the primary and only one Sentinel answers."""
    token = granted(set_)
    primary, other = set_.primary(), replicas(set_)[0]
    for one in set_.sentinels[1:]:
        one.kill()
    said = other.run("promote")
    check("promote names the primary", said.returncode == 1 and f"{primary.known_as} is the primary" in said.stderr, said)
    check("one server is the primary", leaders(set_) == [primary.name], leaders(set_))
    for one in set_.sentinels[1:]:
        one.start()
    whole(set_, token)
    return "promote is refused while another server is the primary, also without a majority of the Sentinels"


def promote_of_a_server_that_hangs(set_: Members) -> str:
    """`promote` for a server that hangs: a later start must not find the order, because the server may lack locks by
    then."""
    granted(set_)
    primary, other = set_.primary(), replicas(set_)[0]
    for one in set_.sentinels[1:]:
        one.kill()
    freeze(primary)
    freeze(other)
    said = other.run("promote")
    check("promote says that nothing waits", said.returncode == 1, said)
    thaw(primary)
    thaw(other)
    for one in set_.sentinels[1:]:
        one.start()
    until("all are whole", set_.is_whole, members=set_)
    other.kill()
    key = "app:E"
    token = granted(set_, key)
    # Leave an order behind, as if one had been given.
    (other.data / "promote").touch()
    set_.kill_all()
    for one in set_.servers:
        one.start()
    until("it waits", lambda: bool(other.reason()), members=set_)
    time.sleep(3)
    for one in set_.sentinels:
        one.start()
    whole(set_, token, key)
    return "an order to a server that hangs is refused, and one from before a start is forgotten"


def promote_of_an_empty_server(set_: Members) -> str:
    """`promote` for a server without data, before another one can have taken over."""
    token = granted(set_)
    primary = set_.primary()
    for one in set_.sentinels[1:]:
        one.kill()
    primary.kill()
    primary.lose_data()
    primary.start()
    until("it waits", lambda: bool(primary.reason()), members=set_)
    said = primary.run("promote")
    check("promote names a server that has data", said.returncode == 1 and "has no data" in said.stderr, said)
    for one in set_.sentinels[1:]:
        one.start()
    whole(set_, token)
    return "promote is refused where there is no data, while another server has some"


def promote_before_an_old_primary_returns(set_: Members) -> str:
    """`promote`, and then an old primary returns: it lacks the lock, but the remaining Sentinels name it."""
    first = set_.primary()
    leader = unheard_failover(set_)
    token = granted(set_)
    promoted = set_.primary()
    other = [one for one in set_.servers if one not in (first, promoted)][0]
    settle([promoted, other])
    set_.kill_all()
    for one in (promoted, leader):
        one.lose_data()
    for one in [*set_.sentinels, other, promoted]:
        one.start()
    until("it waits", lambda: bool(other.reason()), members=set_)
    time.sleep(3)
    check("promote", other.run("promote").returncode == 0)
    first.start()
    whole(set_, token)
    return "promote is not undone by an old primary that starts right afterward"


# --- disks

def lost_files(set_: Members) -> str:
    """The folder of the append-only file exists, but is empty."""
    said = []
    for all_of_them in (False, True):
        token = granted(set_)
        settle(set_.servers)
        primary = set_.primary()
        if all_of_them:
            set_.kill_all()
        else:
            primary.kill()
        for file in (primary.data / "appendonlydir").iterdir():
            file.unlink()
        for one in set_.all:
            if not one.process:
                one.start()
        if all_of_them:
            until("it waits", lambda: bool(primary.reason()), members=set_)
            time.sleep(10)
            check("it waits for another primary", leaders(set_) == [], leaders(set_))
            other = [one for one in set_.servers if one is not primary][0]
            check("promote", other.run("promote").returncode == 0)
        whole(set_, token)
        said.append("alone" if not all_of_them else "with all others")
    return f"a primary that lost its files, not its folder, does not begin empty; it died {' and '.join(said)}"


def emptied_state(set_: Members) -> str:
    """The state file of a Sentinel has no content, as after a power failure on some file systems."""
    token = granted(set_)
    settle(set_.servers)
    set_.kill_all()
    (set_.sentinels[0].data / "sentinel.conf").write_text("")
    for one in set_.all:
        one.start()
    whole(set_, token)
    return "a Sentinel whose file is empty has no state"


def restored(set_: Members) -> str:
    """All volumes are lost, and one server has a copy of a server's folder."""
    token = granted(set_)
    settle(set_.servers)
    copied = set_.folder / "backup"
    shutil.copytree(set_.servers[1].data / "appendonlydir", copied)
    set_.kill_all()
    for one in set_.all:
        one.lose_data()
    chosen = set_.servers[2]
    chosen.data.mkdir(parents=True)
    shutil.copytree(copied, chosen.data / "appendonlydir")
    for one in set_.all:
        one.start()
    until("it waits", lambda: bool(chosen.reason()), members=set_)
    time.sleep(10)
    check("nobody begins by itself", leaders(set_) == [], leaders(set_))
    check("promote", chosen.run("promote").returncode == 0)
    whole(set_, token)
    return "with a backup on one server, nobody begins empty; promote makes it the primary"


# --- passwords

def new_passwords(set_: Members) -> str:
    """The applications' password is changed on one member after another, and each accepts both passwords until then.
    The members' password is changed while all of them are stopped."""
    token = granted(set_)

    def change(user: str) -> None:
        PASSWORDS[f"RLOCK_{user}_PASSWORD"] = f"new-{user}"
        for one in set_.all:
            one.environment.update(PASSWORDS)

    members = [*set_.sentinels, *replicas(set_), set_.primary()]
    for one in members:
        said = one.ask("ACL", "SETUSER", "app", ">new-APP", user="node")
        check("both passwords", said == "OK", said)
    change("APP")
    for one in members:
        one.end(30)
        if one is not members[-1]:
            until("the new password is accepted meanwhile", lambda: is_held(set_, token), members=set_)
        one.start()
        if one.kind == "server":
            until(f"{one.name} is ready", lambda: one.run("ready").returncode == 0, members=set_)
    whole(set_, token)
    said = [one.ask("sentinel", "get-master-addr-by-name", NAME) for one in set_.sentinels]
    check("each Sentinel knows the new password", all(isinstance(each, list) for each in said), said)
    set_.kill_all()
    change("NODE")
    for one in set_.all:
        one.start()
    whole(set_, token)
    first = set_.primary()
    first.kill()
    until("another primary", lambda: set_.primary() not in (None, first), members=set_)
    first.start()
    whole(set_, token)
    return "the applications' password was changed one member after the other, the members' with all of them stopped"


# --- names

def not_in_its_list(set_: Members) -> str:
    """A member is started with a name that is not in its list, for example its full name. Under that name it would
    follow itself."""
    token = granted(set_)
    for one in (replicas(set_)[0], set_.sentinels[2]):
        right = one.environment["RLOCK_SELF"]
        one.kill()
        one.environment["RLOCK_SELF"] = f"{right}.svc"
        one.start()
        until(f"{one.name} ends", lambda: one.process.poll() is not None, members=set_)
        check("it says why", any("RLOCK_SELF is" in line for line in one.since_start()), one.since_start())
        one.kill()
        one.environment["RLOCK_SELF"] = right
        one.start()
    whole(set_, token)
    return "a member whose own name is not in its list ends, and says why"


# --- other ends

def stopped_in_turn(set_: Members) -> str:
    """Each primary is asked to end, with a failover after each; the last one ends without a successor."""
    key = "app:last"
    for number in range(2):
        primary = set_.primary()
        primary.end(30)
        until("another primary", lambda: set_.primary() not in (None, primary), members=set_)
        if number == 0:
            token = granted(set_, key)
    set_.primary().end(30)
    for one in set_.sentinels:
        one.end(30)
    for one in set_.all:
        one.start()
        time.sleep(0.7)
    whole(set_, token, key)
    return "the servers were stopped one after the other; then all were started"


def frozen(set_: Members) -> str:
    """A primary whose machine is frozen is replaced. It continues when all others lose power."""
    granted(set_)
    old = set_.primary()
    freeze(old)
    until("another primary", lambda: set_.primary() not in (None, old), members=set_)
    key = "app:F"
    token = granted(set_, key)
    settle([one for one in set_.servers if one is not old])
    others = [one for one in set_.all if one is not old]
    for one in others:
        one.kill()
    thaw(old)
    for one in others:
        one.start()
        for _ in range(4):
            is_held_or_unknown(set_, key)
            time.sleep(0.25)
    until("all are whole, and the lock is held", lambda: is_held_or_unknown(set_, key, token) and set_.is_whole(), members=set_)
    return "a primary that stood still goes on when all others start: it grants nothing"


def is_held_or_unknown(set_: Members, key: str, token: int = 0) -> bool:
    """The old primary does not know the lock, and must not grant it to anyone else."""
    for one in set_.servers:
        said = one.ask("rlock.acquire", key, "eve", "lease", "1000")
        check(f"{one.name} granted {key} to a second owner", not isinstance(said, int), set_.logs(4))
    primary = set_.primary()
    return bool(primary) and primary.ask("rlock.check", key, token) == 1


SCENES = [
    promote_beside_a_primary, promote_of_a_server_that_hangs, promote_of_an_empty_server, promote_before_an_old_primary_returns,
    lost_files, emptied_state, restored, new_passwords, not_in_its_list, followed_and_primary_runs, followed_and_replica_runs,
    forgotten_and_waiting, forgotten_and_late, forgotten_for_ever, forgotten_and_replica_is_down, forgotten_and_primary_is_down,
    another_opinion_for_a_while, another_opinion_and_power_failure, stopped_in_turn, frozen,
]


def play(name: str, server: str, module: str, file: str, work: str) -> None:
    folder = pathlib.Path(work)
    connect_inside(folder / "set", folder / "here")
    set_ = Members(file, folder / "here", pathlib.Path(server).resolve(), pathlib.Path(module).resolve())
    try:
        for one in set_.all:
            one.start()
        until("the first start", set_.is_whole, members=set_)
        print({each.__name__: each for each in SCENES}[name](set_), flush=True)
    finally:
        for one in set_.all:
            if one.process:
                thaw(one)
        set_.kill_all()


def main(server: str, module: str, file: str, work: str, *chosen: str) -> None:
    common = [server, module, file]
    names = [each.__name__ for each in SCENES if not chosen or each.__name__ in chosen]

    def one(name: str) -> tuple[str, int, str]:
        folder = pathlib.Path(work, name).resolve()
        words = inside("inside", name, *common, str(folder))
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return name, done.returncode, done.stdout.strip()

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
        for name, code, said in pool.map(one, names):
            failed += code != 0
            print(f"{name}: {said}", flush=True)
    print(f"{len(names) - failed} of {len(names)} passed")
    sys.exit(failed > 0)


if sys.argv[1] == "inside":
    play(*sys.argv[2:])
else:
    main(*sys.argv[1:])
