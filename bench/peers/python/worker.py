"""`worker.py LOCK WORK THREADS SECONDS`: ../measure.py says what it does and prints."""

import os
import queue
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
        # A wait may be long. The default of 5 s would end it, and send the command again.
        self.connection = client(socket_timeout=None)
        self.owner = str(uuid.uuid4())

    def acquire(self):
        self.connection.execute_command("RLOCK.ACQUIRE", KEY, self.owner, "BLOCK", 0)

    def release(self):
        self.connection.execute_command("RLOCK.RELEASE", KEY, self.owner)


def handles(lock, count):
    if lock == "package":
        import rlock

        # One client per process: each thread is its own owner.
        shared = rlock.Lock(redis.Redis(port=int(os.environ["PEER_PORT"])), KEY)
        return [Package(shared) for _ in range(count)]
    return [client().lock(KEY, timeout=30) if lock == "Lock" else Native() for _ in range(count)]


class Package:
    """This project's package for Python."""

    def __init__(self, lock):
        self.lock = lock

    def acquire(self):
        self.hold = self.lock.acquire()

    def release(self):
        self.hold.release()


def contend(lock, samples):
    while True:
        lock.acquire()
        acquired = time.monotonic_ns()
        lock.release()
        samples.append((acquired, acquired))


def alternate(lock, samples, turn, following):
    """A contender acquires the lock only once the one before it holds it, so that exactly one waits at each release."""
    while True:
        turn.acquire()
        lock.acquire()
        acquired = time.monotonic_ns()
        following.release()
        time.sleep(random.uniform(0.002, 0.010))
        releasing = time.monotonic_ns()
        lock.release()
        samples.append((acquired, releasing))


def until(moment):
    """Sleeps exactly until that moment: ../measure.py has set the kernel's timer slack for this."""
    time.sleep(max(0, (moment - time.monotonic_ns()) / 1e9))


def serve(lock, samples, jobs):
    hold = int(os.environ["PEER_HOLD_NS"])
    while (arrived := jobs.get()) is not None:
        lock.acquire()
        acquired = time.monotonic_ns()
        until(acquired + hold)
        releasing = time.monotonic_ns()
        lock.release()
        samples.append((acquired, releasing, arrived))


def arrive(started, locks, samples):
    """Hands each job to a free thread when it arrives, and waits for all of them."""
    jobs = queue.SimpleQueue()
    threads = [threading.Thread(target=serve, args=(*each, jobs), daemon=True) for each in zip(locks, samples)]
    for thread in threads:
        thread.start()
    with open(os.environ["PEER_ARRIVALS"]) as file:
        moments = [started + int(line) for line in file]
    for moment in moments:
        until(moment)
        jobs.put(moment)
    end = time.monotonic() + float(os.environ["PEER_DRAIN_SECONDS"])
    for _ in threads:
        jobs.put(None)
    for thread in threads:
        thread.join(max(0, end - time.monotonic()))


def end_all(failure):
    """Ends the worker if a contender fails: without that contender, the lock would look unfair."""
    sys.__excepthook__(*failure[:3])
    sys.stderr.flush()
    os._exit(1)


def main():
    name, work, threads, seconds = sys.argv[1:]
    count = int(threads)
    samples = [[] for _ in range(count)]
    turns = [threading.Semaphore(1 if i == 0 else 0) for i in range(count)]
    locks = handles(name, count)
    threading.excepthook = end_all
    print("ready", flush=True)
    sys.stdin.read()
    started = time.monotonic_ns()
    print("started", started)
    if work == "arrivals":
        arrive(started, locks, samples)
        return tell(samples)
    for i in range(count):
        if work == "hand-off":
            run, args = alternate, (locks[i], samples[i], turns[i], turns[(i + 1) % count])
        else:
            run, args = contend, (locks[i], samples[i])
        threading.Thread(target=run, args=args, daemon=True).start()
    time.sleep(float(seconds))
    tell(samples)


def tell(samples):
    for contender, stamps in enumerate(samples):
        for stamp in list(stamps):
            print(contender, *stamp)
    sys.stdout.flush()
    os._exit(0)


main()
