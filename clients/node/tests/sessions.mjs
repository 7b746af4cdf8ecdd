// One client library (argv[2]) at the server on $PORT: sessions and elections. Each line of output is a test that passed.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { LockLost, Locks } from '../dist/esm/index.js';
import { closed, holders, own, relayedLocks, say, test, until } from './common.mjs';

await test('a session that is lost while it is tied anew can be released', async () => {
  const { relay, locks } = await relayedLocks('retied');
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
  const { relay, locks } = await relayedLocks();
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
  const { relay, locks } = await relayedLocks();
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

await test('a session whose connection broke is tied anew by the lease that its owner entered with again', async () => {
  const { relay, locks } = await relayedLocks('doubted');
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
