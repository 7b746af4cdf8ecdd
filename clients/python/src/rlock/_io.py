"""What the steps are told of the outside, blocking: connections of our own, and the turns of tickets."""

from __future__ import annotations

import threading
import time
from typing import Any, Optional

from . import _core as core
from ._core import Attempt, Broken, Refused, Silent, now
from ._links import Address, Route, translated


def run(steps: core.Steps) -> Any:
    """The steps, whose calls of `io` have done what they say when they return."""
    try:
        value = next(steps)
        while True:
            value = steps.send(value)
    except StopIteration as stop:
        return stop.value


class Link:
    """A connection of our own."""

    __slots__ = ("conn", "address", "is_open", "used", "watched")

    def __init__(self, conn: Any, address: Optional[Address]):
        self.conn, self.address, self.is_open, self.used = conn, address, True, now()
        self.watched: Any = None  # its socket, while it is a session's


class IO:
    """What the steps are told of the outside. Blocking, for any number of threads."""

    def __init__(self, route: Route, waiting: int):
        self.route, self.waiting, self.is_closed = route, waiting, False
        self.reset()

    def reset(self) -> None:
        self.idle: dict[Any, list[Link]] = {}
        self.slots = threading.Semaphore(self.waiting) if self.waiting else None
        self.ears: dict[Any, Ears] = {}
        self.lock = threading.Lock()

    sleep = staticmethod(time.sleep)

    def take_slot(self) -> bool:
        return self.slots is not None and self.slots.acquire(blocking=False)

    def give_slot(self) -> None:
        if self.slots is not None:
            self.slots.release()

    def locate(self, key: str) -> Optional[Address]:
        try:
            if self.route.is_cluster and not self.route.seeds:
                with self.lock:
                    if not self.route.seeds:
                        self.route.take_cluster()
            if self.route.sentinel is not None and self.route.master is None:
                self.route.master = self.route.sentinel.get_master_address()
        except Exception as error:
            raise translated(error) from error
        return self.route.of(key)

    def open(self, key: str, where: Optional[Address] = None) -> Link:
        address = where or self.locate(key)
        while idle := self.idle.get(address):
            try:
                link = idle.pop()
            except IndexError:
                break
            # One that has not been used for a moment may have been closed by the server meanwhile.
            if now() - link.used < 0.5 or self._is_quiet(link):
                return self._asking(link, where)
            self.drop(link)
        conn = self.route.connection(address)
        try:
            conn.connect()
        except Exception as error:
            self.route.forget(address)
            raise translated(error, address) from error
        return self._asking(Link(conn, address), where)

    def _asking(self, link: Link, where: Optional[Address]) -> Link:
        if where is not None:
            self.write(link, ["ASKING"])
            self.read(link, core.REPLY)
        return link

    def _is_quiet(self, link: Link) -> bool:
        try:
            return not link.conn.can_read(0)
        except Exception:
            return False

    def write(self, link: Link, words: list[Any]) -> None:
        try:
            link.conn.send_command(*words, check_health=False)
        except Exception as error:
            self.drop(link)
            self.route.forget(link.address)
            raise translated(error, link.address) from error

    def read(self, link: Link, timeout: float) -> Any:
        """Broken when nothing comes in time; then the link is still open."""
        try:
            if not link.conn.can_read(max(timeout, 0.0)):
                raise Silent(f"no reply within {timeout:.1f} s")
            reply = link.conn.read_response()
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

    def send(self, key: str, words: list[Any], timeout: float) -> Any:
        where, hops = None, 0
        while True:
            link = self.open(key, where)
            try:
                self.write(link, words)
                reply = self.read(link, timeout)
            except Refused as refused:
                self.keep(link)
                where = self.route.redirected(refused, link.address)
                hops += 1
                if where is None or hops > 5:
                    raise
                continue
            except BaseException:
                self.drop(link)
                self.route.forget(link.address)
                raise
            self.keep(link)
            return reply

    def redirected(self, refused: Refused, address: Optional[Address]) -> Optional[Address]:
        return self.route.redirected(refused, address)

    def is_at_home(self, link: Link, key: str) -> bool:
        return self.locate(key) == link.address

    def keep(self, link: Link) -> None:
        idle = self.idle.setdefault(link.address, [])
        if link.is_open and len(idle) < 16 + self.waiting:
            idle.append(link)
        else:
            self.drop(link)

    def drop(self, link: Link) -> None:
        link.is_open = False
        try:
            link.conn.disconnect()
        except Exception:
            pass

    def clean_up(self, attempt: Attempt) -> None:
        attempt.cleans_up = attempt.seat.is_undone = True
        done = threading.Event()

        def work() -> None:
            try:
                run(attempt.clean_up())
            finally:
                attempt.leave()
                done.set()

        if attempt.in_doubt or attempt.has_ticket:
            threading.Thread(target=work, name="rlock-cleanup", daemon=True).start()
            done.wait(core.SOON)
        else:
            work()

    # --- turns -----------------------------------------------------------------------------------

    def listen(self, key: str, owner: str) -> "Turn":
        address = self.locate(key)
        with self.lock:
            ears = self.ears.get(address)
            if ears is None or ears.is_over:
                ears = self.ears[address] = Ears(self, key, address)
        return ears.add(f"__keyevent@{self.route.db}__:rlock.turn:{owner}")

    def await_turn(self, turn: "Turn", timeout: float) -> None:
        turn.event.wait(timeout)

    def unlisten(self, turn: "Turn") -> None:
        turn.ears.remove(turn)

    def close(self) -> None:
        self.is_closed = True
        for ears in self.ears.values():
            ears.is_over = True
        for idle in self.idle.values():
            while idle:
                self.drop(idle.pop())


class Turn:
    __slots__ = ("ears", "channel", "event")

    def __init__(self, ears: "Ears", channel: str):
        self.ears, self.channel, self.event = ears, channel, threading.Event()


class Ears:
    """One subscription at one server for all who wait by ticket there. Messages are hints: a broken one wakes all."""

    def __init__(self, io: IO, key: str, address: Optional[Address]):
        self.io, self.link = io, io.open(key)
        self.turns: dict[str, set[Turn]] = {}
        self.lock = threading.Lock()
        self.is_over = self.link.address != address
        threading.Thread(target=self._hear, name="rlock-turns", daemon=True).start()

    def add(self, channel: str) -> Turn:
        turn = Turn(self, channel)
        with self.lock:
            turns = self.turns.setdefault(channel, set())
            turns.add(turn)
            if len(turns) == 1:
                self._write("SUBSCRIBE", channel)
        return turn

    def remove(self, turn: Turn) -> None:
        with self.lock:
            turns = self.turns.get(turn.channel, set())
            turns.discard(turn)
            if not turns and self.turns.pop(turn.channel, None) is not None:
                self._write("UNSUBSCRIBE", turn.channel)

    def _write(self, *words: str) -> None:
        try:
            self.link.conn.send_command(*words, check_health=False)
        except Exception:
            self.is_over = True  # who waits asks again by itself

    def _hear(self) -> None:
        quiet_since = now()
        try:
            while not self.is_over and self.link.is_open:
                try:
                    message = self.io.read(self.link, 1.0)
                except (Broken, Refused):
                    with self.lock:
                        self.is_over = self.is_over or (not self.turns and now() - quiet_since > 10)
                    continue
                quiet_since = now()
                if isinstance(message, list) and message[0] == "message":
                    self._wake(self.turns.get(message[1], ()))
        finally:
            self.is_over = True
            self.io.drop(self.link)
            with self.lock:
                self._wake([turn for turns in self.turns.values() for turn in turns])

    def _wake(self, turns: Any) -> None:
        for turn in list(turns):
            turn.event.set()
