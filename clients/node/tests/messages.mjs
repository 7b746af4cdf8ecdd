// One client library (argv[2]) at the server on $PORT: late replies and losses, which come as messages. Each line of
// output is a test that passed.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { LockLost, Locks, NoPermission, Unavailable } from '../dist/esm/index.js';
import { closed, connect, library, own, port, relayed, relayedLocks, say, test, until, waiting } from './common.mjs';

await test('a wait that is abandoned while it subscribes leaves nothing but the subscription', async () => {
  const { relay, locks } = await relayedLocks('hushed');
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
  const { relay, locks } = await relayedLocks('deaf');
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
  const { relay, locks } = await relayedLocks();
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

closed(own);
