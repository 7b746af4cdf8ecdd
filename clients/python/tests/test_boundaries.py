"""An exception of a signal's handler, at each boundary between two steps of the package in the main thread.

A trace function raises at the first, second, … event in the package's code (calls, lines, opcodes), for each public
operation, until the operation ends without that. Then the lock is free, or its handle releases it, and the thread may lock
again.
"""

import collections
import contextlib
import os
import sys
import threading

import pytest
import redis
from support import Interrupt, one_server, until

import rlock
import rlock.compat

server = one_server
FOLDER = os.path.dirname(rlock.__file__)


class Raises:
    """Raises an exception at one boundary in the package."""

    def __init__(self, at):
        self.at, self.count, self.place = at, 0, None

    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        frame.f_trace_opcodes = True
        if event in ("call", "line", "opcode"):  # a return has begun with an opcode
            self.count += 1
            if self.count == self.at:
                self.place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} {event} at {frame.f_lasti}"
                raise Interrupt
        return self

    def __enter__(self):
        sys.settrace(self)

    def __exit__(self, *_):
        sys.settrace(None)


# Each operation creates what it needs, and returns the part to be traced. That part returns a function that releases
# the lock, if it got it.


def acquire(locks, key):
    return rlock.Lock(locks, key).acquire


def acquire_at_once(locks, key):
    lock = rlock.Lock(locks, key)
    return lambda: lock.acquire(wait=0)


def acquire_read(locks, key):
    return rlock.ReadLock(locks, key, wait=5).acquire


def acquire_session(locks, key):
    return rlock.Lock(locks, key, session=True, wait=5).acquire


def acquire_own(locks, key):
    return rlock.Lock(locks, key, reentrant=False).acquire


def acquire_named(locks, key):
    return rlock.Lock(locks, key, owner="me").acquire


def acquire_permit(locks, key):
    return rlock.Permit(locks, key, 1).acquire


def acquire_several(locks, key):
    return locks.all(key, key + "b", wait=5).acquire


def campaign(locks, key):
    election = locks.election(key, name="me")
    return election.campaign


def acquire_compat(locks, key):
    lock = rlock.compat.Lock(locks.io.route.client, key)

    def call():
        lock.acquire()
        return lock

    call.handle = lock
    return call


def hold_release(locks, key):
    hold = rlock.Lock(locks, key).acquire()
    return released(hold, hold.release)


def lock_release(locks, key):
    lock = rlock.Lock(locks, key)
    hold = lock.acquire()
    return released(hold, lock.release)


def release_several(locks, key):
    hold = locks.all(key, key + "b").acquire()
    return released(hold, hold.release)


def release_compat(locks, key):
    lock = rlock.compat.Lock(locks.io.route.client, key)
    lock.acquire()
    return released(lock, lock.release)


def extend(locks, key):
    hold = rlock.Lock(locks, key).acquire()
    return released(hold, lambda: hold.extend(60) or hold)


def looks(locks, key):
    """Operations that only inspect a held lock."""
    lock = rlock.Lock(locks, key)
    hold = lock.acquire()

    def call():
        hold.on_lost(print)
        assert hold.held and hold.left and lock.held and lock.locked() and lock.owned() and locks.counts().held
        assert not hold.lost.is_set()
        return hold

    return released(hold, call)


def enter(locks, key):
    return entering(lambda: rlock.Lock(locks, key, wait=5))


def enter_session(locks, key):
    return entering(lambda: rlock.Lock(locks, key, session=True))


def enter_own(locks, key):
    return entering(lambda: rlock.Lock(locks, key, reentrant=False))


def enter_permit(locks, key):
    return entering(lambda: rlock.Permit(locks, key, 1))


def enter_several(locks, key):
    return entering(lambda: locks.all(key, key + "b"))


def enter_hold(locks, key):
    lock = rlock.Lock(locks, key)
    return entering(lambda: lock.acquire())


def enter_holds(locks, key):
    lock = locks.all(key, key + "b")
    return entering(lambda: lock.acquire())


def enter_campaign(locks, key):
    election = locks.election(key)
    return entering(lambda: election.campaign())


def enter_compat(locks, key):
    return entering(lambda: rlock.compat.Lock(locks.io.route.client, key))


def enter_twice(locks, key):
    lock = rlock.Lock(locks, key)

    def call():
        with lock, lock:
            pass

    return call


def decorated(locks, key):
    return rlock.Lock(locks, key)(lambda: None)


def exit_with_error(locks, key):
    lock = rlock.Lock(locks, key)

    def call():
        with contextlib.suppress(KeyError), lock:
            raise KeyError

    return call


def observe(locks, key):
    election = locks.election(key)
    hold = election.campaign()

    def call():
        assert election.leader().token == hold.token
        with election.observe() as changes:
            assert next(changes).token == hold.token
        return hold

    return released(hold, call)


def released(hold, call):
    """Operations of a hold that the caller has in any case."""

    def called():
        return call()

    called.handle = hold
    return called


def entering(make):
    def call():
        with make():
            pass

    return call


OPERATIONS = [
    acquire, acquire_at_once, acquire_read, acquire_session, acquire_own, acquire_named, acquire_permit, acquire_several, campaign,
    acquire_compat, hold_release, lock_release, release_several, release_compat, extend, looks, enter, enter_session, enter_own,
    enter_permit, enter_several, enter_hold, enter_holds, enter_campaign, enter_compat, enter_twice, decorated, exit_with_error,
    observe,
]


def give_back(handle):
    with contextlib.suppress(rlock.NotHeld, redis.exceptions.LockError):
        handle.release()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.__name__)
def test_an_interrupt_at_any_boundary_leaves_nothing(server, operation, record_property, caplog):
    locks = rlock.Locks(server.client())
    rlock.Lock(locks, "first").acquire().release()
    places = []
    for at in range(1, 5000):
        call, raises, handle = operation(locks, f"k{at}"), Raises(at), None
        try:
            with raises:
                handle = call()
        except Interrupt:
            handle = getattr(call, "handle", None)
        if handle is not None:
            give_back(handle)
        del handle, call
        if raises.place is None:
            break
        places.append(raises.place)
    record_property("boundaries", at - 1)
    print(f"{operation.__name__}: {at - 1} boundaries")
    assert at > 20
    for n, place in enumerate(places, 1):
        for key in (f"k{n}", f"k{n}b"):
            until(f"nothing is left at {key} of the interrupt at {place}", lambda: server.holders(key) == [], 5)
            assert server.waiting(key) == 0
        # Nor does anything block the thread's next acquisition.
        hold = rlock.Lock(locks, f"k{n}").acquire(wait=5)
        assert hold is not None, place
        hold.release()
    assert locks.counts()[:2] == (0, 0)
    assert "another thread" not in caplog.text  # the package does it for the caller
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("rlock")]
    assert len(names) < 20, collections.Counter(names)
    locks.close()
