"""Late replies, which come on one subscription."""

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
import redis.asyncio
from support import Server, lock_info, one_server, subscriptions, until

from servers import Cluster, Replicated  # isort: skip

import rlock
import rlock.asyncio
from rlock._core import DIALS, LOOKS
from rlock._inbox import channel_of, said

server = one_server
OLD = os.environ.get("RLOCK_OLD_MODULE")


class Loop:
    """An event loop in a thread, for tests that both packages share."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def end(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class Blocking:
    def __init__(self, client):
        self.locks, self.threads = rlock.Locks(client(redis.Redis)), ThreadPoolExecutor(8)

    def acquire(self, key, **options):
        wait = options.pop("wait", 20)
        return self.threads.submit(rlock.Lock(self.locks, key, **options).acquire, wait)

    def all(self, *keys, **options):
        return self.threads.submit(self.locks.all(*keys, **options).acquire, 20)

    def release(self, hold):
        hold.release()

    def on_lost(self, hold, call):
        hold.on_lost(call)

    def extend(self, hold, lease):
        hold.extend(lease)

    def close(self):
        self.locks.close()
        self.threads.shutdown()


class Tasks:
    def __init__(self, client):
        self.loop = Loop()
        self.locks = self.loop.do(self._locks(client)).result()

    async def _locks(self, client):
        return rlock.asyncio.Locks(client(redis.asyncio.Redis))

    async def _acquire(self, lock, wait=20):
        return await lock.acquire(wait)

    def acquire(self, key, **options):
        wait = options.pop("wait", 20)
        return self.loop.do(self._acquire(rlock.asyncio.Lock(self.locks, key, **options), wait))

    def all(self, *keys, **options):
        return self.loop.do(self._acquire(self.locks.all(*keys, **options)))

    def release(self, hold):
        self.loop.do(hold.release()).result(10)

    def on_lost(self, hold, call):
        async def listen():
            hold.on_lost(call)

        self.loop.do(listen()).result(10)

    def extend(self, hold, lease):
        self.loop.do(hold.extend(lease)).result(10)

    def close(self):
        self.loop.do(self.locks.aclose()).result(10)
        self.loop.end()


@pytest.fixture(params=[Blocking, Tasks])
def kind(request):
    return request.param


@pytest.fixture
def user(server, kind):
    user = kind(server.client)
    yield user
    user.close()


def waits(server, count=1, key="k"):
    until("it waits", lambda: server.waiting(key) == count)


def older_than(seconds):
    """A subscription that broke at once is not replaced at once."""
    end = time.monotonic() + seconds
    until("it is so old", lambda: time.monotonic() > end)


def test_a_wait_needs_no_connection_of_its_own(server, user):
    server.ask("RLOCK.ACQUIRE", "k", "somebody")
    found = [user.acquire("k", owner=f"o{n}") for n in range(5)]
    waits(server, 5)
    assert server.info("rlock_tells") == 5 and server.info("rlock_waiters") == 0
    assert subscriptions(server) == 1
    server.ask("RLOCK.RELEASE", "k", "somebody")
    order = []
    for _ in found:  # in order of arrival
        (owner, _), = until("the next one has it", lambda: server.holders("k"))
        order.append(owner)
        user.release(found[int(owner[1:])].result(10))
    assert sorted(order) == [f"o{n}" for n in range(5)]


def test_a_wait_goes_on_at_once_when_its_subscription_was_killed(server, user):
    server.ask("RLOCK.ACQUIRE", "k", "somebody")
    found = user.acquire("k", owner="me")
    waits(server)
    older_than(2 * DIALS)
    server.ask("CLIENT", "KILL", "TYPE", "pubsub")
    before = server.called("rlock.acquire")
    until("it has subscribed", lambda: subscriptions(server) == 1)
    until("it has asked again", lambda: server.called("rlock.acquire") > before)
    start = time.monotonic()
    server.ask("RLOCK.RELEASE", "k", "somebody")
    user.release(found.result(10))
    assert time.monotonic() - start < LOOKS


def test_a_wait_whose_subscription_is_killed_in_its_turn_is_granted_later(server, user):
    """Nobody gets the message about that turn, so the lock stays free until the owner asks again."""
    server.ask("RLOCK.ACQUIRE", "k", "somebody")
    found = user.acquire("k", owner="me")
    waits(server)
    older_than(2 * DIALS)
    untold = server.info("rlock_untold")
    with redis.Redis(port=int(server.one.address.split(":")[1])) as client, client.pipeline() as pipe:
        pipe.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        pipe.execute_command("RLOCK.RELEASE", "k", "somebody")
        start = time.monotonic()
        pipe.execute()
    hold = found.result(10)
    assert time.monotonic() - start < 2 * LOOKS + 2 * DIALS
    assert server.info("rlock_untold") <= untold + 1
    user.release(hold)


def test_a_subscription_that_is_silent_costs_one_interval(server, user):
    server.proxy.fault({"proxy": "mute", "of": "PING", "times": 1})
    server.ask("RLOCK.ACQUIRE", "k", "somebody")
    found = user.acquire("k", owner="me")
    until("nothing is told on that connection any more", lambda: not server.proxy.mutes)
    start = time.monotonic()
    server.ask("RLOCK.RELEASE", "k", "somebody")
    user.release(found.result(10))
    assert time.monotonic() - start < 2 * LOOKS


def test_a_subscription_that_is_silent_is_replaced(server, user):
    server.proxy.fault({"proxy": "mute", "of": "PING", "times": 1})
    server.ask("RLOCK.ACQUIRE", "k", "somebody")
    found = user.acquire("k", owner="me", wait=30)
    until("nothing is told on that connection any more", lambda: not server.proxy.mutes)
    before = user.locks.io.inboxes[None, None]
    until("there is another one", lambda: user.locks.io.inboxes[None, None] is not before)
    server.ask("RLOCK.RELEASE", "k", "somebody")
    user.release(found.result(10))
    assert not before.link.is_open


def test_several_locks_wait_without_a_connection_of_their_own(server, user):
    server.ask("RLOCK.ACQUIRE", "b", "somebody")
    found = user.all("a", "b", owner="me")
    until("it waits", lambda: server.info("rlock_tells") == 1)
    assert server.info("rlock_waiters") == 0
    server.ask("RLOCK.RELEASE", "b", "somebody")
    hold = found.result(10)
    assert len(set(hold.tokens.values())) == 1
    user.release(hold)


def test_a_session_waits_on_the_connection_that_it_is_tied_to(server, user):
    server.ask("RLOCK.ACQUIRE", "k", "somebody")
    found = user.acquire("k", owner="me", session=True)
    waits(server)
    assert server.info("rlock_waiters") == 0
    server.ask("RLOCK.RELEASE", "k", "somebody")
    hold = found.result(10)
    assert server.info("rlock_sessions") == 1
    user.release(hold)


def test_a_loss_is_known_before_the_next_renewal(server, user):
    hold, lost = user.acquire("k", owner="me", lease=30).result(10), threading.Event()
    user.on_lost(hold, lost.set)
    until("the server says when it ends", lambda: lock_info(server.one.address, "k")["observers"] == 1)
    start = time.monotonic()
    server.ask("RLOCK.FORCE", "k")
    assert lost.wait(5)
    took = time.monotonic() - start
    assert took < 1 and not hold.held, took  # a renewal comes after ten seconds


def test_a_loss_is_known_also_when_the_subscription_was_replaced(server, user):
    hold, lost = user.acquire("k", owner="me", lease=30).result(10), threading.Event()
    user.on_lost(hold, lost.set)
    until("the server says when it ends", lambda: lock_info(server.one.address, "k")["observers"] == 1)
    before = server.called("rlock.await")
    server.ask("CLIENT", "KILL", "TYPE", "pubsub")
    until("it has asked again", lambda: server.called("rlock.await") > before and subscriptions(server) == 1)
    server.ask("RLOCK.FORCE", "k")
    assert lost.wait(5) and not hold.held


def test_a_release_is_no_loss(server, user):
    lost = []
    for _ in range(3):
        hold = user.acquire("k", owner="me").result(10)
        user.on_lost(hold, lambda: lost.append(1))
        until("the server says when it ends", lambda: lock_info(server.one.address, "k")["observers"] == 1)
        user.release(hold)
        until("it is told", lambda: lock_info(server.one.address, "k")["observers"] == 0)
    assert lost == [] and not any(inbox.posts for inbox in user.locks.io.inboxes.values())


def test_a_user_who_may_not_subscribe_is_told_so(server, kind):
    server.ask("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "resetchannels", "&other")
    server.ask("RLOCK.ACQUIRE", "k", "somebody")
    user = kind(lambda package: server.client(package, username="app", password="secret"))
    with pytest.raises(rlock.NoPermission, match=r"\+ssubscribe .*&rlock:tell:\*"):
        user.acquire("k").result(10)
    user.acquire("free").result(10)  # this one has no late reply
    user.close()


def test_a_user_who_may_subscribe_and_use_locks_needs_no_more(server, kind):
    server.ask("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-@pubsub", "+ssubscribe", "+sunsubscribe", "resetchannels", "&rlock:tell:*")
    server.ask("RLOCK.ACQUIRE", "k", "somebody")
    user = kind(lambda package: server.client(package, username="app", password="secret"))
    found = user.acquire("k")
    waits(server)
    server.ask("RLOCK.RELEASE", "k", "somebody")
    user.release(found.result(10))
    user.close()


@pytest.mark.skipif(not OLD, reason="RLOCK_OLD_MODULE names no module without TELL")
def test_a_module_that_is_too_old_says_so(tmp_path, kind):
    server = Server(os.environ["RLOCK_SERVER"], OLD, str(tmp_path))
    try:
        user = kind(server.client)
        server.ask("RLOCK.ACQUIRE", "k", "somebody")
        with pytest.raises(rlock.Refused, match="too old for this package, it does not know TELL"):
            user.acquire("k").result(10)
        user.close()
    finally:
        server.close()


def test_acknowledgments_of_many_renewals_block_nothing(tmp_path, kind):
    servers = Replicated(os.environ["RLOCK_SERVER"], os.environ["RLOCK_MODULE"], str(tmp_path))
    try:
        host, port = servers.proxy.address.split(":")
        user = kind(lambda package: package(host=host, port=int(port)))
        holds = [user.acquire(f"k{n}", owner="me", acks=1, lease=1.5, wait=5).result(10) for n in range(30)]
        end = time.monotonic() + 3
        until("two leases are over", lambda: time.monotonic() > end)
        assert all(hold.held for hold in holds)
        user.extend(holds[0], 20)
        assert holds[0].left > 10
        for hold in holds:
            user.release(hold)
        user.close()
    finally:
        servers.close()


# --- a cluster --------------------------------------------------------------------------------------


def test_a_channel_is_in_the_slot_of_the_key():
    from redis.crc import key_slot

    channels = {key_slot(channel_of("c", slot).encode()): slot for slot in range(0, 16384, 7)}
    assert all(slot == wanted for slot, wanted in channels.items())


def test_messages_are_read():
    assert said("token 17 29000") == ("message", "token", 17)
    assert said("holder 0") == ("message", "holder", 0, "") and said("holder 5 a b") == ("message", "holder", 5, "a b")
    assert said("nil -1") == ("message", "nil") and said("renewed") == ("message", "token", 1)
    assert said("error NOACKS too few")[2].code == "NOACKS"


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(os.environ["RLOCK_SERVER"], os.environ["RLOCK_MODULE"], str(tmp_path))
    yield cluster
    cluster.close()


def test_a_wait_goes_on_where_its_slot_has_moved(cluster, kind):
    host, port = cluster.servers[0].public_address.split(":")
    client = {redis.Redis: redis.RedisCluster, redis.asyncio.Redis: redis.asyncio.RedisCluster}
    user = kind(lambda package: client[package](host=host, port=int(port)))
    held = user.acquire("{a}1", owner="first", lease=60).result(10)
    found = [user.acquire("{a}1", owner=f"o{n}", lease=60, wait=60) for n in range(3)]

    def queue():
        return lock_info(cluster.primary("{a}1"), "{a}1")["queue-length"]

    until("they wait", lambda: queue() == 3)
    old = cluster.primary("{a}1")
    cluster.move("{a}1")
    assert cluster.primary("{a}1") != old
    until("they wait there", lambda: queue() == 3, 30)
    user.release(held)
    for _ in found:
        (holder,) = until("the next one has it", lambda: lock_info(cluster.primary("{a}1"), "{a}1")["holders"])
        user.release(found[int(holder["owner"][1:])].result(10))
    user.close()


class Node(Server):
    def server(self, name, *words):
        return super().server(name, "--cluster-enabled", "yes", *words)


def test_a_client_of_one_node_uses_the_channels_of_a_cluster(tmp_path, kind):
    server = Node(os.environ["RLOCK_SERVER"], os.environ["RLOCK_MODULE"], str(tmp_path))
    try:
        server.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        until("it serves all slots", lambda: "cluster_state:ok" in server.ask("CLUSTER", "INFO"))
        user = kind(server.client)
        server.ask("RLOCK.ACQUIRE", "k", "somebody")
        found = user.acquire("k")
        waits(server)
        server.ask("RLOCK.RELEASE", "k", "somebody")
        user.release(found.result(10))
        user.close()
    finally:
        server.close()


