"""A process that shuts down: what waits ends, and what holds a lock keeps it until it is done."""

import asyncio
import threading

import pytest
import redis
import redis.asyncio
from support import connected, one_server, until

import rlock
import rlock.asyncio

server = one_server


class Started(threading.Thread):
    """A call in a thread, and what came of it."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.call, self.came = call, None
        self.start()

    def run(self):
        try:
            self.came = self.call()
        except Exception as error:
            self.came = error

    def result(self):
        self.join(10)
        assert not self.is_alive()
        return self.came


def test_waits_end_at_once_and_bodies_keep_their_locks(server):
    locks = rlock.Locks(server.client())
    hold = rlock.Lock(locks, "k", lease=0.6).acquire()
    waits = [
        Started(rlock.Lock(locks, "k").acquire), Started(rlock.Lock(locks, "k", session=True).acquire),
        Started(locks.all("k", "other").acquire), Started(locks.any("pool", ["k"]).acquire),
    ]
    until("they wait", lambda: server.waiting("k") == 3)
    drains = Started(lambda: locks.drain(20))
    for wait in waits:
        assert isinstance(wait.result(), rlock.Closed)
    for lock in rlock.Lock(locks, "free"), rlock.Lock(locks, "free", owner="ann"), locks.all("free"), locks.any("pool", ["free"]):
        with pytest.raises(rlock.Closed):
            lock.acquire(wait=0)
    assert server.waiting("k") == 0 and server.holders("pool") == []
    renewed = server.renewals()
    until("the hold is renewed", lambda: server.renewals() >= renewed + 3)
    assert hold.held and drains.is_alive()
    hold.release()
    assert drains.result() == []
    until("the connections are closed", lambda: connected(server) == 0)
    assert locks.drain(20) == []


def test_a_body_that_does_not_end_hears_of_it_and_others_stay_out(server):
    locks, told = rlock.Locks(server.client()), []
    held = {
        "plain": rlock.Lock(locks, "plain", lease=1.5).acquire(), "session": rlock.Lock(locks, "session", session=True).acquire(),
        "all": locks.all("a", "b", lease=1.5).acquire(), "long": rlock.Lock(locks, "long", lease=1.5, renew=False).acquire(),
    }
    for name, hold in held.items():
        hold.on_lost(lambda name=name: told.append(name))
    assert locks.drain(0.2) == ["a", "b", "long", "plain", "session"]
    until("they hear of it", lambda: sorted(told) == sorted(held))
    assert all(len(server.holders(key)) == 1 for key in ("plain", "long", "a", "b"))
    until("the session has ended", lambda: server.holders("session") == [])
    for hold in held.values():
        assert not hold.held
        with pytest.raises(rlock.LockLost, match="still held when a drain ended"):
            hold.release()
    until("the leases have ended", lambda: not any(server.holders(key) for key in ("plain", "long", "a", "b")))


def test_the_owner_enters_again_what_it_holds(server):
    locks = rlock.Locks(server.client())
    with rlock.Lock(locks, "k"):
        drains = Started(lambda: locks.drain(20))
        until("it drains", lambda: locks.io.is_draining)
        with rlock.Lock(locks, "k"):
            with pytest.raises(rlock.Closed):
                rlock.Lock(locks, "other").acquire()
        with pytest.raises(rlock.Closed):
            locks.all("k", "more").acquire()
    assert drains.result() == []


def test_a_silent_server_does_not_hold_it_up(server):
    locks = rlock.Locks(server.client(), patience=1)
    rlock.Lock(locks, "k").acquire()
    server.proxy.fault({"proxy": "deaf"})
    assert Started(lambda: locks.drain(0.5)).result() == ["k"]


def test_in_a_loop(server):
    async def work():
        locks, told = rlock.asyncio.Locks(server.client(redis.asyncio.Redis)), []
        hold = await rlock.asyncio.Lock(locks, "k", lease=0.6).acquire()
        waits = [
            asyncio.create_task(wait())
            for wait in (
                rlock.asyncio.Lock(locks, "k", reentrant=False).acquire, rlock.asyncio.Lock(locks, "k", reentrant=False, session=True).acquire,
                locks.all("k", "other", reentrant=False).acquire, locks.any("pool", ["k"]).acquire,
            )
        ]
        while server.waiting("k") < 3:
            await asyncio.sleep(0.01)
        drains = asyncio.create_task(locks.drain(20))
        came = await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), 5)
        assert all(isinstance(each, rlock.asyncio.Closed) for each in came), came
        with pytest.raises(rlock.asyncio.Closed):
            await rlock.asyncio.Lock(locks, "free").acquire(wait=0)
        assert server.waiting("k") == 0 and server.holders("pool") == []
        renewed = server.renewals()
        while server.renewals() < renewed + 3:
            await asyncio.sleep(0.05)
        again = await rlock.asyncio.Lock(locks, "k").acquire(wait=0)
        await again.release()
        assert hold.held and not drains.done()
        await hold.release()
        assert await asyncio.wait_for(drains, 5) == [] and told == []
        until("the connections are closed", lambda: connected(server) == 0)

    asyncio.run(work())


def test_in_a_loop_a_body_that_does_not_end_hears_of_it(server):
    async def body(locks, began):
        async with rlock.asyncio.Lock(locks, "k", lease=1.5, cancel=True):
            began.set()
            await asyncio.sleep(60)

    async def work():
        locks, began = rlock.asyncio.Locks(server.client(redis.asyncio.Redis)), asyncio.Event()
        runs = asyncio.create_task(body(locks, began))
        await began.wait()
        assert await locks.drain(0.2) == ["k"]
        with pytest.raises(rlock.asyncio.LockLost):
            await asyncio.wait_for(runs, 5)
        assert len(server.holders("k")) == 1
        while server.holders("k"):
            await asyncio.sleep(0.05)

    asyncio.run(work())
