// Locks with ioredis (node-redis is the same): `npm install` the package, then `PORT=6380 node lock.mjs`.

import { Redis } from 'ioredis';
import { LockLost, Locks } from 'rlock-client';

const redis = new Redis(Number(process.env.PORT ?? 6380));
const locks = new Locks(redis);

// The server stores the value only while a WRITE hold has this token. In a Cluster, both keys need the same {hash tag}.
redis.defineCommand('fencedSet', {
  numberOfKeys: 2,
  lua: `if redis.call('RLOCK.CHECK', KEYS[1], ARGV[1]) == 0 then return 0 end
        redis.call('SET', KEYS[2], ARGV[2])
        return 1`,
});

// One object, many users: each acquisition is a separate owner.
await redis.del('node:count');
const counter = locks.lock('node:counter');
const worker = async () => {
  for (let i = 0; i < 25; i++) {
    await counter.using({}, async () => redis.set('node:count', Number(await redis.get('node:count')) + 1));
  }
};
await Promise.all([worker(), worker(), worker(), worker()]);
console.log('four workers counted to', await redis.get('node:count'));

const readers = await Promise.all([locks.readLock('node:report').acquire(), locks.readLock('node:report').acquire()]);
console.log('readers share, a writer gets', await locks.lock('node:report').acquire({ wait: 100 }));
for (const reader of readers) await reader.release();

// An abandoned wait leaves nothing behind.
const busy = await locks.lock('node:busy').acquire();
await locks.lock('node:busy').acquire({ signal: AbortSignal.timeout(100) }).catch((error) => console.log('abandoned:', error.name));
await busy.release();

// Code that used redlock: `redlock.using(['node:order'], 30_000, async (signal) => …)`.
await redis.del('node:orders');
await locks.using(['node:order'], 30_000, { wait: 10_000 }, async (signal) => {
  await redis.incr('node:orders');
  if (signal.aborted) throw signal.error;
});
console.log('orders:', await redis.get('node:orders'));

const hold = await locks.lock('node:stock', { lease: 3_000 }).acquire({ wait: 10_000 });
console.log('stored with the token:', await redis.fencedSet('node:stock', 'node:value', hold.token, 'mine'));
await redis.call('RLOCK.FORCE', 'node:stock'); // an operator ends the hold
console.log('stored after it was lost:', await redis.fencedSet('node:stock', 'node:value', hold.token, 'late'));
await new Promise((told) => hold.signal.addEventListener('abort', told));
await hold.release().catch((error) => console.log('told of it:', error instanceof LockLost));

await locks.close();
redis.disconnect();
