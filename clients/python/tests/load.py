"""Load and faults: threads, or tasks, fight for two locks while the server is killed, stopped and cut off.

`load.py sync|asyncio SERVER MODULE SECONDS`, or another program instead, which gets the port and the Unix time in ms
until which it works: `load.py 'node clients/node/tests/load.mjs ioredis' SERVER MODULE SECONDS`. No two may be sure
of one lock at once, tokens increase, nobody waits forever, and in the end nothing is held and nobody waits. However
busy the machine is, the users continue until the locks were held a hundred times; after SECONDS, there are no more
faults.
"""

import asyncio
import json
import pathlib
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "conformance"))

import redis
import redis.asyncio
from resp import lock_info
from servers import Standalone, until

import rlock
import rlock.asyncio

KEYS, USERS, HELD = ("load:a", "load:b"), 12, 100
HANGS = 400  # seconds after the end
counts = {"held": 0, "nothing": 0, "lost": 0, "unavailable": 0, "cancelled": 0}
sure = {key: [] for key in KEYS}  # who is inside
tokens = {key: 0 for key in KEYS}
problems = []


def enter(hold):
    others = [other for other in sure[hold.key] if other.held]
    if others and hold.held:
        problems.append(f"{hold.key}: {hold.owner} and {others[0].owner} hold it")
    if hold.token <= tokens[hold.key]:
        problems.append(f"{hold.key}: token {hold.token} after {tokens[hold.key]}")
    tokens[hold.key] = hold.token
    sure[hold.key].append(hold)
    counts["held"] += 1


def count(error):
    counts["lost" if isinstance(error, rlock.LockLost) else "unavailable"] += 1


def goes_on(end):
    return time.monotonic() < end or counts["held"] < HELD


def choice():
    return random.choice(KEYS), random.choice((0, 0.3, 2, 10))


def thread(client, end):
    while goes_on(end):
        key, wait = choice()
        try:
            hold = rlock.Lock(client, key, lease=3).acquire(wait=wait)
            if hold is None:
                counts["nothing"] += 1
                continue
            enter(hold)
            time.sleep(random.random() * 0.02)
            sure[key].remove(hold)
            hold.release()
        except (rlock.LockLost, rlock.Unavailable) as error:
            count(error)


async def task(client, end):
    while goes_on(end):
        key, wait = choice()
        try:
            acquiring = asyncio.ensure_future(rlock.asyncio.Lock(client, key, lease=3).acquire(wait=wait))
            done, _ = await asyncio.wait({acquiring}, timeout=random.choice((0.05, 20)))
            if not done:
                acquiring.cancel()
                await asyncio.wait({acquiring})
                if acquiring.cancelled():
                    counts["cancelled"] += 1
                    continue
            hold = acquiring.result()
            if hold is None:
                counts["nothing"] += 1
                continue
            enter(hold)
            await asyncio.sleep(random.random() * 0.02)
            sure[key].remove(hold)
            await hold.release()
        except (rlock.LockLost, rlock.Unavailable) as error:
            count(error)


def faults(servers, end):
    while time.monotonic() < end - 6:
        time.sleep(random.random() * 1.5)
        match random.choice(("drop", "drop", "cut", "stop", "kill", "deaf")):
            case "drop":
                servers.proxy.fault({"proxy": "drop"})
            case "cut":
                servers.proxy.fault({"proxy": "cut", "of": random.choice(("RLOCK.ACQUIRE", "RLOCK.RELEASE", "a reply")), "times": 3})
            case "stop":
                servers.one.signal(signal.SIGSTOP)
                time.sleep(random.random() * 2)
                servers.one.signal(signal.SIGCONT)
            case "kill":
                servers.one.kill()
                time.sleep(random.random())
                servers.start_dead()
            case "deaf":
                servers.proxy.fault({"proxy": "deaf"})
                time.sleep(random.random())
                servers.proxy.fault({"proxy": "heal"})
    servers.heal()


def main(kind, program, module, seconds):
    with tempfile.TemporaryDirectory() as folder:
        servers = Standalone(program, module, folder)
        host, port = servers.opening["addresses"][0].split(":")
        end = time.monotonic() + float(seconds)
        breaker = threading.Thread(target=faults, args=(servers, end))
        breaker.start()
        try:
            if kind == "sync":
                client = redis.Redis(host=host, port=int(port))
                rlock.Locks(client)
                threads = [threading.Thread(target=thread, args=(client, end)) for _ in range(USERS)]
                for one in threads:
                    one.start()
                for one in threads:
                    one.join(max(0.0, end - time.monotonic()) + HANGS)
                    assert not one.is_alive(), "a thread does not come back"
            elif kind == "asyncio":
                asyncio.run(tasks(host, int(port), end))
            else:
                until_ms = int((time.time() + end - time.monotonic()) * 1000)
                said = subprocess.run([*shlex.split(kind), port, str(until_ms)], stdout=subprocess.PIPE, text=True, check=True)
                counts.update(json.loads(said.stdout))
            breaker.join()
            for key in KEYS:
                free = lambda: (lambda i: i["mode"] == "free" and i["queue-length"] == 0)(lock_info(servers.one.address, key))
                until(f"{key} is free and nobody waits", free, 10)
        finally:
            servers.close()
    print(counts)
    assert not problems, problems[:5]
    assert counts["held"] >= HELD


async def tasks(host, port, end):
    client = redis.asyncio.Redis(host=host, port=port)
    locks = rlock.asyncio.Locks(client)
    async with asyncio.timeout(end - time.monotonic() + HANGS):
        await asyncio.gather(*(task(client, end) for _ in range(USERS)))
    await locks.aclose()
    await client.aclose()


main(*sys.argv[1:])
