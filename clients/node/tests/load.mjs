// Load and faults, driven by load.py: users fight for two locks at $PORT until $END (unix ms), while the server is
// killed, stopped and cut off, and until the locks were held a hundred times. No two may be sure of one lock at once,
// tokens increase, and nobody waits forever.

import { Redis } from 'ioredis';
import { createClient } from 'redis';
import { setTimeout as sleep } from 'node:timers/promises';
import { LockLost, Locks, Unavailable } from 'rlock-client';

const [kind, port, end] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const client = kind === 'ioredis' ? new Redis(port) : createClient({ socket: { host: '127.0.0.1', port } });
client.on('error', () => {});
if (kind !== 'ioredis') await client.connect();
const locks = new Locks(client);
const pick = (...choices) => choices[Math.floor(Math.random() * choices.length)];
const counts = { held: 0, nothing: 0, lost: 0, unavailable: 0, cancelled: 0 };
const sure = new Map([['load:a', new Set()], ['load:b', new Set()]]);
const tokens = new Map();

async function user() {
  while (Date.now() < end || counts.held < 100) {
    const key = pick('load:a', 'load:b');
    const signal = AbortSignal.timeout(pick(50, 20_000));
    try {
      const hold = await locks.lock(key, { lease: 3_000 }).acquire({ wait: pick(0, 300, 2_000, 10_000), signal });
      if (!hold) {
        counts.nothing++;
        continue;
      }
      for (const other of sure.get(key)) if (other.held && hold.held) throw new Error(`${key}: ${hold.owner} and ${other.owner} hold it`);
      if (hold.token <= (tokens.get(key) ?? 0)) throw new Error(`${key}: token ${hold.token} after ${tokens.get(key)}`);
      tokens.set(key, hold.token);
      sure.get(key).add(hold);
      counts.held++;
      await sleep(Math.random() * 20);
      sure.get(key).delete(hold);
      await hold.release();
    } catch (error) {
      if (signal.aborted && error === signal.reason) counts.cancelled++;
      else if (error instanceof LockLost) counts.lost++;
      else if (error instanceof Unavailable) counts.unavailable++;
      else throw error;
    }
  }
}

await Promise.race([
  Promise.all(Array.from({ length: 12 }, user)),
  sleep(end - Date.now() + 400_000, undefined, { ref: false }).then(() => Promise.reject(new Error('a user does not come back'))),
]);
await locks.close();
console.log(JSON.stringify(counts));
process.exit(0);
