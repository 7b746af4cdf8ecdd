// The events that listeners get, the counters, `using` with a list, `extend`; at the server on $PORT, with one client
// library (argv[2]). Each line of output is a test that passed.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { context, trace } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { AggregationTemporality, InMemoryMetricExporter, MeterProvider, PeriodicExportingMetricReader } from '@opentelemetry/sdk-metrics';
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base';
import { LockLost, Locks, NotAcquired, NotHeld, read, Unavailable } from '../dist/esm/index.js';
import { otel } from '../dist/esm/otel.js';

const library = process.argv[2];
const port = Number(process.env.PORT);

async function connect(at = port) {
  if (library === 'ioredis') {
    const { default: Redis } = await import('ioredis');
    const client = new Redis({ port: at, host: '127.0.0.1', retryStrategy: () => null });
    client.on('error', () => {});
    return client;
  }
  const { createClient } = await import('redis');
  const client = createClient({ socket: { port: at, host: '127.0.0.1', reconnectStrategy: false } });
  client.on('error', () => {});
  if (at === port) await client.connect();
  return client;
}

const own = await connect();
const say = (...words) => (library === 'ioredis' ? own.call(...words) : own.sendCommand(words));

async function until(what, isSo) {
  for (const end = Date.now() + 10_000; !(await isSo()); await sleep(10)) assert(Date.now() < end, what);
}

async function test(name, work) {
  await work();
  console.log(`ok ${name}`);
}

const aborted = (hold) => hold.signal.aborted || new Promise((resolve) => hold.signal.addEventListener('abort', resolve, { once: true }));

function notes() {
  const events = [];
  const note = (what) => (event) => events.push([what, event]);
  return { events, names: () => events.map(([what, { key }]) => `${what} ${key}`), waited: note('waited'), held: note('held'), lost: note('lost') };
}

await test('a listener is told of waits, holds and losses', async () => {
  const listener = notes();
  const locks = new Locks(own, { listener });
  const hold = await locks.lock('tell:a').acquire();
  assert.deepEqual(locks.counts(), { held: 1, waiting: 0, lost: 0, failedRenewals: 0, unreported: 0 });
  const waiter = locks.lock('tell:a').acquire({ wait: 500 });
  assert.equal(locks.counts().waiting, 1);
  assert.equal(await waiter, null);
  await hold.release();
  const lost = await locks.readLock('tell:b', { lease: 1_500 }).acquire(); // nobody observes readers
  await say('RLOCK.FORCE', 'tell:b');
  await aborted(lost);
  await (await locks.all(['tell:c', 'tell:d']).acquire()).release();
  await until('all is told', () => listener.events.length === 7);
  assert.deepEqual(listener.names(), [
    'waited tell:a', 'waited tell:a', 'held tell:a', 'waited tell:b', 'lost tell:b', 'waited tell:c, tell:d', 'held tell:c, tell:d',
  ]);
  const [, [, gaveUp], [, held]] = listener.events;
  assert(listener.events[0][1].acquired && !gaveUp.acquired && gaveUp.error === undefined);
  assert(gaveUp.ms >= 450 && gaveUp.ms <= held.ms && Math.abs(Date.now() - held.at) < 60_000, JSON.stringify(listener.events));
  assert.deepEqual(locks.counts(), { held: 0, waiting: 0, lost: 1, failedRenewals: 1, unreported: 0 }); // that was refused
  await locks.close();
});

await test('what ends with the locks has been reported when they are closed', async () => {
  const listener = notes();
  const locks = new Locks(own, { listener });
  const errors = [];
  locks.on('error', (error) => errors.push(error));
  await locks.lock('tell:a', { session: true }).acquire();
  await locks.close();
  assert.deepEqual(listener.names(), ['waited tell:a', 'lost tell:a']);
  assert(errors.length === 1 && errors[0] instanceof LockLost, errors);
});

await test('what is no client is refused at once', async () => {
  for (const other of [{}, 'redis://localhost', { url: 'redis://localhost' }, undefined]) {
    assert.throws(() => new Locks(other), { name: 'TypeError', message: 'client must be a client of ioredis or node-redis' });
  }
});

await test('a listener that throws or rejects stops nothing', async () => {
  const warnings = [];
  const warned = (warning) => warnings.push(warning);
  process.on('warning', warned);
  const locks = new Locks(own, {
    listener: {
      waited: () => {
        throw new Error('a mistake');
      },
      held: () => Promise.reject(new Error('a later one')),
    },
  });
  for (let count = 0; count < 3; count++) await (await locks.lock('tell:a').acquire()).release();
  await until('all is told', () => locks.counts().unreported === 6);
  await sleep(0);
  assert.equal(warnings.filter(({ name }) => name === 'RlockWarning').length, 1);
  process.off('warning', warned);
  await locks.close();
});

await test('a listener that never answers delays nothing', async () => {
  const locks = new Locks(own, { listener: { waited: () => new Promise(() => {}), held: () => new Promise(() => {}) } });
  for (let count = 0; count < 3; count++) await (await locks.lock('tell:a').acquire()).release();
  await locks.close();
});

await test('errors that no call throws are events', async () => {
  const locks = new Locks(own);
  const errors = [];
  locks.on('error', (error) => errors.push(error));
  locks.on('error', () => {
    throw new Error('a mistake');
  });
  const off = () => assert.fail('it listens no more');
  locks.on('error', off).off('error', off);
  const lost = await locks.readLock('tell:a', { lease: 1_500 }).acquire();
  await say('RLOCK.FORCE', 'tell:a');
  await aborted(lost);
  await until('both are told', () => errors.length === 2);
  assert(errors[0] instanceof Unavailable && errors[0].cause.code === 'NOTHELD' && errors[1] instanceof LockLost, errors);
  await locks.close();
  const nowhere = new Locks(await connect(1), { patience: 100 });
  nowhere.on('error', (error) => errors.push(error));
  await assert.rejects(nowhere.lock('tell:a').acquire({ wait: 1_000 }), Unavailable);
  await assert.rejects(nowhere.election('leader').leader(), Unavailable);
  await nowhere.close();
});

await test('using with a list, and its signal', async () => {
  const locks = new Locks(own);
  const result = await locks.using(['use:a', 'use:b', read('use:c')], 5_000, { wait: 1_000 }, async (signal, hold) => {
    assert(!signal.aborted && signal.error === undefined);
    assert.deepEqual(hold.keys, ['use:a', 'use:b', 'use:c']);
    await assert.rejects(locks.using('use:b', 5_000, { wait: 0 }, () => 1), NotAcquired);
    return 'done';
  });
  assert.equal(result, 'done');
  await assert.rejects(
    locks.using(['use:a'], 1_500, async (signal) => {
      await say('RLOCK.FORCE', 'use:a');
      await until('it is aborted', () => signal.aborted);
      assert(signal.error instanceof LockLost);
      throw signal.error;
    }),
    LockLost,
  );
  await assert.rejects(locks.using(['use:a'], 5_000, () => Promise.reject(new RangeError('mine'))), RangeError);
  assert.equal(locks.counts().held, 0);
  await locks.close();
});

await test('extend', async () => {
  const locks = new Locks(own);
  for (const lock of [locks.lock('extend:a', { lease: 2_000, renew: false }), locks.all(['extend:a', 'extend:b'], { lease: 2_000, renew: false })]) {
    const hold = await lock.acquire();
    assert.equal(await hold.extend(60_000), hold);
    assert(hold.left > 50_000 && Number(await say('PTTL', 'extend:a')) > 50_000);
    await hold.extend(1_000); // it is never shortened
    assert(hold.left > 50_000);
    await sleep(2_500); // the first lease
    assert(hold.held);
    await hold.release();
    await assert.rejects(hold.extend(1_000), NotHeld);
  }
  const brief = await locks.lock('extend:a', { lease: 1_000, renew: false }).acquire();
  await aborted(brief);
  await assert.rejects(brief.extend(1_000), LockLost);
  await until('the server has ended it', async () => Number(await say('EXISTS', 'extend:a')) === 0);
  const forced = await locks.lock('extend:a').acquire();
  await say('RLOCK.FORCE', 'extend:a');
  await assert.rejects(forced.extend(1_000), LockLost);
  assert(forced.signal.aborted && !forced.held);
  await locks.close();
});

function exported(options = {}) {
  const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
  const reader = new PeriodicExportingMetricReader({ exporter, exportIntervalMillis: 2 ** 30 });
  const spans = new InMemorySpanExporter();
  const tracerProvider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] });
  const listener = otel({ meterProvider: new MeterProvider({ readers: [reader] }), tracerProvider, ...options });
  const points = async () => {
    await reader.forceFlush();
    const all = {};
    for (const { descriptor, dataPoints } of exporter.getMetrics().at(-1).scopeMetrics[0].metrics) {
      for (const { attributes, value } of dataPoints) {
        if (value.buckets) assert.deepEqual(value.buckets.boundaries.slice(0, 3), [0.001, 0.005, 0.01]);
        all[`${descriptor.name} ${JSON.stringify(attributes)}`] = value.count ?? value;
      }
    }
    return all;
  };
  return { listener, spans, points, tracer: tracerProvider.getTracer('test') };
}

context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());

await test('OpenTelemetry has waits, holds and losses', async () => {
  const { listener, spans, points, tracer } = exported();
  const locks = new Locks(own, { listener });
  const request = tracer.startSpan('request');
  const hold = await context.with(trace.setSpan(context.active(), request), async () => {
    const hold = await locks.lock('otel:a').acquire();
    assert.equal(await locks.lock('otel:a').acquire({ wait: 300 }), null);
    return hold;
  });
  await hold.release();
  const lost = await locks.lock('otel:a', { lease: 1_500 }).acquire();
  await say('RLOCK.FORCE', 'otel:a');
  await aborted(lost);
  await locks.close();
  await sleep(0);
  assert.deepEqual(await points(), {
    'rlock.wait {"rlock.acquired":true}': 2, 'rlock.wait {"rlock.acquired":false}': 1,
    'rlock.hold {"rlock.lost":false}': 1, 'rlock.hold {"rlock.lost":true}': 1, 'rlock.lost {}': 1,
  });
  const waits = spans.getFinishedSpans();
  const parent = request.spanContext().spanId;
  assert.deepEqual(waits.map(({ name, parentSpanContext }) => [name, parentSpanContext?.spanId]), [
    ['rlock.wait', parent], ['rlock.wait', parent], ['rlock.wait', undefined],
  ]);
  const [seconds, nanos] = waits[1].duration;
  assert(seconds + nanos / 1e9 >= 0.25 && seconds < 5, waits[1].duration);
});

await test('OpenTelemetry has keys if asked for', async () => {
  const { listener, points } = exported({ keys: true });
  const locks = new Locks(own, { listener });
  await locks.using('otel:a', 5_000, () => {});
  await locks.close();
  await sleep(0);
  assert.deepEqual(await points(), {
    'rlock.wait {"rlock.acquired":true,"rlock.key":"otel:a"}': 1, 'rlock.hold {"rlock.lost":false,"rlock.key":"otel:a"}': 1,
  });
});

if (library === 'ioredis') own.disconnect();
else own.destroy();
