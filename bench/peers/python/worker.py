"""`worker.py LOCK WORK THREADS SECONDS`: ../measure.py says what it does and prints."""

import os
import random
import sys
import threading
import time
import uuid

import redis

KEY = os.environ["PEER_KEY"]


def client(**options):
    return redis.Redis(port=int(os.environ["PEER_PORT"]), single_connection_client=True, **options)


class Native:
    """RLOCK's commands."""

    def __init__(self):
        # A wait may be long; the default of 5 s would end it, and send the command once more.
        self.connection = client(socket_timeout=None)
        self.owner = str(uuid.uuid4())

    def acquire(self):
        self.connection.execute_command("RLOCK.ACQUIRE", KEY, self.owner, "BLOCK", 0)

    def release(self):
        self.connection.execute_command("RLOCK.RELEASE", KEY, self.owner)


def handle(lock):
    return client().lock(KEY, timeout=30) if lock == "Lock" else Native()


def contend(lock, samples):
    while True:
        lock.acquire()
        acquired = time.monotonic_ns()
        lock.release()
        samples.append((acquired, acquired))


def alternate(lock, samples, turn, following):
    """Each asks once the one before it holds, so that each release finds exactly one who waits."""
    while True:
        turn.acquire()
        lock.acquire()
        acquired = time.monotonic_ns()
        following.release()
        time.sleep(random.uniform(0.002, 0.010))
        releasing = time.monotonic_ns()
        lock.release()
        samples.append((acquired, releasing))


def end_all(failure):
    """A contender that fails ends the worker: its absence would look like an unfair lock."""
    sys.__excepthook__(*failure[:3])
    sys.stderr.flush()
    os._exit(1)


def main():
    name, work, threads, seconds = sys.argv[1:]
    count = int(threads)
    samples = [[] for _ in range(count)]
    turns = [threading.Semaphore(1 if i == 0 else 0) for i in range(count)]
    locks = [handle(name) for _ in range(count)]
    threading.excepthook = end_all
    print("ready", flush=True)
    sys.stdin.read()
    print("started", time.monotonic_ns())
    for i in range(count):
        if work == "hand-off":
            run, args = alternate, (locks[i], samples[i], turns[i], turns[(i + 1) % count])
        else:
            run, args = contend, (locks[i], samples[i])
        threading.Thread(target=run, args=args, daemon=True).start()
    time.sleep(float(seconds))
    for contender, stamps in enumerate(samples):
        for acquired, releasing in list(stamps):
            print(contender, acquired, releasing)
    sys.stdout.flush()
    os._exit(0)


main()
