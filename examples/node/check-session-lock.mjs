// Shows on the server at 127.0.0.1:$PORT that session-lock.mjs does what it says. Ends with 1 at the first thing
// that is not so.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { createClient } from 'redis';
import { Deadlock, LockLost, NotAcquired, withLock } from './session-lock.mjs';

const client = await createClient({ socket: { host: '127.0.0.1', port: Number(process.env.PORT) } }).connect();

// A write that the server itself refuses once the hold is over. In a cluster both keys need one {hash tag}.
const FENCED_SET = `if redis.call('RLOCK.CHECK', KEYS[1], ARGV[1]) == 0 then return 0 end
                    redis.call('SET', KEYS[2], ARGV[2])
                    return 1`;
const fencedSet = (keys, args) => client.eval(FENCED_SET, { keys, arguments: args.map(String) });

async function twoWorkersNeverWorkAtOnce() {
  await client.del('node:count');
  const work = async () => {
    for (let i = 0; i < 25; i++) {
      await withLock(client, 'node:counter', {}, async () => {
        await client.set('node:count', Number(await client.get('node:count')) + 1);
      });
    }
  };
  await Promise.all([work(), work()]);
  assert.equal(await client.get('node:count'), '50');
}

async function tokensRiseAndReadersShare() {
  const reader = { mode: 'READ' };
  const [first, second] = await withLock(client, 'node:read', reader, ({ token }) =>
    withLock(client, 'node:read', reader, async (other) => [token, other.token]),
  );
  assert.ok(second > first);
}

async function aWaitEndsInTime() {
  await withLock(client, 'node:busy', {}, async () => {
    const start = performance.now();
    await assert.rejects(withLock(client, 'node:busy', { wait: 100 }, assert.fail), NotAcquired);
    assert.ok(performance.now() - start >= 100);
  });
}

async function theServerRenewsAndTheTokenFences() {
  const lease = 2_000;
  await withLock(client, 'node:renewed', { lease }, async ({ token, signal }) => {
    const end = await client.pExpireTime('node:renewed');
    await until(async () => (await client.pExpireTime('node:renewed')) >= end + lease);
    assert.ok(!signal.aborted);
    assert.equal(await fencedSet(['node:renewed', 'node:value'], [token, 'mine']), 1);
  });
}

async function aLostHoldIsNoticedAndItsWriteRefused() {
  const work = withLock(client, 'node:lost', {}, async ({ token, signal }) => {
    const lost = once(signal, 'abort');
    await client.sendCommand(['RLOCK.FORCE', 'node:lost']);
    assert.equal(await fencedSet(['node:lost', 'node:value'], [token, 'too late']), 0);
    await lost;
  });
  await assert.rejects(work, LockLost);
  assert.equal(await client.get('node:value'), 'mine');
}

async function whoeverWaitsEntersWhenTheHolderVanishes() {
  let entered;
  const holder = withLock(client, 'node:vanished', {}, async ({ signal }) => {
    entered = withLock(client, 'node:vanished', {}, async () => true);
    await someoneQueues('node:vanished');
    const { holders } = await info('node:vanished');
    // Listening comes first: the end of the connection may be seen before the reply to what ended it.
    const lost = once(signal, 'abort');
    await client.sendCommand(['CLIENT', 'KILL', 'ID', String(holders[0].session)]);
    await lost;
  });
  await assert.rejects(holder, LockLost);
  assert.equal(await entered, true);
}

async function ofTwoThatWaitForEachOtherOneIsTold() {
  // One owner with two locks: the server sees a cycle only between names.
  const [ann, bob] = [{ owner: randomUUID() }, { owner: randomUUID() }];
  let bobIsDone;
  await withLock(client, 'node:left', ann, async () => {
    await new Promise((bobHoldsRight) => {
      bobIsDone = withLock(client, 'node:right', bob, () => {
        bobHoldsRight();
        return withLock(client, 'node:left', bob, async () => 'done');
      });
    });
    await someoneQueues('node:left');
    // What to do about it: let go of what is held, which lets bob go on, then begin again.
    await assert.rejects(withLock(client, 'node:right', ann, assert.fail), Deadlock);
  });
  assert.equal(await bobIsDone, 'done');
}

async function someoneQueues(key) {
  await until(async () => (await info(key))['queue-length'] > 0);
}

/** Looks until `isSo`, for 10 seconds at most. */
async function until(isSo) {
  const end = performance.now() + 10_000;
  while (!(await isSo())) {
    assert.ok(performance.now() < end, String(isSo));
    await sleep(5);
  }
}

/** RLOCK.INFO as an object, holders too. */
async function info(key) {
  const plain = (reply) => (Array.isArray(reply) ? reply.map(plain) : Object.assign({}, reply));
  const reply = await client.sendCommand(['RLOCK.INFO', key]);
  return { ...reply, holders: plain(reply.holders) };
}

await twoWorkersNeverWorkAtOnce();
await tokensRiseAndReadersShare();
await aWaitEndsInTime();
await theServerRenewsAndTheTokenFences();
await aLostHoldIsNoticedAndItsWriteRefused();
await whoeverWaitsEntersWhenTheHolderVanishes();
await ofTwoThatWaitForEachOtherOneIsTold();
client.destroy();
