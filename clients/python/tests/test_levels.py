"""What a hold owes to each of its levels."""

import asyncio
import time

import pytest
import redis
import redis.asyncio
from support import one_server, until

import rlock
import rlock.asyncio

server = one_server
BELOW = pytest.mark.parametrize("below", [{"lease": 1, "renew": False}, {"lease": 0.6}])


@BELOW
def test_a_hold_is_renewed_by_the_longest_lease_of_its_levels(server, below):
    locks = rlock.Locks(server.client())
    outer = rlock.Lock(locks, "k", **below).acquire()
    until("what is renewed has been", lambda: not outer._tenure.options.renew or server.renewals() > 0)
    inner = rlock.Lock(locks, "k", lease=3).acquire()
    end = time.monotonic() + 3.5
    until("the longest lease has passed", lambda: time.monotonic() > end)
    assert outer.held and inner.held and outer.left > 1.5
    inner.release()
    outer.release()
    assert server.holders("k") == []


@BELOW
async def test_a_hold_of_a_task_is_renewed_by_the_longest_lease_of_its_levels(server, below):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))
    outer = await rlock.asyncio.Lock(locks, "k", **below).acquire()
    while outer._tenure.options.renew and server.renewals() == 0:
        await asyncio.sleep(0.01)
    inner = await rlock.asyncio.Lock(locks, "k", lease=3).acquire()
    end = time.monotonic() + 3.5
    while time.monotonic() < end:
        await asyncio.sleep(0.01)
    assert outer.held and inner.held and outer.left > 1.5
    await inner.release()
    await outer.release()
    assert server.holders("k") == []
    await locks.aclose()


def test_a_session_in_doubt_that_is_entered_with_a_longer_lease_is_tied_anew(server):
    locks = rlock.Locks(server.client())
    outer = rlock.Lock(locks, "k", session=True, lease=10).acquire()
    server.one.kill()
    until("the next attempt to tie it is not at once", lambda: not outer.held and locks.counts().failed_renewals > 5)
    server.one.start()
    inner = rlock.Lock(locks, "k", lease=30).acquire(wait=8)
    until("it is tied", lambda: inner.held)
    assert outer.held and inner.left > 25
    inner.release()
    outer.release()
    assert server.holders("k") == []


async def test_a_session_of_a_task_in_doubt_that_is_entered_with_a_longer_lease_is_tied_anew(server):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))
    outer = await rlock.asyncio.Lock(locks, "k", session=True, lease=10).acquire()
    server.one.kill()
    async with asyncio.timeout(10):
        while outer.held or locks.counts().failed_renewals <= 5:
            await asyncio.sleep(0.01)
        server.one.start()
        inner = await rlock.asyncio.Lock(locks, "k", lease=30).acquire(wait=8)
        while not inner.held:
            await asyncio.sleep(0.01)
    assert outer.held and inner.left > 25
    await inner.release()
    await outer.release()
    assert server.holders("k") == []
    await locks.aclose()
