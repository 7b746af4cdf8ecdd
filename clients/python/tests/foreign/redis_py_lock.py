"""redis-py's own lock tests, over `rlock.compat`: a pytest plugin that replaces redis-py's locks.

`GET` and `TTL` of a lock, with which those tests inspect it, return what they would for redis-py's key: the holder's
token, and -1 for a lock without a time-out.
"""

import pytest
import redis
import redis.asyncio
import redis.asyncio.lock
import redis.lock
from redis.exceptions import ResponseError

import rlock.compat

#: The differences, with reasons. Each of these tests must fail: if one passes, the difference no longer exists.
DIFFERENCES = {
    "test_blocking_timeout": "counts the sleeps of a polling loop by a false clock; nobody polls here",
    "test_context_manager_blocking_timeout": "counts the sleeps of a polling loop by a false clock; nobody polls here",
}
ASYNC_ONLY = {"test_blocking_timeout"}  # in the asyncio tests the other one has no false clock

endless = set()  # names of locks without a time-out
tokens = {}  # of owners


def pytest_collection_modifyitems(items):
    for item in items:
        name = item.originalname
        if name in DIFFERENCES and ("asyncio" not in str(item.path) or name in ASYNC_ONLY):
            item.add_marker(pytest.mark.xfail(reason=DIFFERENCES[name], strict=True))


def noted(kind):
    """Wraps that class: records which of its locks have no timeout, and the tokens of its owners."""

    def init(self, redis, name, timeout=None, *more, **options):
        (endless.discard if timeout else endless.add)(name)
        kind.__init__(self, redis, name, timeout, *more, **options)

    def owner(self, token):
        kept, name = kind._owner(self, token)
        tokens[name.encode()] = kept
        return kept, name

    return type(kind.__name__, (kind,), {"__init__": init, "_owner": owner})


def token_in(info):
    """The holder's token in a reply to RLOCK.INFO, in RESP2 or RESP3, decoded or not."""
    plain = lambda value: value.decode() if isinstance(value, bytes) else value
    pairs = lambda flat: flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2]))
    field = lambda mapping, name: next((v for k, v in pairs(mapping).items() if plain(k) == name), None)
    holders = field(info, "holders")
    if not holders:
        return None
    owner = field(holders[0], "owner")
    token = tokens[owner if isinstance(owner, bytes) else owner.encode()]
    return token if isinstance(owner, bytes) else token.decode()


class SyncView:
    """Commands with which the tests inspect a lock."""

    def get(self, name):
        try:
            return super().get(name)
        except ResponseError:
            return token_in(self.execute_command("RLOCK.INFO", name))

    def ttl(self, name):
        left = super().ttl(name)
        return -1 if name in endless and left >= 0 else left

    def pttl(self, name):
        left = super().pttl(name)
        return -1 if name in endless and left >= 0 else left


class AsyncView:
    async def get(self, name):
        try:
            return await super().get(name)
        except ResponseError:
            return token_in(await self.execute_command("RLOCK.INFO", name))

    async def ttl(self, name):
        left = await super().ttl(name)
        return -1 if name in endless and left >= 0 else left

    async def pttl(self, name):
        left = await super().pttl(name)
        return -1 if name in endless and left >= 0 else left


def replaced(view, base):
    return type(base.__name__, (view, base), {"__module__": base.__module__})


redis.lock.Lock, redis.asyncio.lock.Lock = noted(rlock.compat.Lock), noted(rlock.compat.AsyncLock)
redis.client.Redis = redis.Redis = replaced(SyncView, redis.Redis)
redis.asyncio.client.Redis = redis.asyncio.Redis = replaced(AsyncView, redis.asyncio.Redis)
redis.client.Lock, redis.asyncio.client.Lock = redis.lock.Lock, redis.asyncio.lock.Lock
