// What users test with: a real server with the module. Run by `node --test`, with RLOCK_SERVER and RLOCK_MODULE.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { test } from 'node:test';
import { Redis } from 'ioredis';
import { Locks } from 'rlock-client';
import { startServer } from 'rlock-client/testing';

test('a server of its own starts, ends and starts again', async () => {
  const server = await startServer({ words: ['--maxclients', '50'] });
  const client = new Redis(server.url);
  client.on('error', () => {});
  const locks = new Locks(client);
  assert.deepEqual(await client.config('GET', 'maxclients'), ['maxclients', '50']);
  await locks.lock('k').acquire();
  await server.empty();
  assert.equal(await client.exists('k'), 0);
  await server.kill();
  await server.start();
  assert.equal((await client.call('RLOCK.INFO', 'k'))[1], 'free');
  const other = await startServer({ words: ['--requirepass', 'secret'] });
  assert.notEqual(other.port, server.port);
  await other.stop();
  await locks.close();
  client.disconnect();
  await server.stop();
});

test('what is missing is said', async () => {
  await assert.rejects(startServer({ module: '/nowhere/librlock.so' }), /RLOCK_MODULE/);
  await assert.rejects(startServer({ words: ['--nonsense', 'yes'] }), /the server did not start.*nonsense/s);
  const { PATH, RLOCK_SERVER } = process.env;
  Object.assign(process.env, { PATH: '', RLOCK_SERVER: '' });
  await assert.rejects(startServer(), /RLOCK_SERVER/);
  Object.assign(process.env, { PATH, RLOCK_SERVER });
});

test('the README', () => {
  const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
  const [, block] = /^```javascript test\n(.*?)^```/ms.exec(readme);
  const file = new URL('readme-test.mjs', import.meta.url);
  writeFileSync(file, block);
  try {
    const { NODE_TEST_CONTEXT: _, ...env } = process.env;
    assert.match(execFileSync(process.execPath, ['--test', '--test-reporter', 'tap', file.pathname], { env, encoding: 'utf8' }), /^# pass 1$/m);
  } finally {
    rmSync(file);
  }
});
