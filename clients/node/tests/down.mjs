// A server that is down: the error names its address, and there is one warning about a wait for it.

import { Redis } from 'ioredis';
import { createClient } from 'redis';
import { Locks, Unavailable } from 'rlock-client';

const nobody = 1; // the port of a service that nobody runs
const warnings = [];
process.on('warning', ({ name, message }) => name === 'RlockWarning' && warnings.push(message));
for (const client of [new Redis({ port: nobody, lazyConnect: true }), createClient({ socket: { host: '127.0.0.1', port: nobody } })]) {
  const locks = new Locks(client, { patience: 100 });
  const error = await locks.lock('order').acquire({ wait: 1_000 }).catch((refused) => refused);
  if (!(error instanceof Unavailable) || !error.message.includes(`:${nobody}`)) throw error;
  // Even if many others lose their server at about the same time.
  await Promise.allSettled(Array.from({ length: 200 }, () => locks.lock('crowd').acquire({ wait: 1_000 })));
  await locks.close();
  const said = warnings.splice(0);
  if (said.length !== 1 || !said[0].startsWith('order: still waiting; last error: ')) throw new Error(said.join('\n'));
}
process.exit();
