"""Whoever has taken a seat, or a place to wait for it, gives it back, whatever happens meanwhile."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
import redis.asyncio
from support import interrupted_after, one_server, until

import rlock
import rlock.asyncio

server = one_server
#: The moments while a session is being tied to a new connection.
MOMENTS = pytest.mark.parametrize("moment", ["take_seat", "open"])


def restart(server):
    """Restarts the server: it keeps its holds, but not its connections."""
    server.one.kill()
    server.one.start()


def unused(locks):
    """Idle connections, and the subscription."""
    idle = {link for pool in locks.io.pools.values() for link in pool.idle}
    return idle | {inbox.link for inbox in locks.io.inboxes.values()}


@MOMENTS
@pytest.mark.parametrize("how", ["close", "extend"])
def test_a_release_ends_though_the_session_was_being_tied(server, monkeypatch, moment, how):
    locks = rlock.Locks(server.client())
    hold = rlock.Lock(locks, "k", session=True).acquire()
    happened, taking, call = threading.Event(), threading.Event(), getattr(locks.io, moment)
    take_seat = locks.io.take_seat

    def taken(seat):
        taking.set()
        return take_seat(seat)

    def meanwhile(*words, **options):
        result = call(*words, **options)
        if (moment == "take_seat" or taking.is_set()) and not happened.is_set() and not options:
            happened.set()
            if how == "close":
                locks.close()
            else:
                server.ask("RLOCK.FORCE", "k")
                with pytest.raises(rlock.LockLost):
                    hold.extend(30)
        return result

    monkeypatch.setattr(locks.io, "take_seat", taken)
    monkeypatch.setattr(locks.io, moment, meanwhile)
    restart(server)
    assert happened.wait(10) and hold.lost.wait(10)
    released = threading.Thread(target=lambda: pytest.raises(rlock.LockLost, hold.release), daemon=True)
    released.start()
    released.join(10)
    assert not released.is_alive()
    until("no connection is left over", lambda: locks.io.links <= unused(locks))
    assert not locks.space.seats


@MOMENTS
@pytest.mark.parametrize("how", ["close", "extend"])
async def test_a_release_by_a_task_ends_though_the_session_was_being_tied(server, monkeypatch, moment, how):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))
    hold = await rlock.asyncio.Lock(locks, "k", session=True).acquire()
    happened, taking, call = asyncio.Event(), asyncio.Event(), getattr(locks.io, moment)
    take_seat = locks.io.take_seat

    async def taken(seat):
        taking.set()
        return await take_seat(seat)

    async def meanwhile(*words, **options):
        result = await call(*words, **options)
        if (moment == "take_seat" or taking.is_set()) and not happened.is_set() and not options:
            happened.set()
            server.ask("RLOCK.FORCE", "k")
            if how == "close":
                locks._keeper.lose(hold._tenure)  # as aclose does, which waits for this task
            else:
                with pytest.raises(rlock.LockLost):
                    await hold.extend(30)
        return result

    monkeypatch.setattr(locks.io, "take_seat", taken)
    monkeypatch.setattr(locks.io, moment, meanwhile)
    restart(server)
    await asyncio.wait_for(happened.wait(), 10)
    await asyncio.wait_for(hold.lost.wait(), 10)
    with pytest.raises(rlock.LockLost):
        await asyncio.wait_for(hold.release(), 10)
    async with asyncio.timeout(10):
        while not locks.io.links <= unused(locks):
            await asyncio.sleep(0.01)
    assert not locks.space.seats
    await locks.aclose()


@pytest.mark.parametrize("several", [False, True])
async def test_who_does_not_wait_does_not_wait_for_a_task_of_the_same_owner(server, monkeypatch, several):
    """The mutex of a seat is free for a moment, while it is handed to the next task."""
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))
    outer = await rlock.asyncio.Lock(locks, "k", owner="other").acquire()
    lock = locks.all("k", owner="me") if several else rlock.asyncio.Lock(locks, "k", owner="me")
    first = asyncio.create_task(lock.acquire(wait=30))
    while server.waiting("k") == 0:
        await asyncio.sleep(0.01)
    second = asyncio.create_task(lock.acquire(wait=30))
    third, vacate = [], locks.space.vacate

    def handing(seat):
        if not third:
            third.append(asyncio.create_task(lock.acquire(wait=0)))
        vacate(seat)

    await asyncio.sleep(0)  # the second task is in the queue of the mutex
    monkeypatch.setattr(locks.space, "vacate", handing)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    while not third:
        await asyncio.sleep(0.01)
    assert await asyncio.wait_for(third[0], 5) is None
    await outer.release()
    await (await asyncio.wait_for(second, 10)).release()
    await locks.aclose()


def test_a_wait_that_is_interrupted_while_it_subscribes_leaves_nothing(server):
    locks = rlock.Locks(server.client())
    with rlock.Lock(locks, "k"):
        server.proxy.fault({"proxy": "keep", "of": "SSUBSCRIBE", "times": 1})
        with interrupted_after(0.3):
            rlock.Lock(locks, "k", owner="other").acquire(wait=30)
        server.proxy.fault({"proxy": "heal"})
        until("nothing is left", lambda: ("k", "other", "WRITE") not in locks.space.seats)
        assert not any(inbox.posts for inbox in locks.io.inboxes.values())
        assert server.waiting("k") == 0 and locks.io.links <= unused(locks)


def test_a_release_that_is_interrupted_while_it_waits_for_its_seat_goes_on(server):
    lock = rlock.Lock(rlock.Locks(server.client(), patience=0.3), "k")
    outer = lock.acquire()
    server.proxy.fault({"proxy": "cut", "of": "RLOCK.ACQUIRE", "times": 99})
    server.proxy.fault({"proxy": "keep", "of": "RLOCK.INFO", "times": 99})
    with pytest.raises(rlock.Unavailable):
        lock.acquire(wait=0.2)
    server.proxy.fault({"proxy": "kept"})  # the level that may have been granted is being undone
    with interrupted_after(0.1):
        outer.release()
    server.proxy.fault({"proxy": "heal"})
    until("it is released", lambda: server.holders("k") == [], 10)
    lock.acquire(wait=5).release()


async def test_a_wait_that_is_cancelled_while_it_subscribes_leaves_nothing(server):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))
    async with rlock.asyncio.Lock(locks, "k"):
        server.proxy.fault({"proxy": "keep", "of": "SSUBSCRIBE", "times": 1})
        waits = asyncio.create_task(rlock.asyncio.Lock(locks, "k", owner="other").acquire(wait=30))
        async with asyncio.timeout(10):
            while not any(inbox.comers for inbox in locks.io.inboxes.values()):
                await asyncio.sleep(0.01)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        server.proxy.fault({"proxy": "heal"})
        assert ("k", "other", "WRITE") not in locks.space.seats
        assert not any(inbox.posts for inbox in locks.io.inboxes.values())
        assert server.waiting("k") == 0 and locks.io.links <= unused(locks)
    await locks.aclose()


def test_a_release_waits_for_its_seat_no_longer_than_its_patience(server):
    lock = rlock.Lock(rlock.Locks(server.client(), patience=0.5), "k", owner="me")
    hold = lock.acquire()
    server.stop("")
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lock.acquire, 10)
        until("the other one has the seat", hold._tenure.seat.mutex.locked)
        start = time.monotonic()
        with pytest.raises(rlock.Unavailable, match="another request of me is under way"):
            hold.release()
        took = time.monotonic() - start
        server.go()
        other = other.result()
    assert 0.45 <= took <= 0.5 + 0.25
    assert other.token == hold.token
    until("it is released later", lambda: server.ask("RLOCK.HOLDS", "k", "me") == 1)
    other.release()
    assert server.holders("k") == []


async def test_a_release_by_a_task_waits_for_its_seat_no_longer_than_its_patience(server):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis), patience=0.5)
    lock = rlock.asyncio.Lock(locks, "k", owner="me")
    hold = await lock.acquire()
    server.stop("")
    other = asyncio.create_task(lock.acquire(10))
    while not hold._tenure.seat.mutex.locked():
        await asyncio.sleep(0.01)
    start = time.monotonic()
    with pytest.raises(rlock.Unavailable, match="another request of me is under way"):
        await hold.release()
    took = time.monotonic() - start
    server.go()
    other = await other
    assert 0.45 <= took <= 0.5 + 0.25
    assert other.token == hold.token
    async with asyncio.timeout(10):
        while server.ask("RLOCK.HOLDS", "k", "me") == 2:
            await asyncio.sleep(0.01)
    await other.release()
    assert server.holders("k") == []
    await locks.aclose()


def keep_the_tie(server):
    """The hold of a session survives; the request that ties it to a new connection arrives late, and so do releases."""
    for name in ("SESSION", "RLOCK.RELEASE"):
        server.proxy.fault({"proxy": "keep", "of": name, "times": 99})
    restart(server)


def test_nobody_overtakes_the_request_that_was_to_tie_a_session(server):
    locks = rlock.Locks(server.client())
    hold = rlock.Lock(locks, "k", owner="me", session=True).acquire()
    keep_the_tie(server)
    assert hold.lost.wait(10)
    with pytest.raises(rlock.LockLost):
        hold.release()
    lock = rlock.Lock(locks, "k", owner="me")
    with pytest.raises(rlock.Unavailable, match="not yet undone"):
        lock.acquire(wait=0.3)
    server.deliver()
    again = lock.acquire(wait=10)
    assert again.token > hold.token and server.holders("k") == [("me", again.token)]
    again.release()


async def test_no_task_overtakes_the_request_that_was_to_tie_a_session(server):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))
    hold = await rlock.asyncio.Lock(locks, "k", owner="me", session=True).acquire()
    keep_the_tie(server)
    await asyncio.wait_for(hold.lost.wait(), 10)
    with pytest.raises(rlock.LockLost):
        await hold.release()
    lock = rlock.asyncio.Lock(locks, "k", owner="me")
    with pytest.raises(rlock.Unavailable, match="not yet undone"):
        await lock.acquire(wait=0.3)
    server.proxy.fault({"proxy": "heal"})
    server.proxy.fault({"proxy": "deliver"})
    again = await lock.acquire(wait=10)
    assert again.token > hold.token and server.holders("k") == [("me", again.token)]
    await again.release()
    await locks.aclose()
