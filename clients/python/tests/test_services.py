"""Services that shut down, as the README shows them, and what is shipped for frameworks: real programs, a real server."""

import asyncio
import importlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest
import redis.asyncio
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from support import one_server, until

import rlock
import rlock.asyncio
from rlock.fastapi import locked
from rlock.testing import free_port

server = one_server

UVICORN = """
import asyncio, pathlib, time

async def job():
    async with rlock.asyncio.Lock(locks, "job", lease=0.9) as hold:
        end = time.monotonic() + 3
        while hold.held and time.monotonic() < end:
            await asyncio.sleep(0.01)
        pathlib.Path("job").write_text(str(hold.held))

@app.get("/slow")
async def slow():
    app.job = asyncio.create_task(job())
    async with rlock.asyncio.Lock(locks, "slow", lease=0.9) as hold:
        await asyncio.sleep(1.5)
        return {"held": hold.held}
"""

WSGI = """
import pathlib, threading, time
import redis
import rlock

locks = rlock.Locks(redis.Redis(port=6380))

def job():
    with rlock.Lock(locks, "job", lease=0.9) as hold:
        end = time.monotonic() + 3
        while hold.held and time.monotonic() < end:
            time.sleep(0.01)
        pathlib.Path("job").write_text(str(hold.held))

def app(environ, start_response):
    threading.Thread(target=job).start()
    with rlock.Lock(locks, "slow", lease=0.9) as hold:
        time.sleep(1.5)
        start_response("200 OK", [("Content-Type", "application/json")])
        return [b'{"held": true}' if hold.held else b'{"held": false}']
"""


def block(kind):
    readme = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
    return re.search(rf"^```python {kind}\n(.*?)^```", readme, re.M | re.S)[1]


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as reply:
        return json.load(reply)


def answers(port, path):
    try:
        return get(port, path)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return None


@pytest.mark.parametrize("words, files", [
    (["uvicorn", "service:app", "--port"], {"service.py": lambda: block("uvicorn") + UVICORN}),
    (["gunicorn", "service:app", "-w", "1", "-b"], {"service.py": lambda: WSGI, "gunicorn.conf.py": lambda: block("gunicorn")}),
])
def test_a_service_that_is_terminated_ends_its_bodies_and_leaves_no_lock(server, tmp_path, words, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text().replace("6380", server.one.address.split(":")[1]))
    port = free_port()
    at = [f"127.0.0.1:{port}"] if words[0] == "gunicorn" else [str(port)]
    with open(tmp_path / "log", "wb") as log:
        service = subprocess.Popen([sys.executable, "-m", *words, *at], cwd=tmp_path, stdout=log, stderr=log)
    try:
        if words[0] == "uvicorn":
            until("it answers", lambda: answers(port, "/report/monday"), 30)
        else:
            until("it answers", lambda: b"Booting worker" in (tmp_path / "log").read_bytes(), 30)
        came = []
        request = threading.Thread(target=lambda: came.append(get(port, "/slow")), daemon=True)
        request.start()
        until("it works", lambda: server.holders("slow") and server.holders("job"))
        service.send_signal(signal.SIGTERM)
        service.wait(20)
        request.join(5)
    finally:
        service.kill()
    said = (tmp_path / "log").read_text()
    assert came == [{"held": True}] and (tmp_path / "job").read_text() == "True", said
    assert not server.holders("slow") and not server.holders("job") and "still held" not in said, said


def test_a_dependency_of_fastapi(server):
    locks, inside = rlock.asyncio.Locks(server.client(redis.asyncio.Redis), patience=0.5), []
    app = FastAPI()

    @app.get("/orders/{order}")
    async def pay(order: str, hold=Depends(locked(locks, "order:{order}"))):
        inside.append(server.holders(f"order:{order}"))
        await asyncio.sleep(0.5 if order == "slow" else 0)
        return {"token": hold.token, "key": hold.key}

    @app.get("/drain")
    async def drain():
        return await locks.drain(10)

    exec(compile(block("fastapi"), "README.md", "exec"), {"app": app, "locks": locks})
    with TestClient(app) as client:
        assert client.post("/orders/42/pay").json()["token"] > 0
        said = client.get("/orders/42").json()
        assert said["key"] == "order:42" and said["token"] == inside[0][0][1] and server.holders("order:42") == []
        server.ask("RLOCK.ACQUIRE", "order:7", "somebody")
        assert client.get("/orders/7").status_code == 423
        codes = []
        both = [threading.Thread(target=lambda: codes.append(client.get("/orders/slow").status_code)) for _ in range(2)]
        for each in both:
            each.start()
        for each in both:
            each.join()
        assert sorted(codes) == [200, 423]
        assert client.get("/drain").json() == []
        refused = client.get("/orders/42")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")


CELERY = """
import os, time
import redis
from celery import Celery
from rlock.celery import single_run

app = Celery("jobs", broker=os.environ["REDIS"], backend=os.environ["REDIS"])
client = redis.Redis.from_url(os.environ["REDIS"])

def write(name):
    inside = client.incr(name)
    time.sleep(0.3)
    client.decr(name)
    return inside

@app.task
@single_run(client, "tidy")
def tidy():
    return write("inside tidy")

@app.task(max_retries=None)
@single_run(client, "load:{name}:{part}", again=0.2)
def load(name, part=1):
    return write("inside load")

@app.task(soft_time_limit=1)
@single_run(client, "long", lease=600)
def long():
    time.sleep(60)
"""


def test_a_key_that_names_no_argument_is_refused_at_once():
    from rlock.celery import single_run

    with pytest.raises(ValueError, match="load has no argument 'nme'"):

        @single_run(None, "load:{nme}")
        def load(name):
            pass


def test_single_runs_of_celery(server, tmp_path, monkeypatch):
    (tmp_path / "jobs.py").write_text(CELERY)
    monkeypatch.setenv("REDIS", f"redis://{server.one.address}")
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [sys.executable, "-m", "celery", "-A", "jobs", "worker", "--pool", "prefork", "--concurrency", "3"]
    worker = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
    try:
        jobs = importlib.import_module("jobs")
        assert [jobs.load.delay("a").get(timeout=60)] == [1]
        loads = [jobs.load.delay("a") for _ in range(3)] + [jobs.load.delay(name="a", part=1)]
        assert [each.get(timeout=60) for each in loads] == [1] * 4
        server.ask("RLOCK.ACQUIRE", "tidy", "somebody")
        assert jobs.tidy.delay().get(timeout=60) is None
        server.ask("RLOCK.FORCE", "tidy")
        assert jobs.tidy.delay().get(timeout=60) == 1
        with pytest.raises(Exception, match="SoftTimeLimit"):
            jobs.long.delay().get(timeout=60)
        assert server.holders("long") == []
    finally:
        worker.terminate()
        worker.wait(30)
