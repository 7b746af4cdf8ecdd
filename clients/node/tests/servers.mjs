// One client library (argv[2]) at servers of its own, by the server program argv[3] with the module argv[4]: replicas, a
// restart, nodes with new addresses, Sentinel. Each line of output is a test that passed.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Cluster, Redis } from 'ioredis';
import { createClient, createCluster, createSentinel } from 'redis';
import { Locks } from '../dist/esm/index.js';
import { clientOf, folder, freePort, killAll, library, module, only, started, until } from './own-servers.mjs';

async function test(name, work) {
  if (only && !name.includes(only)) return;
  await work();
  killAll();
  console.log(`ok ${name}`);
}

async function start({ port, host = '127.0.0.1' }, ...options) {
  const words = ['--port', port, '--bind', host, '--dir', folder, '--save', '', '--loadmodule', module, ...options];
  const server = started(...words);
  const client = await clientOf(port, host);
  const stop = async () => {
    client.disconnect();
    const ended = new Promise((resolve) => server.once('exit', resolve));
    server.kill('SIGKILL');
    await ended;
  };
  const info = async (section, field) => new RegExp(`^${field}:(.*)\r$`, 'm').exec(await client.info(section))?.[1];
  return { client, server, stop, info };
}

async function connect(port) {
  const client = library === 'ioredis' ? new Redis({ port, retryStrategy: () => 20 }) : createClient({ socket: { port, reconnectStrategy: () => 20 } });
  client.on('error', () => {});
  if (library !== 'ioredis') await client.connect();
  return client;
}

const closed = (client) => (library === 'ioredis' ? client.disconnect() : client.destroy());

await test('requests that wait for replicas do not wait for each other, and shorten no other wait', async () => {
  const at = { port: await freePort() };
  const primary = await start(at);
  const replica = await start({ port: await freePort() }, '--replicaof', '127.0.0.1', at.port);
  await until('the replica follows', async () => (await primary.info('replication', 'slave0'))?.includes('state=online'));
  const client = await connect(at.port);
  const locks = new Locks(client);
  const acked = (key, options) => locks.lock(key, { acks: 1 }).acquire({ wait: 0, ...options });
  const blocked = () => primary.info('clients', 'blocked_clients');
  const pending = () => primary.info('rlock', 'rlock_tells');
  await (await acked('first')).release();
  const held = await locks.lock('held').acquire();
  replica.server.kill('SIGSTOP');
  const acquired = Array.from({ length: 20 }, (_, i) => acked(`acked:${i}`));
  const abort = new AbortController();
  const queued = acked('given up', { signal: abort.signal });
  await until('all are pending', async () => (await pending()) === '21');
  const connections = await primary.info('clients', 'connected_clients');
  // Other requests continue meanwhile, and a caller that gives up leaves nothing behind.
  await (await locks.lock('free').acquire({ wait: 0 })).release();
  abort.abort(new Error('enough'));
  await assert.rejects(queued, /^Error: enough$/);
  assert.equal(await blocked(), '0');
  // The connections of this test and of the user, the shared one, and the subscription.
  assert(Number(connections) <= 4, connections);
  replica.server.kill('SIGCONT');
  const holds = await Promise.all(acquired);
  assert(holds.every((hold) => hold?.held));
  await Promise.all(holds.map((hold) => hold.release()));
  const begin = performance.now();
  assert.equal(await locks.lock('held').acquire({ wait: 300 }), null);
  const took = performance.now() - begin;
  assert(took > 250, `it waited ${took} ms`);
  await held.release();
  await until('who gave up has nothing', async () => (await primary.client.exists('given up')) === 0);
  // A renewal and an extension count when they are acknowledged.
  const renewed = await acked('renewed', { wait: 0 });
  assert.equal((await renewed.extend(60_000)).left > 55_000, true);
  replica.server.kill('SIGSTOP');
  const extending = renewed.extend(120_000);
  await until('it is pending', async () => (await pending()) === '1');
  assert(renewed.left < 60_000);
  replica.server.kill('SIGCONT');
  await extending;
  assert(renewed.left > 100_000);
  await renewed.release();
  const short = await locks.lock('short', { acks: 1, lease: 1_500 }).acquire({ wait: 0 });
  const ends = performance.now() + 2_500;
  await until('it is renewed', () => performance.now() > ends);
  assert(short.held);
  await short.release();
  await locks.close();
  closed(client);
});

await test('a wait right after a pause of the server does not end early', async () => {
  const at = { port: await freePort() };
  const { client: asks, server } = await start(at);
  const client = await connect(at.port);
  const locks = new Locks(client);
  await asks.call('RLOCK.ACQUIRE', 'busy', 'somebody', 'LEASE', 60_000);
  const ways = {
    wait: () => locks.lock('busy').acquire({ wait: 2_000 }),
    owner: () => locks.lock('busy', { owner: 'me' }).acquire({ wait: 2_000 }),
    several: () => locks.all(['busy', 'free']).acquire({ wait: 2_000 }),
  };
  for (const [what, wait] of Object.entries(ways)) {
    await (await locks.lock('near').acquire()).release();
    server.kill('SIGSTOP');
    setTimeout(() => server.kill('SIGCONT'), 1_500);
    const begin = performance.now();
    assert.equal(await wait(), null);
    const took = performance.now() - begin;
    assert(took > 1_990 && took < 4_000, `${what}: it waited ${took} ms`);
  }
  // A wait can still be ended early by its caller; but if the server ends it early, it continues.
  const waits = locks.lock('busy').acquire({ wait: 60_000 });
  const waiters = async () => Number(await asks.call('RLOCK.INFO', 'busy').then((info) => info[info.indexOf('queue-length') + 1]));
  await until('it waits', async () => (await waiters()) === 1);
  assert.equal(await locks.lock('busy', { maxQueue: 1 }).acquire({ wait: 60_000 }), null);
  await asks.config('SET', 'rlock.max-tell-ms', 1_000);
  assert.equal(await locks.lock('busy', { maxQueue: 3 }).acquire({ wait: 2_500 }), null);
  await asks.call('RLOCK.FORCE', 'busy');
  await (await waits).release();
  await locks.close();
  closed(client);
});

await test('two that knew a server before and after it was started again have one owner', async () => {
  const at = { port: await freePort() };
  const before = await start(at);
  const [older, newer] = [await connect(at.port), await connect(at.port)];
  const [one, two] = [new Locks(older), new Locks(newer)];
  await (await one.lock('again', { owner: 'me' }).acquire()).release();
  await before.stop();
  const { client } = await start(at);
  const outer = await one.lock('again', { owner: 'me' }).acquire({ wait: 10_000 });
  const inner = await two.lock('again', { owner: 'me' }).acquire({ wait: 0 });
  assert.equal(inner.token, outer.token);
  await inner.release();
  assert.equal(await client.call('RLOCK.CHECK', 'again', outer.token), 1);
  await outer.release();
  for (const each of [one, two]) await each.close();
  for (const each of [older, newer]) closed(each);
});

await test('a cluster is found again when all nodes have new addresses', async () => {
  const port = await freePort();
  let host = '127.0.0.1';
  const run = () => start({ port, host }, '--cluster-enabled', 'yes', '--cluster-config-file', 'moved.conf', '--cluster-announce-ip', host);
  const before = await run();
  await before.client.cluster('ADDSLOTSRANGE', 0, 16_383);
  await until('the cluster is well', async () => /state:ok/.test(await before.client.cluster('INFO')));
  const root = { host: 'nodes.test', port };
  const lookup = (_, options, call) => (options.all ? call(null, [{ address: host, family: 4 }]) : call(null, host, 4));
  const make = () =>
    library === 'ioredis'
      ? new Cluster([root], { dnsLookup: (_, call) => call(null, host), clusterRetryStrategy: () => 50 })
      : createCluster({ rootNodes: [{ socket: { ...root, lookup } }], defaults: { socket: { reconnectStrategy: () => 50 } } });
  const client = make();
  client.on('error', () => {});
  if (library !== 'ioredis') await client.connect();
  const locks = new Locks(client);
  await (await locks.lock('moved').acquire()).release();
  await before.stop();
  host = '127.0.0.2';
  const after = await run();
  await until('the cluster is well again', async () => /state:ok/.test(await after.client.cluster('INFO')));
  if (library !== 'ioredis') {
    client.destroy();
    await client.connect();
  }
  const pinged = () => Promise.race([client.get('moved').then(() => true, () => false), sleep(200, false)]);
  await until('the client of the user found it', pinged);
  await (await locks.lock('moved').acquire({ wait: 10_000 })).release();
  await locks.close();
  closed(client);
});

await test('a Sentinel client for another database waits there', async () => {
  const [port, sentinelPort] = [await freePort(), await freePort()];
  const primary = await start({ port });
  const conf = join(folder, 'sentinel.conf');
  writeFileSync(conf, `port ${sentinelPort}\ndir ${folder}\nsentinel monitor main 127.0.0.1 ${port} 1\n`);
  started(conf, '--sentinel');
  const nodes = [{ host: '127.0.0.1', port: sentinelPort }];
  const watcher = new Redis({ port: sentinelPort, retryStrategy: () => 20 });
  watcher.on('error', () => {});
  await watcher.ping();
  watcher.disconnect();
  const client = library === 'ioredis' ? new Redis({ sentinels: nodes, name: 'main', db: 5 }) : createSentinel({ name: 'main', sentinelRootNodes: nodes, nodeClientOptions: { database: 5 } });
  client.on('error', () => {});
  if (library !== 'ioredis') await client.connect();
  const locks = new Locks(client);
  await primary.client.select(5);
  await primary.client.call('RLOCK.ACQUIRE', 'fifth', 'somebody');
  const waits = locks.lock('fifth', { owner: 'me' }).acquire();
  await until('it waits there', async () => (await primary.client.call('RLOCK.PLACE', 'fifth', 'me')) === 1);
  await primary.client.call('RLOCK.FORCE', 'fifth');
  await (await waits).release();
  await locks.close();
  closed(client);
});

process.exit(0);
