"""redis-py's interface: what its own tests (tests/foreign) do not show. Also `extend`, `locked` and `owned`."""

import asyncio
import threading
import uuid

import pytest
import redis
import redis.asyncio
import redis.lock
from redis.exceptions import LockError, LockNotOwnedError
from support import one_server, until

import rlock
import rlock.asyncio
import rlock.compat

server = one_server


def ttl(server, key):
    return server.ask("PTTL", key) / 1000


def test_redis_py_makes_it_itself(server):
    client = server.client()
    with client.lock("k", timeout=10, lock_class=rlock.compat.Lock) as lock:
        assert isinstance(lock, rlock.compat.Lock) and lock.owned() and lock.locked()
        assert server.ask("TYPE", "k") == "rlock-key" and 0 < ttl(server, "k") <= 10
        assert not client.lock("k", lock_class=rlock.compat.Lock).acquire(blocking=False)
    assert not lock.locked() and not lock.owned()


def test_a_number_names_the_same_lock_as_for_redis_py(server):
    client = server.client()
    for name in (3, 3.5):
        with client.lock(name, timeout=10):
            assert not rlock.compat.Lock(client, name, timeout=10).acquire(blocking=False)
    with pytest.raises(redis.DataError):
        rlock.compat.Lock(client, uuid.UUID(int=5), timeout=10).acquire(blocking=False)


def test_a_lock_of_redis_py_excludes_it_and_is_excluded(server):
    """Therefore, processes can be migrated one by one."""
    client = server.client()
    old, new = redis.lock.Lock(client, "k", timeout=10), rlock.compat.Lock(client, "k", timeout=10, sleep=0.01)
    with old:
        assert not new.acquire(blocking=False)
        assert not new.acquire(blocking_timeout=0.05)
        waiting = threading.Thread(target=lambda: new.acquire(blocking_timeout=30), daemon=True)
        waiting.start()
    waiting.join(30)
    until("it came after", lambda: len(server.holders("k")) == 1)
    assert not old.acquire(blocking=False)


def test_locks_with_one_token_exclude_each_other(server):
    """An owner would re-enter; redis-py's `SET NX` fails, whatever the token is."""
    client = server.client()
    one, other = (rlock.compat.Lock(client, "k", timeout=10) for _ in range(2))
    assert one.acquire(blocking=False, token="w1") and one.local.token == b"w1"
    assert not other.acquire(blocking=False, token="w1")
    one.release()
    assert other.acquire(blocking=False, token=b"w1") and other.owned() and not one.owned()
    other.release()
    assert not other.locked()


@pytest.mark.parametrize("timeout", [None, 0])
def test_without_a_timeout_it_is_renewed_until_released(server, monkeypatch, timeout):
    """A lock of redis-py never expires either."""
    monkeypatch.setattr(rlock.compat, "LEASE", 0.6)
    with rlock.compat.Lock(server.client(), "k", timeout=timeout) as lock:
        until("it is renewed three times", lambda: server.renewals() >= 3)
        assert lock.owned()
    assert not lock.locked()


def test_without_a_timeout_nothing_is_reacquired(server):
    """The same as redis-py, except that its `reacquire` with 0 would delete the lock."""
    for timeout in (None, 0):
        with rlock.compat.Lock(server.client(), "k", timeout=timeout) as lock:
            with pytest.raises(LockError, match="^Cannot reacquire a lock with no timeout$"):
                lock.reacquire()
            assert lock.owned()
    with rlock.compat.Lock(server.client(), "k") as lock, pytest.raises(LockError, match="^Cannot extend a lock with no timeout$"):
        lock.extend(1)
    with rlock.compat.Lock(server.client(), "k", timeout=0) as lock:
        assert lock.extend(100, replace_ttl=True) and 99 < ttl(server, "k") <= 100


def test_an_error_of_the_server_is_what_redis_py_makes_of_it(server):
    server.ask("ACL", "SETUSER", "somebody", "on", ">secret", "~other", "+@all")
    client = server.client(username="somebody", password="secret")
    with pytest.raises(redis.exceptions.NoPermissionError, match="^this user has no permissions"):
        rlock.compat.Lock(client, "k").acquire()
    server.ask("RLOCK.ACQUIRE", "k", "somebody")
    server.ask("CONFIG", "SET", "rlock.max-tells", 0)
    with pytest.raises(redis.ResponseError, match="^TOOMANY too many"):
        rlock.compat.Lock(server.client(), "k").acquire()


def test_a_release_that_fails_at_the_end_of_a_block_is_logged_if_it_is_not_raised(server, caplog):
    with rlock.compat.Lock(server.client(), "k", timeout=10, raise_on_release_error=False):
        server.ask("RLOCK.FORCE", "k")
    assert "no longer owned" in caplog.text


def test_another_thread_owns_nothing(server):
    lock, seen = rlock.compat.Lock(server.client(), "k", timeout=10), []

    def look():
        seen.append(lock.owned())
        with pytest.raises(LockError, match="not owned"):
            lock.release()

    with lock:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert seen == [False] and lock.owned()


def test_an_extended_hold_is_held_past_its_first_lease(server):
    hold = rlock.Lock(server.client(), "k", lease=0.5, renew=False).acquire()
    hold.extend(20)
    assert 19 < ttl(server, "k") <= 20 and 19 < hold.left <= 20
    hold.extend(10)
    assert hold.left > 18, "a hold is never shortened"
    assert not hold.lost.wait(1)
    hold.release()
    with pytest.raises(rlock.NotHeld, match="released before"):
        hold.extend(1)


def test_an_ended_hold_cannot_be_extended(server):
    client = server.client()
    for end in (("RLOCK.FORCE", "k"), ("SET", "k", "mine")):
        hold = rlock.Lock(client, "k").acquire()
        server.ask(*end)
        with pytest.raises(rlock.LockLost):
            hold.extend(10)
        assert hold.lost.is_set()
        server.ask("DEL", "k")
        with pytest.raises(rlock.LockLost):
            hold.release()


def test_an_extension_without_a_reply_is_unavailable(server):
    hold = rlock.Lock(rlock.Locks(server.client(), patience=0.3), "k", renew=False).acquire()
    server.proxy.fault({"proxy": "keep", "of": "RLOCK.RENEW", "times": 99})
    with pytest.raises(rlock.Unavailable):
        hold.extend(100)
    assert hold.held and hold.left < 30


def test_a_lock_says_who_has_it(server):
    client = server.client()
    one, other = rlock.Lock(client, "k", owner="one"), rlock.ReadLock(client, "k", owner="other")
    assert not one.locked() and not one.owned()
    with one:
        assert one.locked() and one.owned() and other.locked() and not other.owned()


async def test_asyncio_has_the_same(server):
    client = server.client(redis.asyncio.Redis)
    lock = client.lock("k", timeout=0.5, lock_class=rlock.compat.AsyncLock)
    assert await lock.acquire() and await lock.owned() and await lock.locked()
    assert await lock.extend(20) and 20 < ttl(server, "k") <= 20.5
    await asyncio.sleep(1)
    await lock.release()
    with pytest.raises(LockError):
        await lock.release()
    assert await lock.acquire()
    server.ask("SET", "k", "mine")
    with pytest.raises(LockNotOwnedError):
        await lock.extend(1)
    await rlock.asyncio.Locks.of(client).aclose()
    await client.aclose()
