// One client library (argv[2]) at the server on $PORT: apparent losses, several locks, waits after a pause, one
// connection that breaks, texts of errors. Each line of output is a test that passed.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { createClientPool } from 'redis';
import { limit, LockLost, Locks, NotAcquired, NotHeld, read } from '../dist/esm/index.js';
import { closed, connect, holders, library, own, port, relayedLocks, say, test, until, waiting } from './common.mjs';

await test('an extension during the release is no loss', async () => {
  const locks = new Locks(own);
  const errors = [];
  locks.on('error', (error) => errors.push(error));
  for (const lock of [locks.lock('leaving'), locks.all(['leaving', 'left'])]) {
    const hold = await lock.acquire();
    const { signal } = hold;
    const extending = hold.extend(5_000).catch((error) => error);
    await hold.release();
    const error = await extending;
    assert(error instanceof NotHeld && /^leaving(, left)? was released before$/.test(error.message), error);
    assert(!signal.aborted);
  }
  assert.equal(locks.counts().lost, 0);
  // What the release itself finds is reported.
  const hold = await locks.lock('leaving').acquire();
  const { signal } = hold;
  await say(own, 'RLOCK.FORCE', 'leaving');
  await assert.rejects(hold.release(), LockLost);
  assert(signal.aborted && locks.counts().lost === 1);
  await locks.close();
  assert(errors.length === 1 && errors[0] instanceof LockLost, errors);
});

await test('a server that was paused does not shorten later waits', async () => {
  const locks = new Locks(own);
  await say(own, 'RLOCK.ACQUIRE', 'paused', 'somebody');
  // At first, nothing is subscribed, so a request without a wait comes first.
  for (const what of ['the first wait', 'a later one']) {
    assert.equal(await locks.lock('paused').acquire({ wait: 0 }), null);
    await say(own, 'CLIENT', 'PAUSE', '1000', 'ALL');
    const slow = Array.from({ length: 30 }, () => locks.lock('paused').acquire({ wait: 0 }));
    for (const each of slow) assert.equal(await each, null);
    const start = performance.now();
    assert.equal(await locks.lock('paused').acquire({ wait: 400 }), null);
    const took = performance.now() - start;
    assert(took > 350, `${what}: it waited ${took} ms`);
  }
  await locks.close();
  await say(own, 'RLOCK.FORCE', 'paused');
});

await test('a wait whose connection breaks takes no other request along', async () => {
  const { relay, locks } = await relayedLocks('shared');
  const shared = relay.links.at(-1);
  await say(own, 'RLOCK.ACQUIRE', 'broken', 'somebody');
  const waits = locks.lock('broken').acquire();
  await until('it waits', async () => (await waiting(own, 'broken')) === 1);
  const alone = relay.links.at(-1);
  assert.notEqual(alone, shared);
  // Meanwhile, a request is in progress.
  shared.server.unpipe(shared.socket).pause();
  const acquired = locks.lock('shared').acquire({ wait: 0 });
  await until('the server has it', async () => (await holders(own, 'shared')) === 1);
  const count = relay.links.length;
  alone.socket.destroy();
  alone.server.destroy();
  await until('it waits again', async () => relay.links.length > count && (await waiting(own, 'broken')) === 1);
  assert(!shared.socket.destroyed);
  shared.server.pipe(shared.socket);
  const hold = await acquired;
  assert.equal(relay.links.length, count + 1);
  await hold.release();
  await say(own, 'RLOCK.FORCE', 'broken');
  await (await waits).release();
  await locks.close();
  relay.close();
});

await test('a wait for a session whose connection breaks goes on with another one', async () => {
  const { relay, locks } = await relayedLocks('session');
  await say(own, 'RLOCK.ACQUIRE', 'session', 'somebody');
  const count = relay.links.length;
  const waits = locks.lock('session', { session: true }).acquire();
  await until('it waits', async () => (await waiting(own, 'session')) === 1);
  assert.equal(relay.links.length, count + 2, 'its own connection, and the subscription');
  const link = relay.links[count];
  for (const each of [link.socket, link.server]) each.destroy();
  await until('it has another one', () => relay.links.length > count + 2);
  await until('it waits again', async () => (await waiting(own, 'session')) === 1);
  await say(own, 'RLOCK.FORCE', 'session');
  const hold = await waits;
  assert(hold.held && (await holders(own, 'session')) === 1);
  const { signal } = hold;
  const links = relay.links.length;
  relay.links.at(-1).socket.destroy(); // it is tied to that one
  await until('it is tied again, or lost', () => relay.links.length > links || signal.aborted);
  await hold.release().catch((error) => assert(error instanceof LockLost, error));
  await locks.close();
  relay.close();
});

await test('what was lost must be released first, also of several', async () => {
  const locks = new Locks(own);
  const all = locks.all(['lost:a', 'lost:b'], { owner: 'me' });
  const hold = await all.acquire();
  await say(own, 'RLOCK.FORCE', 'lost:a');
  await assert.rejects(hold.extend(5_000), { name: 'LockLost', message: 'lost:a, lost:b is no longer held by me' });
  const first = { name: 'LockLost', message: 'lost:a, lost:b was lost by me: release it first' };
  await assert.rejects(all.acquire({ wait: 0 }), first);
  await assert.rejects(locks.lock('lost:b', { owner: 'me' }).acquire({ wait: 0 }), first);
  await assert.rejects(hold.release(), { name: 'LockLost', message: 'lost:a, lost:b was lost before me released it' });
  await (await all.acquire({ wait: 0 })).release();
  await locks.close();
});

await test('nobody overtakes the release of what is left of several', async () => {
  const { relay, locks } = await relayedLocks();
  const at = (options) => locks.all(['left:a', 'left:b'], { owner: 'me', lease: 1_500, ...options }).acquire({ wait: 10_000 });
  const hold = await at();
  const { signal } = hold;
  await say(own, 'RLOCK.FORCE', 'left:a');
  await until('it is lost', () => signal.aborted);
  let late;
  for (const { socket, server } of relay.links) {
    socket.unpipe(server).resume();
    socket.on('data', (sent) => (!late && /MRELEASE/.test(sent) ? (late = () => server.write(sent)) : server.write(sent)));
  }
  const releasing = assert.rejects(hold.release(), LockLost);
  const acquiring = at({ session: true }); // by a connection of its own
  await until('it is being released', () => late);
  assert.equal(await Promise.race([acquiring, sleep(100)]), undefined, 'it is overtaken');
  late();
  await releasing;
  const next = await acquiring;
  for (const key of next.keys) assert.equal(await holders(own, key), 1, key);
  await next.release();
  await locks.close();
  relay.close();
});

await test('several locks are one hold, and the loss of one is that of all', async () => {
  const locks = new Locks(own);
  for (const ones of [[], ['a', read('a')], [limit('a', 1), limit('a', 2)]]) assert.throws(() => locks.all(ones), RangeError);
  const all = locks.all(['sb', 'sa', read('sc'), limit('sp', 2), 'sa'], { lease: 3_000 });
  const hold = await all.acquire();
  assert.deepEqual(hold.keys, ['sa', 'sb', 'sc', 'sp']);
  for (const key of hold.keys) assert.equal(await holders(own, key), 1, key);
  const next = all.acquire({ wait: 10_000 });
  await until('it waits', async () => (await waiting(own, 'sa')) === 1);
  await hold.release();
  const second = await next;
  await say(own, 'RLOCK.FORCE', 'sb');
  await until('the loss is told', () => second.signal.aborted);
  await assert.rejects(second.release(), LockLost);
  for (const key of hold.keys) assert.equal(await holders(own, key), 0, key);
  await locks.close();
});

await test('an owner holds a key by itself, or with others', async () => {
  const locks = new Locks(own);
  const all = locks.all(['ma', 'mb'], { owner: 'me' });
  const hold = await all.acquire();
  for (const key of ['ma', 'mb']) await assert.rejects(locks.lock(key, { owner: 'me' }).acquire({ wait: 0 }), RangeError);
  await hold.release();
  const single = await locks.lock('mb', { owner: 'me' }).acquire({ wait: 0 });
  await assert.rejects(all.acquire({ wait: 0 }), RangeError);
  assert.equal(await holders(own, 'ma'), 0);
  await single.release();
  await (await all.acquire({ wait: 0 })).release();
  await locks.close();
});

await test('two names of one server have one owner', async () => {
  const other = await connect(port, library === 'ioredis' ? { host: 'localhost' } : { socket: { port, host: 'localhost', reconnectStrategy: false } });
  const [one, two] = [new Locks(own), new Locks(other)];
  const outer = await one.lock('names', { owner: 'me' }).acquire();
  const inner = await two.lock('names', { owner: 'me' }).acquire({ wait: 0 });
  assert.equal(inner.token, outer.token);
  await inner.release();
  assert.equal(await holders(own, 'names'), 1);
  await outer.release();
  await one.close();
  await two.close();
  closed(other);
});

await test('an error of the work is not replaced by a loss that it may come of', async () => {
  const locks = new Locks(own);
  const fails = async () => {
    await say(own, 'RLOCK.FORCE', 'work');
    throw new RangeError('mine');
  };
  await assert.rejects(locks.using('work', 5_000, fails), /^RangeError: mine$/);
  await assert.rejects(locks.using('work', 5_000, () => say(own, 'RLOCK.FORCE', 'work')), LockLost);
  assert.equal(locks.counts().lost, 2);
  await locks.close();
});

await test('who did not wait is not told how long', async () => {
  const locks = new Locks(own);
  await say(own, 'RLOCK.ACQUIRE', 'full', 'somebody');
  const never = () => assert.fail('it was called');
  await assert.rejects(locks.using('full', 5_000, { maxQueue: 0 }, never), (error) => error instanceof NotAcquired && error.message === 'full was not free');
  await assert.rejects(locks.using(['full', 'more'], 5_000, { wait: 1 }, never), { message: 'full, more was not free within 1 ms' });
  await locks.close();
  await say(own, 'RLOCK.FORCE', 'full');
});

await test('a pool is refused', async () => {
  const pool = createClientPool({ socket: { port } });
  assert.throws(() => new Locks(pool), { name: 'TypeError', message: /^a pool of node-redis cannot be used/ });
});

closed(own);
