// Does with the package what clients/conformance/run.py asks for: `runner.mjs ioredis`, or `runner.mjs node-redis`.

import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { Cluster, Redis } from 'ioredis';
import { createClient, createCluster, createSentinel } from 'redis';
import * as rlock from 'rlock-client';

const isIo = process.argv[2] === 'ioredis';
const NAMES = [
  [rlock.Deadlock, 'Deadlock'], [rlock.TooMany, 'TooMany'], [rlock.NoAcks, 'NoAcks'], [rlock.NoPermission, 'NoPerm'],
  [rlock.LockLost, 'Lost'], [rlock.NotHeld, 'NotHeld'], [rlock.NoReplicas, 'NoReplicas'],
  [rlock.Closed, 'Closed'], [rlock.Unavailable, 'Unavailable'],
];
const features = ['cancel', 'cancel-many', 'close', 'sentinel', 'cluster', 'session', 'acks', 'limit', 'maxqueue', 'several', 'tls', 'loop'];
if (globalThis.gc) features.push('gc');
const [clients, locks, holds, grantedBy, lostAt, actors, aborts, told] = Array.from({ length: 8 }, () => new Map());

const tell = (reply) => process.stdout.write(`${JSON.stringify(reply)}\n`);

function connect({ kind, addresses, service, user: username, password, tls }) {
  const nodes = addresses.map((at) => ({ host: at.slice(0, at.lastIndexOf(':')), port: Number(at.slice(at.lastIndexOf(':') + 1)) }));
  const login = username && { username, password };
  if (isIo) {
    const secure = tls && { tls: { rejectUnauthorized: false } };
    if (kind === 'sentinel') {
      return new Redis({
        sentinels: nodes, name: service, ...login, ...secure,
        ...(login && { sentinelUsername: username, sentinelPassword: password }),
        ...(secure && { sentinelTLS: secure.tls, enableTLSForSentinelMode: true }),
      });
    }
    if (kind === 'cluster') return new Cluster(nodes, { redisOptions: { ...login, ...secure } });
    return new Redis({ ...nodes[0], ...login, ...secure });
  }
  const secure = tls && { tls: true, rejectUnauthorized: false };
  const each = { ...login, ...(secure && { socket: secure }) };
  if (kind === 'sentinel') return createSentinel({ name: service, sentinelRootNodes: nodes, nodeClientOptions: each, sentinelClientOptions: each });
  if (kind === 'cluster') return createCluster({ rootNodes: nodes.map((node) => ({ socket: { ...node, ...secure } })), defaults: each });
  return createClient({ socket: { ...nodes[0], ...secure }, ...login });
}

/** The options that a request names. */
function chosen(r) {
  const options = {};
  for (const [name, field] of [['lease', 'lease'], ['owner', 'owner'], ['maxQueue', 'maxqueue'], ['acks', 'acks'], ['session', 'session'], ['upgrade', 'upgrade']]) {
    if (field in r) options[name] = r[field];
  }
  return options;
}

const does = {
  async open(r) {
    const client = connect(r);
    client.on('error', () => {});
    const connected = isIo || client.connect();
    if (r.offline) Promise.resolve(connected).catch(() => {});
    else await connected;
    clients.set(r.client, { client, locks: new rlock.Locks(client, { outage: r.outage }) });
    return { ok: true };
  },
  async close(r) {
    const { client, locks: mine } = clients.get(r.client);
    await mine.close();
    if (isIo) client.disconnect();
    else if (client.isOpen) await client.destroy();
    return { ok: true };
  },
  async drain(r) {
    return { left: await clients.get(r.client).locks.drain(r.timeout) };
  },
  all(r) {
    const { locks: mine } = clients.get(r.client);
    const ones = r.keys.map(([key, how]) => (how === 'write' ? key : how === 'read' ? rlock.read(key) : rlock.limit(key, how)));
    locks.set(r.lock, mine.all(ones, chosen(r)));
    return { ok: true };
  },
  any(r) {
    locks.set(r.lock, clients.get(r.client).locks.any(r.key, r.each, chosen(r)));
    return { ok: true };
  },
  election(r) {
    const election = clients.get(r.client).locks.election(r.key, { name: r.name });
    locks.set(r.lock, { election, acquire: (options) => election.campaign(options) });
    return { ok: true };
  },
  observe(r) {
    const last = {};
    told.set(r.observer, last);
    (async () => {
      for await (const leader of locks.get(r.lock).election.observe()) Object.assign(last, { name: leader?.name ?? null, at: Date.now() });
    })().catch(() => {});
    return { ok: true };
  },
  async observed(r) {
    const last = told.get(r.observer);
    for (const end = Date.now() + r.within; last.name !== r.name && Date.now() < end; ) await sleep(5);
    return { ok: last.name === r.name, at: last.at };
  },
  lock(r) {
    const { locks: mine } = clients.get(r.client);
    const options = chosen(r);
    if ('limit' in r) locks.set(r.lock, mine.permit(r.key, r.limit, options));
    else locks.set(r.lock, r.mode === 'read' ? mine.readLock(r.key, options) : mine.lock(r.key, options));
    locks.get(r.lock).client = clients.get(r.client).client;
    return { ok: true };
  },
  async acquire(r) {
    const abort = new AbortController();
    aborts.set(r.id, abort);
    let hold;
    try {
      hold = await locks.get(r.lock).acquire({ wait: r.wait ?? undefined, signal: abort.signal });
    } catch (error) {
      if (abort.signal.aborted && error === abort.signal.reason) return { error: 'Cancelled' };
      throw error;
    } finally {
      if (!hold) aborts.delete(r.id);
    }
    if (!hold) return { ok: false };
    holds.set(r.hold, hold);
    grantedBy.set(r.hold, r.id);
    lostAt.set(r.hold, new Promise((resolve) => hold.signal.addEventListener('abort', () => resolve(Date.now()), { once: true })));
    return { ok: true, token: hold.token, owner: hold.owner, key: hold.key };
  },
  async check(r) {
    await clients.get(r.client).locks.check(r.key);
    return { ok: true };
  },
  async once(r) {
    const failed = new Error('of what ran once');
    const { ifItFails, lease, acks } = r;
    const options = Object.fromEntries(Object.entries({ ifItFails, lease, acks }).filter(([, value]) => value !== undefined));
    const work = async () => {
      await sleep(r.takes ?? 0);
      if (r.fails) throw failed;
    };
    try {
      return { ok: await clients.get(r.client).locks.once(r.key, r.every, work, options) };
    } catch (error) {
      if (error === failed) return { ok: true, failed: true };
      throw error;
    }
  },
  async release(r) {
    aborts.delete(grantedBy.get(r.hold)); // each keeps a kilobyte
    await holds.get(r.hold).release();
    return { ok: true };
  },
  state: (r) => ({ held: holds.get(r.hold).held, left: holds.get(r.hold).left }),
  async lost(r) {
    const at = await Promise.race([lostAt.get(r.hold), sleep(r.within, undefined, { ref: false })]);
    return at === undefined ? { ok: false } : { ok: holds.get(r.hold).signal.reason instanceof rlock.LockLost, at };
  },
  cancel(r) {
    aborts.get(r.of)?.abort();
    return { ok: true };
  },
  async churn(r) {
    const lock = locks.get(r.lock);
    let [inside, most] = [0, 0];
    const user = async () => {
      for (let i = 0; i < r.times; i++) {
        await lock.using({}, async () => {
          most = Math.max(most, ++inside);
          const count = Number(await lock.client.get(r.counter)) + 1;
          await lock.client.set(r.counter, String(count));
          inside--;
        });
      }
    };
    await Promise.all(Array.from({ length: r.users }, user));
    return { ok: true, inside: most };
  },
  spawn() {
    spawn('sleep', ['20'], { stdio: 'ignore' });
    return { ok: true };
  },
  async gc() {
    for (let i = 0; i < 3; i++) {
      globalThis.gc();
      await sleep(1); // what registries call
    }
    return { ok: true };
  },
  async block(r) {
    for (let i = 0; i < r.times; i++) {
      for (const until = performance.now() + r.ms; performance.now() < until; );
      await new Promise(setImmediate);
    }
    return { ok: true };
  },
  async bench(r) {
    const { client, locks: mine } = clients.get(r.client);
    const lock = mine.lock(r.key);
    const bare = isIo ? (...words) => client.call(...words) : (...words) => client.sendCommand(words);
    const counts = [0, 0];
    const cpu = [0, 0];
    for (const end = performance.now() + r.ms; performance.now() < end; ) {
      for (const which of [0, 1]) {
        const before = process.cpuUsage();
        for (const until = performance.now() + 200; performance.now() < until; counts[which]++) {
          if (which === 0) await (await lock.acquire()).release();
          else {
            await bare('RLOCK.ACQUIRE', r.key, 'bare', 'DEPTH', '1');
            await bare('RLOCK.RELEASE', r.key, 'bare', 'WRITE', 'DEPTH', '0');
          }
        }
        const { user, system } = process.cpuUsage(before);
        cpu[which] += user + system;
      }
    }
    const [perSecond, perPair] = [(which) => (counts[which] / r.ms) * 2000, (which) => cpu[which] / counts[which]];
    return { package: perSecond(0), bare: perSecond(1), packageCpu: perPair(0), bareCpu: perPair(1) };
  },
};

async function answer(request) {
  let reply;
  try {
    reply = await does[request.do](request);
  } catch (error) {
    const name = NAMES.find(([kind]) => error instanceof kind)?.[1] ?? (error instanceof RangeError ? 'Invalid' : 'Other');
    reply = { error: name, text: error.stack };
  }
  tell({ id: request.id, ...reply });
}

tell({ hello: `node-${process.argv[2]}`, features });
for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  if (request.as === undefined) answer(request);
  else actors.set(request.as, (actors.get(request.as) ?? Promise.resolve()).then(() => answer(request)));
}
process.exit(0);
