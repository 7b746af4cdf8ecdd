// A program written for redlock, before and after its migration, at the server on $PORT; the page shows what has
// changed. Each line of output is a test that passed.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';

const redis = new Redis(Number(process.env.PORT), '127.0.0.1');

for (const kind of ['before', 'after']) {
  const { Booking } = await import(`./moved/${kind}.mjs`);
  const shop = new Booking(redis);
  const test = async (name, work) => {
    await redis.del('seat:A1', 'seat:A2', 'lock:A1', 'lock:A2');
    await work();
    console.log(`ok ${kind}: ${name}`);
  };

  await test('one buyer gets the seat', async () => {
    const sold = await Promise.all([...'abcdef'].map(async (buyer) => ((await shop.buy('A1', buyer)) ? [buyer] : [])));
    assert.deepEqual(sold.flat(), [await redis.get('seat:A1')]);
  });

  await test('two seats are exchanged', async () => {
    await redis.mset('seat:A1', 'a', 'seat:A2', 'b');
    await Promise.all([shop.swap('A1', 'A2'), shop.swap('A2', 'A1'), shop.swap('A1', 'A2')]);
    assert.deepEqual(await redis.mget('seat:A1', 'seat:A2'), ['b', 'a']);
  });

  await test('a reserved seat cannot be bought until it is paid', async () => {
    const charged = [];
    let lock = await shop.reserve('A1');
    lock = await lock.extend(5_000);
    await assert.rejects(shop.buy('A1', 'b'));
    await shop.pay(lock, 'A1', 'a', (buyer) => charged.push(buyer));
    assert.deepEqual([charged, await shop.buy('A1', 'b')], [['a'], false]);
  });

  await test('a taken seat is not reserved', async () => {
    const lock = await (await shop.reserve('A1')).extend(10_000);
    await assert.rejects(shop.reserve('A1'));
    await lock.release();
  });

  await test('a reservation ends by itself', async () => {
    const lock = await shop.reserve('A1');
    while (await redis.exists('lock:A1')) await sleep(10);
    await assert.rejects(shop.pay(lock, 'A1', 'a', () => assert.fail('charged')));
    assert(await shop.buy('A1', 'b'));
  });

  await shop.locks.close?.();
}

// The lines that differ.
const [before, after] = ['before', 'after'].map((kind) => fileURLToPath(new URL(`moved/${kind}.mjs`, import.meta.url)));
const { stdout } = spawnSync('diff', ['-U0', before, after], { encoding: 'utf8' });
const changed = stdout.split('\n').slice(2).filter((line) => /^[-+]/.test(line)).join('\n');
assert(changed);
const page = process.argv[2] && readFileSync(process.argv[2], 'utf8');
assert(!page || page.includes(`\`\`\`diff\n${changed}\n\`\`\``), changed);
console.log('ok the page shows what has changed');
await redis.del('seat:A1', 'seat:A2');
redis.disconnect();
