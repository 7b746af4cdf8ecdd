"""Tasks of Celery of which one runs at a time.

    @app.task
    @single_run(client, "load:{name}")
    def load(name): ...
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
import string
from typing import Any, Callable, Optional, TypeVar, Unpack, cast

from celery import current_task  # type: ignore[import-untyped]

from ._kinds import Wishes, wished
from ._sync import Client, Lock

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger("rlock")


def single_run(client: Client, key: str, *, again: Optional[float] = None, **options: Unpack[Wishes]) -> Callable[[F], F]:
    """Runs the task while it holds the lock of that key, in which `{name}` stands for the argument of that name.

    If somebody else holds it, this run is skipped: it returns None. With `again`, the task is retried after this many
    seconds, within its own `max_retries`. The options are those of `rlock.Lock`, but `wait` is 0 unless you set it.
    Each run is an owner of its own. A soft time limit releases the lock.
    """
    wishes: Any = {"wait": 0, **wished(options), "reentrant": False}

    def decorate(function: F) -> F:
        parameters = inspect.signature(function)
        for _, field, _, _ in string.Formatter().parse(key):
            if field is not None and re.split(r"[.\[]", field)[0] not in parameters.parameters:
                raise ValueError(f"{key!r}: {function.__name__} has no argument {field!r}")

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            given = parameters.bind(*args, **kwargs)
            given.apply_defaults()
            lock = Lock(client, key.format_map(given.arguments), **wishes)
            hold = lock.acquire()
            if hold is not None:
                with hold:
                    return function(*args, **kwargs)
            if again is not None and current_task:
                raise current_task.retry(countdown=again)
            log.info("%s: this run is skipped, because somebody else has %s", function.__name__, lock.key)
            return None

        return cast(F, run)

    return decorate

