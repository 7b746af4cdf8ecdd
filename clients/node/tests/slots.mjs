// One client library (argv[2]) at a cluster of two nodes, by the server program argv[3] with the module argv[4]: an observer
// of a key whose slot is being moved. Each line of output is a test that passed.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Cluster, Redis } from 'ioredis';
import { createCluster } from 'redis';
import { Locks } from '../dist/esm/index.js';

const [library, program, module] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), 'rlock-slots-'));

/** A node also takes the port that is 10 000 higher. */
async function freePort() {
  const server = net.createServer();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port < 55_000 ? port : freePort();
}

async function until(what, isSo) {
  for (const end = Date.now() + 20_000; !(await isSo()); await sleep(10)) assert(Date.now() < end, what);
}

async function start(name) {
  const port = await freePort();
  const words = ['--port', port, '--bind', '127.0.0.1', '--dir', folder, '--save', '', '--cluster-enabled', 'yes', '--loadmodule', module];
  const server = spawn(program, [...words, '--cluster-config-file', `${name}.conf`].map(String), { stdio: 'ignore' });
  process.on('exit', () => server.kill('SIGKILL'));
  const client = new Redis({ port, host: '127.0.0.1' });
  client.on('error', () => {});
  await client.ping();
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
console.log('ok an observer of a slot that is being moved asks where the key is, on one connection');

await to.client.cluster('SETSLOT', slot, 'NODE', to.id);
await from.client.cluster('SETSLOT', slot, 'NODE', to.id);
const next = leaders.next();
await (await election.campaign()).release();
assert.equal((await soon(next)).value.name, 'one:1');
console.log('ok an observer goes on when the slot has been moved');

await locks.close();
rmSync(folder, { recursive: true });
process.exit(0);
