"""Silence of one server or connection, the end of the patience, and closing the package."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
import redis.asyncio
from support import Server, one_server, until

import rlock
import rlock.asyncio

server = one_server


@pytest.fixture
def silent_one(server, tmp_path):
    other = Server(server.program, server.module, str(tmp_path / "other"))
    yield other
    other.close()


def test_a_silent_server_ends_no_hold_of_another(server, silent_one):
    lease = 1.5
    stopped = [rlock.Lock(silent_one.client(), f"s{n}", lease=lease, owner=f"o{n}").acquire() for n in range(12)]
    well = [rlock.Lock(server.client(), f"w{n}", lease=lease, owner=f"o{n}").acquire() for n in range(12)]
    silent_one.stop("")
    until("the holds of the silent server are lost", lambda: all(hold.lost.is_set() for hold in stopped))
    end = time.monotonic() + 2 * lease
    until("two leases are over", lambda: time.monotonic() > end)
    assert all(hold.held for hold in well)
    for hold in well:
        hold.release()


def acquire(server, wait):
    rlock.Lock(rlock.Locks(server.client(), patience=1), f"k{wait}").acquire(wait=wait)


def acquire_in_a_loop(server, wait):
    async def work():
        locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis), patience=1)
        try:
            await rlock.asyncio.Lock(locks, f"k{wait}").acquire(wait=wait)
        finally:
            await locks.aclose()

    asyncio.run(work())


@pytest.mark.parametrize("kind", [acquire, acquire_in_a_loop])
@pytest.mark.parametrize("wait", [0, 0.4, 1.5, 2.5])
def test_a_call_returns_in_time_whatever_is_silent(server, kind, wait):
    server.proxy.fault({"proxy": "deaf"})
    took = []

    def call():
        start = time.monotonic()
        with pytest.raises(rlock.Unavailable):
            kind(server, wait)
        took.append(time.monotonic() - start)

    call()
    slack = 1.0 if kind is acquire_in_a_loop else 0.25  # closing takes its second
    assert (wait or 1) - 0.05 <= took[0] <= (wait or 1) + slack, took


def test_a_call_returns_in_time_when_a_known_server_is_silent(server):
    locks = rlock.Locks(server.client(), patience=0.5)
    rlock.Lock(locks, "k").acquire()
    server.stop("")
    for wait, most in ((0, 0.5), (0.3, 0.3), (1.2, 1.2)):
        start = time.monotonic()
        with pytest.raises(rlock.Unavailable):
            rlock.Lock(locks, f"other {wait}").acquire(wait=wait)
        assert time.monotonic() - start < most + 0.25


LONG = pytest.mark.parametrize("wait", [float("inf"), 30 * 86400])


@LONG
def test_a_wait_that_is_longer_than_the_server_takes_waits_all_the_same(server, wait):
    locks, got = rlock.Locks(server.client()), []
    server.ask("RLOCK.ACQUIRE", "k", "somebody")
    waits = threading.Thread(target=lambda: got.append(locks.all("k", "l").acquire(wait)))
    waits.start()
    until("it waits", lambda: server.waiting("k") == 1)
    server.ask("RLOCK.FORCE", "k")
    waits.join(10)
    got[0].release()


@LONG
async def test_a_wait_of_a_task_that_is_longer_than_the_server_takes_waits_all_the_same(server, wait):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))
    server.ask("RLOCK.ACQUIRE", "k", "somebody")
    waits = asyncio.create_task(rlock.asyncio.Lock(locks, "k", wait=wait).acquire())
    async with asyncio.timeout(10):
        while server.waiting("k") == 0:
            await asyncio.sleep(0.01)
        server.ask("RLOCK.FORCE", "k")
        await (await waits).release()
    await locks.aclose()


def gone(server):
    """The server notices closed connections only when it handles them."""
    until("nobody waits, and no session is left", lambda: server.waiting("busy") == 0 and server.holders("session") == [])


def test_closed_is_closed(server):
    client = server.client()
    locks = rlock.Locks(client)
    held = rlock.Lock(locks, "held", lease=1.5).acquire()
    session = rlock.Lock(locks, "session", session=True, owner="s").acquire()
    server.ask("RLOCK.ACQUIRE", "busy", "somebody")
    ended = []

    def wait():
        try:
            ended.append(rlock.Lock(locks, "busy", owner="waiter").acquire())
        except rlock.Unavailable as error:
            ended.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    until("it waits", lambda: server.waiting("busy") == 1)
    locks.close()
    waiter.join(5)
    assert isinstance(ended[0], rlock.Unavailable) and session.lost.is_set()
    gone(server)
    until("what was held is not renewed", lambda: held.lost.wait(0.1) and server.holders("held") == [])
    server.ask("RLOCK.RELEASE", "busy", "somebody")
    before = server.connections()
    with pytest.raises(rlock.Unavailable):
        rlock.Lock(locks, "new").acquire(wait=None)
    assert server.connections() == before
    assert server.holders("busy") == []


def test_a_close_undoes_what_is_under_way(server):
    locks = rlock.Locks(server.client())
    rlock.Lock(locks, "k").acquire().release()
    server.proxy.fault({"proxy": "mute", "of": "RLOCK.ACQUIRE"})
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(rlock.Lock(locks, "k").acquire)
        until("it is granted, and not told", lambda: server.holders("k"))
        locks.close()
        assert server.holders("k") == []
        assert isinstance(call.exception(5), rlock.Unavailable)


async def test_a_close_undoes_what_is_under_way_in_a_loop(server):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))
    await (await rlock.asyncio.Lock(locks, "k").acquire()).release()
    server.proxy.fault({"proxy": "mute", "of": "RLOCK.ACQUIRE"})
    call = asyncio.ensure_future(rlock.asyncio.Lock(locks, "k").acquire())
    while not server.holders("k"):
        await asyncio.sleep(0.01)
    await locks.aclose()
    assert server.holders("k") == []
    with pytest.raises(rlock.Unavailable):
        await asyncio.wait_for(call, 5)


async def test_closed_is_closed_in_a_loop(server):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))
    held = await rlock.asyncio.Lock(locks, "held", lease=1.5).acquire()
    session = await rlock.asyncio.Lock(locks, "session", session=True, owner="s").acquire()
    server.ask("RLOCK.ACQUIRE", "busy", "somebody")
    waiter = asyncio.ensure_future(rlock.asyncio.Lock(locks, "busy", owner="waiter").acquire())
    while server.waiting("busy") == 0:
        await asyncio.sleep(0.01)
    await locks.aclose()
    with pytest.raises(rlock.Unavailable):
        await asyncio.wait_for(waiter, 5)
    assert session.lost.is_set()
    gone(server)
    await asyncio.wait_for(held.lost.wait(), 5)
    until("what was held is not renewed", lambda: server.holders("held") == [])
    before = server.connections()
    with pytest.raises(rlock.Unavailable):
        await rlock.asyncio.Lock(locks, "new").acquire()
    assert server.connections() == before
