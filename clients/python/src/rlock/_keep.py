"""What looks after holds until they end: renews them, and notices their loss. What both packages share."""

from __future__ import annotations

from typing import Any, Callable, ContextManager

from ._core import Steps, Tenure, log, ms
from ._errors import Broken
from ._machine import Holding
from ._machine.words import Words


class Keeper:
    """Looks after holds. Each package adds timers, and threads or tasks."""

    lock: ContextManager[Any]  # of the machines and the timers

    def add(self, tenure: Tenure) -> None:
        self.wake_at(tenure, tenure.due)
        if tenure.link is not None:
            self.watch(tenure)

    def changes(self, tenure: Tenure, change: Callable[[], bool]) -> None:
        """Makes a change of the hold, which returns whether it is renewed differently from now on."""
        with self.lock:
            if change():
                self.wake_at(tenure, tenure.due)
                if tenure.is_doubted:
                    self.tell(tenure, "untied")

    def wake(self, tenure: Tenure) -> None:
        """It is time to look after it."""
        if tenure.is_orphaned:
            log.warning("%s: nobody can release it anymore, because %s has ended", tenure.seat.key, tenure.seat.owner)
            self.lose(tenure)
        elif ms() >= tenure.deadline:
            self.lose(tenure)
        else:
            self.tell(tenure, "time" if tenure.renewal else "call")

    def tell(self, tenure: Tenure, *told: Any) -> None:
        """Passes an input to the hold's machine; from now on, the hold is looked after."""
        with self.lock:
            if tenure.renewal is None:
                tenure.renewal = HoldRenewal(self, tenure)
                if tenure.state == "releasing":
                    tenure.renewal.tell("releasing")
                if told == ("call",):  # with which it has begun
                    return
            tenure.renewal.tell(*told)

    def lose(self, tenure: Tenure) -> None:
        if (renewal := tenure.renewal) is not None:
            renewal.tell("gone")
        for call in tenure.lose():
            self.call(call)
        self.let_go(tenure)

    def forget(self, tenure: Tenure, is_released: bool) -> None:
        """It has ended. A session's connection is kept only if nothing is tied to it any more."""
        if tenure.renewal is not None:
            tenure.renewal.tell("released")
        self.let_go(tenure, is_released)

    def let_go(self, tenure: Tenure, is_kept: bool = False) -> None:
        """It needs neither its timer nor its connection."""
        link, tenure.link = tenure.link, None
        if link is not None:
            self.untie(link)
            (tenure.io.keep if is_kept else tenure.io.drop)(link)

    def wake_at(self, tenure: Tenure, at: float) -> None:
        """Calls `wake` then, and not when it was to be called before."""
        raise NotImplementedError

    def watch(self, tenure: Tenure) -> None:
        """For a session: reports the end of its connection at once."""
        raise NotImplementedError

    def untie(self, link: Any) -> None:
        """Watches that connection no longer."""

    def call(self, call: Callable[[], Any]) -> None:
        """Calls a user's function."""
        raise NotImplementedError

    def begin(self, io: Any, steps: Steps) -> None:
        """Begins work that takes time."""
        raise NotImplementedError

    def renew(self, renewal: "HoldRenewal", steps: Steps) -> None:
        """Runs the steps; their result is passed to the machine later."""
        raise NotImplementedError


class HoldRenewal:
    """Renews a hold. It is created for the first renewal, or when the session's connection has ended."""

    def __init__(self, keeper: Keeper, tenure: Tenure):
        options = tenure.options
        self.keeper, self.tenure = keeper, tenure
        self.machine = Holding(tenure.token, options.lease_ms, tenure.sent, bool(options.acks), options.renew)
        self.job = tenure.seat.job(tenure.io, tenure.seat, options, 1, self.machine)
        self.machine.step(ms(), ("extend", tenure.deadline - options.lease_ms))
        self.tell("call")

    def tell(self, *told: Any) -> None:
        """Runs the machine until it needs input or output."""
        with self.keeper.lock:
            self._tell(told)

    def _tell(self, told: Words) -> None:
        tenure, at = self.tenure, self.machine.at
        if at == "wait" and told[0] in ("message", "lost", "time") and told[1:2] != ("token",):
            tenure.io.telemetry.failed_renewals += tenure.state == "held"
        outputs = self.machine.step(ms(), told)
        # A seat that comes after the hold has ended, or its client was closed, is given back.
        if told[0] == "seat" and told[1] is not None and at != "seat":
            tenure.io.space.vacate(tenure.seat)
        elif told[0] == "opened" and at != "open":
            self.job.let_go(is_kept=False)
        tenure.deadline = max(tenure.deadline, self.machine.deadline)
        self.job.done(outputs)
        for output in outputs:
            if output[0] == "sleep":
                self.keeper.wake_at(tenure, output[1])
            elif output[0] == "wait":
                self.keeper.wake_at(tenure, output[1])
                assert self.job.post is not None
                self.job.post.then(self.hears)
            elif output[0] in ("send", "open", "own", "seat", "listen"):
                self.keeper.renew(self, self.perform(output))
            elif output[0] == "leave":
                # The server may tie the hold later, or has tied another hold: that is undone when this one is released.
                tenure.lingers |= self.machine.is_unsure
                tenure.io.space.vacate(tenure.seat)
            elif output[0] == "doubt":
                tenure.is_doubted = True
            elif output[0] == "tied":
                tenure.link, self.job.link = self.job.link, None
                tenure.is_doubted = False
                self.keeper.watch(tenure)
            elif output[0] == "tell":
                tenure.renewal = None
                self.keeper.lose(tenure)

    def perform(self, op: Words) -> Steps:
        if op[0] == "seat":
            is_free = yield self.tenure.io.take_seat(self.tenure.seat)
            return "seat", self.tenure.depth if is_free else None
        try:
            brought = yield from self.job.bring(op)
            if op[0] in ("send", "listen") and brought[0] not in ("token", "waiting", "listening") and self.tenure.state == "held":
                self.tenure.io.telemetry.failed_renewals += 1
            return brought
        except Exception as error:  # whatever it is, the machine must get the deadline
            log.exception("while looking after a hold")
            return self.job.failed(op, Broken(str(error)))

    def hears(self) -> None:
        """Of acknowledgments."""
        if self.job.post is not None and (told := self.job.post.take()) != ("time",):
            self.tell(*self.job.heard(told))
