"""The runner's asyncio half: an actor is a task."""

import asyncio
import json
import os
import sys
import time

import redis.asyncio
import redis.asyncio.sentinel

import rlock.asyncio as rlock
from runner import (
    FEATURES, Campaign, Failed, bare_words, bench_reply, client_options, collected, failure, leads, lock_options, once_options, parts,
    seconds, seen, sentinel_options, spawned, state, tell,
)


class Runner:
    def __init__(self):
        self.clients, self.locks, self.holds, self.lost_at, self.told = {}, {}, {}, {}, {}
        self.actors, self.acquiring, self.tasks = {}, {}, set()

    async def read(self):
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async for line in reader:
            request = json.loads(line)
            if "as" not in request:
                self.start(self.do(request))
                continue
            if request["as"] not in self.actors:
                self.actors[request["as"]] = asyncio.Queue()
                self.start(self.act(self.actors[request["as"]]))
            self.actors[request["as"]].put_nowait(request)
        os._exit(0)

    def start(self, work):
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def act(self, requests):
        while True:
            await self.do(await requests.get())

    async def do(self, request):
        try:
            reply = await getattr(self, request["do"])(request)
        except asyncio.CancelledError:
            asyncio.current_task().uncancel()
            reply = {"error": "Cancelled"}
        except ValueError as error:
            reply = {"error": "Invalid", "text": str(error)}
        except Exception as error:
            reply = failure(error)
        tell({"id": request["id"], **reply})

    async def open(self, r):
        kwargs = client_options(r)
        places = [place.rsplit(":", 1) for place in r["addresses"]]
        if r["kind"] == "sentinel":
            client = redis.asyncio.Sentinel(places, socket_timeout=2, sentinel_kwargs=sentinel_options(r)).master_for(r["service"], **kwargs)
        elif r["kind"] == "cluster":
            nodes = [redis.asyncio.cluster.ClusterNode(host, int(port)) for host, port in places]
            client = redis.asyncio.RedisCluster(startup_nodes=nodes, **kwargs)
        else:
            pool = redis.asyncio.BlockingConnectionPool if "pool" in r else redis.asyncio.ConnectionPool
            if kwargs.pop("ssl", False):
                kwargs["connection_class"] = redis.asyncio.SSLConnection
            client = redis.asyncio.Redis.from_pool(pool(host=places[0][0], port=int(places[0][1]), **kwargs))
        self.clients[r["client"]] = client, rlock.Locks(client, outage=seconds(r.get("outage")))
        return {"ok": True}

    async def close(self, r):
        client, locks = self.clients.pop(r["client"])
        await locks.aclose()
        await client.aclose()
        return {"ok": True}

    async def drain(self, r):
        return {"left": await self.clients[r["client"]][1].drain(seconds(r["timeout"]))}

    async def lock(self, r):
        kind = rlock.ReadLock if r.get("mode") == "read" else rlock.Lock
        self.locks[r["lock"]] = kind(self.clients[r["client"]][0], r["key"], **lock_options(r))
        return {"ok": True}

    async def all(self, r):
        self.locks[r["lock"]] = rlock.Locks.of(self.clients[r["client"]][0]).all(*parts(r), **lock_options(r))
        return {"ok": True}

    async def any(self, r):
        self.locks[r["lock"]] = rlock.Locks.of(self.clients[r["client"]][0]).any(r["key"], r["each"], **lock_options(r))
        return {"ok": True}

    async def election(self, r):
        self.locks[r["lock"]] = Campaign(rlock.Locks.of(self.clients[r["client"]][0]).election(r["key"], **leads(r)))
        return {"ok": True}

    async def observe(self, r):
        told = self.told[r["observer"]] = []
        observer = self.locks[r["lock"]].election.observe()

        async def observes():
            async for each in observer:
                told.append(seen(each))

        self.start(observes())
        return {"ok": True}

    async def observed(self, r):
        told, end = self.told[r["observer"]], time.monotonic() + r["within"] / 1000
        while not (told and told[-1]["name"] == r["name"]) and time.monotonic() < end:
            await asyncio.sleep(0.005)
        return {"ok": told[-1]["name"] == r["name"], "at": told[-1]["at"]} if told else {"ok": False}

    async def acquire(self, r):
        self.acquiring[r["id"]] = asyncio.current_task()
        try:
            hold = await self.locks[r["lock"]].acquire(wait=seconds(r["wait"]))
        finally:
            del self.acquiring[r["id"]]
        if hold is None:
            return {"ok": False}
        self.holds[r["hold"]] = hold
        signalled = self.lost_at[r["hold"]] = asyncio.Queue()
        hold.on_lost(lambda: signalled.put_nowait(time.time() * 1000))
        return {"ok": True, "token": hold.token, "owner": hold.owner, "key": getattr(hold, "key", None)}

    async def check(self, r):
        await self.clients[r["client"]][1].check(r["key"])
        return {"ok": True}

    async def once(self, r):
        async def work(hold):
            await asyncio.sleep(r.get("takes", 0) / 1000)
            if r.get("fails"):
                raise Failed

        try:
            return {"ok": await self.clients[r["client"]][1].once(r["key"], r["every"] / 1000, work, **once_options(r))}
        except Failed:
            return {"ok": True, "failed": True}

    async def release(self, r):
        await self.holds[r["hold"]].release()
        return {"ok": True}

    async def state(self, r):
        return state(self.holds[r["hold"]])

    async def lost(self, r):
        try:
            at = await asyncio.wait_for(self.lost_at[r["hold"]].get(), r["within"] / 1000)
        except TimeoutError:
            return {"ok": False}
        return {"ok": self.holds[r["hold"]].lost.is_set(), "at": at}

    async def cancel(self, r):
        if task := self.acquiring.get(r["of"]):
            task.cancel()
        return {"ok": True}

    async def churn(self, r):
        lock, inside, most = self.locks[r["lock"]], [], [0]
        client = next(iter(self.clients.values()))[0]

        async def user():
            for _ in range(r["times"]):
                async with lock:
                    inside.append(1)
                    most[0] = max(most[0], len(inside))
                    await client.set(r["counter"], int(await client.get(r["counter"]) or 0) + 1)
                    inside.pop()

        await asyncio.gather(*(user() for _ in range(r["users"])))
        return {"ok": True, "inside": most[0]}

    async def spawn(self, r):
        return spawned(r)

    async def gc(self, r):
        return collected(r)

    async def block(self, r):
        for _ in range(r["times"]):
            time.sleep(r["ms"] / 1000)  # blocks the loop
            await asyncio.sleep(0)
        return {"ok": True}

    async def bench(self, r):
        client = self.clients[r["client"]][0]
        lock, (acquire, release) = rlock.Lock(client, r["key"]), bare_words(r["key"])
        counts, cpu, end = [0, 0], [0, 0], time.monotonic() + r["ms"] / 1000
        while time.monotonic() < end:
            for which in (0, 1):
                until, before = time.monotonic() + 0.2, time.process_time()
                while time.monotonic() < until:
                    if which == 0:
                        await lock.acquire()
                        await lock.release()
                    else:
                        await client.execute_command(*acquire)
                        await client.execute_command(*release)
                    counts[which] += 1
                cpu[which] += time.process_time() - before
        return bench_reply(counts, cpu, r["ms"])


async def main():
    tell({"hello": "python-asyncio", "features": [*FEATURES, "cancel-many", "loop"]})
    await Runner().read()
