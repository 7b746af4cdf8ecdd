"""A single address, such as a DNS name, that leads to another server after a failover, while the old one answers as a
replica."""

import itertools
import sys
import threading

import pytest
import redis
import redis.asyncio
from support import one_server

import rlock
import rlock.asyncio
from rlock._core import now

server = one_server


@pytest.fixture
def moves(server):
    two = server.server("two")

    def move():
        server.proxy.port = two.port
        server.ask("REPLICAOF", "127.0.0.1", str(two.port))

    return move


def test_connections_to_the_old_primary_are_used_no_more(server, moves):
    locks = rlock.Locks(server.client(), patience=1)
    rlock.Lock(locks, "k").acquire().release()
    links = [locks.io.open("k", now() + 5) for _ in range(8)]
    for link in links:
        locks.io.keep(link)
    moves()
    with rlock.Lock(locks, "k", wait=0), rlock.Lock(locks, "session", wait=1, session=True):
        assert not any(link.is_open for link in links)


async def test_connections_of_a_loop_to_the_old_primary_are_used_no_more(server, moves):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis), patience=1)
    await (await rlock.asyncio.Lock(locks, "k").acquire()).release()
    links = [await locks.io.open("k", now() + 5) for _ in range(8)]
    for link in links:
        locks.io.keep(link)
    moves()
    async with rlock.asyncio.Lock(locks, "k", wait=0), rlock.asyncio.Lock(locks, "session", wait=1, session=True):
        assert not any(link.is_open for link in links)
    await locks.aclose()


def test_threads_may_take_note_of_slots_and_forget_them_at_once(server):
    route, is_over = rlock.Locks(server.client()).io.route, threading.Event()
    before = sys.getswitchinterval()

    def moving():
        for slot in itertools.cycle(range(16384)):
            if is_over.is_set():
                return
            route.moved(f"MOVED {slot} 127.0.0.1:7000", None)

    thread = threading.Thread(target=moving)
    sys.setswitchinterval(1e-6)
    try:
        route.slots = dict.fromkeys(range(0, 16384, 2), ("127.0.0.1", 7000))
        thread.start()
        for _ in range(50):
            route.forget(("127.0.0.1", 7001))
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(before)


@pytest.mark.parametrize("api", [rlock, rlock.asyncio])
def test_a_time_that_is_no_number_is_refused_by_its_name(api):
    client = redis.Redis() if api is rlock else redis.asyncio.Redis()
    for name in ("patience", "outage"):
        with pytest.raises(TypeError, match=f"{name} must be a number of seconds"):
            api.Locks(client, **{name: "60"})
    with pytest.raises(TypeError, match="lease must be a number of seconds, not '30'"):
        api.Lock(client, "k", lease="30")
    with pytest.raises(TypeError, match="wait must be a number of seconds, or None for no limit, not '5'"):
        api.Lock(client, "k", wait="5")


@pytest.mark.parametrize("api", [rlock, rlock.asyncio])
def test_settings_after_the_first_lock_are_refused(api):
    client = redis.Redis() if api is rlock else redis.asyncio.Redis()
    lock = api.Lock(client, "k")
    for settings in {"outage": 60}, {}:
        with pytest.raises(RuntimeError, match="has its Locks already"):
            api.Locks(client, **settings)
    assert api.Locks.of(client) is lock._locks


def test_a_client_whose_locks_are_closed_may_get_others():
    client = redis.Redis()
    rlock.Locks(client).close()
    locks = rlock.Locks(client, outage=60)
    assert rlock.Locks.of(client) is locks


@pytest.mark.parametrize("api", [rlock, rlock.asyncio])
def test_a_client_of_the_other_kind_is_refused(api):
    client = redis.asyncio.Redis() if api is rlock else redis.Redis()
    for make in api.Locks, lambda client: api.Lock(client, "k"):
        with pytest.raises(TypeError, match="use rlock"):
            make(client)
