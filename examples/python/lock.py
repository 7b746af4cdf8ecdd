"""Locks with redis-py: `pip install ./clients/python`, then `PORT=6380 python lock.py`."""

import os
import threading

import redis

import rlock
import rlock.compat

client = redis.Redis(port=int(os.environ.get("PORT", 6380)), decode_responses=True)

# The server writes the value only while a live hold of the lock has this token. In a Cluster, both keys need the same
# {hash tag}.
fenced_set = client.register_script("""
    if redis.call('RLOCK.CHECK', KEYS[1], ARGV[1]) == 0 then return 0 end
    redis.call('SET', KEYS[2], ARGV[2])
    return 1""")


@rlock.Lock(client, "py:counter")
def count():
    client.set("py:count", int(client.get("py:count") or 0) + 1)


def main():
    # One object, many threads: each thread is an owner.
    client.delete("py:count")
    threads = [threading.Thread(target=lambda: [count() for _ in range(25)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("four threads counted to", client.get("py:count"))

    with rlock.ReadLock(client, "py:report"), rlock.ReadLock(client, "py:report", owner="another"):
        print("readers share, a writer gets", rlock.Lock(client, "py:report", owner="a third").acquire(wait=0.1))

    try:
        with rlock.Lock(client, "py:stock", wait=10) as hold:
            print("stored with the token:", bool(fenced_set(keys=["py:stock", "py:value"], args=[hold.token, "mine"])))
            client.execute_command("RLOCK.FORCE", "py:stock")  # an operator ends the hold
            print("stored after it was lost:", bool(fenced_set(keys=["py:stock", "py:value"], args=[hold.token, "late"])))
    except rlock.LockLost as lost:
        print("told of it:", type(lost).__name__)

    lock = rlock.Lock(client, "py:again")
    with lock, lock as hold:  # an owner may re-enter
        print("depth:", client.execute_command("RLOCK.HOLDS", "py:again", hold.owner))
    print("free again:", not client.exists("py:again"))

    # Code that used redis-py's Lock: with its interface, and with the package's own.
    client.delete("py:orders")
    with client.lock("py:order", timeout=30, blocking_timeout=10, lock_class=rlock.compat.Lock):
        client.incr("py:orders")
    with rlock.Lock(client, "py:order", wait=10) as hold:
        client.incr("py:orders")
        hold.check()  # raises LockLost if the lock is lost
    print("orders:", client.get("py:orders"))


if __name__ == "__main__":
    main()
