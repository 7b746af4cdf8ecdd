/**
 * OpenTelemetry for locks: `npm install @opentelemetry/api`.
 *
 * ```ts
 * const locks = new Locks(client, { listener: otel() });
 * ```
 *
 * Histograms `rlock.wait` and `rlock.hold` in seconds, a counter `rlock.lost`, and a span `rlock.wait` around each
 * acquisition, below the span that is active where it begins.
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
  /** Adds the attribute `rlock.key`. Each key is then a time series of its own: do that only where keys are few. */
  keys?: boolean;
}

/** A listener for `new Locks(client, { listener })`. */
export function otel({ meterProvider = metrics, tracerProvider = trace, keys = false }: OtelOptions = {}): Listener {
  const meter = meterProvider.getMeter('rlock-client');
  const tracer = tracerProvider.getTracer('rlock-client');
  const wait = meter.createHistogram('rlock.wait', { unit: 's', description: 'How long acquisitions took.' });
  const hold = meter.createHistogram('rlock.hold', { unit: 's', description: 'How long locks were held.' });
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
