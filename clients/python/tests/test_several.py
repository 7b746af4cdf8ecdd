"""Several locks in one step, and elections, on a real server."""

import asyncio
import threading
import time
import uuid

import pytest
import redis
import redis.asyncio
from support import interrupted_after, lock_info, one_server, until

import rlock
import rlock.asyncio
from rlock import limit, read

server = one_server


def held(server, *keys):
    return [[token for _, token in server.holders(key)] for key in keys]


def test_all_or_none_with_one_token(server):
    locks = rlock.Locks(server.client())
    with locks.all("b", "a", read("c"), limit("p", 20)) as hold:
        assert held(server, "a", "b", "c", "p") == [[hold.token]] * 4 and hold.held
        assert hold.tokens == dict.fromkeys("abcp", hold.token) and 29 < hold.left <= 30
        assert locks.all("d", "a", owner="other").acquire(wait=0) is None
        assert held(server, "d") == [[]]
        assert rlock.ReadLock(locks, "c", owner="other").acquire(wait=0) is not None
    assert held(server, "a", "b", "p") == [[], [], []]
    with pytest.raises(rlock.NotHeld):
        hold.release()


def test_a_hold_shows_what_it_is(server):
    locks = rlock.Locks(server.client())
    with rlock.Lock(locks, "a", owner="me") as one, locks.all("b", "c", owner="me") as all_:
        assert repr(one) in [f"<'a' held by me, token {one.token}, {left} s left>" for left in ("30.0", "29.9", "29.8")]
        assert repr(all_).startswith(f"<'b', 'c' held by me, token {all_.token}, ")
    assert repr(one) == f"<'a' held by me, token {one.token}, 0.0 s left>"


def test_a_check_says_what_is_wrong(server):
    locks = rlock.Locks(server.client())
    locks.check("k")
    with rlock.Lock(locks, "k"):
        locks.check("k")
    server.ask("ACL", "SETUSER", "deaf", "on", ">secret", "~*", "+@all", "-ssubscribe")
    deaf = rlock.Locks(server.client(username="deaf", password="secret"))
    with pytest.raises(rlock.NoPermission):
        deaf.check("k")
    assert held(server, "k") == [[]]

    async def main():
        client = server.client(redis.asyncio.Redis, username="deaf", password="secret")
        with pytest.raises(rlock.NoPermission):
            await rlock.asyncio.Locks.of(client).check("k")
        await rlock.asyncio.Locks.of(client).aclose()
        await client.aclose()
        client = server.client(redis.asyncio.Redis)
        await rlock.asyncio.Locks.of(client).check("k")
        await rlock.asyncio.Locks.of(client).aclose()
        await client.aclose()

    asyncio.run(main())
    assert held(server, "k") == [[]]


def test_names_are_merged_or_refused(server):
    locks = rlock.Locks(server.client())
    with locks.all("a", b"a", "b") as hold:
        assert hold.keys == ["a", "b"]
    for keys in (("a", read("a")), (read("a"), limit("a", 2)), (), [str(each) for each in range(129)]):
        with pytest.raises(ValueError):
            locks.all(*keys)
    locks.io.route.is_cluster = True
    with pytest.raises(ValueError, match="several slots"):
        locks.all("a", "b")
    locks.all("{a}1", "{a}2")


def test_a_key_that_is_no_text_is_refused(server):
    locks = rlock.Locks(server.client())
    for key in (3.5, 3, True, None, uuid.UUID(int=5), bytearray(b"k")):
        for make in (rlock.Lock, rlock.ReadLock, rlock.Locks.all, rlock.Locks.election):
            with pytest.raises(TypeError, match=f"not {type(key).__name__}"):
                make(locks, key)


def test_waits_and_reserves_nothing_behind(server):
    locks = rlock.Locks(server.client())
    first = rlock.Lock(locks, "b", owner="first").acquire()
    got = []
    threads = [threading.Thread(target=lambda n=n: got.append(locks.all("a", "b", owner=f"w{n}").acquire(wait=10))) for n in range(3)]
    for each in threads:
        each.start()
    until("all three wait", lambda: server.waiting("b") + server.waiting("a") >= 3)
    assert held(server, "a") == [[]]
    assert locks.all("a", "b", owner="late").acquire(wait=0.05) is None
    first.release()
    for n in range(3):
        until("the next is granted", lambda: len(got) > n)
        got[n].release()
    for each in threads:
        each.join()
    assert held(server, "a", "b") == [[], []] and len({each.token for each in got}) == 3


def test_what_the_owner_holds_is_entered_once_more(server):
    locks = rlock.Locks(server.client())
    with rlock.Lock(locks, "a") as outer:
        with locks.all("a", "b") as both:
            assert both.token > outer.token and both.tokens == {"a": outer.token, "b": both.token}
            with rlock.Lock(locks, "b") as inner:
                assert inner.token == both.token
                with locks.all("a", "b") as again:
                    assert again.token == both.token
            assert both.held
            with pytest.raises(rlock.NotHeld, match="together"):
                rlock.Lock(locks, "b").release()
        assert held(server, "a", "b") == [[outer.token], []] and outer.held
    assert held(server, "a") == [[]]


def test_a_level_above_ends_with_them(server):
    locks = rlock.Locks(server.client())
    both = locks.all("a", "b").acquire()
    inner = rlock.Lock(locks, "a").acquire()
    both.release()
    assert inner.lost.is_set() and not inner.held
    with pytest.raises(rlock.LockLost):
        inner.release()
    assert held(server, "a", "b") == [[], []]


def test_one_that_ends_loses_all_and_the_rest_is_released(server):
    locks = rlock.Locks(server.client())
    hold = locks.all("a", "b", lease=3).acquire()
    calls = []
    hold.on_lost(lambda: calls.append(1))
    server.ask("RLOCK.FORCE", "b")
    assert hold.lost.wait(2) and not hold.held
    until("it is told", lambda: calls == [1])
    with pytest.raises(rlock.LockLost):
        hold.release()
    assert held(server, "a") == [[]]
    with locks.all("a", "b"):
        pass


def test_a_release_that_finds_less_is_a_loss(server):
    locks = rlock.Locks(server.client())
    hold = locks.all("a", "b").acquire()
    server.ask("RLOCK.FORCE", "a")
    with pytest.raises(rlock.LockLost):
        hold.release()
    assert held(server, "b") == [[]]


def test_they_are_renewed(server):
    locks = rlock.Locks(server.client())
    hold = locks.all("a", read("b"), lease=0.6).acquire()
    end = time.monotonic() + 1.5
    until("more than two leases have passed", lambda: time.monotonic() > end)
    assert hold.held and held(server, "a", "b") == [[hold.token]] * 2
    hold.extend(60)
    assert hold.left > 59
    hold.release()


def test_a_read_lock_or_a_permit_among_them_may_be_entered_once_more(server):
    locks = rlock.Locks(server.client())
    with locks.all(read("a"), limit("p", 2)) as hold:
        for again in (rlock.ReadLock(locks, "a"), rlock.Permit(locks, "p", 2), locks.all(read("a"), "b")):
            with again:
                pass
            assert hold.held
    assert held(server, "a", "b", "p") == [[], [], []]


async def test_a_read_lock_among_them_may_be_entered_once_more_by_a_task(server):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))
    async with locks.all(read("a"), "b") as hold:
        async with rlock.asyncio.ReadLock(locks, "a"):
            pass
        assert hold.held
    assert held(server, "a", "b") == [[], []]
    await locks.aclose()


def leases(server, *keys):
    """In seconds."""
    return [[each["ttl-ms"] / 1000 for each in lock_info(server.one.address, key)["holders"]] for key in keys]


def test_extend_extends_them_all(server):
    locks = rlock.Locks(server.client())
    with locks.all(read("a"), "b", limit("c", 2), lease=5, renew=False) as hold:
        hold.extend(60)
        assert hold.left > 59 and all(59 < each <= 60 for each, in leases(server, "a", "b", "c"))
        with rlock.Lock(locks, "b", lease=5) as inner:
            inner.extend(120)
            assert inner.left > 119 and all(119 < each <= 120 for each, in leases(server, "a", "b", "c"))


async def test_extend_extends_them_all_for_a_task(server):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))
    async with locks.all(read("a"), "b", lease=5, renew=False) as hold:
        await hold.extend(60)
        assert hold.left > 59 and all(59 < each <= 60 for each, in leases(server, "a", "b"))
    await locks.aclose()


@pytest.mark.parametrize("how", ["cut", "mute"])
@pytest.mark.parametrize("wait", [0, 5])
def test_a_lost_reply_is_asked_for_again(server, wait, how):
    locks = rlock.Locks(server.client())
    with rlock.Lock(locks, "warm"):
        pass
    server.proxy.fault({"proxy": how, "of": "RLOCK.MACQUIRE"})
    hold = locks.all("a", "b").acquire(wait=wait)
    assert hold.held and held(server, "a", "b") == [[hold.token]] * 2
    hold.release()
    assert held(server, "a", "b") == [[], []]


def test_what_a_wait_that_gave_up_may_have_left_is_undone(server):
    locks = rlock.Locks(server.client(), patience=0.3)
    with rlock.Lock(locks, "warm"):
        pass
    server.proxy.fault({"proxy": "cut", "of": "RLOCK.MACQUIRE", "times": 99})
    with pytest.raises(rlock.Unavailable):
        locks.all("a", "b").acquire(wait=0)
    server.proxy.fault({"proxy": "heal"})
    until("it is undone", lambda: held(server, "a", "b") == [[], []], 5)


def test_a_session_ends_with_all(server):
    locks = rlock.Locks(server.client())
    hold = locks.all("a", "b", session=True).acquire()
    server.ask("RLOCK.FORCE", "b")
    assert hold.lost.wait(1)
    until("the other ends with it", lambda: held(server, "a") == [[]])
    with pytest.raises(rlock.LockLost):
        hold.release()


def test_elections(server):
    locks = rlock.Locks(server.client())
    election = locks.election("leader", name="10.0.0.1:8443")
    assert election.leader() is None
    told, seen = [], threading.Thread(target=lambda: [told.append((time.monotonic(), each)) for each in observer])
    observer = election.observe()
    seen.start()
    until("it is told who leads at first", lambda: [each for _, each in told] == [None])
    first = election.campaign()
    until("the leader is seen", lambda: len(told) == 2)
    assert told[1][1].name == "10.0.0.1:8443" and told[1][1] == election.leader() == (first.token, first.owner)
    assert election.campaign(wait=0) is None, "nobody leads twice"
    second = []
    waits = threading.Thread(target=lambda: second.append(election.campaign(wait=10)))
    waits.start()
    until("the second waits", lambda: server.waiting("leader") == 1)
    begun = time.monotonic()
    (leads,) = lock_info(server.one.address, "leader")["holders"]
    server.ask("CLIENT", "KILL", "ID", leads["session"])
    assert first.lost.wait(1) and not first.held
    waits.join()
    until("followers see it", lambda: told[-1][1] == (second[0].token, second[0].owner))
    assert told[-1][0] - begun < 1
    with pytest.raises(rlock.LockLost):
        first.release()
    begun = time.monotonic()
    second[0].release()
    until("nobody leads", lambda: told[-1][1] is None)
    assert told[-1][0] - begun < 1
    observer.close()
    seen.join(3)
    assert not seen.is_alive()


def test_an_interrupt_in_a_release_keeps_none(server):
    locks = rlock.Locks(server.client(), patience=10)
    with rlock.Lock(locks, "a"):
        hold = locks.all("a", "b").acquire()  # the level at `a` is released by itself, before `b`
        server.proxy.fault({"proxy": "keep", "of": "RLOCK.RELEASE"})
        with interrupted_after(0.3):
            hold.release()
        until("the other is released", lambda: held(server, "b") == [[]], 5)


async def test_a_cancelled_release_keeps_none(server):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis), patience=10)
    outer = await rlock.asyncio.Lock(locks, "a").acquire()
    hold = await locks.all("a", "b").acquire()
    server.proxy.fault({"proxy": "keep", "of": "RLOCK.RELEASE"})
    releases = asyncio.create_task(hold.release())
    await asyncio.to_thread(server.proxy.fault, {"proxy": "kept"})
    releases.cancel()
    with pytest.raises(asyncio.CancelledError):
        await releases
    await asyncio.to_thread(until, "the other is released", lambda: held(server, "b") == [[]], 5)
    await outer.release()
    await locks.aclose()


async def test_an_acquisition_that_is_cancelled_twice_keeps_none(server):
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis), patience=10)
    outer = [await rlock.asyncio.Lock(locks, key, owner="me").acquire() for key in "ac"]
    server.proxy.fault({"proxy": "keep", "of": "$1\r\nc\r\n"})  # the second level at `c`, after that at `a`
    server.proxy.fault({"proxy": "keep", "of": "RLOCK.RELEASE", "times": 2})  # what undoes both
    acquires = asyncio.create_task(locks.all("a", "b", "c", owner="me").acquire())
    await asyncio.to_thread(server.proxy.fault, {"proxy": "kept"})
    for kept in (1, 3):
        async with asyncio.timeout(10):
            while len(server.proxy.kept) < kept:
                await asyncio.sleep(0.01)
        acquires.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acquires
    await asyncio.to_thread(until, "the other is released", lambda: held(server, "b") == [[]], 5)
    for each in outer:
        await each.release()
    await locks.aclose()


async def test_asyncio(server):
    client = server.client(redis.asyncio.Redis)
    locks = rlock.asyncio.Locks(client)
    async with rlock.asyncio.Lock(locks, "a") as outer:
        async with locks.all("a", "b", read("c")) as hold:
            assert held(server, "a", "b", "c") == [[outer.token], [hold.token], [hold.token]]
            assert await locks.all("b", "d", owner="other").acquire(wait=0.05) is None
            waits = asyncio.create_task(locks.all("b", "d", owner="other").acquire(wait=10))
            while server.waiting("b") == 0:
                await asyncio.sleep(0.01)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            while server.waiting("b") > 0:
                await asyncio.sleep(0.01)
    assert held(server, "a", "b", "c", "d") == [[], [], [], []]
    hold = await locks.all("a", "b", lease=3).acquire()
    server.ask("RLOCK.FORCE", "b")
    await asyncio.wait_for(hold.lost.wait(), 2)
    with pytest.raises(rlock.LockLost):
        await hold.release()
    election, told = locks.election("leader"), []
    async with election.observe() as observer:
        assert await anext(observer) is None
        leads = await election.campaign()
        assert await anext(observer) == (leads.token, leads.owner) == await election.leader()
        await leads.release()
        assert await anext(observer) is None
    await locks.aclose()
    await client.aclose()


def test_a_number_of_permits_that_is_missing_is_no_limit():
    for most in (None, "2", 1.5):
        with pytest.raises(TypeError, match="a limit must be an integer"):
            limit("p", most)


def test_an_observer_may_be_closed_at_any_moment(server, monkeypatch):
    for name in ("send", "told"):
        locks = rlock.Locks(server.client())
        changes, call = locks.election("leader").observe(), getattr(locks.io, name)

        def closing(*words):
            if name == "told":
                changes.close()  # as another thread would
            result = call(*words)
            changes.close()
            return result

        with monkeypatch.context() as patch:
            patch.setattr(locks.io, name, closing)
            assert list(changes) == ([] if name == "send" else [None])
        assert not any(inbox.posts for inbox in locks.io.inboxes.values())
        locks.close()
        assert locks.io.links == set()
