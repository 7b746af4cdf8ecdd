"""Late replies: one subscription at each server, for all requests of a client that wait there."""

from __future__ import annotations

import collections
import itertools
import secrets
import threading
import weakref
from binascii import crc_hqx
from typing import Any, Callable, Optional

from redis import exceptions
from redis.crc import key_slot

from . import _core as core
from ._core import Steps, now
from ._errors import NoPermission, Refused, Unsent
from ._links import refused
from ._machine.words import LOST, Words

#: For each slot, a number that hashes to it: as many as have been needed so far.
_numbers: dict[int, int] = {}
_tried = itertools.count()
_ids = itertools.count(1)


def channel_of(name: str, slot: Optional[int]) -> str:
    """The channel for late replies to a client of that name; in a Cluster, to its requests for keys in that slot."""
    if slot is None:
        return f"rlock:tell:{name}"
    while slot not in _numbers:
        number = next(_tried)
        _numbers.setdefault(crc_hqx(b"%d" % number, 0) % 16384, number)
    return f"rlock:tell:{{{_numbers[slot]}}}:{name}"


class Post:
    """The late reply to one request, with an ID of its own."""

    __slots__ = ("inbox", "channel", "id", "came", "call")

    def __init__(self, inbox: "Inbox", channel: str):
        self.inbox, self.channel, self.id = inbox, channel, f"{next(_ids):x}"
        self.came: list[Words] = []
        self.call: Callable[[], Any] = int  # which does nothing
        inbox.posts[self.id] = self

    @property
    def words(self) -> list[Any]:
        """The arguments for the request. A message that comes before the first reply is kept here."""
        if self.channel not in self.inbox.on:
            self.put(LOST)
        return ["TELL", self.channel, self.id]

    def put(self, told: Words) -> None:
        self.came.append(told)
        self.call()

    def then(self, call: Callable[[], Any]) -> None:
        """Calls `call` when something has come; perhaps twice."""
        self.call = call
        if self.came:
            call()

    def take(self) -> Words:
        """What has come, once."""
        try:
            return self.came.pop(0)
        except IndexError:
            return ("time",)

    def forget(self) -> None:
        self.call = int
        self.inbox.posts.pop(self.id, None)


def said(text: str) -> Words:
    """The content of a message, without its ID."""
    kind, _, rest = text.partition(" ")
    if kind in ("token", "renewed"):
        return "message", "token", int(rest.split(" ")[0] or 1)
    if kind == "holder":
        token, _, owner = rest.partition(" ")
        return "message", "holder", int(token), owner
    if kind == "error":
        return "message", "refused", refused(exceptions.ResponseError(rest))
    return "message", "nil"


class Inbox:
    """The subscription at one server. Each package adds how it is read, written to and closed."""

    task: Any = None  # that reads it, if it is one
    write: Callable[[list[str]], None]
    close: Callable[[Any], None]

    def __init__(self, io: Any, link: Any, asks: bool):
        # When nobody refers to a client any more, its subscription ends as well.
        self.io, self.link, self.asks, self.since = weakref.proxy(io), link, asks, now()
        self.ends = weakref.finalize(io, self.close, link)
        self.ends.atexit = False
        self.is_over = False
        self.on: set[str] = set()  # the channels that are subscribed
        self.comers: dict[str, list[Post]] = {}  # the waits for a channel
        self.posts: dict[str, Post] = {}
        self.asked: collections.deque[Optional[str]] = collections.deque()  # what is not answered yet: a channel, or a ping
        self.pinged = self.since
        self.lock = threading.Lock()  # of the connection

    def subscribe(self, channel: str) -> Post:
        """Its post gets `listening` when the channel is subscribed."""
        post = Post(self, channel)
        with self.lock:
            if channel in self.on or self.is_over:
                post.put(LOST if self.is_over else ("listening",))
            else:
                comers = self.comers.setdefault(channel, [])
                comers.append(post)
                if len(comers) == 1:
                    self.asked.append(channel)
                    self.write(["SSUBSCRIBE", channel])
        return post

    def looks(self) -> None:
        """While somebody waits here: if nothing has come for a while, asks the server for a sign of life; ends if the
        server is silent."""
        time = now()
        if time - max(self.pinged, self.link.used) < core.LOOKS or self.is_over:
            return
        with self.lock:
            if None not in self.asked:
                self.pinged = now()
                self.asked.append(None)
                return self.write(["PING"])
        if time - max(self.pinged, self.link.used) > core.REPLY:
            self.io.drop(self.link)

    def hear(self, message: Any) -> None:
        """Handles a message, or an error of the server."""
        kind, channel = (message[0], message[1]) if isinstance(message, list) else (message, None)
        if kind == "smessage":
            id, _, text = message[2].partition(" ")
            if (post := self.posts.pop(id, None)) is not None:
                post.put(said(text))
        elif kind == "sunsubscribe":  # the slot has moved
            self.on.discard(channel)
            self.end(channel)
        else:
            with self.lock:
                asked = self.asked.popleft() if self.asked else None
                if channel is not None and kind == "ssubscribe":
                    self.on.add(channel)
                comers = self.comers.pop(asked, []) if asked is not None else []
            for post in comers:
                post.put(("refused", kind) if isinstance(kind, Refused) else ("listening",))

    def end(self, channel: Optional[str] = None) -> None:
        """Ends the posts of that channel, or of all channels."""
        for post in list(self.posts.values()):
            if channel in (None, post.channel):
                post.put(LOST)

    def over(self) -> None:
        """The connection has ended."""
        self.is_over = True
        self.on.clear()
        if self.ends.detach() is not None:
            self.io.drop(self.link)
        self.end()


class Inboxes:
    """The inboxes of a client: one at each server, and one for each channel that was needed at the target of -ASK."""

    def begin(self) -> None:
        """Gives this client a new name and no inboxes: called for a new client, and in a child process."""
        self.name = secrets.token_hex(8)
        self.plain = channel_of(self.name, None)
        self.inboxes: dict[Any, Inbox] = {}

    def channel(self: Any, key: str) -> str:
        return channel_of(self.name, key_slot(core.raw(key))) if self.route.has_slots else self.plain

    def hears(self: Any, key: str) -> Optional[Inbox]:
        """The inbox where a request would be sent now, if the channel of that key is subscribed there."""
        inbox = self.inboxes and self.inboxes.get((self.route.of(key), None))
        return inbox if inbox and self.channel(key) in inbox.on else None

    def inbox(self: Any, key: str, until: float, where: Any, at: Any) -> Steps:
        """The inbox at the target of -ASK, at that address, or at the server of the key."""
        address = where or at or ((yield from self.locate(key, until)) if self.route.moves else None)
        name = address, self.channel(key) if where else None
        if self.is_new(name):
            # A connection that broke at once is not replaced at once: otherwise, all waits would subscribe and ask
            # without a pause.
            if name in self.inboxes and now() - self.inboxes[name].since < core.DIALS:
                raise Unsent("the subscription broke")
            yield self.once.do(("inbox", *name), lambda: self.run(self._subscribing(key, where, name)), until)
        return self.inboxes[name]

    def is_new(self, name: Any) -> bool:
        return name not in self.inboxes or self.inboxes[name].is_over

    def stop(self: Any) -> None:
        """From now on, nothing new is acquired. Each wait looks at this, and ends."""
        self.is_draining = True
        for inbox in list(self.inboxes.values()):
            inbox.end()

    def is_done(self: Any, job: Any) -> bool:
        """Whether there is nothing to undo."""
        if job.is_over:
            self.jobs.discard(job)
        return job.is_over  # type: ignore[no-any-return]

    def leave(self: Any, job: Any) -> Steps:
        """The seat is free again when nothing is left to undo, for which the call waits a moment."""
        job.seat.is_undone = True
        self.jobs.discard(job)
        yield self.lasts(self.later(self._undo(job)), core.LATE)

    def _undo(self: Any, job: Any) -> Steps:
        space = self.space
        try:
            yield from job.undo()
        finally:
            space.vacate(job.seat)

    def _takes(self: Any, seat: Any) -> Steps:
        """Whether a seat is free."""
        is_free = False
        self.space.use(seat)
        try:
            is_free = yield from seat.take(self, 0)
        finally:
            if not is_free:
                self.space.leave(seat)
        return is_free

    def distrust(self: Any, address: Any, since: float) -> None:
        """One connection was silent: others that have received nothing since then may be so as well."""
        ours = [each.link for each in self.inboxes.values() if each.link.address == address and each.link.used < since]
        for link in ours + self._pool(address).silent_since(since):
            self.drop(link)


def listens(io: Any, key: str, until: float, where: Any = None, at: Any = None) -> Steps:
    """The inbox at the server of that key, subscribed to its channel; with `where`, at the target of -ASK, or at that
    address."""
    inbox = yield from io.inbox(key, until, where, at)
    channel = io.channel(key)
    if channel in inbox.on:
        return inbox
    post, sent = inbox.subscribe(channel), now()
    try:
        told = yield io.told(post, until - now())
    finally:
        post.forget()
    if told == ("time",):
        io.distrust(inbox.link.address, sent)
    if told[0] == "refused":
        if told[1].code == "NOPERM":
            raise NoPermission("NOPERM", f"{told[1]}: to wait, a user needs +ssubscribe +sunsubscribe +ping and the channels &rlock:tell:*")
        io.route.redirected(told[1], inbox.link.address)
        raise told[1].with_traceback(None)
    if told != ("listening",):
        raise Unsent("not subscribed in time")
    return inbox


def awaits(io: Any, key: str, token: Optional[int], block: int, where: Any) -> Steps:
    """Asks for the holder whose token is not that one. Returns it in the form of a message; if there is none yet, the
    post to which the late reply comes."""
    if token is None:
        reply = yield io.send(key, ["RLOCK.AWAIT", key, 0], now() + core.REPLY)
        return "message", "holder", *(reply or (0, ""))
    inbox = yield from listens(io, key, now() + core.REPLY, where)
    post = Post(inbox, io.channel(key))
    try:
        reply = yield io.send(key, ["RLOCK.AWAIT", key, token, "BLOCK", block, *post.words], now() + core.REPLY, inbox)
        if reply == "WAITING":
            return post
    except BaseException:
        post.forget()
        raise
    post.forget()
    return ("message", "nil") if reply is None else ("message", "holder", reply[0], reply[1] or "")
