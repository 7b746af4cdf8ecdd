"""A process that dies holds nothing; a user's function cannot end anything; a level whose release has an unknown
outcome remains its owner's."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest
import redis
import redis.asyncio
from support import connected, one_server, subscriptions, until

import rlock
import rlock.asyncio
from rlock import _sync
from rlock._core import Tenure
from rlock._errors import Broken

server = one_server


def test_a_release_that_is_not_known_ends_no_later_hold(server):
    locks = rlock.Locks(server.client(), patience=0.5)
    hold = rlock.Lock(locks, "k").acquire()
    server.proxy.fault({"proxy": "keep", "of": "RLOCK.RELEASE", "times": 99})
    with pytest.raises(rlock.Unavailable):
        hold.release()
    with pytest.raises(rlock.Unavailable, match="not yet undone"):
        rlock.Lock(locks, "k").acquire(wait=0.3)
    server.deliver()
    again = rlock.Lock(locks, "k").acquire(wait=10)
    assert again.held and server.holders("k") == [(again.owner, again.token)] and again.token > hold.token
    again.release()


def test_a_session_whose_release_failed_ends(server):
    locks = rlock.Locks(server.client(), patience=0.3)
    hold = rlock.Lock(locks, "k", session=True).acquire()
    server.proxy.fault({"proxy": "keep", "of": "RLOCK.RELEASE", "times": 99})
    with pytest.raises(rlock.Unavailable):
        hold.release()
    until("its connection is closed", lambda: server.holders("k") == [])


def test_a_program_that_ends_with_a_hold_prints_nothing(server):
    program = """if True:
        import sys, redis, rlock
        hold = rlock.Lock(redis.Redis(port=int(sys.argv[1])), "k").acquire()
    """
    words = [sys.executable, "-c", program, str(server.one.port)]
    assert subprocess.run(words, stderr=subprocess.PIPE, text=True, check=True).stderr == ""
    assert len(server.holders("k")) == 1


def test_a_session_ends_with_its_process_whatever_it_has_forked(server):
    program = """if True:
        import os, signal, sys, redis, rlock
        hold = rlock.Lock(redis.Redis(port=int(sys.argv[1])), "k", session=True).acquire()
        if os.fork() == 0:
            print("forked", flush=True)
        signal.pause()
    """
    words = [sys.executable, "-c", program, str(server.one.port)]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert parent.stdout.readline() == "forked\n" and len(server.holders("k")) == 1
        os.kill(parent.pid, signal.SIGKILL)
        until("the session has ended", lambda: server.holders("k") == [], 5)
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def test_what_on_lost_does_ends_nothing(server):
    client, forced = server.client(), threading.Event()
    lost = rlock.Lock(client, "lost", lease=1.5, owner="a").acquire()
    kept = rlock.Lock(client, "kept", lease=1.5, owner="a").acquire()
    stuck = rlock.Lock(client, "stuck", lease=1.5, owner="a").acquire()
    lost.on_lost(sys.exit)
    lost.on_lost(forced.set)
    stuck.on_lost(threading.Event().wait)
    server.ask("RLOCK.FORCE", "stuck")
    assert stuck.lost.wait(5)
    server.ask("RLOCK.FORCE", "lost")
    assert forced.wait(5)
    end = time.monotonic() + 2.5
    until("a lease has passed", lambda: time.monotonic() > end)
    assert kept.held and len(server.holders("kept")) == 1
    kept.release()


def test_a_thread_that_ended_holds_no_longer_than_its_lease(server, caplog):
    client = server.client()

    def work():
        rlock.Lock(client, "k", lease=1.5).acquire()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    until("it is not renewed", lambda: server.holders("k") == [])
    assert "nobody can release it anymore" in caplog.text


def test_a_hold_that_was_handed_over_outlives_its_thread(server):
    client, holds = server.client(), []
    thread = threading.Thread(target=lambda: holds.append(rlock.Lock(client, "k", lease=1.5).acquire()))
    thread.start()
    thread.join()
    end = time.monotonic() + 2.5
    until("a lease has passed", lambda: time.monotonic() > end)
    assert holds[0].held
    holds[0].release()


def test_on_lost_is_called_once_though_the_hold_is_just_being_lost(server):
    hold, told, called = rlock.Lock(server.client(), "k").acquire(), [], threading.Event()

    class Calls(list):
        def append(self, call):
            super().append(call)
            self.losing = threading.Thread(target=lambda: _sync.clock().lose(hold._tenure))
            self.losing.start()
            self.losing.join(0.3)

    calls = hold._tenure.calls = Calls()
    hold.on_lost(lambda: told.append(called.set()))
    calls.losing.join()
    assert hold.lost.is_set() and called.wait(5)
    _sync.clock().workers.do("calls", called.clear)
    until("what was still to be called is called", lambda: not called.is_set())
    assert len(told) == 1


def test_a_loss_that_two_threads_find_is_told_once(server, monkeypatch):
    hold, told, both = rlock.Lock(server.client(), "k").acquire(), [], threading.Barrier(2)
    hold.on_lost(lambda: told.append(hold.key))
    slot = Tenure.state

    def change(tenure, state):
        if state == "lost":
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.3)
        slot.__set__(tenure, state)

    monkeypatch.setattr(Tenure, "state", property(slot.__get__, change))
    threads = [threading.Thread(target=lambda: _sync.clock().lose(hold._tenure)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until("it is told", lambda: told)
    assert told == ["k"] and hold._locks.counts().lost == 1


def test_a_level_that_was_released_is_not_told_of_a_loss(server):
    locks, told = rlock.Locks(server.client()), []
    outer = rlock.Lock(locks, "k", lease=1).acquire()
    for _ in range(3):
        with rlock.Lock(locks, "k", lease=1) as inner, locks.all("k", lease=1) as several:
            inner.on_lost(lambda: told.append("inner"))
            several.on_lost(lambda: told.append("several"))
            assert several.lost is not None
    lost = threading.Event()
    outer.on_lost(lambda: [told.append("outer"), lost.set()])
    assert len(outer._tenure.calls) == 1
    server.ask("RLOCK.FORCE", "k")
    assert lost.wait(5) and told == ["outer"]


async def test_a_level_that_was_released_is_not_told_of_a_loss_by_a_loop(server):
    locks, told = rlock.asyncio.Locks(server.client(redis.asyncio.Redis)), []
    outer = await rlock.asyncio.Lock(locks, "k", lease=1).acquire()
    for _ in range(3):
        async with rlock.asyncio.Lock(locks, "k", lease=1, cancel=True) as inner, locks.all("k", lease=1) as several:
            inner.on_lost(lambda: told.append("inner"))
            several.on_lost(lambda: told.append("several"))
    outer.on_lost(lambda: told.append("outer"))
    assert len(outer._tenure.calls) == 1
    server.ask("RLOCK.FORCE", "k")
    await asyncio.wait_for(outer.lost.wait(), 5)
    assert told == ["outer"]
    await locks.aclose()


def test_sessions_begin_while_those_of_another_client_are_being_closed(server):
    closing, locks = (rlock.Locks(redis.Redis(port=server.one.port)) for _ in range(2))
    ending = [rlock.Lock(closing, f"a{n}", session=True).acquire() for n in range(8)]
    _sync.run(closing.io.closing())  # its first half, which may take a second
    holds = [rlock.Lock(locks, f"b{n}", session=True, lease=3).acquire() for n in range(16)]
    closing.close()
    assert all(each.lost.wait(5) for each in ending) and all(each.held for each in holds)
    for line in server.ask("CLIENT", "LIST", "TYPE", "normal").splitlines():
        if "cmd=rlock.acquire" in line:
            server.ask("CLIENT", "KILL", "ID", line.split()[0][3:])
    assert all(each.lost.wait(1) for each in holds), "their connections are watched"


def test_a_client_that_is_dropped_leaves_no_connection(server):
    server.ask("RLOCK.ACQUIRE", "busy", "somebody")
    for _ in range(5):
        client = server.client()
        rlock.Lock(client, "k", lease=1.5).acquire().release()
        assert rlock.Lock(client, "busy").acquire(wait=0.05) is None
        assert rlock.Locks.of(client) is rlock.Locks.of(client)
    left = weakref.ref(rlock.Locks.of(client))
    del client
    until("its last hold would be due", lambda: gc.collect() >= 0 and left() is None, 5)
    until("none is left", lambda: connected(server) + subscriptions(server) == 0, 5)


async def test_a_client_of_a_loop_that_is_dropped_leaves_no_connection(server):
    server.ask("RLOCK.ACQUIRE", "busy", "somebody")
    for _ in range(5):
        client = server.client(redis.asyncio.Redis)
        await (await rlock.asyncio.Lock(client, "k").acquire()).release()
        assert await rlock.asyncio.Lock(client, "busy").acquire(wait=0.05) is None
        assert rlock.asyncio.Locks.of(client) is rlock.asyncio.Locks.of(client)
    left = weakref.ref(rlock.asyncio.Locks.of(client))
    del client
    await asyncio.sleep(0)  # the tasks of the release have ended
    gc.collect()
    assert left() is None
    async with asyncio.timeout(5):
        while connected(server) + subscriptions(server) > 0:
            await asyncio.sleep(0.01)


def test_with_releases_its_own_level(server):
    lock = rlock.Lock(server.client(), "k")
    with lock as outer:
        with pytest.raises(rlock.NotHeld):
            with lock as inner:
                inner.release()
        assert outer.held and len(server.holders("k")) == 1
    assert server.holders("k") == []


async def test_who_waits_for_a_connection_is_told_that_it_is_closed(server):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))
    server.proxy.fault({"proxy": "deaf"})
    waits = asyncio.create_task(rlock.asyncio.Lock(locks, "k").acquire())
    async with asyncio.timeout(10):
        while not locks.io.once.running:
            await asyncio.sleep(0.01)
    await locks.aclose()
    with pytest.raises(rlock.Unavailable):
        await waits


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_loss_that_extend_finds_is_no_cancellation(server, is_stopped):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))

    async def work():
        async with rlock.asyncio.Lock(locks, "k", cancel=True) as hold:
            server.ask("RLOCK.FORCE", "k")
            try:
                await hold.extend(30)
            finally:
                if is_stopped:  # from outside as well
                    asyncio.current_task().cancel()

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError if is_stopped else rlock.LockLost):
        await task
    assert task.cancelling() == is_stopped
    await locks.aclose()


def test_a_decorator_refuses_what_would_run_without_the_lock(server):
    lock = rlock.Lock(server.client(), "k")
    for later in (coroutine, generator):
        with pytest.raises(TypeError):
            lock(later)
    with pytest.raises(TypeError):
        rlock.asyncio.Lock(server.client(redis.asyncio.Redis), "k")(lambda: None)


async def coroutine():
    pass


def generator():
    yield


def test_mistakes_are_refused(server):
    for wrong in ({"timeout": 10}, {"wait": "ten"}, {"wait": True}):
        with pytest.raises(TypeError):
            rlock.Lock(server.client(), "k", **wrong)
    with pytest.raises(TypeError):
        rlock.Lock(server.client(redis.asyncio.Redis), "k")
    with pytest.raises(TypeError):
        rlock.asyncio.Lock(server.client(), "k")


async def test_the_owner_is_the_task_that_calls_acquire(server):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))
    lock = rlock.asyncio.Lock(locks, "k")
    outer = await asyncio.wait_for(lock.acquire(), 5)
    inner = await asyncio.create_task(lock.acquire(wait=0))
    assert inner.owner == outer.owner == locks.owner()
    await lock.release()
    await lock.release()
    assert server.holders("k") == []
    await locks.aclose()


def test_two_names_of_one_server_have_one_owner(server):
    one = rlock.Lock(server.client(), "k", owner="me")
    other = redis.Redis(host="localhost", port=int(server.proxy.address.split(":")[1]))
    outer, inner = one.acquire(), rlock.Lock(other, "k", owner="me").acquire(wait=0)
    assert inner.token == outer.token
    inner.release()
    assert server.holders("k") == [("me", outer.token)] and outer.held
    outer.release()
    assert rlock.Lock(server.client(), "a").acquire().owner == rlock.Lock(other, "b").acquire().owner


def test_what_was_never_sent_is_not_undone(server):
    locks = rlock.Locks(server.client(), patience=0.3)
    rlock.Lock(locks, "k").acquire().release()
    server.one.kill()
    server.proxy.fault({"proxy": "drop"})
    tries = rlock.Lock(locks, "k", owner="first")  # by a connection that seems to be there
    with pytest.raises(rlock.Unavailable):
        tries.acquire(wait=0)
    before = set(threading.enumerate())
    for _ in range(3):
        with pytest.raises(rlock.Unavailable):
            rlock.Lock(locks, "k").acquire(wait=0)
    assert not [one for one in set(threading.enumerate()) - before if one.name == "rlock-cleanup"]


def test_a_renewal_that_raises_whatever_it_is_ends_in_a_loss(server, monkeypatch):
    hold = rlock.Lock(server.client(), "k", lease=1.5).acquire()
    monkeypatch.setattr(hold._locks.io, "send_all", raises)
    assert hold.lost.wait(5) and not hold.held


async def test_a_renewal_of_a_task_that_raises_whatever_it_is_ends_in_a_loss(server, monkeypatch):
    hold = await rlock.asyncio.Lock(server.client(redis.asyncio.Redis), "k", lease=1.5).acquire()
    monkeypatch.setattr(hold._locks.io, "send", raises)
    await asyncio.wait_for(hold.lost.wait(), 5)
    await hold._locks.aclose()


def raises(*_):
    raise RuntimeError("no rule knows this")


def test_a_renewal_that_finds_it_released_is_no_loss(server):
    """The first renewal is due while the release is repeated, which was executed: its replies are lost."""
    hold = rlock.Lock(rlock.Locks(server.client(), patience=0.6), "k", lease=0.9).acquire()
    server.proxy.fault({"proxy": "cut", "of": "RLOCK.RELEASE", "times": 99})
    with pytest.raises(rlock.Unavailable):
        hold.release()
    assert not hold.lost.is_set() and not hold.held


async def test_a_renewal_by_a_task_that_finds_it_released_is_no_loss(server):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis), patience=0.6)
    hold = await rlock.asyncio.Lock(locks, "k", lease=0.9).acquire()
    server.proxy.fault({"proxy": "cut", "of": "RLOCK.RELEASE", "times": 99})
    with pytest.raises(rlock.Unavailable):
        await hold.release()
    assert not hold.lost.is_set() and not hold.held
    await locks.aclose()


def test_a_hold_is_renewed_once_each_third_of_its_lease(server):
    hold = rlock.Lock(server.client(), "k", lease=3).acquire()
    first = hold._tenure.deadline
    until("it is renewed", lambda: hold._tenure.deadline > first)
    until("a second renewal is near", lambda: hold.left < 2.4)
    assert server.renewals() == 1
    hold.release()


async def test_a_hold_of_a_task_is_renewed_once_each_third_of_its_lease(server):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))
    hold = await rlock.asyncio.Lock(locks, "k", lease=3).acquire()
    first = hold._tenure.deadline
    while hold._tenure.deadline == first or hold.left > 2.4:
        await asyncio.sleep(0.01)
    assert server.renewals() == 1
    await hold.release()
    await locks.aclose()


def test_a_connection_that_was_dropped_stays_closed(server):
    locks = rlock.Locks(server.client())
    rlock.Lock(locks, "k").acquire().release()
    (link,) = locks.io.links
    locks.io.drop(link)
    before = server.connections()
    with pytest.raises(Broken):
        locks.io.write(link, ["PING"])
    assert server.connections() == before and not locks.io.links


async def test_a_connection_that_was_dropped_in_a_loop_stays_closed(server):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))
    await (await rlock.asyncio.Lock(locks, "k").acquire()).release()
    (link,) = locks.io.links
    locks.io.drop(link)
    before = server.connections()
    with pytest.raises(Broken):
        await locks.io.write(link, ["PING"])
    assert server.connections() == before and not locks.io.links
    await locks.aclose()
