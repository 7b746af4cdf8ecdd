"""The cost of each of many waits."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
import redis.asyncio
from support import connected, one_server, subscriptions, until

import rlock
import rlock.asyncio
from rlock._core import DIALS

server = one_server


def wait(server):
    locks = rlock.Locks(server.client())
    assert rlock.Lock(locks, "busy", owner="waiter").acquire(wait=3.5) is None
    locks.close()


def wait_in_a_loop(server):
    async def work():
        locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))
        assert await rlock.asyncio.Lock(locks, "busy", owner="waiter").acquire(wait=3.5) is None
        await locks.aclose()

    asyncio.run(work())


WAITS = pytest.mark.parametrize("wait", [wait, wait_in_a_loop])


@WAITS
def test_a_wait_that_asks_again_has_listened_all_the_time(server, wait):
    server.ask("RLOCK.ACQUIRE", "busy", "somebody")
    wait(server)
    assert server.called("rlock.acquire") >= 4
    assert server.called("ssubscribe") == 1


@WAITS
def test_a_wait_whose_subscription_breaks_again_and_again_does_not_ask_more_often(server, wait):
    server.ask("RLOCK.ACQUIRE", "busy", "somebody")
    server.proxy.fault({"proxy": "cut", "of": "SSUBSCRIBE", "times": 1_000_000})
    with pytest.raises(rlock.Unavailable, match="not subscribed|subscription"):
        wait(server)
    assert 1 <= server.called("rlock.acquire") < 15 and server.proxy.accepted < 15


def test_threads_that_are_many_share_few_connections(server):
    server.ask("RLOCK.ACQUIRE", "busy", "somebody")
    locks = rlock.Locks(server.client())
    rlock.Lock(locks, "first").acquire().release()
    before, begin = server.proxy.accepted, time.monotonic()
    start, got = threading.Barrier(501), []

    def work():
        start.wait()
        got.append(rlock.ReadLock(locks, "busy").acquire(wait=60))

    threads = [threading.Thread(target=work) for _ in range(500)]
    for thread in threads:
        thread.start()
    start.wait()
    until("all of them wait", lambda: server.waiting("busy") == 500, 60)
    assert subscriptions(server) == 1 and server.info("rlock_waiters") == 0
    server.ask("RLOCK.RELEASE", "busy", "somebody")
    for thread in threads:
        thread.join()
    assert all(got) and len(got) == 500
    more = (time.monotonic() - begin) / DIALS
    assert server.proxy.accepted - before <= 20 + more
    locks.close()


def test_tasks_that_are_many_share_few_connections(server):
    async def work():
        locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))

        async def one():
            return await rlock.asyncio.ReadLock(locks, "busy").acquire(wait=120)

        tasks = [asyncio.ensure_future(one()) for _ in range(2000)]
        await asyncio.to_thread(until, "all of them wait", lambda: server.waiting("busy") == 2000, 60)
        count = await asyncio.to_thread(lambda: (connected(server), subscriptions(server), server.info("rlock_waiters")))
        await asyncio.to_thread(server.ask, "RLOCK.RELEASE", "busy", "somebody")
        assert all(await asyncio.gather(*tasks))
        await locks.aclose()
        return count

    server.ask("RLOCK.ACQUIRE", "busy", "somebody")
    begin = time.monotonic()
    of_requests, of_messages, blocked = asyncio.run(work())
    assert of_messages == 1 and blocked == 0
    assert of_requests <= 20 + (time.monotonic() - begin) / DIALS  # for two thousand requests in each second


def test_the_holds_at_a_far_server_are_all_renewed(server):
    server.proxy.fault({"proxy": "late", "ms": 100})
    locks = rlock.Locks(server.client())
    with ThreadPoolExecutor(20) as pool:
        holds = list(pool.map(lambda n: rlock.Lock(locks, f"k{n}", lease=2.1, owner=f"o{n}").acquire(), range(20)))
    end = time.monotonic() + 2 * 2.1
    until("two leases are over", lambda: time.monotonic() > end)
    assert all(hold.held for hold in holds)
    assert server.proxy.accepted < 40  # a renewal that comes too late costs no connection
    locks.close()
