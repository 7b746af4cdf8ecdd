"""The events for a listener, and the counters. A listener that fails or hangs neither stops nor delays anything."""

import asyncio
import os
import sys
import threading
import time

import pytest
import redis.asyncio
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support import one_server, until

import rlock
import rlock.asyncio
import rlock.otel

server = one_server


class Notes(rlock.Listener):
    def __init__(self):
        self.events = []

    def waited(self, event):
        self.events.append(("waited" if event.acquired else "gave up", event))

    def held(self, event):
        self.events.append(("held", event))

    def lost(self, event):
        self.events.append(("lost", event))

    @property
    def names(self):
        return [(what, event.key) for what, event in self.events]


def test_a_listener_is_told_of_waits_holds_and_losses(server):
    notes = Notes()
    locks = rlock.Locks(server.client(), listener=notes)
    hold = rlock.Lock(locks, "a").acquire()
    assert locks.counts() == rlock.Counts(held=1, waiting=0, lost=0, failed_renewals=0, unreported=0)
    thread = threading.Thread(target=lambda: rlock.Lock(locks, "a").acquire(wait=0.5))
    thread.start()
    until("it waits", lambda: locks.counts().waiting == 1)
    thread.join()
    hold.release()
    lost = rlock.Lock(locks, "b", lease=1.5).acquire()
    server.ask("RLOCK.FORCE", "b")
    assert lost.lost.wait(5)
    with locks.all("c", "d"):
        assert locks.counts().held == 1
    locks.close()
    assert notes.names == [
        ("waited", "a"), ("gave up", "a"), ("held", "a"), ("waited", "b"), ("lost", "b"), ("waited", "c, d"), ("held", "c, d"),
    ]
    gave_up, held = notes.events[1][1], notes.events[2][1]
    assert 0.45 <= gave_up.seconds <= held.seconds < 5 and abs(held.at - time.time()) < 60
    assert locks.counts() == (0, 0, 1, 0, 0)  # the server has said so before the first renewal


async def test_several_that_are_held_already_are_told_of_one_by_one(server):
    notes, told = Notes(), Notes()
    locks, of_tasks = rlock.Locks(server.client(), listener=notes), rlock.asyncio.Locks(server.client(redis.asyncio.Redis), listener=told)
    with rlock.Lock(locks, "a"), rlock.Lock(locks, "b"), locks.all("a", "b"):
        assert locks.counts().waiting == 0
    async with rlock.asyncio.Lock(of_tasks, "c"), rlock.asyncio.Lock(of_tasks, "d"), of_tasks.all("c", "d"):
        assert of_tasks.counts().waiting == 0
    locks.close()
    await of_tasks.aclose()
    assert notes.names == [*[("waited", "a"), ("waited", "b")] * 2, ("held", "b"), ("held", "a")]
    assert told.names == [*[("waited", "c"), ("waited", "d")] * 2, ("held", "d"), ("held", "c")]


def test_renewals_that_fail_and_waits_for_no_server_are_counted(server):
    notes = Notes()
    locks = rlock.Locks(server.client(), listener=notes, patience=0.3)
    hold = rlock.Lock(locks, "a", lease=1.5).acquire()
    server.one.kill()
    server.proxy.fault({"proxy": "drop"})
    assert hold.lost.wait(5)
    counts = locks.counts()
    assert (counts.held, counts.lost) == (0, 1) and counts.failed_renewals > 0
    stranger = rlock.Locks(server.client(), listener=notes, patience=0.3)  # it does not know yet what server that is
    with pytest.raises(rlock.Unavailable):
        rlock.Lock(stranger, "z").acquire(wait=0.3)
    locks.close()
    stranger.close()
    assert ("lost", "a") in notes.names and ("gave up", "z") in notes.names


class Failing(Notes):
    def waited(self, event):
        super().waited(event)
        raise (SystemExit, ValueError, KeyboardInterrupt)[len(self.events) % 3]


def test_a_listener_that_fails_stops_nothing(server, caplog):
    locks = rlock.Locks(server.client(), listener=Failing())
    for _ in range(6):
        rlock.Lock(locks, "a").acquire().release()
    until("all is told", lambda: len(locks.io.telemetry.listener.events) == 12)
    assert locks.counts().unreported == 6
    assert caplog.text.count("the listener failed") == 1


class Stuck(rlock.Listener):
    def __init__(self):
        self.free = threading.Event()

    def waited(self, event):
        self.free.wait()


@pytest.mark.parametrize("most", [3])
def test_a_listener_that_hangs_delays_nothing(server, monkeypatch, most):
    monkeypatch.setattr(rlock._telemetry, "MOST", most)
    listener = Stuck()
    locks = rlock.Locks(server.client(), listener=listener)
    lost, called = rlock.Lock(locks, "b", lease=1.5).acquire(), threading.Event()
    lost.on_lost(called.set)
    for _ in range(5):
        rlock.Lock(locks, "a").acquire(wait=1).release()
    server.ask("RLOCK.FORCE", "b")
    assert called.wait(5)
    counts = locks.counts()
    # The listener has one event, and `most` wait for it.
    assert (counts.held, counts.waiting, counts.lost, counts.unreported) == (0, 0, 1, 12 - 1 - most)
    begin = time.monotonic()
    locks.close()
    assert time.monotonic() - begin < 5
    listener.free.set()


def test_an_interrupted_acquisition_is_not_counted_for_ever(server):
    locks = rlock.Locks(server.client())
    rlock.Lock(locks, "k", owner="other").acquire()

    async def wait():
        mine = rlock.asyncio.Locks(server.client(redis.asyncio.Redis))
        task = asyncio.ensure_future(rlock.asyncio.Lock(mine, "k").acquire())
        while mine.counts().waiting != 1:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert mine.counts().waiting == 0
        await mine.aclose()

    asyncio.run(wait())


def test_a_forked_child_tells_its_own_listener(server):
    notes = Notes()
    locks = rlock.Locks(server.client(), listener=notes)
    rlock.Lock(locks, "a").acquire()
    until("it is told", lambda: notes.names == [("waited", "a")])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            rlock.Lock(locks, "b").acquire().release()
            locks.close()
            code = 0 if notes.names[1:] == [("waited", "b"), ("held", "b")] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Exported:
    """The SDK's own reader and exporter."""

    def __init__(self, **options):
        self.reader, self.spans = InMemoryMetricReader(), InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        meters = MeterProvider(metric_readers=[self.reader])
        self.listener = rlock.otel.Telemetry(meter_provider=meters, tracer_provider=self.tracers, **options)

    def points(self):
        """For each metric: attributes, and the count or the sum."""
        metrics = [each for each in self.reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics]
        return {
            each.name: [(dict(point.attributes), getattr(point, "count", None) or point.value) for point in each.data.data_points]
            for each in metrics
        }


def test_opentelemetry_has_waits_holds_and_losses(server):
    exported = Exported()
    locks = rlock.Locks(server.client(), listener=exported.listener)
    with exported.tracers.get_tracer("test").start_as_current_span("request") as request:
        hold = rlock.Lock(locks, "a", lease=1.5).acquire()
        assert rlock.Lock(locks, "a", owner="other").acquire(wait=0.3) is None
    hold.release()
    lost = rlock.Lock(locks, "a", lease=1.5).acquire()
    server.ask("RLOCK.FORCE", "a")
    assert lost.lost.wait(5)
    locks.close()
    assert exported.points() == {
        "rlock.wait": [({"rlock.acquired": True}, 2), ({"rlock.acquired": False}, 1)],
        "rlock.hold": [({"rlock.lost": False}, 1), ({"rlock.lost": True}, 1)],
        "rlock.lost": [({}, 1)],
    }
    (wait,) = (each for each in exported.reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics if each.name == "rlock.wait")
    assert wait.unit == "s" and list(wait.data.data_points[0].explicit_bounds) == rlock.otel.BUCKETS
    spans = [each for each in exported.spans.get_finished_spans() if each.name == "rlock.wait"]
    assert [each.parent.span_id if each.parent else None for each in spans] == [request.context.span_id] * 2 + [None]
    assert 0.25e9 <= spans[1].end_time - spans[1].start_time < 5e9


async def test_opentelemetry_has_keys_if_asked_for(server):
    exported = Exported(keys=True)
    locks = rlock.asyncio.Locks(server.client(redis.asyncio.Redis), listener=exported.listener)
    with exported.tracers.get_tracer("test").start_as_current_span("request") as request:
        async with rlock.asyncio.Lock(locks, "a"):
            assert locks.counts().held == 1
    await locks.aclose()
    assert exported.points() == {
        "rlock.wait": [({"rlock.acquired": True, "rlock.key": "a"}, 1)],
        "rlock.hold": [({"rlock.lost": False, "rlock.key": "a"}, 1)],
    }
    (span,) = [each for each in exported.spans.get_finished_spans() if each.name == "rlock.wait"]
    assert span.parent.span_id == request.context.span_id and span.attributes["rlock.key"] == "a"


def test_the_package_needs_no_opentelemetry():
    program = "import sys; sys.modules['opentelemetry'] = None; import rlock, rlock.asyncio; rlock.Listener()"
    import subprocess

    subprocess.run([sys.executable, "-c", program], check=True)
