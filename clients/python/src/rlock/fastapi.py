"""A lock for each request of FastAPI.

    locks = rlock.asyncio.Locks(client)

    @app.post("/orders/{order}/pay")
    async def pay(order: str, hold: Annotated[Hold, Depends(locked(locks, "order:{order}"))]):
        await store(..., hold.token)
"""

from __future__ import annotations

from typing import Any, AsyncIterator, Callable, Unpack

from fastapi import HTTPException, Request

from ._errors import Unavailable
from ._kinds import Wishes, wished
from .asyncio import Client, Hold, Lock

#: When somebody else has the lock, and when it cannot be acquired at all.
LOCKED, UNAVAILABLE = 423, 503


def locked(client: Client, key: str, **options: Unpack[Wishes]) -> Callable[[Request], AsyncIterator[Hold]]:
    """A dependency: the request holds the lock of that key, in which `{name}` stands for the path parameter of that name.

    The client gets 423 if the lock is not free, and 503 if no server was reached in time, or the locks are being drained. The
    options are those of `rlock.asyncio.Lock`, but it does not wait unless `wait` says so; each request is an owner of its own.
    """
    wishes: Any = {"wait": 0, **wished(options), "reentrant": False}

    async def dependency(request: Request) -> AsyncIterator[Hold]:
        name = key.format_map(request.path_params)
        try:
            hold = await Lock(client, name, **wishes).acquire()
        except Unavailable as error:
            raise HTTPException(UNAVAILABLE, f"the lock {name} cannot be acquired now", {"Retry-After": "1"}) from error
        if hold is None:
            raise HTTPException(LOCKED, f"{name} is locked")
        async with hold:
            yield hold

    return dependency
