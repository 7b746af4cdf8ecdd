// One client library (argv[2]) at the server on $PORT: one run in each interval. Each line of output is a test that passed.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { LockLost, Locks, Unavailable } from '../dist/esm/index.js';
import { closed, holders, own, relayed, say, test, until } from './common.mjs';

await say(own, 'FLUSHALL');
const locks = new Locks(own);
const nothing = () => {};
const fails = () => {
  throw new TypeError('of the work');
};

await test('one of all runs, and the interval begins with the grant', async () => {
  const start = performance.now();
  assert(await locks.once('each', 1_000, async (hold) => assert(hold.key === 'each' && hold.held && (await sleep(300)) === undefined)));
  assert.equal(await locks.once('each', 1_000, fails), false);
  assert(Number(await say(own, 'PTTL', 'each')) <= 700);
  await until('the interval is over', async () => (await holders(own, 'each')) === 0);
  assert(performance.now() - start >= 1_000);
  assert(await locks.once('each', 1_000, nothing));
  assert(await locks.once('each', 1_000, nothing, { wait: 10_000 }), 'it may wait for the next interval');
});

await test('a run that fails keeps its interval, or not', async () => {
  for (const [ifItFails, isFree] of [[undefined, false], ['keep', false], ['again', true]]) {
    const key = `fails-${ifItFails}`;
    await assert.rejects(locks.once(key, 60_000, fails, ifItFails && { ifItFails }), /of the work/);
    assert.equal((await holders(own, key)) === 0, isFree);
    assert.equal(await locks.once(key, 60_000, nothing), isFree);
  }
});

await test('with again, the interval is as long as it is, whatever the lease', async () => {
  assert(await locks.once('short', 10_000, nothing, { ifItFails: 'again' }));
  assert(Number(await say(own, 'PTTL', 'short')) <= 11_000);
  assert(await locks.once('long', 60_000, () => sleep(3_000), { ifItFails: 'again', lease: 2_000 }));
  assert(Number(await say(own, 'PTTL', 'long')) > 50_000);
  assert(await locks.once('over', 200, () => sleep(400), { ifItFails: 'again' }));
  assert.equal(await holders(own, 'over'), 0);
});

await test('with keep, a run that takes longer than its interval has lost the lock', async () => {
  await assert.rejects(locks.once('over', 200, () => sleep(400)), LockLost);
});

await test('an interval is kept though the end of its run does not reach the server', async () => {
  const relay = await relayed();
  const mine = new Locks(relay.client);
  relay.breaks = /READ/;
  assert(await mine.once('unheard', 60_000, nothing));
  assert((await holders(own, 'unheard')) > 0);
  await assert.rejects(mine.once('unheard-again', 60_000, nothing, { ifItFails: 'again' }), Unavailable);
  assert.equal(await holders(own, 'unheard-again'), 1); // what was executed and not answered
  await mine.close();
  relay.close();
});

await test('what makes no sense is refused, and nothing is sent', async () => {
  for (const wrong of [[0, nothing], [undefined, nothing], [604_800_001, nothing], ['1h', nothing], [1_000, undefined], [1_000, nothing, { ifItFails: 'never' }], [1_000, nothing, { renew: false }]]) {
    await assert.rejects(locks.once('wrong', ...wrong), (error) => error instanceof TypeError || error instanceof RangeError);
  }
  assert.equal(await holders(own, 'wrong'), 0);
});

await locks.close();
closed(own);
