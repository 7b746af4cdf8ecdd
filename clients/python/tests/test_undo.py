"""What an attempt left is undone, without ending anything that its owner is granted later."""

import asyncio
import threading

import pytest
import redis
import redis.asyncio
from support import one_server

import rlock
import rlock.asyncio

pytestmark = pytest.mark.usefixtures("server")
server = one_server


def fails_and_is_undone_late(server):
    """The reply with the grant is lost, and the request that undoes it is delayed."""
    server.proxy.fault({"proxy": "cut", "of": "RLOCK.ACQUIRE", "times": 99})
    server.proxy.fault({"proxy": "keep", "of": "RLOCK.RELEASE", "times": 1})


def test_an_undo_that_arrives_late_does_not_end_the_retry(server):
    lock = rlock.Lock(server.client(), "k", lease=30)
    fails_and_is_undone_late(server)
    with pytest.raises(rlock.Unavailable):
        lock.acquire(wait=0.2)
    server.proxy.fault({"proxy": "kept"})
    server.proxy.cuts.clear()
    hold = lock.acquire(wait=10)
    server.deliver()
    assert hold.held and server.holders("k") == [(hold.owner, hold.token)]
    hold.release()


async def test_an_undo_that_arrives_late_does_not_end_the_retry_of_a_task(server):
    client = server.client(redis.asyncio.Redis)
    lock = rlock.asyncio.Lock(client, "k", lease=30)
    fails_and_is_undone_late(server)
    with pytest.raises(rlock.Unavailable):
        await lock.acquire(wait=0.2)
    server.proxy.fault({"proxy": "kept"})
    server.proxy.cuts.clear()
    hold = await lock.acquire(wait=10)
    await asyncio.to_thread(server.deliver)
    assert hold.held and server.holders("k") == [(hold.owner, hold.token)]
    await hold.release()
    await lock._locks.aclose()


def test_who_does_not_wait_is_told_that_its_name_is_not_free_yet(server):
    lock = rlock.Lock(rlock.Locks(server.client(), patience=0.3), "k", lease=30)
    server.proxy.fault({"proxy": "cut", "of": "RLOCK.ACQUIRE", "times": 99})
    server.proxy.fault({"proxy": "keep", "of": "RLOCK.INFO", "times": 99})
    with pytest.raises(rlock.Unavailable):
        lock.acquire(wait=0.2)
    server.proxy.fault({"proxy": "kept"})
    server.proxy.cuts.clear()
    with pytest.raises(rlock.Unavailable, match="not yet undone"):
        lock.acquire(wait=0)
    server.deliver()
    hold = lock.acquire(wait=5)
    assert server.holders("k") == [(hold.owner, hold.token)]
    hold.release()


def test_a_session_that_is_lost_at_its_deadline_is_undone_before_its_owner_asks_again(server):
    """The server keeps the session until it notices that the connection is closed: until then, the owner would re-enter
    the hold, and lose it afterward."""
    lock = rlock.Lock(rlock.Locks(server.client(), patience=0.3), "k", owner="me", session=True, lease=1)
    hold = lock.acquire()
    server.proxy.fault({"proxy": "deaf"})
    assert hold.lost.wait(10)
    with pytest.raises(rlock.LockLost):
        hold.release()
    with pytest.raises(rlock.Unavailable, match="not yet undone"):
        lock.acquire(wait=0)
    server.proxy.fault({"proxy": "heal"})
    again = lock.acquire(wait=10)
    assert again.token != hold.token
    again.release()
