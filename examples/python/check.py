"""Shows on the server at 127.0.0.1:$PORT that rlock.py does what it says. Ends with 1 at the first thing that is not so."""

import os
import signal
import threading
import time

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from rlock import Deadlock, Lock, LockLost, NotAcquired

port = int(os.environ["PORT"])
client = redis.Redis(port=port, socket_timeout=60, decode_responses=True)

# A write that the server itself refuses once the hold is over. In a cluster both keys need one {hash tag}.
fenced_set = client.register_script("""
    if redis.call('RLOCK.CHECK', KEYS[1], ARGV[1]) == 0 then return 0 end
    redis.call('SET', KEYS[2], ARGV[2])
    return 1""")


def until(what, is_so):
    """Looks until `is_so`, for 10 seconds at most."""
    end = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def waiters(key):
    return client.execute_command("RLOCK.INFO", key)["queue-length"]


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def two_workers_never_work_at_once():
    def work():
        for _ in range(50):
            with Lock(client, "py:counter"):
                client.set("py:count", int(client.get("py:count") or 0) + 1)

    client.delete("py:count")
    threads = [in_thread(work), in_thread(work)]
    for thread in threads:
        thread.join()
    assert client.get("py:count") == "100", client.get("py:count")


def tokens_rise_and_entering_again_keeps_one():
    lock = Lock(client, "py:tokens")
    with lock:
        first = lock.token
        with lock:
            assert lock.token == first
            assert client.execute_command("RLOCK.HOLDS", lock.key, lock.owner) == 2
        assert lock.held
    with Lock(client, "py:tokens") as later:
        assert later.token > first


def a_wait_ends_in_time():
    with Lock(client, "py:busy"):
        start = time.monotonic()
        try:
            with Lock(client, "py:busy", wait=0.1):
                raise AssertionError("two hold it")
        except NotAcquired:
            assert 0.1 <= time.monotonic() - start < 5
        assert not Lock(client, "py:busy", wait=None).acquire()


def readers_share():
    with Lock(client, "py:read", mode="READ"), Lock(client, "py:read", mode="READ", wait=1):
        assert not Lock(client, "py:read", wait=None).acquire()


def an_acquire_that_arrives_twice_counts_once():
    # A server that answers later than its client is patient: redis-py hangs up and sends again, and then the server
    # executes all of it. (By default it would give up after some tries: how many it needs depends on the machine.)
    hasty = redis.Redis(port=port, socket_timeout=0.3, retry=Retry(ConstantBackoff(0.05), 50))
    hasty.ping()
    lock = Lock(hasty, "py:resend", wait=None)
    acquires = lambda: client.info("commandstats")["cmdstat_rlock.acquire"]["calls"]
    before, server = acquires(), client.info("server")["process_id"]
    os.kill(server, signal.SIGSTOP)
    threading.Timer(0.5, os.kill, (server, signal.SIGCONT)).start()
    assert lock.acquire()
    assert acquires() >= before + 2, "it was sent but once"
    assert client.execute_command("RLOCK.HOLDS", lock.key, lock.owner) == 1
    lock.release()


def a_hold_outlives_its_lease_by_renewal():
    with Lock(client, "py:renewed", lease=2) as lock:
        end = client.pexpiretime(lock.key)
        until("it is renewed for a lease", lambda: client.pexpiretime(lock.key) >= end + 2000)
        lock.check()
        assert fenced_set(keys=[lock.key, "py:value"], args=[lock.token, "mine"]) == 1


def a_lost_hold_is_noticed_and_its_write_refused():
    try:
        with Lock(client, "py:lost", lease=6) as lock:
            start = time.monotonic()
            client.execute_command("RLOCK.FORCE", "py:lost")
            assert fenced_set(keys=[lock.key, "py:value"], args=[lock.token, "too late"]) == 0
            until("it is noticed", lambda: not lock.held)
            noticed_after = time.monotonic() - start
        raise AssertionError("a lost hold was released in silence")
    except LockLost:
        assert client.get("py:value") == "mine"
        assert noticed_after < 5.5, "only the clock told"


def of_two_that_wait_for_each_other_one_is_told():
    ann_left, bob_left = Lock(client, "py:left"), Lock(client, "py:left")
    ann_right, bob_right = Lock(client, "py:right"), Lock(client, "py:right")
    # One owner with two locks: the server sees a cycle only between names.
    ann_right.owner, bob_right.owner = ann_left.owner, bob_left.owner
    with ann_left:
        bob_right.acquire()
        other = in_thread(bob_left.acquire)
        until("bob waits", lambda: waiters("py:left") == 1)
        try:
            ann_right.acquire()
            raise AssertionError("they wait for each other")
        except Deadlock:
            pass  # what to do: let go of what is held, which lets bob go on, then begin again
    other.join()
    bob_left.release()
    bob_right.release()
    with ann_left, ann_right:
        pass


if __name__ == "__main__":
    two_workers_never_work_at_once()
    tokens_rise_and_entering_again_keeps_one()
    a_wait_ends_in_time()
    readers_share()
    an_acquire_that_arrives_twice_counts_once()
    a_hold_outlives_its_lease_by_renewal()
    a_lost_hold_is_noticed_and_its_write_refused()
    of_two_that_wait_for_each_other_one_is_told()
