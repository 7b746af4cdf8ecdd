"""The words of the machines, and their constants, in ms."""

from __future__ import annotations

from typing import Any, Generator, Optional

#: A tuple whose first element says what it is, and whose others are details: a number, a flag, or None.
Words = tuple[Any, ...]
Steps = Generator[Words, Any, Any]

FOREVER = float("inf")
#: How long a reply may take.
REPLY = 2000
#: How long a reply may be late at the end of the patience, and how long a caller waits for undoing.
LATE = 50
#: The average pause before the next connection to a server that could not be reached.
DIALS = 200
#: How often a waiting request is sent again: a lost message costs at most this much time.
LOOKS = 1000
#: The same with ACKS: a request that is sent again begins to wait for acknowledgments anew.
ACKS = 3 * REPLY
#: With ACKS, a request ends at most this long before the wait does: so its message, with the reason, comes in time.
AHEAD = 250
FIRST_PAUSE, LONGEST_PAUSE = 10, 500
#: After this time, a server that was suspended has read what its sockets had received.
AGAIN = 500
#: How long undoing may take after `close`.
CLOSES = 1000
#: How long a request that does not wait for the lock waits for another request of the same owner.
SOON = 2 * LATE
#: How many redirections an attempt follows without a pause.
HOPS = 5
#: Errors whose condition ends by itself: no server can decide for now.
PASSING = {"UNBLOCKED", "READONLY", "LOADING", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "NOREPLICAS", "MASTERDOWN"}

NIL, LOST, RELEASED, UNAVAILABLE, WAITING = ("nil",), ("lost",), ("released",), ("unavailable",), ("waiting",)
NOTHELD = ("refused", "NOTHELD")


def come(now: float, is_undone: bool, wait: float, patience: float, outage: float) -> tuple[float, Words]:
    """How long a request waits for an occupied seat, and the result if it stays occupied. Undoing ends by itself, so
    requests wait for that, but no longer than they wait without a server."""
    if not is_undone:
        return now + (wait or SOON), NIL
    return now + min(outage, wait or patience), UNAVAILABLE


def is_unknown(outcome: Words) -> bool:
    """Whether the request may have been executed, or may still be."""
    return outcome[0] in ("broken", "silent")


#: How a request ended.
OUTCOMES = {"token", "nil", "waiting", "refused", "unsent", "broken", "silent"}
#: Returned between a grant and the caller's taking it.
GRANT = ("grant",)
OVER = ("over",)
#: To ask once more.
AGAIN_NOW = ("again",)
#: What ends an operation.
ENDS = {
    "start": {"call"}, "grant": {"taken"}, "over": set[str](), "open": {"opened", *OUTCOMES}, "own": {"own"}, "send": OUTCOMES,
    "await": OUTCOMES, "listen": {"listening", *OUTCOMES}, "wait": {"message", "lost", "time", "own"}, "sleep": {"time"},
}


def passed(outcome: Words) -> Optional[bool]:
    """After a failure: False if a retry may help, else None."""
    return None if outcome[0] == "refused" and outcome[1] not in PASSING else False
