"""A child that is forked while a connection is being opened does not keep that connection open."""

import asyncio
import contextlib
import os
import signal

import redis
import redis.asyncio
from support import connected, one_server, until

import rlock
import rlock.asyncio

server = one_server


@contextlib.contextmanager
def forked_once(monkeypatch, where, name):
    """When that method is called for the first time, a child that lives on is forked before the method returns."""
    call, children = getattr(where, name), []

    def fork():
        if not children:
            if (child := os.fork()) == 0:
                signal.alarm(60)
                signal.pause()
            children.append(child)

    def connected(*words):
        result = call(*words)
        fork()
        return result

    async def connected_in_a_loop(*words):
        result = await call(*words)
        fork()
        return result

    monkeypatch.setattr(where, name, connected_in_a_loop if asyncio.iscoroutinefunction(call) else connected)
    try:
        yield children
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_child_that_is_forked_during_a_dial_keeps_no_connection(server, monkeypatch):
    locks = rlock.Locks(redis.Redis(port=server.one.port))
    with forked_once(monkeypatch, redis.Connection, "_connect") as children:
        rlock.Lock(locks, "k").acquire().release()
        assert children
        for link in locks.io.links:
            os.close(link.conn._sock.detach())  # as when this process dies
        until("no connection is left", lambda: connected(server) == 0, 5)
    locks.close()


async def test_a_child_that_is_forked_during_a_dial_in_a_loop_keeps_no_connection(server, monkeypatch):
    locks = rlock.asyncio.Locks(redis.asyncio.Redis(port=server.one.port))
    with forked_once(monkeypatch, asyncio.get_running_loop(), "sock_connect") as children:
        hold = await rlock.asyncio.Lock(locks, "k", session=True).acquire()
        assert children and hold.held
        await locks.aclose()
        until("no connection is left", lambda: connected(server) == 0, 5)
