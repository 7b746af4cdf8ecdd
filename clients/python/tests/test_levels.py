"""What a hold guarantees to each of its levels, and which of them a `with` ends."""

import asyncio
import threading
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


KINDS = pytest.mark.parametrize("kind", ["one", "several"])


@KINDS
def test_a_generator_that_another_thread_finalizes_releases_what_it_entered(server, kind):
    locks = rlock.Locks(server.client())
    lock = rlock.Lock(locks, "k") if kind == "one" else locks.all("k", "l")

    def guarded():
        with lock as hold:
            yield hold

    inside = guarded()
    enters = threading.Thread(target=lambda: next(inside))
    enters.start()
    enters.join()
    assert len(server.holders("k")) == 1
    inside.close()
    assert server.holders("k") == []


@KINDS
async def test_a_generator_that_another_task_finalizes_releases_what_it_entered(server, kind):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))
    lock = rlock.asyncio.Lock(locks, "k") if kind == "one" else locks.all("k", "l")

    async def guarded():
        async with lock as hold:
            yield hold

    async def enter():
        return await anext(inside)

    inside = guarded()
    await asyncio.create_task(enter())
    assert len(server.holders("k")) == 1
    await inside.aclose()
    assert server.holders("k") == []
    await locks.aclose()


def test_who_has_not_entered_leaves_nobody_elses_of_several(server):
    lock, go = rlock.ReadLock(server.client(), "k"), threading.Event()

    def work():
        with lock:
            go.wait()

    readers = [threading.Thread(target=work) for _ in range(2)]
    for each in readers:
        each.start()
    until("both are inside", lambda: sum(map(len, list(lock._entered.values()))) == 2)
    with pytest.raises(rlock.NotHeld):
        lock.__exit__(None, None, None)
    assert len(server.holders("k")) == 2
    go.set()
    for each in readers:
        each.join()
    assert server.holders("k") == []
