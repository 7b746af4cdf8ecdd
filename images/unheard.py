"""Scenes of repairs.py: not all Sentinels hear of a failover."""

import time

from members import Member, Members, until, write_names
from scenes import KEY, check, freeze, granted, leaders, replicas, settle, stays_held, thaw, whole


def unheard_failover(set_: Members) -> Member:
    """A failover: the Sentinels that voted for it die before they hear of its outcome. Returns the Sentinel that knows
    it."""
    first = set_.primary()
    leader = set_.killed(first)
    for one in set_.sentinels:
        if one is not leader:
            one.kill()
    until("another primary", lambda: set_.primary() not in (None, first), members=set_)
    return leader


def followed(set_: Members, survives: str) -> str:
    """The promoted server confirms a lock. Then either this server or its replica dies, together with the Sentinel that
    knows the outcome, and all others return."""
    first = set_.primary()
    leader = unheard_failover(set_)
    token = granted(set_)
    promoted = set_.primary()
    other = [one for one in set_.servers if one not in (first, promoted)][0]
    settle([promoted, other])
    dead = {"primary": other, "replica": promoted}[survives]
    for one in (leader, dead):
        one.kill()
    for one in [*[one for one in set_.sentinels if one is not leader], first]:
        one.start()
    stays_held(set_, token)
    for one in (leader, dead):
        one.start()
    whole(set_, token)
    return f"the old primary does not take over while the {survives} of a failover that it cannot know is running"


def followed_and_primary_runs(set_: Members) -> str:
    return followed(set_, "primary")


def followed_and_replica_runs(set_: Members) -> str:
    return followed(set_, "replica")


# --- a failover whose promoted server nobody followed

def forgotten(set_: Members) -> tuple[Member, Member]:
    """The promoted server and the Sentinel that knows of it are dead, and the others continue without the two."""
    first, (other, promoted) = set_.primary(), replicas(set_)
    until("the replicas have everything", lambda: set_.follow(""), members=set_)
    leader = set_.killed(other, first)
    voters = [one for one in set_.sentinels if one is not leader]
    for one in voters:
        one.kill()
    until("it is promoted", lambda: leaders(set_) == [promoted.name], members=set_)
    until("the Sentinel knows", lambda: set_.named(leader) is promoted, members=set_)
    promoted.kill()
    leader.kill()
    for one in [*voters, first, other]:
        one.start()
    return promoted, leader


def forgotten_and_waiting(set_: Members) -> str:
    """The promoted server starts before the Sentinel, and lacks the locks that were granted in the meantime."""
    promoted, knows = forgotten(set_)
    token = granted(set_)
    promoted.start()
    until("it waits, or has everything", lambda: promoted.reason() or set_.follow(KEY), members=set_)
    time.sleep(3)
    knows.start()
    whole(set_, token)
    return "a promoted server that nobody followed does not take over when the Sentinel that knows it returns"


def forgotten_and_late(set_: Members) -> str:
    """The Sentinel starts first, and the promoted server starts before it is considered dead."""
    promoted, knows = forgotten(set_)
    token = granted(set_)
    knows.start()
    until("the Sentinel answers", lambda: set_.named(knows) is promoted, members=set_)
    time.sleep(3)  # the other Sentinels hear of it
    promoted.start()
    whole(set_, token)
    return "nor when it starts after that Sentinel"


def forgotten_for_ever(set_: Members) -> str:
    """The Sentinel that knew of the promoted server has lost its state."""
    promoted, knows = forgotten(set_)
    token = granted(set_)
    knows.lose_data()
    for one in (promoted, knows):
        one.start()
    whole(set_, token)
    return "nor do the two wait for each other when the Sentinel has lost its state"


def forgotten_and_one_is_down(set_: Members, is_replica: bool) -> str:
    promoted, knows = forgotten(set_)
    token = granted(set_)
    settle([one for one in set_.servers if one is not promoted])
    down = [one for one in replicas(set_) if one is not promoted][0] if is_replica else set_.primary()
    down.kill()
    for one in (knows, promoted):
        one.start()
    stays_held(set_, token)
    down.start()
    whole(set_, token)
    return f"nor when it and that Sentinel return while {'the replica' if is_replica else 'the primary'} of the others is down"


def forgotten_and_replica_is_down(set_: Members) -> str:
    return forgotten_and_one_is_down(set_, True)


def forgotten_and_primary_is_down(set_: Members) -> str:
    return forgotten_and_one_is_down(set_, False)


# --- a Sentinel that could not resolve the new primary's name when it heard of the failover

def another_opinion(set_: Members, is_power_lost: bool) -> str:
    first, behind = set_.primary(), set_.sentinels[0]
    if not first.is_pod:
        return "nothing to do: the members have no names"
    freeze(behind)
    first.kill()
    heard = set_.sentinels[1:]
    until("another primary", lambda: len({set_.named(one) for one in heard} - {None, first}) == 1 and set_.named(heard[0]) is set_.named(heard[1]), members=set_)
    promoted = set_.named(heard[0])
    token = granted(set_)
    settle([one for one in set_.servers if one is not first])
    write_names(promoted, is_there=False)
    thaw(behind)
    until("it hears of the failover", lambda: behind.logged("+switch-master") > 0, members=set_)
    write_names(promoted)
    check("it names the old primary", set_.named(behind) is first)
    if is_power_lost:
        set_.kill_all()
        for one in (behind, heard[0], first):
            one.start()
        until("it waits, or leads", lambda: first.reason() or leaders(set_), members=set_)
        time.sleep(5)
    for one in set_.all:
        if not one.process:
            one.start()
    whole(set_, token)
    return f"a Sentinel that could not resolve the new primary's name is corrected{', also after a power failure' if is_power_lost else ''}"


def another_opinion_for_a_while(set_: Members) -> str:
    return another_opinion(set_, False)


def another_opinion_and_power_failure(set_: Members) -> str:
    return another_opinion(set_, True)
