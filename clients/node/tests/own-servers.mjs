// What the tests of one client library (argv[2]) with servers of their own share: the program of a server (argv[3]), the
// module (argv[4]), and what is to be run of the tests (argv[5]).

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';

export const [library, program, module, only] = process.argv.slice(2);
export const folder = mkdtempSync(join(tmpdir(), 'rlock-tests-'));
const servers = new Set();

export function started(...words) {
  const server = spawn(program, words.map(String), { stdio: 'ignore' });
  servers.add(server.once('exit', () => servers.delete(server)));
  return server;
}

export function killAll() {
  for (const server of servers) server.kill('SIGKILL');
  servers.clear();
}

process.on('exit', () => {
  killAll();
  rmSync(folder, { recursive: true, force: true });
});

/** The test's own client of a server, which answers by then. */
export async function clientOf(port, host = '127.0.0.1') {
  const client = new Redis({ port, host, retryStrategy: () => 20 });
  client.on('error', () => {});
  await client.ping();
  return client;
}

/** A node of a cluster also uses the port 10 000 above its own. */
export async function freePort() {
  const server = net.createServer();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port < 55_000 ? port : freePort();
}

export async function until(what, isSo) {
  for (const end = Date.now() + 20_000; !(await isSo()); await sleep(10)) assert(Date.now() < end, what);
}
