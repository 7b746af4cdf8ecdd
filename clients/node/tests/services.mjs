// Services that shut down, as the README shows them: real programs, with a real server. Run by `node --test`, with RLOCK_SERVER
// and RLOCK_MODULE.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { startServer } from 'rlock-client/testing';

const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
const block = (kind) => new RegExp(`^\`\`\`javascript ${kind}\n(.*?)^\`\`\``, 'ms').exec(readme)[1];

/** What goes on when the service is to end: a request, and a job of its own. */
const slow = `
const work = async (key, ms) => await locks.lock(key, { lease: 900 }).using({}, async (hold) => {
  for (const end = Date.now() + ms; hold.held && Date.now() < end; ) await new Promise((resolve) => setTimeout(resolve, 10));
  return hold.held;
});
const begin = () => work('job', 2_500).then((held) => console.log('the job ' + (held ? 'had' : 'lost') + ' its lock'));
`;
const express = () => block('express').replace('const server =', `${slow}
app.get('/slow', async (request, response) => {
  begin();
  response.json(await work('slow', 1_500));
});

const server =`);
const nest = () => block('nest').replace('await app.listen', `const locks = app.get(Locks);
${slow}
app.getHttpAdapter().get('/slow', async (request, response) => {
  begin();
  response.json(await work('slow', 1_500));
});
await app.listen`);

async function freePort() {
  const taken = createServer().listen(0, '127.0.0.1');
  await once(taken, 'listening');
  const { port } = taken.address();
  taken.close();
  return port;
}

for (const [name, program] of Object.entries({ express, nest })) {
  test(`a service of ${name} that is terminated ends its bodies and leaves no lock`, async () => {
    const server = await startServer();
    const client = new Redis(server.url);
    const port = await freePort();
    const file = new URL(`service-${name}.mjs`, import.meta.url);
    writeFileSync(file, program().replace('6380', server.port).replace('8080', port));
    const service = spawn(process.execPath, [file.pathname], { stdio: ['ignore', 'pipe', 'pipe'] });
    let said = '';
    for (const stream of [service.stdout, service.stderr]) stream.setEncoding('utf8').on('data', (text) => (said += text));
    const ended = once(service, 'exit');
    const until = async (what, isSo) => {
      for (const end = Date.now() + 20_000; !(await isSo()); await sleep(10)) assert(Date.now() < end && service.exitCode === null, `${what}: ${said}`);
    };
    const get = async (path) => await (await fetch(`http://127.0.0.1:${port}${path}`)).json();
    try {
      await until('it answers', () => get('/report/monday').then((reply) => reply.token > 0, () => false));
      const reply = get('/slow');
      await until('it works', async () => (await client.exists('slow', 'job')) === 2);
      await client.call('RLOCK.ACQUIRE', 'report:tuesday', 'somebody');
      const waits = fetch(`http://127.0.0.1:${port}/report/tuesday`);
      await until('a request waits', async () => (await client.call('RLOCK.QUEUES')).length > 0);
      service.kill('SIGTERM');
      assert.equal(await reply, true, said);
      assert.equal((await waits).status, 503, said);
      await ended;
      assert.match(said, /the job had its lock/);
      assert.doesNotMatch(said, /still held|still holds/);
      assert.equal(await client.exists('slow', 'job'), 0);
    } finally {
      service.kill('SIGKILL');
      rmSync(file);
      client.disconnect();
      await server.stop();
    }
  });
}
