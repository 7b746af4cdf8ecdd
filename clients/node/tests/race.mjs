// An acquisition that lost a Promise.race leaves nothing behind. `node --expose-gc race.mjs`, with the server at $PORT.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { LockLost, Locks } from 'rlock-client';

const redis = new Redis(Number(process.env.PORT));
const locks = new Locks(redis);
const holds = (owner) => redis.call('RLOCK.HOLDS', 'node:race', owner);

async function until(what, isSo) {
  for (const end = performance.now() + 10_000; !(await isSo()); await sleep(20)) {
    assert.ok(performance.now() < end, what);
    globalThis.gc();
  }
}

const first = await locks.lock('node:race').acquire();
await Promise.race([locks.lock('node:race', { owner: 'raced' }).acquire(), sleep(100)]);
assert.equal(await redis.call('RLOCK.RELEASE', 'node:race', first.owner, 'TOKEN', first.token), 0);
await until('the loser is granted', async () => (await holds('raced')) === 1);
await until('what nobody looked at is released', async () => (await holds('raced')) === 0);

// A hold that was used is kept.
const { token } = await locks.lock('node:race', { owner: 'relied on' }).acquire();
for (let i = 0; i < 20; i++) {
  globalThis.gc();
  await sleep(20);
}
assert.equal(await redis.call('RLOCK.CHECK', 'node:race', token), 1);

// A loss that nobody can release any more must not block its owner, whoever dropped which level when.
const lost = { owner: 'lost' };
async function lose() {
  const [kept, outer] = [await locks.lock('node:lost', lost).acquire(), await locks.lock('node:lost', lost).acquire()];
  assert.equal(kept.token, outer.token);
  await redis.call('RLOCK.FORCE', 'node:lost');
  await assert.rejects(outer.extend(30_000), LockLost);
  await assert.rejects(locks.lock('node:lost', lost).acquire({ wait: 0 }), LockLost);
  return kept;
}
const again = () => locks.lock('node:lost', lost).acquire({ wait: 0 }).then((hold) => hold.release().then(() => true), () => false);
await assert.rejects((await lose()).release(), LockLost);
await until('the owner acquires again', again);
await lose();
await until('the owner acquires again when both are dropped', again);

await locks.close();
redis.disconnect();
