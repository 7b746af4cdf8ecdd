// One client library (argv[2]) at the server on $PORT: a process that shuts down. Each line of output is a test that passed.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { Closed, LockLost, Locks, Unavailable } from '../dist/esm/index.js';
import { closed, holders, own, say, test, until, waiting } from './common.mjs';

await say(own, 'FLUSHALL');

await test('waits end at once, and bodies keep their locks', async () => {
  const locks = new Locks(own);
  const hold = await locks.lock('k', { lease: 600 }).acquire();
  const mine = await locks.lock('mine', { owner: 'ann' }).acquire();
  const wanted = [
    locks.lock('k'), locks.lock('k', { session: true }), locks.lock('k', { owner: 'bob' }), locks.all(['k', 'other']), locks.any('pool', ['k']),
  ];
  const waits = wanted.map((each) => each.acquire());
  await until('they wait', async () => (await waiting(own, 'k')) === 4 && (await holders(own, 'pool')) === 1);
  const drains = locks.drain(20_000);
  for (const { reason } of await Promise.allSettled(waits)) assert(reason instanceof Closed && reason instanceof Unavailable, reason);
  for (const each of [...wanted, locks.lock('free', { owner: 'ann' })]) await assert.rejects(each.acquire({ wait: 0 }), Closed);
  assert.deepEqual([await waiting(own, 'k'), await holders(own, 'pool')], [0, 0]);
  await (await locks.lock('mine', { owner: 'ann' }).acquire({ wait: 0 })).release();
  await mine.release();
  assert.equal(await Promise.race([drains, sleep(2_000)]), undefined);
  assert(hold.held && (await holders(own, 'k')) === 1);
  await hold.release();
  assert.deepEqual(await drains, []);
  assert.deepEqual([await holders(own, 'k'), await holders(own, 'mine')], [0, 0]);
  assert.deepEqual(await locks.drain(20_000), []);
});

await test('a body that does not end hears of it, and others stay out', async () => {
  const locks = new Locks(own);
  const lease = 1_500;
  const held = [
    await locks.lock('plain', { lease }).acquire(), await locks.lock('session', { session: true }).acquire(),
    await locks.all(['a', 'b'], { lease }).acquire(), await locks.lock('long', { lease, renew: false }).acquire(),
  ];
  assert(held.every((hold) => !hold.signal.aborted));
  assert.deepEqual(await locks.drain(200), ['a', 'b', 'long', 'plain', 'session']);
  assert(held.every((hold) => hold.signal.aborted && !hold.held));
  for (const key of ['a', 'b', 'long', 'plain']) assert.equal(await holders(own, key), 1);
  for (const hold of held) await assert.rejects(hold.release(), LockLost);
  for (const key of ['session', 'a', 'b', 'long', 'plain']) await until(`${key} is free`, async () => (await holders(own, key)) === 0);
});

await test('it takes a number of milliseconds', async () => {
  const locks = new Locks(own);
  for (const wrong of [undefined, 'ten', null]) await assert.rejects(locks.drain(wrong), TypeError);
  await assert.rejects(locks.drain(-1), RangeError);
  await (await locks.lock('k').acquire()).release();
  await locks.close();
});

closed(own);
