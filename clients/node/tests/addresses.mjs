// One client library (argv[2]), and every way to give it the address of a server, with servers of its own: the program
// argv[3] with the module argv[4]. Also every way in which such an address can be wrong. Each line of output is a test
// that passed.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Cluster, Redis } from 'ioredis';
import { createClient, createClientPool, createCluster, createSentinel } from 'redis';
import { Locks, NoPermission, Unavailable } from '../dist/esm/index.js';
import { clientOf, folder, freePort, library, module, only, started, until } from './own-servers.mjs';

const isIo = library === 'ioredis';

async function test(name, work) {
  if (only && !name.includes(only)) return;
  console.log(`ok ${name}: ${await work()}`);
}

/** A server, and a client of it for the test's own questions. */
async function start(options = [], { isBare = false, isSentinel = false } = {}) {
  const port = await freePort();
  const dir = mkdtempSync(join(folder, 's'));
  let words = ['--port', port, '--bind', '127.0.0.1', '--dir', dir, '--save', '', ...(isBare ? [] : ['--loadmodule', module]), ...options];
  if (isSentinel) {
    const conf = join(dir, 'sentinel.conf');
    writeFileSync(conf, [`port ${port}`, 'bind 127.0.0.1', `dir ${dir}`, ...options, ''].join('\n'));
    words = [conf, '--sentinel'];
  }
  started(...words);
  return { port, client: await clientOf(port) };
}

/** Certificates for those hosts, from one authority; each is valid for this many days. */
function authority(name, hosts) {
  const file = (of, kind) => join(folder, `${name}-${of}.${kind}`);
  const openssl = (...words) => execFileSync('openssl', words.map(String), { stdio: ['ignore', 'ignore', 'pipe'] });
  const keys = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
  openssl('req', '-x509', ...keys, '-keyout', file('ca', 'key'), '-out', file('ca', 'crt'), '-subj', `/CN=${name}`, '-days', 2);
  for (const [of, [host, days]] of Object.entries(hosts)) {
    writeFileSync(file(of, 'ext'), `subjectAltName=${net.isIP(host) ? 'IP' : 'DNS'}:${host}\n`);
    openssl('req', ...keys, '-keyout', file(of, 'key'), '-out', file(of, 'csr'), '-subj', '/CN=server');
    openssl('x509', '-req', '-in', file(of, 'csr'), '-CA', file('ca', 'crt'), '-CAkey', file('ca', 'key'), '-CAcreateserial', '-out', file(of, 'crt'), '-extfile', file(of, 'ext'), '-days', days);
  }
  const options = (port, of, auth = 'no') => ['--tls-port', port, '--tls-cert-file', file(of, 'crt'), '--tls-key-file', file(of, 'key'), '--tls-ca-cert-file', file('ca', 'crt'), '--tls-auth-clients', auth];
  return { options, ca: readFileSync(file('ca', 'crt')) };
}

const quiet = (client) => client.on('error', () => {});
const io = (...words) => quiet(new Redis(...words));
const node = (options) => quiet(createClient(options));
const closed = (client) => (client instanceof Redis || client instanceof Cluster ? client.disconnect() : client.isOpen && client.destroy());

const trusted = authority('trusted', { good: ['127.0.0.1', 1], elsewhere: ['elsewhere.example', 1] });
const foreign = authority('foreign', { good: ['127.0.0.1', 1] });
const [socket, securePort] = [join(folder, 'socket'), await freePort()];
const main = await start(['--unixsocket', socket, ...trusted.options(securePort, 'good')]);
await main.client.call('ACL', 'SETUSER', 'app', 'on', '>secret', '~*', '&*', '+@all');
const sentinel = await start([`sentinel monitor main 127.0.0.1 ${main.port} 1`], { isSentinel: true });
const at = { host: '127.0.0.1', port: main.port };
const user = { username: 'app', password: 'secret' };

async function cluster() {
  const { port, client } = await start(['--cluster-enabled', 'yes', '--cluster-announce-ip', '127.0.0.1']);
  await client.cluster('ADDSLOTSRANGE', 0, 16_383);
  await until('the cluster is well', async () => /state:ok/.test(await client.cluster('INFO')));
  return port;
}

/** Checks all features of the package. */
async function usable(name, make) {
  const [first, second] = [make(), make()];
  for (const client of [first, second]) if (!isIo) await client.connect();
  const [one, two] = [new Locks(first), new Locks(second)];
  const key = `key of ${name}`;
  const handed = async (locks, options) => {
    const hold = await one.lock(key).acquire({ wait: 20_000 });
    const waits = locks.lock(key, options).acquire({ wait: 20_000 });
    const state = await Promise.race([waits, sleep(30, 'it waits')]);
    assert.equal(state, 'it waits', name);
    await hold.release();
    await (await waits).release();
  };
  const hold = await one.lock(key).acquire();
  assert.equal(await two.lock(key).acquire({ wait: 0 }), null);
  await hold.extend(60_000);
  await hold.release();
  const mine = { owner: 'me' };
  const outer = await one.lock(key, mine).acquire();
  const inner = await one.lock(key, mine).acquire({ wait: 0 });
  assert.equal(inner.token, outer.token);
  await inner.release();
  assert(outer.held);
  await outer.release();
  await handed(two);
  await handed(two, { session: true });
  await handed(two, { acks: 0 });
  await handed(two, { owner: 'somebody' });
  await (await two.all([`{${key}}a`, `{${key}}b`], { session: true }).acquire({ wait: 5_000 })).release();
  const election = one.election(`leader of ${name}`);
  const term = await election.campaign();
  assert.equal((await two.election(`leader of ${name}`).leader()).token, term.token);
  for await (const leader of election.observe()) {
    assert.equal(leader.owner, term.owner);
    break;
  }
  await term.release();
  for (const locks of [one, two]) await locks.close();
  for (const client of [first, second]) closed(client);
}

await test('all that the package does works wherever the client finds the server', async () => {
  const clusterPort = await cluster();
  const nodes = [{ host: '127.0.0.1', port: sentinel.port }];
  const roots = [{ host: '127.0.0.1', port: clusterPort }];
  const secure = { host: '127.0.0.1', port: securePort };
  const ways = isIo
    ? {
        'a port': () => io(main.port),
        'a port and a host': () => io(main.port, 'localhost'),
        options: () => io(at),
        'a port as a text': () => io(String(main.port)),
        RESP2: () => io({ ...at, protocol: 2 }),
        RESP3: () => io({ ...at, protocol: 3 }),
        'another database': () => io({ ...at, db: 5 }),
        'a connection name': () => io({ ...at, connectionName: 'billing' }),
        'a user': () => io({ ...at, ...user }),
        'a key prefix': () => io({ ...at, keyPrefix: 'mine:' }),
        'automatic pipelines': () => io({ ...at, enableAutoPipelining: true }),
        'a unix socket': () => io({ path: socket }),
        'a path': () => io(socket),
        'a URL': () => io(`redis://127.0.0.1:${main.port}/3`),
        'a URL with a user': () => io(`redis://app:secret@127.0.0.1:${main.port}`),
        'a URL without a scheme': () => io(`//127.0.0.1:${main.port}`),
        TLS: () => io({ ...secure, tls: { ca: trusted.ca } }),
        'a URL with TLS': () => io(`rediss://app:secret@127.0.0.1:${securePort}`, { tls: { ca: trusted.ca } }),
        Sentinel: () => io({ sentinels: nodes, name: 'main' }),
        'Sentinel, another database, a user': () => io({ sentinels: nodes, name: 'main', db: 4, ...user }),
        'a Cluster': () => quiet(new Cluster(roots)),
        'a node of a Cluster': () => io(clusterPort),
        'a Cluster of URLs, read from replicas': () => quiet(new Cluster([`redis://127.0.0.1:${clusterPort}`], { scaleReads: 'slave' })),
      }
    : {
        'a socket': () => node({ socket: at }),
        'a name': () => node({ socket: { port: main.port, host: 'localhost' } }),
        RESP2: () => node({ socket: at, RESP: 2 }),
        RESP3: () => node({ socket: at, RESP: 3 }),
        'another database': () => node({ socket: at, database: 5 }),
        'a name of the client': () => node({ socket: at, name: 'billing' }),
        'a user': () => node({ socket: at, ...user }),
        'a key prefix': () => node({ socket: at, keyPrefix: 'mine:' }),
        'a credentials provider': () => node({ socket: at, credentialsProvider: { type: 'async-credentials-provider', credentials: async () => user } }),
        'a streaming credentials provider': () =>
          node({ socket: at, credentialsProvider: { type: 'streaming-credentials-provider', subscribe: async () => [user, { dispose() {} }], onReAuthenticationError() {} } }),
        'a unix socket': () => node({ socket: { path: socket } }),
        'a URL': () => node({ url: `redis://127.0.0.1:${main.port}/3` }),
        'a URL with a user': () => node({ url: `redis://app:secret@127.0.0.1:${main.port}` }),
        TLS: () => node({ socket: { ...secure, tls: true, ca: trusted.ca } }),
        'a URL with TLS': () => node({ url: `rediss://app:secret@127.0.0.1:${securePort}`, socket: { tls: true, ca: trusted.ca } }),
        Sentinel: () => quiet(createSentinel({ name: 'main', sentinelRootNodes: nodes })),
        'Sentinel, another database, a user': () => quiet(createSentinel({ name: 'main', sentinelRootNodes: nodes, nodeClientOptions: { database: 4, ...user } })),
        'a node of a Cluster': () => node({ socket: roots[0] }),
        'a Cluster': () => quiet(createCluster({ rootNodes: [{ socket: roots[0] }] })),
        'a Cluster of URLs, RESP3, read from replicas': () => quiet(createCluster({ rootNodes: [{ url: `redis://127.0.0.1:${clusterPort}` }], RESP: 3, useReplicas: true })),
      };
  for (const [name, make] of Object.entries(ways)) {
    try {
      await usable(name, make);
    } catch (error) {
      throw new Error(`${name}: ${error.message}`, { cause: error });
    }
  }
  if (!isIo) assert.throws(() => new Locks(createClientPool()), /^TypeError: a pool of node-redis cannot be used/);
  for (const nothing of [undefined, null, {}, 'redis://127.0.0.1', 6379]) assert.throws(() => new Locks(nothing), TypeError);
  return `${Object.keys(ways).length} ways`;
});

/** Listens at a port, and answers everything with this text. */
async function answering(text) {
  const server = net.createServer((socket) => socket.on('error', () => {}).once('data', () => socket.end(text)));
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  server.unref();
  return { host: '127.0.0.1', port: server.address().port };
}

await test('what no retry ends is said at once, with its cause', async () => {
  const ports = [await freePort(), await freePort()];
  await start(trusted.options(ports[0], 'elsewhere'));
  await start(trusted.options(ports[1], 'good', 'yes'));
  const [bare, shut] = [await start([], { isBare: true }), await start()];
  await shut.client.config('SET', 'requirepass', 'secret');
  const replica = await start(['--replicaof', '127.0.0.1', main.port]);
  await until('it follows', async () => /master_link_status:up/.test(await replica.client.info('replication')));
  await main.client.call('ACL', 'SETUSER', 'few', 'on', '>secret', '~app:*', '&*', '+@all');
  await main.client.call('ACL', 'SETUSER', 'gone', 'off', '>secret', '~*', '&*', '+@all');
  const to = ({ username, password, db, secure, ...where }) =>
    isIo
      ? io({ ...at, ...where, username, password, db, tls: secure, lazyConnect: true })
      : node({ socket: { ...at, ...where, ...(secure ? { tls: true, ...secure } : {}), reconnectStrategy: false }, username, password, database: db });
  const good = { ca: trusted.ca };
  const rows = {
    'a wrong password': [to({ username: 'app', password: 'wrong' }), /WRONGPASS/],
    'an unknown user': [to({ username: 'nobody', password: 'secret' }), /WRONGPASS/],
    'a user that is off': [to({ username: 'gone', password: 'secret' }), /WRONGPASS/],
    'no password': [to({ port: shut.port }), /NOAUTH/],
    'no permission': [to({ username: 'few', password: 'secret' }), /NOPERM/, NoPermission],
    'a database that is not there': [to({ db: 99 }), /DB index is out of range/],
    'no module': [to({ port: bare.port }), /the server has not loaded the RLOCK module/],
    'a replica': [to({ port: replica.port }), new RegExp(`127.0.0.1:${replica.port} is a replica of 127.0.0.1:${main.port}, and only a primary locks`)],
    'an authority that is not trusted': [to({ port: securePort, secure: { ca: foreign.ca } }), new RegExp(`127.0.0.1:${securePort} is not trusted by TLS: `)],
    "another host's certificate": [to({ port: ports[0], secure: good }), /is not trusted by TLS: /],
    'no certificate of the client': [to({ port: ports[1], secure: { ...good, maxVersion: 'TLSv1.2' } }), /refuses the TLS connection: /],
    'TLS where there is none': [to({ ...(await answering('-ERR unknown command\r\n')), secure: good }), /does not speak TLS/],
    'an HTTP server': [to(await answering('HTTP/1.1 400 Bad Request\r\n\r\n')), /is no Redis or Valkey server: /],
    'an SSH server': [to(await answering('SSH-2.0-OpenSSH_9.2\r\n')), /is no Redis or Valkey server: /],
  };
  let calls = 0;
  for (const [name, [client, says, kind]] of Object.entries(rows)) {
    const asks = {
      lock: (locks) => locks.lock('order').acquire({ wait: 4_000 }),
      'without waiting': (locks) => locks.lock('order').acquire({ wait: 0 }),
      named: (locks) => locks.lock('order', { owner: 'me' }).acquire({ wait: 4_000 }),
      session: (locks) => locks.lock('order', { session: true }).acquire({ wait: 4_000 }),
      acks: (locks) => locks.lock('order', { acks: 1 }).acquire({ wait: 4_000 }),
      several: (locks) => locks.all(['{order}', '{order}2']).acquire({ wait: 4_000 }),
      term: (locks) => locks.election('order').campaign({ wait: 4_000 }),
    };
    for (const [what, ask] of Object.entries(asks)) {
      const locks = new Locks(client);
      const begin = performance.now();
      const error = await ask(locks).then((hold) => `it was acquired: ${hold}`, (problem) => problem);
      const took = performance.now() - begin;
      assert(says.test(error?.message) && !(error instanceof Unavailable) && (!kind || error instanceof kind), `${name}, ${what}: ${error?.name}: ${error?.message ?? error}`);
      assert(took < 2_000, `${name}, ${what}: ${took} ms`);
      await locks.close();
      calls++;
    }
    closed(client);
  }
  return `${Object.keys(rows).length} errors, ${calls} calls`;
});

await test('a primary that became a replica, or looks for its own, may become one again', async () => {
  const [one, other] = [await start(), await start()];
  const where = { host: '127.0.0.1', port: one.port };
  const client = isIo ? io(where) : node({ socket: where });
  if (!isIo) await client.connect();
  const [used, unused] = [new Locks(client), new Locks(client)];
  await (await used.lock('order').acquire()).release();
  for (const locks of [used, unused]) {
    await one.client.call('REPLICAOF', '127.0.0.1', locks === used ? other.port : await freePort());
    await until('it is a replica', async () => {
      const about = await one.client.info('replication');
      return /role:slave/.test(about) && (locks === unused || /master_link_status:up/.test(about));
    });
    const refused = async () => Number(/errorstat_READONLY:count=(\d+)/.exec(await one.client.info('errorstats'))?.[1] ?? 0);
    const before = await refused();
    let isOver = false;
    const waits = locks.lock('order').acquire({ wait: 30_000 }).finally(() => (isOver = true));
    await until('it asks again', async () => isOver || (await refused()) > before + 2);
    await one.client.call('REPLICAOF', 'NO', 'ONE');
    await (await waits).release();
  }
  for (const locks of [used, unused]) await locks.close();
  closed(client);
  return '2 cases';
});

process.exit(0);
