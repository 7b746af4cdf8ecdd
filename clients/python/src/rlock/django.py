"""Management commands of Django of which one runs at a time.

    class Command(SingleRun, BaseCommand):
        lock_client = redis.Redis.from_url(settings.REDIS)
"""

from __future__ import annotations

from typing import Any, ClassVar, Optional

from django.core.management.base import BaseCommand  # type: ignore[import-untyped]

from ._sync import Client, Lock


class SingleRun:
    """Put it before `BaseCommand`. The command runs while it holds its lock; if somebody else has that, it says so and ends."""

    stderr: Any
    lock_client: ClassVar[Client]
    #: By default, the name of the command.
    lock_key: ClassVar[Optional[str]] = None
    #: How many seconds to wait for the other one; None: until it ends.
    lock_wait: ClassVar[Optional[float]] = 0
    #: How many seconds the lock outlives a process that dies.
    lock_lease: ClassVar[float] = 30.0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        kinds = cls.__mro__
        if BaseCommand in kinds and kinds.index(BaseCommand) < kinds.index(SingleRun):
            raise TypeError(f"{cls.__name__} would run without its lock: put SingleRun before BaseCommand")

    def execute(self, *args: Any, **options: Any) -> Any:
        """What `manage.py` and `call_command` call."""
        key = self.lock_key or type(self).__module__.rpartition(".")[2]
        lock = Lock(self.lock_client, key, wait=self.lock_wait, lease=self.lock_lease, reentrant=False)
        hold = lock.acquire()
        if hold is not None:
            with hold:
                return super().execute(*args, **options)  # type: ignore[misc]
        (options.get("stderr") or self.stderr).write(f"{key} runs elsewhere: nothing is done\n")
        return None
