// One client library (argv[2]) at the server on $PORT: ends, silence, mistakes. Each line of output is a test that passed.

import assert from 'node:assert/strict';
import net from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { Locks, Unavailable } from '../dist/esm/index.js';
import { closed, connect, holders, library, own, port, relayed, relayedLocks, say, test, until, waiting } from './common.mjs';

/** Resources that keep this process alive. */
const active = () => process.getActiveResourcesInfo().filter((kind) => kind === 'Timeout' || kind === 'TCPSocketWrap').length;

await test('closed is closed: waits end, sessions end, nothing is renewed', async () => {
  const locks = new Locks(own);
  const held = await locks.lock('close:held', { lease: 1_500 }).acquire();
  const session = await locks.lock('close:session', { session: true }).acquire();
  await say(own, 'RLOCK.ACQUIRE', 'close:busy', 'somebody');
  const waiter = locks.lock('close:busy').acquire().then(() => 'granted', (error) => error);
  await until('it waits', async () => (await waiting(own, 'close:busy')) === 1);
  await locks.close();
  assert((await waiter) instanceof Unavailable);
  assert.equal(await waiting(own, 'close:busy'), 0);
  assert(session.signal.aborted);
  await until('the session ended', async () => (await holders(own, 'close:session')) === 0);
  await until('it is not renewed', async () => held.signal.aborted && (await holders(own, 'close:held')) === 0);
  await assert.rejects(locks.lock('close:new').acquire(), Unavailable);
  await say(own, 'RLOCK.RELEASE', 'close:busy', 'somebody');
});

await test('an abort is heard before there is a request', async () => {
  const locks = new Locks(own);
  // The first request asks the server for its identity.
  for (const lock of [locks.lock('abort:a', { owner: 'me' }), locks.lock('abort:a', { owner: 'me' }), locks.all(['abort:a', 'abort:b'], { owner: 'me' })]) {
    const abort = new AbortController();
    const acquired = lock.acquire({ signal: abort.signal });
    abort.abort(new Error('enough'));
    await assert.rejects(acquired, /^Error: enough$/);
    await (await lock.acquire({ wait: 0 })).release();
  }
  await locks.close();
});

await test('closed is closed for who waits behind a request of the same owner', async () => {
  const [locks, others] = [new Locks(own), new Locks(own)];
  await say(own, 'RLOCK.ACQUIRE', 'close:owner', 'somebody');
  const ended = (from) => from.lock('close:owner', { owner: 'me' }).acquire().then(() => 'granted', (error) => error);
  const isClosed = async (wait) => assert((await Promise.race([wait, sleep(5_000)])) instanceof Unavailable);
  const first = ended(others);
  await until('it waits', async () => (await waiting(own, 'close:owner')) === 1);
  const behind = ended(locks);
  await (await locks.lock('close:settled', { owner: 'me' }).acquire()).release();
  const before = active();
  await locks.close();
  await isClosed(behind);
  const [second, third] = [ended(others), ended(others)];
  await others.close();
  for (const each of [first, second, third]) await isClosed(each);
  await until('nothing goes on', () => active() < before);
  assert.equal(await waiting(own, 'close:owner'), 0);
  await say(own, 'RLOCK.RELEASE', 'close:owner', 'somebody');
});

await test('a release after the close fails at once, and is not repeated for a lease', async () => {
  const before = active();
  const locks = new Locks(own);
  const hold = await locks.lock('close:late').acquire();
  await locks.close();
  const start = performance.now();
  await assert.rejects(hold.release(), Unavailable);
  assert(performance.now() - start < 1_000);
  await until('nothing goes on', () => active() <= before);
  await say(own, 'RLOCK.FORCE', 'close:late');
});

await test('closed is closed for observers', async () => {
  const before = active();
  const locks = new Locks(own);
  const election = locks.election('close:leader');
  const [kept, pending] = [election.observe(), election.observe()];
  for (const each of [kept, pending]) assert.equal((await each.next()).value, null);
  const next = pending.next();
  await locks.close();
  const start = performance.now();
  await assert.rejects(next, Unavailable);
  assert(performance.now() - start < 500);
  await until('nothing goes on', () => active() <= before);
  await assert.rejects(kept.next(), Unavailable);
});

await test('who acquires first as a named owner outlasts a shared connection that is silent', async () => {
  const { relay, locks } = await relayedLocks('mute');
  for (const { socket, server } of relay.links) server.unpipe(socket).pause();
  const hold = await locks.lock('mute', { owner: 'me' }).acquire({ wait: 8_000 });
  await hold.release();
  await locks.close();
  relay.close();
});

await test('a release ends in time, whatever else its owner asks for', async () => {
  const relay = await relayed();
  const locks = new Locks(relay.client, { patience: 500 });
  locks.on('error', () => {}); // that it is still waiting
  const at = () => locks.lock('asked', { owner: 'me' }).acquire();
  await (await at()).release();
  const hold = await at();
  relay.stalls = true;
  for (const { server } of relay.links) server.pause().unpipe();
  const asks = at();
  await new Promise(setImmediate); // it has the seat
  const start = performance.now();
  const problem = { name: 'Unavailable', message: 'asked: not known to be released: another request of me is under way' };
  await assert.rejects(Promise.race([hold.release(), sleep(5_000)]), problem);
  const took = performance.now() - start;
  assert(took > 400 && took < 700, `it took ${took} ms`);
  relay.stalls = false;
  for (const { socket, server } of relay.links) for (const each of [socket, server]) each.destroy();
  // It is released all the same.
  const inner = await asks;
  await until('it is released', async () => (await say(own, 'RLOCK.HOLDS', 'asked', 'me')) === 1);
  await inner.release();
  assert.equal(await holders(own, 'asked'), 0);
  await locks.close();
  relay.close();
});

await test('a call returns in time whatever is silent', async () => {
  const sockets = new Set();
  const silent = net.createServer((socket) => sockets.add(socket.on('error', () => {})));
  await new Promise((resolve) => silent.listen(0, '127.0.0.1', resolve));
  const client = await connect(silent.address().port, library === 'ioredis' ? { lazyConnect: true } : {});
  const locks = new Locks(client, { patience: 700 });
  const errors = [];
  locks.on('error', ({ message }) => errors.push(message.slice(0, message.indexOf(': '))));
  for (const wait of [0, 300, 1_200]) {
    const start = performance.now();
    await assert.rejects(locks.lock(`silent:${wait}`).acquire({ wait }), Unavailable);
    const took = performance.now() - start;
    assert(took < (wait || 700) + 250, `${wait}: ${took} ms`);
  }
  const start = performance.now();
  await assert.rejects(locks.lock('silent', { owner: 'me' }).acquire({ signal: AbortSignal.timeout(100) }), { name: 'TimeoutError' });
  assert(performance.now() - start < 1_000, 'an abort is heard late');
  await locks.close();
  assert(!errors.includes('silent:300'), 'who waits no more is said to wait');
  closed(client);
  for (const socket of sockets) socket.destroy();
  silent.close();
});

await test('a wait that is longer than the server takes waits all the same', async () => {
  const locks = new Locks(own);
  await say(own, 'RLOCK.ACQUIRE', 'long', 'somebody');
  const waits = [locks.lock('long'), locks.all(['long', 'longer'])].map((lock) => lock.acquire({ wait: Number.MAX_SAFE_INTEGER }));
  await until('both wait', async () => (await waiting(own, 'long')) === 2);
  await say(own, 'RLOCK.FORCE', 'long');
  for (const wait of waits) await (await wait).release();
  await locks.close();
});

await test('a refused password is said at once', async () => {
  const client = await connect(port, { username: 'nobody', password: 'wrong', ...(library === 'ioredis' ? { lazyConnect: true } : {}) });
  const locks = new Locks(client);
  const start = performance.now();
  await assert.rejects(locks.lock('password').acquire({ wait: 5_000 }), (error) => /WRONGPASS/.test(error.message));
  assert(performance.now() - start < 1_000);
  await locks.close();
  closed(client);
});

closed(own);
// The process must end by itself, or the test fails by its timeout.
