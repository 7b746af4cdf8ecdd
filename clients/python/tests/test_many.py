"""What each of many waits costs."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
import redis.asyncio
from support import one_server, until

import rlock
import rlock.asyncio
from rlock._core import DIALS

server = one_server


def wait_by_ticket(server):
    locks = rlock.Locks(server.client(), waiting=0)
    assert rlock.Lock(locks, "busy", owner="waiter").acquire(wait=3.5) is None
    locks.close()


def wait_by_ticket_in_a_loop(server):
    async def work():
        locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis), waiting=0)
        assert await rlock.asyncio.Lock(locks, "busy", owner="waiter").acquire(wait=3.5) is None
        await locks.aclose()

    asyncio.run(work())


@pytest.mark.parametrize("wait", [wait_by_ticket, wait_by_ticket_in_a_loop])
def test_a_ticket_that_asks_again_has_listened_all_the_time(server, wait):
    server.ask("RLOCK.ACQUIRE", "busy", "somebody")
    wait(server)
    assert server.called("rlock.acquire") >= 4
    assert server.called("subscribe") == 1


@pytest.mark.parametrize("wait", [wait_by_ticket, wait_by_ticket_in_a_loop])
def test_a_ticket_whose_subscription_breaks_again_and_again_does_not_ask_more_often(server, wait):
    server.ask("RLOCK.ACQUIRE", "busy", "somebody")
    server.proxy.fault({"proxy": "cut", "of": "SUBSCRIBE", "times": 1_000_000})
    wait(server)
    assert 4 <= server.called("rlock.acquire") < 15 and server.proxy.accepted < 15


def test_threads_that_are_many_share_few_connections(server):
    server.ask("RLOCK.ACQUIRE", "busy", "somebody")
    locks = rlock.Locks(server.client(), waiting=0)
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
    server.ask("RLOCK.RELEASE", "busy", "somebody")
    for thread in threads:
        thread.join()
    assert all(got) and len(got) == 500
    more = (time.monotonic() - begin) / DIALS
    assert server.proxy.accepted - before <= 20 + more
    locks.close()


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
