"""One of many, on a real server."""

import asyncio
import threading
import time

import pytest
import redis.asyncio
from support import interrupted_after, one_server, until

import rlock
import rlock.asyncio

server = one_server


def held(server, *keys):
    return [len(server.holders(key)) for key in keys]


def test_a_permit_first_and_then_the_first_free_key(server):
    locks = rlock.Locks(server.client())
    pool = locks.any("pool", ["a", "b"])
    first, second = pool.acquire(wait=0), pool.acquire(wait=0)
    assert (first.key, second.key) == ("a", "b") and held(server, "pool", "a", "b") == [2, 1, 1]
    assert pool.acquire(wait=0.1) is None
    got = []
    waits = threading.Thread(target=lambda: got.append(pool.acquire()))
    waits.start()
    until("it waits in line", lambda: server.waiting("pool") == 1)
    second.release()
    waits.join()
    assert got[0].key == "b"
    for hold in (first, *got):
        hold.release()
    assert held(server, "pool", "a", "b") == [0, 0, 0]
    with pool as hold, pool as other:
        assert {hold.key, other.key} == {"a", "b"}
    assert held(server, "pool", "a", "b") == [0, 0, 0]


def test_a_key_that_somebody_holds_without_a_permit_is_passed_over(server):
    locks = rlock.Locks(server.client())
    server.ask("RLOCK.ACQUIRE", "a", "somebody")
    with locks.any("pool", ["a", "b"]) as hold:
        assert hold.key == "b"
        assert locks.any("pool", ["a", "b"]).acquire(wait=0.2) is None
        assert held(server, "pool", "a", "b") == [1, 1, 1]
        threading.Timer(0.3, lambda: server.ask("RLOCK.FORCE", "a")).start()
        with locks.any("pool", ["a", "b"], wait=10) as late:
            assert late.key == "a"
    assert held(server, "pool", "a", "b") == [0, 0, 0]


def test_a_hold_that_is_lost_gives_its_permit_back_all_the_same(server):
    locks = rlock.Locks(server.client())
    hold = locks.any("pool", ["a"]).acquire()
    server.ask("RLOCK.FORCE", "a")
    with pytest.raises(rlock.LockLost):
        hold.release()
    assert held(server, "pool", "a") == [0, 0]
    hold = locks.any("pool", ["a"]).acquire()
    server.ask("RLOCK.FORCE", "pool")
    assert hold.held
    hold.release()  # what is lost with the permit is a place, not the lock
    assert held(server, "pool", "a") == [0, 0]


@pytest.mark.parametrize("taken", ["pool", "a"])
def test_a_signal_ends_the_wait_and_leaves_nothing(server, taken):
    locks = rlock.Locks(server.client())
    server.ask("RLOCK.ACQUIRE", taken, "somebody")
    with interrupted_after(0.3):
        locks.any("pool", ["a"]).acquire()
    until("nothing is left", lambda: server.waiting("pool") == 0 and held(server, "pool", "a") == [taken == "pool", taken == "a"])
    before = server.called("rlock.acquire")
    time.sleep(1.2)
    assert server.called("rlock.acquire") == before


def test_tasks(server):
    async def main():
        client = redis.asyncio.Redis(port=int(server.one.address.split(":")[1]))
        locks = rlock.asyncio.Locks.of(client)
        pool = locks.any("pool", ["a", "b"], wait=10)
        async with pool as first:
            second = await pool.acquire()
            assert (first.key, second.key) == ("a", "b")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pool.acquire(), 0.2)
            assert held(server, "pool", "a", "b") == [2, 1, 1] and server.waiting("pool") == 0
            third = asyncio.create_task(pool.acquire())
            await second.release()
            assert (await third).key == "b"
            await third.result().release()
        assert held(server, "pool", "a", "b") == [0, 0, 0]
        server.ask("RLOCK.ACQUIRE", "a", "somebody")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(locks.any("one", ["a"]).acquire(), 0.2)
        assert held(server, "one") == [0]
        assert await locks.any("one", ["a"]).acquire(wait=0.1) is None
        assert held(server, "one") == [0]
        await locks.aclose()
        await client.aclose()

    asyncio.run(main())


def test_what_makes_no_sense_is_refused(server):
    locks = rlock.Locks(server.client())
    for keys in ([], ["a", "pool"]):
        with pytest.raises(ValueError):
            locks.any("pool", keys)
    for keys in ("a", [3]):
        with pytest.raises(TypeError):
            locks.any("pool", keys)
