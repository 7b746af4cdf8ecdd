"""A program written for redis-py's Lock, before and after its migration; the pages show what has changed."""

import difflib
import importlib
import pathlib
import sys
import threading

import pytest
from redis.exceptions import LockError
from support import one_server, until

server = one_server
here = pathlib.Path(__file__).parent
sys.path.insert(0, str(here))
kinds = pytest.mark.parametrize("kind", ["before", "after"])


def booking(kind, server):
    return importlib.import_module(f"moved.{kind}").Booking(server.client(decode_responses=True))


@kinds
def test_one_buyer_gets_the_seat(server, kind):
    shop, outcomes = booking(kind, server), []
    threads = [threading.Thread(target=lambda name=name: outcomes.append((shop.buy("A1", name), name))) for name in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 6 and [name for is_mine, name in outcomes if is_mine] == [shop.client.get("seat:A1")]


@kinds
def test_a_reserved_seat_cannot_be_bought_until_it_is_paid(server, kind):
    shop, charged = booking(kind, server), []
    lock = shop.reserve("A1")
    assert shop.reserve("A1") is None
    with pytest.raises(LockError):
        shop.buy("A1", "b")
    assert shop.pay(lock, "A1", "a", charged.append) and charged == ["a"]
    assert not shop.buy("A1", "b")
    assert not shop.pay(lock, "A1", "a", charged.append)  # it was released


@kinds
def test_a_reservation_ends_by_itself(server, kind):
    shop, charged = booking(kind, server), []
    lock = shop.reserve("A1")
    until("it has ended", lambda: shop.client.exists("lock:A1") == 0)
    assert not shop.pay(lock, "A1", "a", charged.append) and charged == []
    assert shop.buy("A1", "b")


def test_the_page_shows_what_has_changed():
    before, after = ((here / "moved" / f"{name}.py").read_text().splitlines() for name in ("before", "after"))
    diff = list(difflib.unified_diff(before, after, lineterm="", n=0))[2:]
    shown = [line for line in diff if not line.startswith("@@")]
    page = (here.parents[2] / "docs/coming-from/set-nx.md").read_text()
    assert "```diff\n" + "\n".join(shown) + "\n```" in page
