"""Shows on the server at 127.0.0.1:$PORT that rlock_async.py does what it says. Ends with 1 at the first thing that is not so."""

import asyncio
import os
import time

import redis.asyncio as redis

from rlock_async import Deadlock, Lock, LockLost, NotAcquired

client = redis.Redis(port=int(os.environ["PORT"]), socket_timeout=60, decode_responses=True)


async def until(is_so):
    """Looks until `is_so`, for 10 seconds at most."""
    async with asyncio.timeout(10):
        while not await is_so():
            await asyncio.sleep(0.005)


async def waiters(key):
    return (await client.execute_command("RLOCK.INFO", key))["queue-length"]


async def two_workers_never_work_at_once():
    async def work():
        for _ in range(50):
            async with Lock(client, "aio:counter"):
                await client.set("aio:count", int(await client.get("aio:count") or 0) + 1)

    await client.delete("aio:count")
    await asyncio.gather(work(), work())
    assert await client.get("aio:count") == "100"


async def tokens_rise_and_readers_share():
    async with Lock(client, "aio:tokens", mode="READ") as one, Lock(client, "aio:tokens", mode="READ") as two:
        assert two.token > one.token


async def a_wait_ends_in_time():
    async with Lock(client, "aio:busy"):
        start = time.monotonic()
        try:
            async with Lock(client, "aio:busy", wait=0.1):
                raise AssertionError("two hold it")
        except NotAcquired:
            assert 0.1 <= time.monotonic() - start < 5


async def a_cancelled_wait_leaves_the_queue():
    async def work():
        async with Lock(client, "aio:cancelled"):
            raise AssertionError("two hold it")

    async with Lock(client, "aio:cancelled"):
        task = asyncio.create_task(work())
        await until(lambda: is_queued("aio:cancelled", 1))
        task.cancel()
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
        await until(lambda: is_queued("aio:cancelled", 0))


async def is_queued(key, count):
    return await waiters(key) == count


async def a_hold_outlives_its_lease_by_renewal():
    async with Lock(client, "aio:renewed", lease=2) as lock:
        end = await client.pexpiretime(lock.key)
        await until(lambda: ends_after(lock.key, end + 2000))
        assert await client.execute_command("RLOCK.CHECK", lock.key, lock.token) == 1


async def ends_after(key, ms):
    return await client.pexpiretime(key) >= ms


async def a_lost_hold_stops_the_work():
    was_told = True
    try:
        async with Lock(client, "aio:lost", lease=0.5) as lock:
            await client.execute_command("RLOCK.FORCE", "aio:lost")
            # The token is what refuses in the meantime: rlock.py's check shows a fenced write.
            assert await client.execute_command("RLOCK.CHECK", lock.key, lock.token) == 0
            await asyncio.sleep(10)
            was_told = False
    except LockLost:
        assert was_told and lock.lost and not asyncio.current_task().cancelling()


async def of_two_that_wait_for_each_other_one_is_told():
    ann_left, bob_left = Lock(client, "aio:left"), Lock(client, "aio:left")
    ann_right, bob_right = Lock(client, "aio:right"), Lock(client, "aio:right")
    # One owner with two locks: the server sees a cycle only between names.
    ann_right.owner, bob_right.owner = ann_left.owner, bob_left.owner
    bob_holds_right = asyncio.Event()

    async def bob():
        async with bob_right:
            bob_holds_right.set()
            async with bob_left:
                pass

    async with ann_left:
        other = asyncio.create_task(bob())
        await bob_holds_right.wait()
        await until(lambda: is_queued("aio:left", 1))
        try:
            async with ann_right:
                raise AssertionError("they wait for each other")
        except Deadlock:
            pass  # what to do: let go of what is held, which lets bob go on, then begin again
    await other
    async with ann_left, ann_right:
        pass


async def main():
    await two_workers_never_work_at_once()
    await tokens_rise_and_readers_share()
    await a_wait_ends_in_time()
    await a_cancelled_wait_leaves_the_queue()
    await a_hold_outlives_its_lease_by_renewal()
    await a_lost_hold_stops_the_work()
    await of_two_that_wait_for_each_other_one_is_told()
    await client.aclose()


asyncio.run(main())
