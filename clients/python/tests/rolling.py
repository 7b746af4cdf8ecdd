"""A service of FastAPI for clients/conformance/rolling.py: the README's, with requests that work under a lock."""

import asyncio
import os
import pathlib
import re
import sys
from typing import Annotated

import redis.asyncio
import uvicorn
from fastapi import Depends

from rlock.asyncio import Hold
from rlock.fastapi import locked

readme = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
service = re.search(r"^```python uvicorn\n(.*?)^```", readme, re.M | re.S)[1]
names = {}
exec(compile(service.replace("6380", os.environ["PORT"]), "README.md", "exec"), names)
app, locks = names["app"], names["locks"]

journal = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND)
client = redis.asyncio.Redis(port=int(os.environ["PORT"]))


def note(*words):
    os.write(journal, (" ".join(map(str, (os.getpid(), *words))) + "\n").encode())


async def came(request: str):
    note("came", request)


def serve(path, **options):
    lock = Depends(locked(locks, "{key}", wait=20, **options))

    @app.post(path)
    async def work(request: str, ms: int, _: Annotated[None, Depends(came)], hold: Annotated[Hold, lock]):
        note("enters", request, hold.key, hold.token)
        first = await client.execute_command("RLOCK.CHECK", hold.key, hold.token)
        await asyncio.sleep(ms / 1000)
        last = await client.execute_command("RLOCK.CHECK", hold.key, hold.token)
        note("leaves", request, hold.key, first, last)


serve("/plain/{key}", lease=5)
serve("/session/{key}", session=True)
uvicorn.run(app, port=int(os.environ["HTTP_PORT"]), log_level="warning")
