"""The connections of a client, and its requests: what both packages share.

Whatever waits for a server is a generator of steps (see _drive.py). Each package adds what a step waits for: how a
connection is opened, written to and read, and who else waits meanwhile.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Callable, Optional

from . import _core as core
from ._core import Space, Spaces, Steps, now
from ._drive import Job, redirected
from ._errors import Broken, Refused, Silent
from ._inbox import Inbox, Inboxes
from ._links import Address, Route, translated
from ._pool import Link
from ._telemetry import Telemetry


class Wire(Inboxes):
    """The input and output of the steps."""

    # What each package adds.
    _once: Callable[[], Any]
    _reader: Callable[..., Inbox]

    def __init__(self, route: Route, spaces: Spaces, telemetry: Telemetry, outage: float):
        self.telemetry, self.outage = telemetry, outage
        self.route, self.spaces, self.rtt = route, spaces, 0.0
        self.space: Optional[Space] = None
        self.is_draining = self.is_closing = self.is_closed = False
        self.crowd = self.worried = 0
        self.worries_at = 0.0
        self.reset()

    def reset(self) -> None:
        self.begin()
        self.pools: dict[Any, Any] = {}
        self.links: set[Link] = set()
        self.once = self._once()
        self.jobs: set[Job] = set()  # of calls under way

    def forked(self: Any) -> None:
        """The connections belong to the parent alone: holds that are tied to them end with it."""
        null = os.open(os.devnull, os.O_RDWR)
        for link in self.links:
            try:
                os.dup2(null, self.socket(link).fileno(), inheritable=False)
            except (AttributeError, OSError, ValueError):
                pass
        os.close(null)
        self.telemetry.forked()

    def keep(self: Any, link: Link) -> None:
        if self.is_closed or not link.is_open or not self._pool(link.address).give(link):
            self.drop(link)

    def unread(self: Any, link: Link, problem: Exception) -> Exception:
        """Drops the connection if the problem of reading from it is that it has ended. Returns the problem."""
        if isinstance(problem, Broken):
            self.drop(link)
            self.route.forget(link.address)
        return problem

    def identify(self: Any, key: str, until: float) -> Steps:
        """What the server of that key says that it is."""
        link = yield from self._opening(key, until, is_brief=True)
        self.keep(link)
        return self.route.told.get(link.address, [])

    def locate(self: Any, key: str, until: float) -> Steps:
        if self.route.is_cluster and not self.route.seeds:
            yield self.once.do("cluster", self._learn_cluster, until)
        if self.route.sentinel is not None and self.route.master is None:
            yield self.once.do("sentinel", self._ask_sentinel, until)
        return self.route.of(key)

    def _opening(
        self: Any, key: str, until: float, where: Optional[Address] = None, is_brief: bool = False, at: Optional[Address] = None
    ) -> Steps:
        """A connection: to the target of -ASK, to that address, or to the server of the key. `is_brief`: for a request
        that does not wait."""
        address = where or at or ((yield from self.locate(key, until)) if self.route.moves else None)
        while True:
            try:
                link = yield self._lend(address, is_brief, until)
            except Broken:
                self.route.forget(address)
                raise
            if self._is_usable(link):  # else the server has closed it
                break
            self.drop(link)
        if where is not None:
            yield self.write(link, ["ASKING"])
            yield self.read(link, until - now())
        return link

    def _dialing(self: Any, address: Optional[Address]) -> Steps:
        """A new connection."""
        if self.is_closed:
            raise Broken("the connections are closed")
        link, forks = Link(self.route.connection(address), address), core.forks
        self.links.add(link)
        try:
            yield self._connect(link)
            if core.forks != forks:
                # A child process has its socket as well: without this, the connection would not end with this process.
                self.socket(link).shutdown(socket.SHUT_RDWR)
                raise Broken("this process was forked meanwhile")
            if address not in self.route.told:
                yield from self._ask_what_it_is(link)
        except BaseException as error:
            self.drop(link)
            if not isinstance(error, Exception):
                raise
            raise translated(error, address) from error
        return link

    def _ask_what_it_is(self: Any, link: Link) -> Steps:
        said, sent = None, now()
        try:
            yield self.write(link, self.route.question)
            said = yield self.read(link, core.REPLY)
        except Refused as refused:
            if refused.code == "NOAUTH":  # to longer requests the server then answers something else
                raise
        self.rtt = now() - sent
        self.route.told[link.address] = identities = self.route.identities(said)
        if self.space is not None:
            self.spaces.join(identities, self.space)

    def _sending(self: Any, key: str, words: list[Any], until: float, inbox: Optional[Inbox]) -> Steps:
        at = inbox.link.address if inbox is not None else None
        where, hops = at if inbox is not None and inbox.asks else None, 0
        while True:
            link = yield from self._opening(key, until, where, True, at)
            sent = now()
            try:
                yield self.write(link, words)
                reply = yield self.read(link, self._left(until))
            except Refused as refused:
                where = refused.where = redirected(self, refused, link)
                self.keep(link)
                hops += 1
                if where is None or hops > 5 or inbox is not None:
                    raise
                continue
            except BaseException as error:
                self._fail(link, sent, error)
                raise
            self.keep(link)
            self.rtt = core.round_trip(self.rtt, now() - sent)
            return reply

    @staticmethod
    def _left(until: float) -> float:
        """How long to wait for a reply. Who had to wait for a thread, or for the loop, may have written too late."""
        left = until - now()
        return left if left > 0 else core.LATE

    def _fail(self: Any, link: Link, sent: float, error: BaseException) -> None:
        """After a request that was not answered."""
        self.drop(link)
        if isinstance(error, Broken):
            self.route.forget(link.address)
        if isinstance(error, Silent):
            self.distrust(link.address, sent)

    def closing(self: Any) -> Steps:
        """Ends the waits, gives what they left a moment to be undone, and closes all connections."""
        self.is_draining = self.is_closing = True
        for link in list(self.links):
            if link not in self._pool(link.address).idle:
                self.drop(link)
        yield self.sleep(0)  # a task whose connection ended finds that out
        end = now() + 1.0
        while self.jobs and now() < end:  # they have something to undo, or not
            yield self.sleep(0.005)
        yield self._wait_for_cleanup(end)
        self.is_closed = True
        self._stop_waiters()
        for link in list(self.links):
            self.drop(link)
        self.pools.clear()

    def _subscribing(self: Any, key: str, where: Optional[Address], name: Any) -> Steps:
        """Opens an inbox, unless another call has done so."""
        if self.is_new(name):
            link = yield from self._opening(key, now() + core.REPLY, where, at=name[0])
            self.inboxes[name] = self._reader(self, link, bool(where))
