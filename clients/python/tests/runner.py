"""Does with the package what clients/conformance/run.py asks for: `runner.py sync`, or `runner.py asyncio`."""

import gc
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time

import redis
import redis.sentinel

import rlock

NAMES = [
    (rlock.Deadlock, "Deadlock"), (rlock.TooMany, "TooMany"), (rlock.NoAcks, "NoAcks"), (rlock.NoPermission, "NoPerm"),
    (rlock.LockLost, "Lost"), (rlock.NotHeld, "NotHeld"), (rlock.NoReplicas, "NoReplicas"), (rlock.Closed, "Closed"),
    (rlock.Unavailable, "Unavailable"),
]
FEATURES = ["cancel", "close", "actors", "sentinel", "cluster", "session", "acks", "limit", "maxqueue", "several", "gc", "tls"]


def tell(reply):
    # One write per line, because threads reply at the same time.
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


def failure(error):
    name = next((name for kind, name in NAMES if isinstance(error, kind)), "Other")
    return {"error": name, "text": f"{type(error).__name__}: {error}"}


def seconds(ms):
    return None if ms is None else ms / 1000


def lock_options(request):
    options = {k: request[k] for k in ("owner", "maxqueue", "acks", "session", "upgrade", "limit") if k in request}
    return options | {"lease": request["lease"] / 1000} if "lease" in request else options


def client_options(request):
    names = ("username", "user"), ("password", "password"), ("max_connections", "pool")
    options = {name: request[word] for name, word in names if word in request}
    return options | {"ssl": True, "ssl_cert_reqs": "none"} if request.get("tls") else options


def sentinel_options(request):
    """The Sentinels have the same users and the same certificates as their servers."""
    return {name: value for name, value in client_options(request).items() if name != "max_connections"}


def spawned(request):
    """Starts a program that outlives the runner."""
    subprocess.Popen(["sleep", "20"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {"ok": True}


def collected(request):
    for _ in range(3):
        gc.collect()
    return {"ok": True}


def parts(request):
    kinds = {"read": rlock.read, "write": str}
    return [kinds[mode](key) if mode in kinds else rlock.limit(key, mode) for key, mode in request["keys"]]


def leads(request):
    return {"name": request["name"]}


def seen(leader):
    return {"at": time.time() * 1000, "name": leader.name if leader else None}


class Campaign:
    """An election, with the interface of a lock."""

    def __init__(self, election):
        self.election, self.acquire = election, election.campaign


def once_options(request):
    options = {word: request[name] for word, name in (("if_it_fails", "ifItFails"), ("acks", "acks")) if name in request}
    return options | {"lease": request["lease"] / 1000} if "lease" in request else options


class Failed(Exception):
    """Of what ran once."""


def state(hold):
    return {"held": hold.held, "left": int(hold.left * 1000)}


def bare_words(key):
    return ("RLOCK.ACQUIRE", key, "bare", "DEPTH", 1), ("RLOCK.RELEASE", key, "bare", "WRITE", "DEPTH", 0)


def bench_reply(counts, cpu, ms):
    """Pairs per second, and microseconds of CPU time per pair."""
    per_second, per_pair = ([count / ms * 2000 for count in counts], [used / count * 1e6 for used, count in zip(cpu, counts)])
    return {"package": per_second[0], "bare": per_second[1], "packageCpu": per_pair[0], "bareCpu": per_pair[1]}


class Runner:
    def __init__(self):
        self.clients, self.locks, self.holds, self.lost_at, self.actors, self.told = {}, {}, {}, {}, {}, {}
        self.main, self.acquiring = queue.Queue(), None

    def read(self):
        for line in sys.stdin:
            request = json.loads(line)
            if "as" in request:
                self.actor(request["as"]).put(request)
            else:
                self.do(request)
        os._exit(0)

    def actor(self, name):
        if name == "main":
            return self.main
        if name not in self.actors:
            self.actors[name] = queue.Queue()
            threading.Thread(target=self.act, args=(self.actors[name],), daemon=True).start()
        return self.actors[name]

    def act(self, requests):
        while True:
            try:
                self.do(requests.get())
            except KeyboardInterrupt:
                pass  # came too late: the acquisition was over

    def do(self, request):
        try:
            reply = getattr(self, request["do"])(request)
        except KeyboardInterrupt:
            reply = {"error": "Cancelled"}
        except ValueError as error:
            reply = {"error": "Invalid", "text": str(error)}
        except Exception as error:
            reply = failure(error)
        if reply is not None:
            tell({"id": request["id"], **reply})

    def open(self, r):
        kwargs = client_options(r)
        places = [place.rsplit(":", 1) for place in r["addresses"]]
        if r["kind"] == "sentinel":
            client = redis.sentinel.Sentinel(places, socket_timeout=2, sentinel_kwargs=sentinel_options(r)).master_for(r["service"], **kwargs)
        elif r["kind"] == "cluster":
            nodes = [redis.cluster.ClusterNode(host, int(port)) for host, port in places]
            client = redis.RedisCluster(startup_nodes=nodes, **kwargs)
        else:
            pool = redis.BlockingConnectionPool if "pool" in r else redis.ConnectionPool
            if kwargs.pop("ssl", False):
                kwargs["connection_class"] = redis.SSLConnection
            client = redis.Redis.from_pool(pool(host=places[0][0], port=int(places[0][1]), **kwargs))
        self.clients[r["client"]] = client, rlock.Locks(client, outage=seconds(r.get("outage")))
        return {"ok": True}

    def close(self, r):
        client, locks = self.clients.pop(r["client"])
        locks.close()
        client.close()
        return {"ok": True}

    def drain(self, r):
        return {"left": self.clients[r["client"]][1].drain(seconds(r["timeout"]))}

    def lock(self, r):
        kind = rlock.ReadLock if r.get("mode") == "read" else rlock.Lock
        self.locks[r["lock"]] = kind(self.clients[r["client"]][0], r["key"], **lock_options(r))
        return {"ok": True}

    def all(self, r):
        self.locks[r["lock"]] = rlock.Locks.of(self.clients[r["client"]][0]).all(*parts(r), **lock_options(r))
        return {"ok": True}

    def any(self, r):
        self.locks[r["lock"]] = rlock.Locks.of(self.clients[r["client"]][0]).any(r["key"], r["each"], **lock_options(r))
        return {"ok": True}

    def election(self, r):
        election = rlock.Locks.of(self.clients[r["client"]][0]).election(r["key"], **leads(r))
        self.locks[r["lock"]] = Campaign(election)
        return {"ok": True}

    def observe(self, r):
        told = self.told[r["observer"]] = []
        observer = self.locks[r["lock"]].election.observe()
        threading.Thread(target=lambda: [told.append(seen(each)) for each in observer], daemon=True).start()
        return {"ok": True}

    def observed(self, r):
        def wait():
            told, end = self.told[r["observer"]], time.monotonic() + r["within"] / 1000
            while not (told and told[-1]["name"] == r["name"]) and time.monotonic() < end:
                time.sleep(0.005)
            tell({"id": r["id"], "ok": told[-1]["name"] == r["name"], "at": told[-1]["at"]} if told else {"id": r["id"], "ok": False})

        threading.Thread(target=wait, daemon=True).start()

    def acquire(self, r):
        self.acquiring = r["id"]
        try:
            hold = self.locks[r["lock"]].acquire(wait=seconds(r["wait"]))
        finally:
            self.acquiring = None
        if hold is None:
            return {"ok": False}
        self.holds[r["hold"]], signalled = hold, queue.Queue()
        self.lost_at[r["hold"]] = signalled
        hold.on_lost(lambda: signalled.put(time.time() * 1000))
        return {"ok": True, "token": hold.token, "owner": hold.owner, "key": getattr(hold, "key", None)}

    def check(self, r):
        self.clients[r["client"]][1].check(r["key"])
        return {"ok": True}

    def once(self, r):
        def work(hold):
            time.sleep(r.get("takes", 0) / 1000)
            if r.get("fails"):
                raise Failed

        try:
            return {"ok": self.clients[r["client"]][1].once(r["key"], r["every"] / 1000, work, **once_options(r))}
        except Failed:
            return {"ok": True, "failed": True}

    def release(self, r):
        self.holds[r["hold"]].release()
        return {"ok": True}

    def state(self, r):
        return state(self.holds[r["hold"]])

    def lost(self, r):
        def wait():
            try:
                at = self.lost_at[r["hold"]].get(timeout=r["within"] / 1000)
                tell({"id": r["id"], "ok": self.holds[r["hold"]].lost.is_set(), "at": at})
            except queue.Empty:
                tell({"id": r["id"], "ok": False})

        threading.Thread(target=wait, daemon=True).start()

    def cancel(self, r):
        if self.acquiring == r["of"]:  # only the main thread can be interrupted
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return {"ok": True}

    def churn(self, r):
        lock, inside, most = self.locks[r["lock"]], [], [0]
        client = next(iter(self.clients.values()))[0]

        def user():
            for _ in range(r["times"]):
                with lock:
                    inside.append(1)
                    most[0] = max(most[0], len(inside))
                    client.set(r["counter"], int(client.get(r["counter"]) or 0) + 1)
                    inside.pop()

        def work():
            try:
                threads = [threading.Thread(target=user, daemon=True) for _ in range(r["users"])]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                tell({"id": r["id"], "ok": True, "inside": most[0]})
            except Exception as error:
                tell({"id": r["id"], **failure(error)})

        threading.Thread(target=work, daemon=True).start()

    def fork(self, r):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                lock = self.locks[r["lock"]]
                hold = lock.acquire(wait=seconds(r["wait"]))
                said = {"ok": hold is not None, "owner": lock._locks.owner()}
                if hold:
                    hold.release()
            except BaseException as error:
                said = failure(error)
            os.write(writer, json.dumps(said).encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(child, 0)
        with os.fdopen(reader) as pipe:
            return json.loads(pipe.read())

    def spawn(self, r):
        if r.get("how") == "fork" and os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        return spawned(r)

    def gc(self, r):
        return collected(r)

    def bench(self, r):
        client = self.clients[r["client"]][0]
        lock, (acquire, release) = rlock.Lock(client, r["key"]), bare_words(r["key"])
        counts, cpu, end = [0, 0], [0, 0], time.monotonic() + r["ms"] / 1000
        while time.monotonic() < end:
            for which in (0, 1):
                until, before = time.monotonic() + 0.2, time.process_time()
                while time.monotonic() < until:
                    if which == 0:
                        lock.acquire()
                        lock.release()
                    else:
                        client.execute_command(*acquire)
                        client.execute_command(*release)
                    counts[which] += 1
                cpu[which] += time.process_time() - before
        return bench_reply(counts, cpu, r["ms"])


if __name__ == "__main__":
    if sys.argv[1] == "asyncio":
        import asyncio

        import runner_asyncio

        asyncio.run(runner_asyncio.main())
    # A program that a shell starts in the background ignores this signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    runner = Runner()
    tell({"hello": "python-sync", "features": [*FEATURES, "fork"]})
    threading.Thread(target=runner.read, daemon=True).start()
    runner.act(runner.main)
