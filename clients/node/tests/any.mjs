// One client library (argv[2]) at the server on $PORT: one of many keys. Each line of output is a test that passed.

import assert from 'node:assert/strict';
import { inspect } from 'node:util';
import { LockLost, Locks, NoPermission, NotAcquired } from '../dist/esm/index.js';
import { closed, connect, holders, library, own, port, say, test, until, waiting } from './common.mjs';

await say(own, 'FLUSHALL');
const locks = new Locks(own);
const held = async (...keys) => (await Promise.all(keys.map((key) => holders(own, key)))).join();

await test('a permit first, and then the first free key', async () => {
  const any = locks.any('pool', ['a', 'b', 'a']);
  const [first, second] = [await any.acquire({ wait: 0 }), await any.acquire()];
  assert.deepEqual([first.key, second.key, await held('pool', 'a', 'b')], ['a', 'b', '2,1,1']);
  assert.equal(await any.acquire({ wait: 100 }), null);
  const third = any.acquire();
  await until('it waits in line', async () => (await waiting(own, 'pool')) === 1);
  await second.release();
  assert.equal((await third).key, 'b');
  await first.release();
  await (await third).release();
  assert.equal(await held('pool', 'a', 'b'), '0,0,0');
  assert.equal(await any.using({ wait: 0 }, (hold) => hold.key), 'a');
  assert.equal(await held('pool', 'a', 'b'), '0,0,0');
});

await test('a key that somebody holds without a permit is waited for, and the permit is given back', async () => {
  await say(own, 'RLOCK.ACQUIRE', 'c', 'somebody');
  const any = locks.any('pool', ['c']);
  await assert.rejects(any.using({ wait: 100 }, () => {}), NotAcquired);
  await assert.rejects(any.acquire({ signal: AbortSignal.timeout(100) }), /timeout/i);
  assert.equal(await held('pool', 'c'), '0,1');
  const hold = any.acquire();
  await until('it has a permit', async () => (await held('pool')) === '1');
  await say(own, 'RLOCK.FORCE', 'c');
  assert.equal((await hold).key, 'c');
  await say(own, 'RLOCK.FORCE', 'c');
  await assert.rejects((await hold).release(), LockLost);
  assert.equal(await held('pool', 'c'), '0,0');
});

await test('a hold shows what it is', async () => {
  const hold = await locks.lock('shown', { owner: 'me' }).acquire();
  assert.match(inspect({ hold }), new RegExp(`Hold <shown held by me, token ${hold.token}, (29[89]\\d\\d|30000) ms left>`));
  await hold.release();
  assert.equal(`${hold}`, `shown held by me, token ${hold.token}, 0 ms left`);
});

await test('a check says what is wrong', async () => {
  await locks.check('checked');
  const hold = await locks.lock('checked').acquire();
  await locks.check('checked');
  await hold.release();
  await say(own, 'ACL', 'SETUSER', 'deaf', 'on', '>secret', '~*', '+@all', '-ssubscribe');
  const client = await connect(port, { username: 'deaf', password: 'secret' });
  if (library !== 'ioredis') await client.connect();
  const deaf = new Locks(client);
  await assert.rejects(deaf.check('checked'), NoPermission);
  assert.equal(await held('checked'), '0');
  await deaf.close();
  closed(client);
});

await test('what makes no sense is refused', () => {
  for (const wrong of [['pool', []], ['pool', ['pool']]]) assert.throws(() => locks.any(...wrong), RangeError);
  for (const wrong of [['pool', 'a'], ['pool', [3]], ['pool', ['a'], { owner: 'me' }], [3, ['a']]]) assert.throws(() => locks.any(...wrong), TypeError);
});

await locks.close();
closed(own);
