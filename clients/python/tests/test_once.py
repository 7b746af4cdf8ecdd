"""One run in each interval, on a real server."""

import asyncio
import signal
import time

import pytest
import redis.asyncio
from support import interrupted_after, one_server, until

import rlock
import rlock.asyncio

server = one_server


def in_loop(server, key, every, body, **options):
    """The same with the package for asyncio."""

    async def runs():
        client = server.client(redis.asyncio.Redis)

        async def work(hold):
            await asyncio.to_thread(body, hold)

        try:
            return await rlock.asyncio.Locks.of(client).once(key, every, work, **options)
        finally:
            await rlock.asyncio.Locks.of(client).aclose()
            await client.aclose()

    return asyncio.run(runs())


def in_thread(server, key, every, body, **options):
    locks = rlock.Locks(server.client())
    try:
        return locks.once(key, every, body, **options)
    finally:
        locks.close()


both = pytest.mark.parametrize("once", [in_thread, in_loop])


def is_free(server, key):
    return not server.holders(key)


def nothing(hold):
    pass


def fails(hold):
    raise KeyError("of the work")


@both
def test_one_of_all_runs_and_the_interval_begins_with_the_grant(server, once):
    holds, start = [], time.monotonic()
    assert once(server, "k", 1.0, lambda hold: holds.append((hold.key, hold.token, hold.held)) or time.sleep(0.3))
    assert server.ask("PTTL", "k") <= 1010
    ((key, token, was_held),) = holds
    assert key == "k" and token > 0 and was_held
    until("the interval is over", lambda: is_free(server, "k"))
    assert time.monotonic() - start >= 1.0
    assert once(server, "k", 1.0, nothing)
    assert once(server, "k", 60, nothing, wait=5)
    assert not once(server, "k", 60, fails)


@both
def test_a_run_that_fails_keeps_its_interval_or_not(server, once):
    with pytest.raises(KeyError, match="of the work"):
        once(server, "k", 60, fails)
    assert not once(server, "k", 60, nothing)
    with pytest.raises(KeyError, match="of the work"):
        once(server, "j", 60, fails, if_it_fails="again")
    assert is_free(server, "j")
    assert once(server, "j", 60, nothing, if_it_fails="again")
    assert not once(server, "j", 60, nothing, if_it_fails="again")


@both
def test_a_short_interval_is_not_as_long_as_the_lease(server, once):
    assert once(server, "k", 10, nothing, if_it_fails="again")
    assert 0 < server.ask("PTTL", "k") <= 11_000


@both
def test_a_run_may_take_longer_than_its_lease_but_not_than_its_interval(server, once):
    assert once(server, "k", 60, lambda _: time.sleep(3), if_it_fails="again", lease=2)
    with pytest.raises(rlock.LockLost):
        once(server, "j", 0.2, lambda _: time.sleep(0.4))
    assert once(server, "i", 0.2, lambda _: time.sleep(0.4), if_it_fails="again", lease=5)
    assert is_free(server, "i")


@both
def test_the_end_of_a_run_is_not_known_to_the_server(server, once):
    assert once(server, "k", 5.0, lambda _: server.proxy.fault({"proxy": "drop"}) or server.proxy.fault({"proxy": "deaf"}))
    server.proxy.fault({"proxy": "heal"})
    assert not is_free(server, "k")
    with pytest.raises(rlock.Unavailable):
        once(server, "j", 60, lambda _: server.proxy.fault({"proxy": "deaf"}), if_it_fails="again")


def test_a_signal_ends_a_run(server):
    def work(hold):
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        time.sleep(60)

    for choice in ("keep", "again"):
        with interrupted_after(60):
            in_thread(server, choice, 600, work, if_it_fails=choice)
    assert not is_free(server, "keep") and is_free(server, "again")


def test_a_task_that_is_cancelled_ends_its_run(server):
    async def main():
        client = server.client(redis.asyncio.Redis)
        locks = rlock.asyncio.Locks.of(client)

        for choice in ("keep", "again"):
            runs = asyncio.Event()

            async def work(hold):
                runs.set()
                await asyncio.sleep(60)

            task = asyncio.create_task(locks.once(choice, 600, work, if_it_fails=choice))
            await runs.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await locks.aclose()
        await client.aclose()

    asyncio.run(main())
    assert not is_free(server, "keep") and is_free(server, "again")


def test_what_makes_no_sense_is_refused(server):
    locks = rlock.Locks(server.client())

    async def later(hold):
        pass

    for wrong in ({"if_it_fails": "never"}, {"every": 0}, {"every": 8 * 86400}):
        with pytest.raises(ValueError):
            locks.once("k", wrong.pop("every", 60), nothing, **wrong)
    for body in (later, None):
        with pytest.raises(TypeError):
            locks.once("k", 60, body)
    with pytest.raises(TypeError, match="every must be a number of seconds, not '1h'"):
        locks.once("k", "1h", nothing)
    assert is_free(server, "k")
