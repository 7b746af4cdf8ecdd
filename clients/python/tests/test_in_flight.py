"""The exception that ends a `with` is kept: an error of the release is its context, and is logged."""

import asyncio
import contextlib

import pytest
import redis
import redis.asyncio
from support import Interrupt, one_server

import rlock
import rlock.asyncio
import rlock.compat

server = one_server

SYNC = {
    "lock": lambda client: rlock.Lock(client, "k"),
    "session": lambda client: rlock.Lock(client, "k", session=True),
    "hold": lambda client: rlock.Lock(client, "k").acquire(),
    "read": lambda client: rlock.ReadLock(client, "k"),
    "permit": lambda client: rlock.Permit(client, "k", 1),
    "several": lambda client: rlock.Locks.of(client).all("k", "l"),
    "holds": lambda client: rlock.Locks.of(client).all("k", "l").acquire(),
    "campaign": lambda client: rlock.Locks.of(client).election("k").campaign(),
    "compat": lambda client: rlock.compat.Lock(client, "k"),
}
ERRORS = [KeyboardInterrupt, Interrupt, ValueError, SystemExit, asyncio.CancelledError]


def lost(server):
    server.ask("RLOCK.FORCE", "k")


def silent(server):
    server.proxy.fault({"proxy": "keep", "of": "RLOCK.RELEASE", "times": 99})
    server.proxy.fault({"proxy": "keep", "of": "RLOCK.MRELEASE", "times": 99})


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("kind", SYNC)
def test_what_is_in_flight_stays(server, kind, error, caplog):
    client = server.client()
    rlock.Locks(client, patience=0.3)
    for trouble in lost, silent:
        with pytest.raises(error) as caught, SYNC[kind](client):
            trouble(server)
            raise error
        assert isinstance(caught.value.__context__, (rlock.LockError, redis.exceptions.LockError, redis.exceptions.ConnectionError))
        assert "the block has ended with" in caplog.text
        caplog.clear()
        if trouble is silent:
            server.deliver()
    rlock.Locks.of(client).close()


@pytest.mark.parametrize("kind", SYNC)
def test_without_one_the_release_tells_what_it_found(server, kind):
    client = server.client()
    with pytest.raises((rlock.LockLost, redis.exceptions.LockNotOwnedError)), SYNC[kind](client):
        lost(server)
    rlock.Locks.of(client).close()


async def hold_of(client):
    return await rlock.asyncio.Lock(client, "k").acquire()


async def holds_of(client):
    return await rlock.asyncio.Locks.of(client).all("k", "l").acquire()


async def campaign_of(client):
    return await rlock.asyncio.Locks.of(client).election("k").campaign()


ASYNC = {
    "lock": lambda client: rlock.asyncio.Lock(client, "k"),
    "cancel": lambda client: rlock.asyncio.Lock(client, "k", cancel=True),
    "session": lambda client: rlock.asyncio.Lock(client, "k", session=True),
    "several": lambda client: rlock.asyncio.Locks.of(client).all("k", "l"),
    "hold": hold_of,
    "holds": holds_of,
    "campaign": campaign_of,
    "compat": lambda client: rlock.compat.AsyncLock(client, "k"),
}


@pytest.mark.parametrize("trouble", [lost, silent])
@pytest.mark.parametrize("kind", ASYNC)
async def test_a_task_that_is_cancelled_inside_ends_as_cancelled(server, kind, trouble):
    client = server.client(redis.asyncio.Redis)
    rlock.asyncio.Locks(client, patience=0.3)
    inside = asyncio.Event()

    async def work():
        with contextlib.suppress(Exception):  # as a loop that goes on whatever happens
            lock = ASYNC[kind](client)
            async with (await lock if asyncio.iscoroutine(lock) else lock):
                inside.set()
                await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await inside.wait()
    await asyncio.to_thread(trouble, server)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    if trouble is silent:
        await asyncio.to_thread(server.deliver)
    await rlock.asyncio.Locks.of(client).aclose()


@pytest.mark.parametrize("kind", ASYNC)
async def test_an_error_inside_stays_what_it_is(server, kind, caplog):
    client = server.client(redis.asyncio.Redis)
    with pytest.raises(ValueError) as caught:
        lock = ASYNC[kind](client)
        async with (await lock if asyncio.iscoroutine(lock) else lock):
            lost(server)  # without a pause, in which the task would be cancelled
            raise ValueError
    assert isinstance(caught.value.__context__, (rlock.LockError, redis.exceptions.LockError))
    assert "the block has ended with" in caplog.text
    await rlock.asyncio.Locks.of(client).aclose()
