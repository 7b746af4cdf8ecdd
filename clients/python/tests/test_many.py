"""What each of many waits costs."""

import asyncio

import pytest
import redis
import redis.asyncio
from support import one_server

import rlock
import rlock.asyncio

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
