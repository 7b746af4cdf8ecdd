"""The blocking input and output of the steps: the package's own connections, and late replies."""

from __future__ import annotations

import os
import random
import selectors
import threading
import time
from typing import Any, Callable, Optional

from redis import exceptions

from . import _core as core
from ._core import Seat, Space, Spaces, Steps, now
from ._drive import Job, redirected
from ._errors import Broken, Refused, Silent, Unsent
from ._hands import acquires, happens
from ._inbox import Inbox, Inboxes, Post
from ._links import Address, Route, packed, translated
from ._machine.words import Words
from ._pool import Link, Pool
from ._telemetry import Telemetry


def run(steps: Steps) -> Any:
    """Runs steps in which a call of `io` has done its work when it returns."""
    try:
        value = next(steps)
        while True:
            value = steps.send(value)
    except StopIteration as stop:
        return stop.value
    except BaseException as error:
        # A signal may raise here as well as in a step: steps clean up after themselves.
        if getattr(steps, "gi_frame", None) is not None:
            steps.throw(error)
        raise


def _stays_closed(*_: Any, **__: Any) -> None:
    raise ConnectionError("the connection was closed")


class Once:
    """Work that may take long, and that one thread does for all callers that need it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: dict[Any, Once.Run] = {}
        self.failed: dict[Any, tuple[float, str]] = {}

    class Run:
        def __init__(self) -> None:
            self.is_over = threading.Event()
            self.error: Optional[Exception] = None

    def do(self, name: Any, work: Callable[[], Any], until: float) -> None:
        """Waits for the work. Raises Broken if it failed a moment ago for other callers, or is not done in time; then
        the work continues."""
        with self.lock:
            run = self.running.get(name)
            if run is None:
                again_at, error = self.failed.get(name, (0.0, ""))
                if now() < again_at:
                    raise Unsent(error)
                run = Once.Run()
                # Started first: after an interrupt, there must be no name that nobody works for.
                threading.Thread(target=self._work, args=(name, work, run), name="rlock-dial", daemon=True).start()
                self.running[name] = run
        if not happens(run.is_over.wait, until - now()):
            raise Unsent("not connected in time")
        if isinstance(run.error, Broken):
            raise Unsent(str(run.error))
        if run.error is not None:
            raise run.error.with_traceback(None)

    def _work(self, name: Any, work: Callable[[], Any], run: "Once.Run") -> None:
        try:
            work()
            self.failed.pop(name, None)
        except Exception as error:
            run.error = translated(error)
            if isinstance(run.error, Broken):
                self.failed[name] = (now() + core.DIALS * (0.5 + random.random()), str(run.error))
        finally:
            with self.lock:
                self.running.pop(name, None)
            run.is_over.set()


class IO(Inboxes):
    """The blocking input and output of the steps, for any number of threads."""

    def __init__(self, route: Route, spaces: Spaces, telemetry: Telemetry, outage: float):
        self.telemetry, self.outage = telemetry, outage
        self.route, self.spaces, self.rtt = route, spaces, 0.0
        self.space: Optional[Space] = None
        self.is_draining = self.is_closing = self.is_closed = False
        self.crowd = self.worried = 0
        self.worries_at = 0.0
        self.reset()

    def reset(self) -> None:
        self.pools: dict[Any, Pool] = {}
        self.links: set[Link] = set()
        self.once = Once()
        self.jobs: set[Job] = set()  # of calls under way
        self.cleaning: set[threading.Event] = set()
        self.begin()

    def forked(self) -> None:
        """The connections belong to the parent alone: holds that are tied to them end with it."""
        null = os.open(os.devnull, os.O_RDWR)
        for link in self.links:
            try:
                os.dup2(null, link.conn._sock.fileno(), inheritable=False)
            except (AttributeError, OSError, ValueError):
                pass
        os.close(null)
        self.telemetry.forked()
        self.reset()

    @staticmethod
    def sleep(pause: float) -> None:
        happens(time.sleep, pause)

    def locate(self, key: str, until: float) -> Optional[Address]:
        if self.route.is_cluster and not self.route.seeds:
            self.once.do("cluster", self.route.take_cluster, until)
        if self.route.sentinel is not None and self.route.master is None:
            self.once.do("sentinel", self._ask_sentinel, until)
        return self.route.of(key)

    def _ask_sentinel(self) -> None:
        sentinel: Any = self.route.sentinel
        self.route.master = sentinel.get_master_address()

    def open(
        self, key: str, until: float, where: Optional[Address] = None, is_brief: bool = False, at: Optional[Address] = None
    ) -> Link:
        """A connection: to the target of -ASK, to that address, or to the server of the key. `is_brief`: for a request
        that does not wait."""
        address = where or at or (self.locate(key, until) if self.route.moves else None)
        while True:
            try:
                link = self._pool(address).take(is_brief, until)
            except Broken:
                self.route.forget(address)
                raise
            # A connection that has been idle for a moment may have been closed by the server.
            if now() - link.used < 0.5 or self._is_quiet(link):
                return link if where is None else self._asking(link, until)
            self.drop(link)

    def _pool(self, address: Optional[Address]) -> Pool:
        pool = self.pools.get(address)
        if pool is None:
            pool = self.pools.setdefault(address, Pool(lambda: self._dial(address), self.keep))
        return pool

    def _dial(self, address: Optional[Address]) -> Link:
        if self.is_closed:
            raise Broken("the connections are closed")
        conn, forks = self.route.connection(address), core.forks
        try:
            conn.connect()
        except Exception as error:
            raise translated(error, address) from error
        link = Link(conn, address)
        self.links.add(link)
        try:
            if core.forks != forks:
                # A child process has its socket as well: the connection would not end with this process.
                raise Broken("this process was forked meanwhile")
            if address not in self.route.told:
                self._ask_what_it_is(link)
        except (Broken, Refused):
            self.drop(link)
            raise
        return link

    def _ask_what_it_is(self, link: Link) -> None:
        said, sent = None, now()
        try:
            self.write(link, self.route.question)
            said = self.read(link, core.REPLY)
        except Refused as refused:
            if refused.code == "NOAUTH":  # to longer requests the server then answers something else
                raise
        self.rtt = now() - sent
        self.route.told[link.address] = identities = self.route.identities(said)
        if self.space is not None:
            self.spaces.join(identities, self.space)

    def _asking(self, link: Link, until: float) -> Link:
        self.write(link, ["ASKING"])
        self.read(link, until - now())
        return link

    def identify(self, key: str, until: float) -> list[str]:
        link = self.open(key, until, is_brief=True)
        self.keep(link)
        return self.route.told.get(link.address, [])

    def _is_quiet(self, link: Link) -> bool:
        try:
            return not link.conn.can_read(0)
        except Exception:
            return False

    def write(self, link: Link, *requests: list[Any]) -> None:
        try:
            link.conn.send_packed_command([b"".join(map(packed, requests))], check_health=False)
        except Exception as error:
            self.drop(link)
            self.route.forget(link.address)
            raise translated(error, link.address) from error

    def read(self, link: Link, timeout: float) -> Any:
        """Raises Silent if nothing arrives in time; the link is still open then."""
        try:
            # Within REPLY, which is the connection's own timeout, no separate check is needed.
            if not core.REPLY - 0.01 < timeout <= core.REPLY and not happens(link.conn.can_read, timeout):
                raise Silent(f"no reply within {timeout:.1f} s")
            reply = link.conn.read_response(disconnect_on_error=False)
        except exceptions.TimeoutError:
            raise Silent(f"no reply within {timeout:.1f} s") from None
        except Broken:
            raise
        except (AttributeError, ValueError) as error:  # closed by another thread meanwhile
            self.drop(link)
            raise Broken("the connection was closed") from error
        except Exception as error:
            problem = translated(error, link.address)
            if isinstance(problem, Broken):
                self.drop(link)
                self.route.forget(link.address)
            raise problem from error
        link.used = now()
        return reply

    def send(self, key: str, words: list[Any], until: float, inbox: Optional[Inbox] = None) -> Any:
        """Returns the reply. If the late reply comes to that inbox, the request goes to the inbox's server."""
        at = inbox.link.address if inbox is not None else None
        where, hops = at if inbox is not None and inbox.asks else None, 0
        while True:
            if now() >= until:  # it had to wait for a thread
                raise Unsent("not sent in time")
            link = self.open(key, until, where, is_brief=True, at=at)
            sent = now()
            (reply,) = self._answers(link, [words], until)
            if not isinstance(reply, Refused):
                self.keep(link)
                self.rtt = core.round_trip(self.rtt, now() - sent)
                return reply
            where = reply.where = redirected(self, reply, link)
            self.keep(link)
            hops += 1
            if where is None or hops > 5 or inbox is not None:
                raise reply

    def send_all(self, asked: list[tuple[str, list[Any], float, Optional[Inbox]]]) -> list[Any]:
        """Sends several requests to one server. Returns for each what `send` would return or raise."""
        until = max(each[2] for each in asked)
        if now() >= until:
            raise Unsent("not sent in time")
        link = self.open(asked[0][0], until, is_brief=True)
        replies = self._answers(link, [each[1] for each in asked], until)
        elsewhere = [n for n, each in enumerate(replies) if isinstance(each, Refused) and redirected(self, each, link) is not None]
        self.keep(link)
        for n in elsewhere:
            if asked[n][3] is not None:
                continue
            try:
                replies[n] = self.send(*asked[n])
            except (Broken, Refused) as error:
                replies[n] = error
        return replies

    def _answers(self, link: Link, requests: list[list[Any]], until: float) -> list[Any]:
        """Returns the server's answer to each, which may be an error."""
        sent, replies = now(), list[Any]()
        try:
            self.write(link, *requests)
            for _ in requests:
                try:
                    replies.append(self.read(link, until - now()))
                except Refused as refused:
                    replies.append(refused)
        except BaseException as error:
            self.drop(link)
            self.route.forget(link.address)
            if isinstance(error, Silent):
                self.distrust(link.address, sent)
            raise
        return replies

    def keep(self, link: Link) -> None:
        if self.is_closed or not link.is_open or not self._pool(link.address).give(link):
            self.drop(link)

    def drop(self, link: Link) -> None:
        link.is_open = False
        self.links.discard(link)
        if link.is_brief:
            self._pool(link.address).lost(link)
        link.conn.connect = link.conn.connect_check_health = _stays_closed  # redis-py connects again to write
        try:
            link.conn.disconnect()
        except Exception:
            pass

    @staticmethod
    def takes(mutex: Any, timeout: float) -> bool:
        """Whether it is free in time."""
        return mutex.acquire(False) or acquires(mutex, timeout)

    def take_seat(self, seat: Seat) -> Any:
        return run(self._takes(seat))

    def later(self, steps: Steps) -> threading.Event:
        """Begins work that nobody waits for. Returns an event that is set at its end."""
        done = threading.Event()

        def work() -> None:
            try:
                run(steps)
            finally:
                done.set()
                self.cleaning.discard(done)

        self.cleaning.add(done)
        threading.Thread(target=work, name="rlock-cleanup", daemon=True).start()
        return done

    #: Wait for the end of such work, or for an event, but no longer than this.
    lasts = waits = staticmethod(threading.Event.wait)

    # --- late replies ----------------------------------------------------------------------------

    def opens_inbox(self, key: str, where: Optional[Address], name: Any) -> None:
        if self.is_new(name):
            self.inboxes[name] = ThreadInbox(self, self.open(key, now() + core.REPLY, where, at=name[0]), bool(where))

    def told(self, post: Post, timeout: float) -> Words:
        came = threading.Event()
        post.then(came.set)
        until = now() + timeout
        if not happens(came.wait, timeout) and now() > until + core.LATE:
            came.wait(core.LATE)  # this process was suspended: what has come meanwhile is yet to be read
        return post.take()

    def close(self) -> None:
        """Ends the waits, gives what they left a moment to be undone, and closes all connections."""
        self.is_draining = self.is_closing = True
        for link in list(self.links):
            if link not in self._pool(link.address).idle:
                self.drop(link)
        end = now() + 1.0
        while self.jobs and now() < end:  # they have something to undo, or not
            time.sleep(0.005)
        for done in list(self.cleaning):
            done.wait(max(0.0, end - now()))
        self.is_closed = True
        for link in list(self.links):
            self.drop(link)
        for pool in list(self.pools.values()):
            pool.close()


class ThreadInbox(Inbox):
    """A thread reads it."""

    def __init__(self, io: IO, link: Link, asks: bool):
        super().__init__(io, link, asks)
        threading.Thread(target=self._read, name="rlock-inbox", daemon=True).start()

    @staticmethod
    def close(link: Link) -> None:
        link.is_open = False
        link.conn.disconnect()

    def write(self, words: list[str]) -> None:
        try:
            self.io.write(self.link, words)
        except (Broken, Refused):
            pass  # the connection was closed, which the thread notices

    def _read(self) -> None:
        try:
            # A selector that also notices when another thread closes the connection.
            with getattr(selectors, "PollSelector", selectors.SelectSelector)() as selector:
                selector.register(self.link.conn._sock, selectors.EVENT_READ)
                while self.link.is_open:
                    with self.lock:
                        message = None if self.io._is_quiet(self.link) else self._next()
                    if message is None:
                        selector.select()
                    else:
                        self.hear(message)
        except Exception as error:
            core.log.debug("the subscription has ended: %s", error)
        finally:
            self.over()

    def _next(self) -> Any:
        try:
            return self.io.read(self.link, core.REPLY)
        except Refused as refused:
            return refused
