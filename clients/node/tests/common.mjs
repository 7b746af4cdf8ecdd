// What the tests of one client library (argv[2]) at the server on $PORT share. argv[3]: runs only the tests with that
// text in their names.

import assert from 'node:assert/strict';
import net from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { Locks } from '../dist/esm/index.js';

export const library = process.argv[2];
export const port = Number(process.env.PORT);

export async function connect(at, more = {}) {
  if (library === 'ioredis') {
    const { default: Redis } = await import('ioredis');
    const client = new Redis({ port: at, host: '127.0.0.1', retryStrategy: () => null, ...more });
    client.on('error', () => {});
    return client;
  }
  const { createClient } = await import('redis');
  const client = createClient({ socket: { port: at, host: '127.0.0.1', reconnectStrategy: false }, ...more });
  client.on('error', () => {});
  return client;
}

export const closed = (client) => (library === 'ioredis' ? client.disconnect() : client.isOpen && client.destroy());
export const say = async (client, ...words) => (library === 'ioredis' ? client.call(...words) : client.sendCommand(words));
export const holders = async (client, key) => {
  const info = await say(client, 'RLOCK.INFO', key);
  return Array.isArray(info) ? info[info.indexOf('holder-count') + 1] : info['holder-count'];
};
export const waiting = async (client, key) => {
  const info = await say(client, 'RLOCK.INFO', key);
  return Array.isArray(info) ? info[info.indexOf('queue-length') + 1] : info['queue-length'];
};
export async function until(what, isSo) {
  for (const end = Date.now() + 10_000; !(await isSo()); await sleep(10)) assert(Date.now() < end, what);
}

/**
 * A client through a relay. The relay has these `links`; while it `stalls`, new ones are silent; those that send what
 * it `breaks` are closed; it `renames` one word to another, and `sees` what is sent.
 */
export async function relayed() {
  const links = [];
  const flow = ({ socket, server }) => {
    socket.on('data', (sent) => it.breaks?.test(sent) && socket.destroy());
    socket.on('data', (sent) => it.sees?.(sent));
    if (it.renames) socket.on('data', (sent) => server.write(Buffer.from(sent.toString('latin1').replaceAll(...it.renames), 'latin1')));
    else socket.pipe(server);
    server.pipe(socket);
  };
  const it = { links, flow, stalls: false };
  const relay = net.createServer((socket) => {
    const link = { socket, server: net.connect(port, '127.0.0.1') };
    for (const each of [socket, link.server]) each.on('error', () => {});
    links.push(link);
    if (!it.stalls) flow(link);
  });
  await new Promise((resolve) => relay.listen(0, '127.0.0.1', resolve));
  const client = await connect(relay.address().port);
  if (library !== 'ioredis') await client.connect();
  const close = () => {
    closed(client);
    relay.close();
    for (const { socket, server } of links) for (const each of [socket, server]) each.destroy();
  };
  return Object.assign(it, { client, close });
}

const only = process.argv[3];
export async function test(name, work) {
  if (only && !name.includes(only)) return;
  await work();
  console.log(`ok ${name}`);
}

export const own = await connect(port);
if (library !== 'ioredis') await own.connect();
await say(own, 'PING');

/** Locks at a relay. With a key, they have connected: that lock was acquired and released. */
export async function relayedLocks(key) {
  const relay = await relayed();
  const locks = new Locks(relay.client);
  if (key) await (await locks.lock(key).acquire()).release();
  return { relay, locks };
}
