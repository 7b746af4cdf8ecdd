"""Celery tasks that must not run twice at once: `REDIS=redis://127.0.0.1:6380 celery -A celery_tasks worker`."""

import os
import time

import redis
from celery import Celery

import rlock

url = os.environ.get("REDIS", "redis://127.0.0.1:6380")
app = Celery("celery_tasks", broker=url, backend=url)
client = redis.Redis.from_url(url)


@app.task
def report(day):
    """One report at a time; the others wait in the worker, in the order in which they came."""
    with rlock.Lock(client, f"report:{day}", wait=60) as hold:
        return write("report", hold)


@app.task(bind=True, max_retries=None)
def load(self, name):
    """One load at a time; the others come back later, and the worker does something else in the meantime."""
    hold = rlock.Lock(client, f"load:{name}").acquire(wait=0)
    if hold is None:
        raise self.retry(countdown=0.5)
    with hold:
        return write(name, hold)


@app.task
def tidy():
    """A scheduled task: if the previous run has not ended, this one does nothing."""
    hold = rlock.Lock(client, "tidy").acquire(wait=0)
    if hold is None:
        return "skipped"
    with hold:
        return write("tidy", hold)


def write(name, hold):
    """The work. It records how many such tasks run at the same time."""
    running = client.incr(f"running:{name}")
    time.sleep(0.3)
    client.decr(f"running:{name}")
    hold.check()  # raises LockLost if somebody else may be running by now
    return running
