// Shows on the server at 127.0.0.1:$PORT that ticket-lock.mjs does what it says. Ends with 1 at the first thing that
// is not so.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { Deadlock, Locks, LockLost } from './ticket-lock.mjs';

const redis = new Redis(Number(process.env.PORT));
const locks = await Locks.on(redis);

// A write that the server itself refuses once the hold is over. In a cluster both keys need one {hash tag}.
redis.defineCommand('fencedSet', {
  numberOfKeys: 2,
  lua: `if redis.call('RLOCK.CHECK', KEYS[1], ARGV[1]) == 0 then return 0 end
        redis.call('SET', KEYS[2], ARGV[2])
        return 1`,
});

async function twoWorkersNeverWorkAtOnce() {
  await redis.del('io:count');
  const work = async () => {
    for (let i = 0; i < 50; i++) {
      const hold = await locks.acquire('io:counter');
      await redis.set('io:count', Number(await redis.get('io:count')) + 1);
      await hold.release();
    }
  };
  await Promise.all([work(), work()]);
  assert.equal(await redis.get('io:count'), '100');
}

async function theTurnIsHeardOf() {
  // Without the message it would ask only a third of its place later. A busy machine may be as slow, but not each time.
  for (let tries = 1; ; tries++) {
    const start = performance.now();
    const first = await locks.acquire('io:turn');
    const waiting = locks.acquire('io:turn');
    await until(async () => (await lengthOfQueue('io:turn')) === 1);
    await first.release();
    const second = await waiting;
    assert.ok(second.token > first.token);
    await second.release();
    if (performance.now() - start < 800) return;
    assert.ok(tries < 10, 'nobody told it');
  }
}

async function aWaitEndsInTimeAndLeavesTheQueue() {
  const hold = await locks.acquire('io:busy');
  const start = performance.now();
  assert.equal(await locks.acquire('io:busy', { wait: 100 }), null);
  assert.ok(performance.now() - start >= 100);
  assert.equal(await locks.acquire('io:busy', { wait: 0 }), null);
  assert.equal(await lengthOfQueue('io:busy'), 0);
  await hold.release();
}

async function readersShareAndWriteOverReadIsToldAtOnce() {
  const reader = { mode: 'READ', owner: locks.newOwner() };
  const holds = [await locks.acquire('io:read', reader), await locks.acquire('io:read', { mode: 'READ' })];
  // What to do about it: let READ go first, or ask with UPGRADE.
  await assert.rejects(locks.acquire('io:read', { owner: reader.owner }), Deadlock);
  for (const hold of holds) await hold.release();
}

async function anAcquireThatArrivesTwiceCountsOnce() {
  // The connection breaks before the server has read what was sent: ioredis connects and sends again, and then the
  // server executes both.
  const owner = locks.newOwner();
  const server = await number('server', /process_id:(\d+)/);
  const before = await number('commandstats', /cmdstat_rlock.acquire:calls=(\d+)/);
  process.kill(server, 'SIGSTOP');
  const asking = locks.acquire('io:resend', { owner });
  setTimeout(() => redis.stream.destroy(), 100);
  setTimeout(() => process.kill(server, 'SIGCONT'), 500);
  const hold = await asking;
  assert.equal(await number('commandstats', /cmdstat_rlock.acquire:calls=(\d+)/), before + 2);
  assert.equal(await redis.call('RLOCK.HOLDS', 'io:resend', owner), 1);
  await hold.release();
}

async function number(section, pattern) {
  return Number(pattern.exec(await redis.info(section))[1]);
}

async function aHoldOutlivesItsLeaseByRenewal() {
  const lease = 2_000;
  const hold = await locks.acquire('io:renewed', { lease });
  const end = await redis.pexpiretime('io:renewed');
  await until(async () => (await redis.pexpiretime('io:renewed')) >= end + lease);
  assert.ok(!hold.signal.aborted);
  assert.equal(await redis.fencedSet('io:renewed', 'io:value', hold.token, 'mine'), 1);
  await hold.release();
}

async function aLostHoldIsNoticedAndItsWriteRefused() {
  const hold = await locks.acquire('io:lost', { lease: 500 });
  await redis.call('RLOCK.FORCE', 'io:lost');
  assert.equal(await redis.fencedSet('io:lost', 'io:value', hold.token, 'too late'), 0);
  await until(() => hold.signal.aborted);
  await assert.rejects(hold.release(), LockLost);
  assert.equal(await redis.get('io:value'), 'mine');
}

/** Looks until `isSo`, for 10 seconds at most. */
async function until(isSo) {
  const end = performance.now() + 10_000;
  while (!(await isSo())) {
    assert.ok(performance.now() < end, String(isSo));
    await sleep(5);
  }
}

async function lengthOfQueue(key) {
  const info = await redis.call('RLOCK.INFO', key);
  return info[info.indexOf('queue-length') + 1];
}

await twoWorkersNeverWorkAtOnce();
await theTurnIsHeardOf();
await aWaitEndsInTimeAndLeavesTheQueue();
await readersShareAndWriteOverReadIsToldAtOnce();
await anAcquireThatArrivesTwiceCountsOnce();
await aHoldOutlivesItsLeaseByRenewal();
await aLostHoldIsNoticedAndItsWriteRefused();
locks.close();
redis.disconnect();
