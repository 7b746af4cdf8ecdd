// One client library (argv[2]) at the server on $PORT: ends, silence, mistakes. Each line of output is a test that passed.

import assert from 'node:assert/strict';
import net from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { limit, Locks, LockLost, NoPermission, read, Unavailable } from '../dist/esm/index.js';
import { closed, connect, holders, library, own, port, relayed, say, test, until, waiting } from './common.mjs';

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
  const relay = await relayed();
  const locks = new Locks(relay.client);
  await (await locks.lock('mute').acquire()).release();
  for (const { socket, server } of relay.links) server.unpipe(socket).pause();
  const hold = await locks.lock('mute', { owner: 'me' }).acquire({ wait: 8_000 });
  await hold.release();
  await locks.close();
  relay.close();
});

await test('a session that is lost while it is tied anew can be released', async () => {
  const relay = await relayed();
  const locks = new Locks(relay.client);
  await (await locks.lock('retied').acquire()).release();
  const hold = await locks.lock('retied', { session: true, owner: 'me' }).acquire();
  const count = relay.links.length;
  relay.stalls = true;
  relay.links.at(-1).socket.destroy();
  await until('it is being tied', () => relay.links.length > count);
  assert(!hold.held && !hold.signal.aborted);
  await say(own, 'RLOCK.FORCE', 'retied');
  await assert.rejects(hold.extend(5_000), LockLost);
  await assert.rejects(Promise.race([hold.release(), sleep(5_000)]), LockLost);
  const late = relay.links.at(-1);
  relay.flow(late);
  await (await locks.lock('retied', { owner: 'me' }).acquire({ wait: 0 })).release();
  await locks.close();
  await until('its connection is closed', () => late.socket.destroyed);
  relay.close();
});

await test('nobody overtakes a request that was to tie a session', async () => {
  const relay = await relayed();
  const locks = new Locks(relay.client);
  const at = (options) => locks.lock('overtaken', { owner: 'me', ...options }).acquire({ wait: 10_000 });
  await (await at()).release();
  const hold = await at({ session: true });
  const { signal } = hold;
  const count = relay.links.length;
  relay.stalls = true;
  relay.links.at(-1).socket.destroy();
  await until('it connects', () => relay.links.length > count);
  const { socket, server } = relay.links.at(-1);
  relay.stalls = false;
  let late;
  socket.on('data', (sent) => (/SESSION/.test(sent) ? (late = sent) : server.write(sent)));
  server.pipe(socket);
  await until('it is lost', () => signal.aborted);
  const acquired = hold.release().catch((error) => assert(error instanceof LockLost, error)).then(() => at());
  assert.equal(await Promise.race([acquired, sleep(250)]), undefined, 'it is overtaken');
  server.write(late);
  const next = await acquired;
  assert(next.token > hold.token && (await holders(own, 'overtaken')) === 1);
  await next.extend(5_000);
  await next.release();
  await until('nothing is left', async () => (await holders(own, 'overtaken')) === 0);
  await locks.close();
  relay.close();
});

await test('a session that ended by its deadline is not entered again', async () => {
  const relay = await relayed();
  const locks = new Locks(relay.client);
  const at = (options) => locks.lock('expired', { owner: 'me', ...options }).acquire({ wait: 10_000 });
  await (await at()).release();
  const hold = await at({ session: true, lease: 1_500 });
  const { signal } = hold;
  const session = relay.links.at(-1);
  relay.stalls = true;
  for (const { socket, server } of relay.links) {
    socket.unpipe(server).resume();
    server.unpipe(socket).resume();
  }
  await until('it is lost', () => signal.aborted);
  relay.stalls = false;
  // The server has not noticed that: it renews the hold as long as that connection is open.
  assert.equal(await holders(own, 'expired'), 1);
  const acquired = hold.release().catch((error) => assert(error instanceof LockLost, error)).then(() => at({ lease: 30_000 }));
  const next = await acquired;
  const name = `addr=127.0.0.1:${session.server.localPort} `;
  assert(String(await say(own, 'CLIENT', 'LIST')).includes(name));
  session.server.destroy();
  await until('the server has noticed', async () => !String(await say(own, 'CLIENT', 'LIST')).includes(name));
  assert(next.token > hold.token && (await holders(own, 'expired')) === 1);
  await next.release();
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

await test('a session whose connection broke is tied anew by the lease that its owner entered with again', async () => {
  const relay = await relayed();
  const locks = new Locks(relay.client);
  await (await locks.lock('doubted').acquire()).release();
  const at = (lease) => locks.lock('doubted', { session: true, owner: 'me', lease }).acquire({ wait: 8_000 });
  const outer = await at(6_000);
  const count = relay.links.length;
  relay.stalls = true;
  relay.links.at(-1).socket.destroy();
  await until('it is being tied', () => relay.links.length > count);
  const entering = at(30_000);
  relay.stalls = false;
  const inner = await entering;
  assert(!inner.held && !inner.signal.aborted);
  await until('it is tied', () => inner.held);
  assert(inner.left > 25_000 && outer.held);
  await inner.release();
  await outer.release();
  await locks.close();
  relay.close();
});

await test('a wait that is abandoned while it subscribes leaves nothing but the subscription', async () => {
  const relay = await relayed();
  const locks = new Locks(relay.client);
  await (await locks.lock('hushed').acquire()).release();
  await say(own, 'RLOCK.ACQUIRE', 'hushed', 'somebody');
  const count = relay.links.length;
  relay.stalls = true;
  const abort = new AbortController();
  const acquired = locks.lock('hushed', { owner: 'me' }).acquire({ signal: abort.signal });
  await until('it connects', () => relay.links.length > count);
  abort.abort();
  await assert.rejects(acquired, { name: 'AbortError' });
  relay.flow(relay.links.at(-1));
  await until('it subscribed', async () => (await say(own, 'PUBSUB', 'SHARDCHANNELS', 'rlock:tell:*')).length === 1);
  assert.equal(await waiting(own, 'hushed'), 0);
  await locks.close();
  await until('it is subscribed no more', async () => (await say(own, 'PUBSUB', 'SHARDCHANNELS', '*')).length === 0);
  await say(own, 'RLOCK.FORCE', 'hushed');
  relay.close();
});

await test('waits outlast a subscription that is silent', async () => {
  const relay = await relayed();
  const locks = new Locks(relay.client);
  await (await locks.lock('deaf').acquire()).release();
  await say(own, 'RLOCK.ACQUIRE', 'deaf', 'somebody');
  const waits = ['one', 'two'].map((owner) => locks.lock('deaf', { owner }).acquire());
  await until('they wait', async () => (await waiting(own, 'deaf')) === 2);
  const [deaf, count] = [relay.links.at(-1), relay.links.length];
  deaf.server.unpipe(deaf.socket).pause();
  deaf.socket.unpipe(deaf.server).pause();
  const begin = performance.now();
  await until('the subscription is replaced', () => relay.links.length > count);
  assert(performance.now() - begin < 4_500, 'that is not found in LOOKS and REPLY');
  await say(own, 'RLOCK.FORCE', 'deaf');
  for (const hold of await Promise.all(waits.map((wait) => wait.then((hold) => hold.release())))) assert.equal(hold, undefined);
  await locks.close();
  relay.close();
});

await test('waits whose subscription breaks again and again do not ask more often', async () => {
  const relay = await relayed();
  const locks = new Locks(relay.client);
  await say(own, 'RLOCK.ACQUIRE', 'torn', 'somebody');
  const asked = async () => Number(/cmdstat_rlock.acquire:calls=(\d+)/.exec(await say(own, 'INFO', 'commandstats'))[1]);
  relay.breaks = /SSUBSCRIBE/i;
  const [before, count] = [await asked(), relay.links.length];
  await assert.rejects(locks.lock('torn').acquire({ wait: 3_500 }), Unavailable);
  const [asks, links] = [(await asked()) - before, relay.links.length - count];
  assert(asks >= 1 && asks < 15 && links < 15, `${asks} requests, ${links} connections`);
  // Or as soon as it has arrived.
  relay.breaks = undefined;
  const waits = locks.lock('torn').acquire({ wait: 3_500 });
  const kill = setInterval(() => say(own, 'CLIENT', 'KILL', 'TYPE', 'pubsub'), 5);
  const [more, others] = [await asked(), relay.links.length];
  await waits.then((hold) => assert.equal(hold, null), (error) => assert(error instanceof Unavailable));
  clearInterval(kill);
  const [again, dials] = [(await asked()) - more, relay.links.length - others];
  assert(again < 40 && dials < 15, `${again} requests, ${dials} connections`);
  await locks.close();
  await say(own, 'RLOCK.FORCE', 'torn');
  relay.close();
});

await test('a subscription that is killed costs a wait nothing but a moment', async () => {
  const locks = new Locks(own);
  await say(own, 'RLOCK.ACQUIRE', 'killed', 'somebody');
  const waits = Array.from({ length: 50 }, () => locks.lock('killed').acquire());
  await until('they wait', async () => (await waiting(own, 'killed')) === 50);
  await sleep(1_000); // else it is not replaced at once
  assert(Number(await say(own, 'CLIENT', 'KILL', 'TYPE', 'pubsub')) >= 1);
  await until('they wait with another one', async () => (await say(own, 'PUBSUB', 'SHARDNUMSUB', (await say(own, 'PUBSUB', 'SHARDCHANNELS', '*'))[0] ?? 'none'))[1] === 1);
  const begin = performance.now();
  await say(own, 'RLOCK.FORCE', 'killed');
  const first = await Promise.race(waits);
  const took = performance.now() - begin;
  assert(took < 2_000, `${took} ms`);
  await Promise.all(waits.map((wait) => wait.then((hold) => hold.release())));
  assert(first);
  await locks.close();
});

await test('two thousand waits take two connections, and are served in order', async () => {
  const count = async () => Number(/connected_clients:(\d+)/.exec(await say(own, 'INFO', 'clients'))[1]);
  const before = await count();
  const locks = new Locks(own);
  await say(own, 'RLOCK.ACQUIRE', 'crowd', 'somebody');
  const order = [];
  const waits = Array.from({ length: 2_000 }, (_, i) => locks.lock('crowd', { owner: `one of many ${i}` }).using({}, () => order.push(i)));
  await until('they wait', async () => (await waiting(own, 'crowd')) === 2_000);
  assert.equal((await count()) - before, 2);
  const { waiters } = { waiters: await say(own, 'RLOCK.INFO', 'crowd', 'WAITERS', '10000', 'HOLDERS', '0') };
  const rows = Array.isArray(waiters) ? waiters[waiters.indexOf('waiters') + 1] : waiters.waiters;
  const owners = rows.map((row) => (Array.isArray(row) ? row[row.indexOf('owner') + 1] : row.owner));
  await say(own, 'RLOCK.FORCE', 'crowd');
  await Promise.all(waits);
  assert.deepEqual(order.map((i) => `one of many ${i}`), owners);
  await locks.close();
});

await test('a loss is known as soon as the server knows it', async () => {
  const locks = new Locks(own);
  const hold = await locks.lock('observed').acquire();
  const lost = new Promise((resolve) => hold.signal.addEventListener('abort', () => resolve(performance.now())));
  const observers = async () => {
    const info = await say(own, 'RLOCK.INFO', 'observed');
    return Array.isArray(info) ? info[info.indexOf('observers') + 1] : info.observers;
  };
  await until('it observes', async () => (await observers()) === 1);
  // Also with another subscription.
  await say(own, 'CLIENT', 'KILL', 'TYPE', 'pubsub');
  await until('it observes no more', async () => (await observers()) !== 1 || (await say(own, 'PUBSUB', 'SHARDCHANNELS', '*')).length === 1);
  await until('it observes again', async () => (await observers()) >= 1 && (await say(own, 'PUBSUB', 'SHARDCHANNELS', '*')).length === 1);
  await sleep(100);
  const begin = performance.now();
  await say(own, 'RLOCK.FORCE', 'observed');
  const took = (await lost) - begin;
  assert(took < 500, `${took} ms`); // the next renewal is seconds away
  await assert.rejects(hold.release(), LockLost);
  // A release is no loss.
  const released = await locks.lock('observed').acquire();
  assert(!released.signal.aborted);
  await until('it observes', async () => (await observers()) >= 1);
  await released.release();
  await sleep(50);
  assert(!released.signal.aborted);
  assert.equal(locks.counts().lost, 1);
  await locks.close();
});

await test('a message for an earlier request, or for none, is not believed', async () => {
  const relay = await relayed();
  const ids = [];
  relay.sees = (sent) => ids.push(...[...String(sent).matchAll(/TELL\r\n\$\d+\r\n(.*)\r\n\$\d+\r\n(.*)\r\n/g)].map(([, channel, id]) => [channel, id]));
  const locks = new Locks(relay.client);
  await say(own, 'RLOCK.ACQUIRE', 'forged', 'somebody');
  let granted = false;
  const waits = locks.lock('forged').acquire();
  waits.then(() => (granted = true));
  await until('it asks again', () => ids.length === 2);
  await until('it waits', async () => (await waiting(own, 'forged')) === 1);
  const [[channel, first], [, second]] = ids;
  assert.notEqual(first, second);
  for (const text of [`${first} token 99 1000`, `${first} nil -1`, `${second}0 token 99 1000`, 'token', '', ' ', `${first}`]) await say(own, 'SPUBLISH', channel, text);
  await until('it asks once more', () => ids.length === 3);
  assert(!granted);
  await say(own, 'RLOCK.FORCE', 'forged');
  const hold = await waits;
  assert.notEqual(hold.token, 99);
  await hold.release();
  await locks.close();
  relay.close();
});

await test('who may not subscribe, or not publish, is refused for that', async () => {
  const users = {
    deaf: ['+@all', '-ssubscribe', 'ssubscribe'], // the command
    closed: ['+@all', 'resetchannels', 'channel'], // the channels
  };
  await say(own, 'RLOCK.ACQUIRE', 'denied', 'somebody');
  for (const [username, [...rules]] of Object.entries(users)) {
    const what = rules.pop();
    await say(own, 'ACL', 'SETUSER', username, 'reset', 'on', '>secret', '~*', ...(username === 'closed' ? [] : ['&*']), ...rules);
    const client = await connect(port, { username, password: 'secret' });
    if (library !== 'ioredis') await client.connect();
    const locks = new Locks(client);
    const begin = performance.now();
    await assert.rejects(locks.lock('denied').acquire({ wait: 5_000 }), (error) => error instanceof NoPermission && error.message.includes(what));
    assert(performance.now() - begin < 1_000);
    // Acquiring a free lock needs no message.
    await (await locks.lock('not denied').acquire({ wait: 5_000 })).release();
    await locks.close();
    closed(client);
    await say(own, 'ACL', 'DELUSER', username);
  }
  await say(own, 'RLOCK.FORCE', 'denied');
});

await test('a module without TELL is said to be too old', async () => {
  // A relay that renames the word simulates it.
  const relay = await relayed();
  relay.renames = ['TELL', 'TOLD'];
  const locks = new Locks(relay.client);
  await say(own, 'RLOCK.ACQUIRE', 'aged', 'somebody');
  const begin = performance.now();
  await assert.rejects(locks.lock('aged').acquire({ wait: 5_000 }), (error) => /is too old for this package: it does not know TELL/.test(error.message));
  assert(performance.now() - begin < 1_000);
  await locks.close();
  await say(own, 'RLOCK.FORCE', 'aged');
  relay.close();
});

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
  const relay = await relayed();
  const locks = new Locks(relay.client);
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

await test('an unknown option is refused by its name', async () => {
  const unknown = (name) => ({ name: 'TypeError', message: new RegExp(`^unknown option '${name}'`) });
  assert.throws(() => new Locks(own, { retryCount: 0 }), unknown('retryCount'));
  const locks = new Locks(own);
  await say(own, 'RLOCK.ACQUIRE', 'options', 'somebody');
  const never = () => assert.fail('it was called');
  await assert.rejects(locks.using(['options'], 5_000, { retryCount: 0 }, never), unknown('retryCount'));
  await assert.rejects(locks.using(['options'], 5_000, { wait: 0, automaticExtensionThreshold: 1 }, never), unknown('automaticExtensionThreshold'));
  await assert.rejects(locks.lock('options').acquire({ timeout: 10 }), unknown('timeout'));
  await assert.rejects(locks.lock('options').using({ toString: 10 }, never), unknown('toString'));
  await assert.rejects(locks.lock('options').acquire(10), { name: 'TypeError', message: 'options must be an object, not 10' });
  for (const make of [(o) => locks.lock('options', o), (o) => locks.readLock('options', o), (o) => locks.permit('options', 2, o)]) {
    assert.throws(() => make({ ttl: 1_000 }), unknown('ttl'));
  }
  // A missing number means no limit, so it must not be accepted.
  for (const most of [undefined, null, NaN, '2', 1.5]) {
    const refused = { name: 'TypeError', message: `limit must be an integer from 1 to 1000000 permits, not ${most === '2' ? '"2"' : most}` };
    assert.throws(() => locks.permit('options', most), refused);
    assert.throws(() => limit('options', most), refused);
  }
  assert.throws(() => locks.all(['a', 'b'], { upgrade: true }), unknown('upgrade'));
  assert.throws(() => locks.election('options', { session: true }), unknown('session'));
  await assert.rejects(locks.election('options').campaign({ waiting: 1 }), unknown('waiting'));
  assert.throws(() => locks.election('options').observe({ wait: 1 }), unknown('wait'));
  assert.equal(await holders(own, 'options'), 1);
  await say(own, 'RLOCK.FORCE', 'options');
  await locks.close();
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

await test('followers see who leads', async () => {
  const locks = new Locks(own);
  const election = locks.election('leader', { name: 'one:1' });
  const abort = new AbortController();
  const leaders = election.observe({ signal: abort.signal });
  assert.equal((await leaders.next()).value, null);
  const term = await election.campaign();
  const { value: leader } = await leaders.next();
  assert.deepEqual([leader.token, leader.owner, leader.name], [term.token, term.owner, 'one:1']);
  assert.deepEqual(await election.leader(), leader);
  assert.equal(await election.campaign({ wait: 0 }), null, 'a process leads twice');
  const begun = Date.now();
  await say(own, 'RLOCK.FORCE', 'leader'); // closes the connection of the session
  assert.equal((await leaders.next()).value, null);
  assert(Date.now() - begun < 1_000);
  await until('the leader is told', () => term.signal.aborted);
  await assert.rejects(term.release(), LockLost);
  const last = leaders.next();
  abort.abort();
  assert.equal((await last).done, true);
  await locks.close();
});

closed(own);
// The process must end by itself, or the test fails by its timeout.
