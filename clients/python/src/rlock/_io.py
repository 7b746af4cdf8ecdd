"""The blocking input and output of the steps: the package's own connections, and late replies."""

from __future__ import annotations

import selectors
import threading
import time
from typing import Any, Callable, Optional

from redis import exceptions

from . import _core as core
from ._core import Seat, Steps, now
from ._drive import redirected
from ._errors import Broken, Refused, Silent, Unsent
from ._hands import acquires, happens
from ._inbox import Inbox, Post
from ._links import Address, packed, translated
from ._machine.words import Words
from ._pool import Link, OnceBase, Pool
from ._wire import Wire


def run(steps: Steps) -> Any:
    """Runs steps in which a call of `io` has done its work when it returns."""
    try:
        value = next(steps)
        while True:
            value = steps.send(value)
    except StopIteration as stop:
        return stop.value
    except BaseException as error:
        # A signal's handler may raise an exception between two steps: then the steps must clean up, too.
        if getattr(steps, "gi_frame", None) is not None:
            steps.throw(error)
        raise


def _stays_closed(*_: Any, **__: Any) -> None:
    raise ConnectionError("the connection was closed")


class Once(OnceBase):
    """A thread does it."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    class Run:
        def __init__(self) -> None:
            self.is_over = threading.Event()
            self.error: Optional[Exception] = None

    def do(self, name: Any, work: Callable[[], Any], until: float) -> None:
        """Waits for the work. Raises Broken if it failed a moment ago for other callers, or is not done in time; then
        the work continues."""
        with self.lock:
            run: Optional[Once.Run] = self.running.get(name)
            if run is None:
                self._raise_recent_failure(name)
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
            run.error = self._record_failure(name, error)
        finally:
            with self.lock:
                self.running.pop(name, None)
            run.is_over.set()


class ThreadInbox(Inbox):
    """A thread reads it."""

    def __init__(self, io: "IO", link: Link, asks: bool):
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


class IO(Wire):
    """The blocking input and output of the steps, for any number of threads."""

    run, _once, _reader = staticmethod(run), Once, ThreadInbox

    def reset(self) -> None:
        super().reset()
        self.cleaning: set[threading.Event] = set()

    def forked(self) -> None:
        super().forked()
        self.reset()

    @staticmethod
    def socket(link: Link) -> Any:
        return link.conn._sock

    @staticmethod
    def sleep(pause: float) -> None:
        happens(time.sleep, pause)

    def _learn_cluster(self) -> None:
        self.route.take_cluster()

    def _ask_sentinel(self) -> None:
        sentinel: Any = self.route.sentinel
        self.route.master = sentinel.get_master_address()

    def open(self, key: str, until: float, where: Optional[Address] = None) -> Link:
        return run(self._opening(key, until, where))  # type: ignore[no-any-return]

    def _lend(self, address: Optional[Address], is_brief: bool, until: float) -> Link:
        return self._pool(address).take(is_brief, until)

    def _is_usable(self, link: Link) -> bool:
        # Only a connection that has been idle for a moment is asked.
        return now() - link.used < 0.5 or self._is_quiet(link)

    def _pool(self, address: Optional[Address]) -> Pool:
        pool: Optional[Pool] = self.pools.get(address)
        if pool is None:
            pool = self.pools.setdefault(address, Pool(lambda: self._dial(address), self.keep))
        return pool

    def _dial(self, address: Optional[Address]) -> Link:
        return run(self._dialing(address))  # type: ignore[no-any-return]

    @staticmethod
    def _connect(link: Link) -> None:
        link.conn.connect()

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
            raise self.unread(link, translated(error, link.address)) from error
        link.used = now()
        return reply

    def send(self, key: str, words: list[Any], until: float, inbox: Optional[Inbox] = None) -> Any:
        """Returns the reply. If the late reply comes to that inbox, the request goes to the inbox's server."""
        if now() >= until:  # it had to wait for a thread
            raise Unsent("not sent in time")
        return run(self._sending(key, words, until, inbox))

    def send_all(self, asked: list[tuple[str, list[Any], float, Optional[Inbox]]]) -> list[Any]:
        """Sends several requests to one server. Returns for each what `send` would return or raise."""
        until = max(each[2] for each in asked)
        if now() >= until:
            raise Unsent("not sent in time")
        link = run(self._opening(asked[0][0], until, is_brief=True))
        sent, replies = now(), list[Any]()
        try:
            self.write(link, *(each[1] for each in asked))
            for _ in asked:
                try:
                    replies.append(self.read(link, self._left(until)))
                except Refused as refused:
                    replies.append(refused)
        except BaseException as error:
            self._fail(link, sent, error)
            raise
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

    def told(self, post: Post, timeout: float) -> Words:
        came = threading.Event()
        post.then(came.set)
        until = now() + timeout
        if not happens(came.wait, timeout) and now() > until + core.LATE:
            came.wait(core.LATE)  # this process was suspended: what has come meanwhile is yet to be read
        return post.take()

    # --- the end ---------------------------------------------------------------------------------

    def _wait_for_cleanup(self, until: float) -> None:
        for done in list(self.cleaning):
            done.wait(max(0.0, until - now()))

    def _stop_waiters(self) -> None:
        for pool in list(self.pools.values()):
            pool.close()
