/**
 * OpenTelemetry for locks: `npm install @opentelemetry/api`.
 *
 * ```ts
 * const locks = new Locks(client, { listener: otel() });
 * ```
 *
 * Histograms `rlock.wait` and `rlock.hold` in seconds, a counter `rlock.lost`, and a span `rlock.wait` around each
 * acquisition, as a child of the span that is active when it begins.
 *
 * @module
 */

import { type Attributes, metrics, type MeterProvider, SpanKind, SpanStatusCode, trace, type TracerProvider } from '@opentelemetry/api';
import type { Held, Listener, Waited } from './telemetry.js';

export interface OtelOptions {
  /** Default: the global one. */
  meterProvider?: MeterProvider;
  /** Default: the global one. */
  tracerProvider?: TracerProvider;
  /** Adds the attribute `rlock.key`. Each key is then a time series of its own: use this only if there are few keys. */
  keys?: boolean;
}

/** In seconds. The default buckets of an SDK are meant for milliseconds. */
const explicitBucketBoundaries = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300];

/** A listener for `new Locks(client, { listener })`. */
export function otel({ meterProvider = metrics, tracerProvider = trace, keys = false }: OtelOptions = {}): Listener {
  const meter = meterProvider.getMeter('rlock-client');
  const tracer = tracerProvider.getTracer('rlock-client');
  const seconds = { unit: 's', advice: { explicitBucketBoundaries } };
  const wait = meter.createHistogram('rlock.wait', { ...seconds, description: 'How long acquisitions took.' });
  const hold = meter.createHistogram('rlock.hold', { ...seconds, description: 'How long locks were held.' });
  const lost = meter.createCounter('rlock.lost', { unit: '{hold}', description: 'Holds that were lost.' });
  const named = (key: string, others: Attributes): Attributes => (keys ? { ...others, 'rlock.key': key } : others);
  const ended = ({ key, ms }: Held, isLost: boolean) => hold.record(ms / 1000, named(key, { 'rlock.lost': isLost }));
  return {
    waited({ key, ms, acquired, error, at }: Waited): void {
      const attributes = named(key, { 'rlock.acquired': acquired });
      wait.record(ms / 1000, attributes);
      const span = tracer.startSpan('rlock.wait', { kind: SpanKind.CLIENT, attributes, startTime: at - ms });
      if (error !== undefined) span.setStatus({ code: SpanStatusCode.ERROR, message: error instanceof Error ? error.message : String(error) });
      span.end(at);
    },
    held: (event) => ended(event, false),
    lost(event): void {
      ended(event, true);
      lost.add(1, named(event.key, {}));
    },
  };
}
