"""Every way to give redis-py the address of a server, and permanent errors."""

import asyncio
import contextlib
import functools
import os
import pathlib
import queue
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from support import ask, one_server, until

import rlock
import rlock.asyncio
from servers import Cluster, Sentinel, free_port

server = one_server
BINARY = b"\xff\x00 \xe9 key"


class Provider(redis.CredentialProvider):
    def get_credentials(self):
        return ("default", "secret")


class Terminator:
    """A TLS proxy in front of a server."""

    def __init__(self, folder, port):
        self.cert, self.key = f"{folder}/cert.pem", f"{folder}/key.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", self.key, "-out", self.cert, "-days", "2",
             "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
            check=True, capture_output=True,
        )
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(self.cert, self.key)
        self.server = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                one, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(one,), daemon=True).start()

    def serve(self, one):
        try:
            inside = self.context.wrap_socket(one, server_side=True)  # one thread reads, another one writes
            outside = socket.create_connection(("127.0.0.1", self.server))
        except OSError:
            return
        back = threading.Thread(target=forward, args=(outside, inside), daemon=True)
        back.start()
        forward(inside, outside)


def forward(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def with_password(server):
    guarded = server.server("guarded")
    assert ask(guarded.address, "CONFIG", "SET", "requirepass", "secret") == "OK"
    return guarded


@pytest.fixture
def way(server, tmp_path):
    """Creates the client with that name, for that package."""
    path = f"{server.one.folder}/socket"
    unix = server.server("unix", "--unixsocket", path)
    guarded = with_password(server)
    tls = Terminator(str(tmp_path), unix.port)
    port, address = unix.port, {"host": "127.0.0.1", "port": unix.port}

    def make(name, package):
        ways = {
            "host and port": lambda: package.Redis(**address),
            "URL": lambda: package.Redis.from_url(f"redis://127.0.0.1:{port}/0"),
            "URL of a database": lambda: package.Redis.from_url(f"redis://127.0.0.1:{port}/3"),
            "unix": lambda: package.Redis(unix_socket_path=path),
            "URL of unix": lambda: package.Redis.from_url(f"unix://{path}"),
            "TLS": lambda: package.Redis(host="localhost", port=tls.port, ssl=True, ssl_ca_certs=tls.cert),
            "URL of TLS": lambda: package.Redis.from_url(f"rediss://localhost:{tls.port}?ssl_cert_reqs=none", ssl_check_hostname=False),
            "password": lambda: package.Redis(port=guarded.port, password="secret"),
            "credential provider": lambda: package.Redis(port=guarded.port, credential_provider=Provider()),
            "RESP2": lambda: package.Redis(**address, protocol=2),
            "RESP3": lambda: package.Redis(**address, protocol=3),
            "decode_responses": lambda: package.Redis(**address, decode_responses=True),
            "another encoding": lambda: package.Redis(**address, encoding="latin-1", decode_responses=True),
            "pool of one": lambda: package.Redis(**address, max_connections=1),
            "blocking pool of one": lambda: package.Redis(connection_pool=package.BlockingConnectionPool(**address, max_connections=1)),
            "one connection": lambda: package.Redis(**address, single_connection_client=True),
            "time-outs": lambda: package.Redis(**address, socket_timeout=0.05, socket_connect_timeout=1, health_check_interval=1),
        }
        return ways[name]()

    return make


WAYS = [
    "host and port", "URL", "URL of a database", "unix", "URL of unix", "TLS", "URL of TLS", "password", "credential provider", "RESP2",
    "RESP3", "decode_responses", "another encoding", "pool of one", "blocking pool of one", "one connection", "time-outs",
]


def works(client):
    """What a user of that client does first."""
    for key in ("k", BINARY, "Zoë"):
        for owner in (None, "CORP\\alice", "Zoë"):
            with rlock.Lock(client, key, wait=5, owner=owner) as hold:
                assert rlock.Lock(client, key).locked() and hold.held
                assert rlock.Lock(client, key, owner="other").acquire(wait=0) is None
    with rlock.Lock(client, "session", session=True, wait=5), rlock.Locks.of(client).all("a", BINARY, wait=5) as holds:
        assert holds.held
    # One request waits on a connection, and is granted the lock that another thread releases.
    first = rlock.Lock(client, BINARY, owner="first").acquire()
    threading.Timer(0.2, first.release).start()
    rlock.Lock(client, BINARY, wait=5).acquire().release()
    rlock.Locks.of(client).close()


async def works_in_a_loop(client):
    for key in ("k", BINARY, "Zoë"):
        for owner in (None, "CORP\\alice", "Zoë"):
            async with rlock.asyncio.Lock(client, key, wait=5, owner=owner) as hold:
                assert await rlock.asyncio.Lock(client, key).locked() and hold.held
                assert await rlock.asyncio.Lock(client, key, owner="other").acquire(wait=0) is None
    async with rlock.asyncio.Lock(client, "session", session=True, wait=5):
        async with rlock.asyncio.Locks.of(client).all("a", BINARY, wait=5) as holds:
            assert holds.held
    first = await rlock.asyncio.Lock(client, BINARY, owner="first").acquire()
    later = asyncio.get_running_loop().call_later(0.2, lambda: asyncio.ensure_future(first.release()))
    await (await rlock.asyncio.Lock(client, BINARY, wait=5).acquire()).release()
    later.cancel()
    await rlock.asyncio.Locks.of(client).aclose()
    await client.aclose()


@pytest.mark.parametrize("name", WAYS)
def test_every_way_works(way, name):
    works(way(name, redis))


@pytest.mark.parametrize("name", WAYS)
async def test_every_way_works_in_a_loop(way, name):
    await works_in_a_loop(way(name, redis.asyncio))


@pytest.mark.parametrize("topology", [Sentinel, Cluster])
async def test_sentinel_and_cluster_work(topology, tmp_path):
    several = topology(os.environ["RLOCK_SERVER"], os.environ["RLOCK_MODULE"], str(tmp_path))
    try:
        if topology is Cluster:
            host, port = several.primary("{k}").split(":")
            clients = redis.RedisCluster(host=host, port=int(port)), redis.asyncio.RedisCluster(host=host, port=int(port))
        else:
            at = [("127.0.0.1", several.sentinel.port)]
            name = redis.Redis(port=several.sentinel.port).execute_command("SENTINEL", "MASTERS")
            name = next(iter(redis.sentinel.Sentinel(at).sentinels[0].sentinel_masters()))
            clients = redis.sentinel.Sentinel(at).master_for(name), redis.asyncio.sentinel.Sentinel(at).master_for(name)
        await asyncio.to_thread(lambda: rlock.Lock(clients[0], b"\xff{k}", wait=10).acquire().release())
        hold = await rlock.asyncio.Lock(clients[1], b"\xff{k}", wait=10).acquire()
        assert hold.held
        await hold.release()
        rlock.Locks.of(clients[0]).close()
        await rlock.asyncio.Locks.of(clients[1]).aclose()
    finally:
        several.close()


def test_the_example_with_sentinel_works(tmp_path):
    text = (pathlib.Path(__file__).parents[1] / "README.md").read_text()
    (block,) = re.findall(r"^```python sentinel\n(.*?)^```", text, re.M | re.S)
    several = Sentinel(os.environ["RLOCK_SERVER"], os.environ["RLOCK_MODULE"], str(tmp_path))
    try:
        for server in (several.sentinel, *several.servers):
            ask(server.address, "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
        names = {"rlock": rlock}
        exec(re.sub(r"\[\(.*\)\]", f'[("127.0.0.1", {several.sentinel.port})]', block), names)
        assert names["hold"].token > 0
        rlock.Locks.of(names["client"]).close()
    finally:
        several.close()


# --- what no later try can change ------------------------------------------------------------------


@pytest.fixture
def wrong(server, tmp_path):
    """The arguments of a client that can never work, and its error."""
    guarded = with_password(server)
    server.ask("ACL", "SETUSER", "may-not", "on", ">secret", "~*", "&*", "+@all", "-rlock.acquire", "-rlock.macquire")
    bare = subprocess.Popen(
        [os.environ["RLOCK_SERVER"], "--port", str(bare_port := free_port()), "--save", "", "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
    )
    until("the server without the module answers", lambda: redis.Redis(port=bare_port).ping())
    tls = Terminator(str(tmp_path), server.one.port)
    web = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                one, _ = web.accept()
                one.recv(100)
                one.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                one.close()

    threading.Thread(target=serve, daemon=True).start()
    yield {
        "wrong password": ({"port": guarded.port, "password": "no"}, rlock.Refused, "WRONGPASS"),
        "unknown user": ({"port": guarded.port, "username": "nobody", "password": "no"}, rlock.Refused, "WRONGPASS"),
        "no password": ({"port": guarded.port}, rlock.Refused, "NOAUTH"),
        "no permission": ({"port": server.one.port, "username": "may-not", "password": "secret"}, rlock.NoPermission, "NOPERM"),
        "no module": ({"port": bare_port}, rlock.Refused, "has not loaded the RLOCK module"),
        "untrusted": ({"host": "localhost", "port": tls.port, "ssl": True}, rlock.Refused, "(?i)certificate"),
        "another host": (
            {"host": "127.0.0.1", "port": tls.port, "ssl": True, "ssl_ca_certs": tls.cert, "ssl_check_hostname": True},
            rlock.Refused, "(?i)certificate",
        ),
        "HTTP": ({"port": web.getsockname()[1]}, rlock.Refused, "no Redis server"),
        "no such database": ({"port": server.one.port, "db": 9999}, rlock.Refused, "DB index"),
    }
    web.close()
    bare.send_signal(signal.SIGKILL)
    bare.wait()
    shutil.rmtree(tmp_path, ignore_errors=True)


WRONG = ["wrong password", "unknown user", "no password", "no permission", "no module", "untrusted", "another host", "HTTP", "no such database"]


@pytest.mark.parametrize("name", WRONG)
async def test_what_no_later_try_can_change_ends_an_endless_wait_at_once(wrong, name):
    arguments, kind, text = wrong[name]

    def blocking():
        client = redis.Redis(**arguments)
        for acquire in (rlock.Lock(client, "k").acquire, rlock.Locks.of(client).all("k", "l").acquire, rlock.Locks.of(client).election("k").campaign):
            with pytest.raises(kind, match=text):
                acquire()
        rlock.Locks.of(client).close()

    await asyncio.wait_for(asyncio.to_thread(blocking), 10)
    client = redis.asyncio.Redis(**arguments)
    for acquire in (rlock.asyncio.Lock(client, "k").acquire, rlock.asyncio.Locks.of(client).all("k", "l").acquire):
        with pytest.raises(kind, match=text):
            await asyncio.wait_for(acquire(), 10)
    await rlock.asyncio.Locks.of(client).aclose()


async def test_a_replica_is_named_as_the_cause(server, caplog):
    server.ask("REPLICAOF", "127.0.0.1", str(free_port()))
    with pytest.raises(rlock.Unavailable, match="(?i)read.?only|replica|MASTERDOWN"):
        await asyncio.to_thread(rlock.Lock(rlock.Locks(server.client(), patience=0.5), "k").acquire, 0)
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis), patience=0.5)
    with pytest.raises(rlock.Unavailable, match="(?i)read.?only|replica|MASTERDOWN"):
        await rlock.asyncio.Lock(locks, "k").acquire(1.5)
    assert "still waiting; last error" in caplog.text
    await locks.aclose()


async def test_waits_that_worry_together_are_logged_once(server, caplog):
    server.ask("REPLICAOF", "127.0.0.1", str(free_port()))
    tasks, threads = rlock.asyncio.Locks(server.client(redis.asyncio.Redis), patience=0.5), rlock.Locks(server.client(), patience=0.5)

    async def one(acquire):
        with pytest.raises(rlock.Unavailable):
            await acquire(1.5)

    await asyncio.gather(*(one(rlock.asyncio.Lock(tasks, "task").acquire) for _ in range(200)))
    await asyncio.gather(*(one(functools.partial(asyncio.to_thread, rlock.Lock(threads, "thread").acquire)) for _ in range(10)))
    assert [caplog.text.count(f"{key}: still waiting") for key in ("task", "thread")] == [1, 1]
    await tasks.aclose()


@pytest.mark.parametrize("owner", ["", "x" * 513, 7])
@pytest.mark.parametrize("make", [rlock.Lock, rlock.asyncio.Lock])
def test_an_owner_that_the_server_would_refuse_is_refused(make, owner):
    client = redis.Redis() if make is rlock.Lock else redis.asyncio.Redis()
    with pytest.raises((ValueError, TypeError), match="owner must"):
        make(client, "k", owner=owner)


# --- event loops -----------------------------------------------------------------------------------


def test_a_client_in_a_second_loop_gets_a_clear_error_and_leaves_nothing(server):
    client = server.client(redis.asyncio.Redis)
    inside, go, told = threading.Event(), threading.Event(), []

    async def first():
        async with rlock.asyncio.Lock(client, "k", wait=2):
            inside.set()
            await asyncio.to_thread(go.wait)

    async def second():
        for call in (rlock.asyncio.Lock(client, "l", wait=2).acquire, rlock.asyncio.Locks.of(client).all("l", "m").acquire):
            try:
                await call()
            except rlock.asyncio.OtherLoop as error:
                told.append(str(error))

    thread = threading.Thread(target=asyncio.run, args=(first(),))
    thread.start()
    assert inside.wait(5)
    asyncio.run(second())
    go.set()
    thread.join()
    assert len(told) == 2 and "event loop" in told[0]
    assert server.holders("k") == server.holders("l") == []


def test_loops_that_follow_each_other_share_a_client_and_a_lock(server):
    client = server.client(redis.asyncio.Redis)
    lock = rlock.asyncio.Lock(client, "k", wait=2, owner="me", lease=1)

    async def use(is_kept):
        hold = await lock.acquire()
        assert hold.held
        if not is_kept:
            await hold.release()

    asyncio.run(use(is_kept=False))
    asyncio.run(use(is_kept=True))  # nobody renews it
    until("it has ended", lambda: server.holders("k") == [], 5)
    asyncio.run(use(is_kept=False))
    assert server.holders("k") == []


# --- owners ----------------------------------------------------------------------------------------


async def test_each_acquisition_has_an_owner_of_its_own_if_asked_for(server, caplog):
    client = server.client(redis.asyncio.Redis)
    lock = rlock.asyncio.Lock(client, "k", reentrant=False)
    hold = await lock.acquire()
    assert await lock.acquire(wait=0) is None and await rlock.asyncio.Locks.of(client).all("k", reentrant=False).acquire(wait=0) is None
    await asyncio.create_task(hold.release())
    assert caplog.text == ""
    with pytest.raises(rlock.NotHeld, match="release the hold"):
        await lock.release()
    with pytest.raises(ValueError, match="leave out owner"):
        rlock.asyncio.Lock(client, "k", owner="me", reentrant=False)
    again = await rlock.asyncio.Lock(client, "k").acquire()
    await asyncio.create_task(again.release())
    assert "reentrant=False" in caplog.text
    await rlock.asyncio.Locks.of(client).aclose()


def test_each_acquisition_of_a_thread_has_an_owner_of_its_own_if_asked_for(server, caplog):
    client = server.client()
    lock = rlock.Lock(client, "k", reentrant=False)
    hold = lock.acquire()
    assert lock.acquire(wait=0) is None and rlock.Locks.of(client).all("k", reentrant=False).acquire(wait=0) is None

    def in_a_thread(call):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    in_a_thread(hold.release)
    assert caplog.text == "" and server.holders("k") == []
    with lock, pytest.raises(rlock.NotHeld, match="release the hold"):
        lock.release()
    again = rlock.Lock(client, "k").acquire()
    in_a_thread(again.release)
    assert "reentrant=False" in caplog.text
    lost = rlock.Lock(client, "k", reentrant=False, lease=1).acquire()
    del lost
    until("what nobody can release ends", lambda: server.holders("k") == [], 5)


# --- callbacks -------------------------------------------------------------------------------------


def test_losses_are_told_whatever_blocks_in_other_callbacks(server):
    client, forced, stay = server.client(), threading.Event(), threading.Event()
    for n in range(20):
        stuck = rlock.Lock(client, f"stuck{n}", lease=1.5, owner="a").acquire()
        stuck.on_lost(stay.wait)
        server.ask("RLOCK.FORCE", f"stuck{n}")
    last = rlock.Lock(client, "last", lease=1.5, owner="a").acquire()
    last.on_lost(forced.set)
    server.ask("RLOCK.FORCE", "last")
    assert forced.wait(10)
    stay.set()


def test_a_callback_may_close_its_client(server):
    """A program that lost its lock may end this way."""
    locks, took = rlock.Locks(server.client()), queue.SimpleQueue()

    def end():
        began = time.monotonic()
        locks.close()
        took.put(time.monotonic() - began)

    rlock.Lock(locks, "k", lease=1.5).acquire().on_lost(end)
    server.ask("RLOCK.FORCE", "k")
    assert took.get(timeout=10) < 1


async def test_a_callback_of_a_loop_may_close_its_client(server):
    locks, ends = rlock.asyncio.Locks(server.client(redis.asyncio.Redis)), asyncio.Queue()

    async def end():
        began = time.monotonic()
        await locks.aclose()
        return time.monotonic() - began

    hold = await rlock.asyncio.Lock(locks, "k", lease=1.5).acquire()
    hold.on_lost(lambda: ends.put_nowait(asyncio.ensure_future(end())))
    await asyncio.to_thread(server.ask, "RLOCK.FORCE", "k")
    assert await (await asyncio.wait_for(ends.get(), 10)) < 1


# --- owners ----------------------------------------------------------------------------------------

OWNERS = ["plain", "Zoë", "CORP\\alice", 'a "b" \n', "a\0b", "\udcff\udc00"]


@pytest.mark.parametrize("owner", OWNERS)
async def test_a_wait_hears_of_its_grant_whatever_its_owner_is_called(server, owner):
    """Without the message, it would ask for the lock once per second."""
    locks = rlock.Locks(server.client())
    tasks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))

    def blocking():
        return rlock.Lock(locks, "k", owner=owner).acquire(wait=5)

    async def in_a_loop():
        return await rlock.asyncio.Lock(tasks, "k", owner=owner).acquire(wait=5)

    for wait in (lambda: asyncio.to_thread(blocking), in_a_loop):
        asked = []
        for _ in range(3):
            first = await asyncio.to_thread(rlock.Lock(locks, "k", owner="first").acquire)
            waits = asyncio.ensure_future(wait())
            await asyncio.to_thread(until, "it waits", lambda: server.waiting("k") == 1)
            await asyncio.to_thread(first.release)
            released = asyncio.get_running_loop().time()
            hold = await waits
            asked.append(asyncio.get_running_loop().time() - released)
            released = hold.release()
            await (released or asyncio.sleep(0))
        assert min(asked) < 0.2, asked
    locks.close()
    await tasks.aclose()
