"""OpenTelemetry for locks: `pip install rlock-client[otel]`.

    locks = rlock.Locks(client, listener=rlock.otel.Telemetry())

Histograms `rlock.wait` and `rlock.hold` in seconds, a counter `rlock.lost`, and a span `rlock.wait` around each
acquisition, as a child of the span that is current when it begins.
"""

from __future__ import annotations

from typing import Any, Optional

from opentelemetry import metrics, trace

from ._telemetry import Held, Listener, Waited


#: In seconds. The default buckets of an SDK are meant for milliseconds.
BUCKETS = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300]


class Telemetry(Listener):
    """For the global providers, or those given. With `keys`, each measurement and span has the attribute `rlock.key`.

    Each key is then a time series of its own: use this only if there are few keys.
    """

    def __init__(
        self,
        *,
        meter_provider: Optional[metrics.MeterProvider] = None,
        tracer_provider: Optional[trace.TracerProvider] = None,
        keys: bool = False,
    ):
        meter = metrics.get_meter("rlock", meter_provider=meter_provider)
        self._tracer = trace.get_tracer("rlock", tracer_provider=tracer_provider)
        self._keys = keys
        self._wait, self._hold = (
            meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=BUCKETS)
            for name, text in (("rlock.wait", "How long acquisitions took."), ("rlock.hold", "How long locks were held."))
        )
        self._lost = meter.create_counter("rlock.lost", "{hold}", "Holds that were lost.")

    def _attributes(self, key: str, **others: Any) -> dict[str, Any]:
        found = {f"rlock.{name}": value for name, value in others.items()}
        return {**found, "rlock.key": key} if self._keys else found

    def waited(self, event: Waited) -> None:
        attributes = self._attributes(event.key, acquired=event.acquired)
        self._wait.record(event.seconds, attributes)
        start = int((event.at - event.seconds) * 1e9)
        span = self._tracer.start_span("rlock.wait", kind=trace.SpanKind.CLIENT, attributes=attributes, start_time=start)
        span.end(int(event.at * 1e9))

    def held(self, event: Held) -> None:
        self._hold.record(event.seconds, self._attributes(event.key, lost=False))

    def lost(self, event: Held) -> None:
        self._hold.record(event.seconds, self._attributes(event.key, lost=True))
        self._lost.add(1, self._attributes(event.key))
