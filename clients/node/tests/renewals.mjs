// One client library (argv[2]) at the server on $PORT: renewals, and the clocks. Each line of output is a test that
// passed.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { Locks, Unavailable } from '../dist/esm/index.js';
import { closed, holders, own, relayedLocks, test, until } from './common.mjs';

await test('a hold is renewed by the longest lease that its owner entered with', async () => {
  const locks = new Locks(own);
  const start = Date.now();
  const at = (options) => locks.lock('entered', { owner: 'me', ...options }).acquire({ wait: 0 });
  const outer = await at({ lease: 1_500, renew: false });
  const inner = await at({ lease: 1_500 });
  await until('the one that was not renewed is', () => Date.now() - start > 3_000 || !outer.held);
  assert(outer.held);
  const longest = await at({ lease: 6_000 });
  const entered = Date.now();
  await until('the longer lease is renewed', () => longest.left > 5_000 && Date.now() - entered > 1_200);
  for (const hold of [longest, inner, outer]) await hold.release();
  assert.equal(await holders(own, 'entered'), 0);
  await locks.close();
});

await test('a loop that is blocked loses no lease whose renewal is answered', async () => {
  const locks = new Locks(own);
  const hold = await locks.lock('blocked', { lease: 3_000 }).acquire();
  for (const end = Date.now() + 7_000; Date.now() < end; await new Promise(setImmediate)) {
    for (const until = Date.now() + 600; Date.now() < until; );
  }
  assert(hold.held && !hold.signal.aborted);
  await hold.release();
  await locks.close();
});

await test('a loop that is blocked for longer than a third of the lease is told that the hold was renewed', async () => {
  const locks = new Locks(own);
  const hold = await locks.lock('blocked long', { lease: 4_500 }).acquire();
  await new Promise(setImmediate); // then the loop runs its timers after the first time that it is blocked
  // When a reply is read, the next renewal is overdue, so there is no pause between renewals.
  let wasHeld = false;
  for (const begin = Date.now(); Date.now() < begin + 10_000; await new Promise(setImmediate)) {
    if (Date.now() > begin + 4_500) wasHeld ||= hold.held && hold.left > 0;
    for (const until = Date.now() + 1_600; Date.now() < until; );
  }
  assert(wasHeld && !hold.signal.aborted);
  await until('it is held', () => hold.held);
  await hold.release();
  await locks.close();
});

await test('a renewal that fails does not prolong what the wall clock says is over', async () => {
  const { relay, locks } = await relayedLocks();
  const failed = new Promise((resolve) => locks.on('error', (error) => error instanceof Unavailable && resolve()));
  const hold = await locks.lock('slept', { lease: 3_000 }).acquire();
  assert(hold.held);
  // While a computer sleeps, only the wall clock continues; and its connections break.
  const { now } = Date;
  Date.now = () => now() + 10_000;
  try {
    assert(!hold.held);
    relay.close();
    await failed;
    await sleep(100);
    assert(!hold.held && hold.left === 0 && !hold.signal.aborted);
  } finally {
    Date.now = now;
  }
  await locks.close();
});

await test('a free lock that is released at once takes one timer, and nothing to be finalized', async () => {
  const locks = new Locks(own);
  const lock = locks.lock('frugal');
  await (await lock.acquire()).release();
  const [{ register }, timer] = [FinalizationRegistry.prototype, globalThis.setTimeout];
  const counts = { registered: 0, timers: 0 };
  FinalizationRegistry.prototype.register = function (...words) {
    counts.registered++;
    return register.apply(this, words);
  };
  globalThis.setTimeout = (...words) => {
    counts.timers++;
    return timer(...words);
  };
  const begin = performance.now();
  try {
    for (let i = 0; i < 500; i++) await (await lock.acquire()).release();
  } finally {
    FinalizationRegistry.prototype.register = register;
    globalThis.setTimeout = timer;
  }
  // One is the ping of the renewal; the others belong to all holds and requests together.
  const others = 4 + (performance.now() - begin) / 50;
  assert(counts.timers <= 500 + others && counts.registered <= others, JSON.stringify(counts));
  await locks.close();
});

closed(own);
