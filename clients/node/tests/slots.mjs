// One client library (argv[2]) at a cluster of two nodes, by the server program argv[3] with the module argv[4]: observers
// and waits for keys whose slot is being moved. Each line of output is a test that passed.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { Cluster } from 'ioredis';
import { createCluster } from 'redis';
import { Locks } from '../dist/esm/index.js';
import { clientOf, folder, freePort, library, module, started, until } from './own-servers.mjs';

async function start(name) {
  const port = await freePort();
  const words = ['--port', port, '--bind', '127.0.0.1', '--dir', folder, '--save', '', '--cluster-enabled', 'yes', '--cluster-allow-replica-migration', 'no', '--loadmodule', module];
  started(...words, '--cluster-config-file', `${name}.conf`);
  const client = await clientOf(port);
  const accepted = async () => Number(/total_connections_received:(\d+)/.exec(await client.info('stats'))[1]);
  return { port, client, accepted, id: await client.cluster('MYID') };
}

const [from, to] = [await start('from'), await start('to')];
await from.client.cluster('ADDSLOTSRANGE', 0, 16_383);
await to.client.cluster('MEET', '127.0.0.1', from.port);
for (const { client } of [from, to]) {
  await until('the cluster is well', async () => /state:ok[^]*known_nodes:2/.test(await client.cluster('INFO')));
}
const slot = await from.client.cluster('KEYSLOT', 'leader');
for (const [node, how, other] of [[to, 'IMPORTING', from], [from, 'MIGRATING', to]]) {
  const set = () => node.client.cluster('SETSLOT', slot, how, other.id).then(() => true, () => false);
  await until('the nodes know each other', set);
}

const node = { host: '127.0.0.1', port: from.port };
const cluster = library === 'ioredis' ? new Cluster([node]) : createCluster({ rootNodes: [{ socket: node }] });
cluster.on('error', () => {});
if (library !== 'ioredis') await cluster.connect();
const locks = new Locks(cluster);
const election = locks.election('leader', { name: 'one:1' });
const leaders = election.observe();
const soon = (promise) => Promise.race([promise, sleep(10_000, 'never', { ref: false })]);
const awaits = async () => Number(/cmdstat_rlock.await:calls=(\d+)/.exec(await to.client.info('commandstats'))[1]);
const count = async () => (await from.accepted()) + (await to.accepted());

const before = await count();
assert.deepEqual(await soon(leaders.next()), { value: null, done: false });
const waits = leaders.next();
const asked = await awaits();
await until('it asks again and again', async () => (await awaits()) >= asked + 3);
const term = await election.campaign();
assert.equal((await soon(waits)).value.name, 'one:1');
await term.release();
assert.equal((await soon(leaders.next())).value, null);
const more = (await count()) - before;
assert(more < 20, `${more} connections`);
console.log('ok an observer of a slot that is being moved asks where the key is, on few connections');

/** How long it takes from a release until the next waiter has the lock. */
async function handed(hold, wait) {
  const begin = performance.now();
  await hold.release();
  const next = await soon(wait);
  return [next, performance.now() - begin];
}
const lock = locks.lock('{leader}lock');
const queued = async ({ client }) => Number((await client.call('RLOCK.INFO', '{leader}lock').catch(() => [0, 0]))[5]);
{
  const hold = await lock.acquire();
  const wait = lock.acquire();
  await until('it waits at the node that imports the slot', async () => (await to.client.info('rlock')).includes('rlock_tells:1'));
  const [next, took] = await handed(hold, wait);
  assert(next.held && took < 1_000, `${took} ms`);
  await next.release();
  console.log('ok a wait for a lock whose slot is being moved is granted at once');
}

const kept = await lock.acquire();
const waiting = lock.acquire();
await until('it waits', async () => (await to.client.info('rlock')).includes('rlock_tells:1'));
await to.client.cluster('SETSLOT', slot, 'NODE', to.id);
await from.client.cluster('SETSLOT', slot, 'NODE', to.id);
{
  const [next, took] = await handed(kept, waiting);
  assert(next.held && took < 2_500, `${took} ms`);
  await next.release();
  console.log('ok a wait goes on when the slot has been moved');
}
const next = leaders.next();
const again = await election.campaign();
assert.equal((await soon(next)).value.name, 'one:1');
await again.release();
console.log('ok an observer goes on when the slot has been moved');

// Moved back while somebody waits: the server ends the subscription.
{
  const hold = await lock.acquire();
  const wait = lock.acquire();
  await until('it waits', async () => (await queued(to)) === 1);
  await from.client.cluster('SETSLOT', slot, 'IMPORTING', to.id);
  await to.client.cluster('SETSLOT', slot, 'MIGRATING', from.id);
  const keys = await to.client.cluster('GETKEYSINSLOT', slot, 100);
  assert.equal(await to.client.call('MIGRATE', '127.0.0.1', from.port, '', 0, 5_000, 'KEYS', ...keys), 'OK');
  for (const each of [from, to]) await each.client.cluster('SETSLOT', slot, 'NODE', from.id);
  await until('it waits there', async () => (await queued(from)) === 1);
  const [next, took] = await handed(hold, wait);
  assert(next.held && took < 1_000, `${took} ms`);
  await next.release();
  console.log('ok a wait follows the slot when the server ends its subscription');
}

await locks.close();
process.exit(0);
