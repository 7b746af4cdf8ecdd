"""What looks after the holds of a client in its loop: timers and tasks."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Callable

from ._aio import IO, run
from ._core import Steps, Tenure, now
from ._errors import Broken, Refused
from ._keep import HoldRenewal, Keeper


class TaskKeeper(Keeper):
    """Work that takes time is done by tasks."""

    lock = contextlib.nullcontext()  # nothing comes in between in a loop

    def __init__(self, io: IO):
        self.io = io

    def wake_at(self, tenure: Tenure, at: float) -> None:
        if tenure.wakes is not None:
            tenure.wakes.cancel()
        tenure.wakes = asyncio.get_running_loop().call_later(max(0.0, at / 1000 - now()), self.wake, tenure)

    def watch(self, tenure: Tenure) -> None:
        link = tenure.link

        async def watches() -> None:
            while link.is_open:
                try:
                    await self.io.read(link, 3600.0)
                except (Broken, Refused):
                    continue
            if tenure.state == "held" and tenure.link is link:
                tenure.link = None
                self.tell(tenure, "untied")

        link.watched = asyncio.ensure_future(watches())

    def let_go(self, tenure: Tenure, is_kept: bool = False) -> None:
        if tenure.wakes is not None:
            tenure.wakes.cancel()
        super().let_go(tenure)  # a connection that a task has read from is not kept

    def call(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except BaseException as error:  # SystemExit too ends nothing here
            asyncio.get_running_loop().call_exception_handler({"message": "on_lost", "exception": error})

    def begin(self, io: Any, steps: Steps) -> None:
        with contextlib.suppress(RuntimeError):  # outside of the loop; renewals notice a loss as well
            asyncio.get_running_loop()
            io.later(steps)

    def renew(self, renewal: HoldRenewal, steps: Steps) -> None:
        async def work() -> None:
            renewal.tell(*await run(steps))

        self.io.background(work())
