// A lock for node-redis, as a session on a connection of its own. Copy this file.
//
//     await withLock(client, 'order:42', { wait: 10_000 }, async ({ token, signal }) => {
//       ...
//     });
//
// The hold lives as long as the connection: the server renews the lease by itself, and closes the connection when
// the hold ends in another way. There is nothing to renew here, and nothing is sent again: the connection is never
// made anew. A network that was cut is noticed by each end only after its keepalive; until then the token decides.

import { randomUUID } from 'node:crypto';

/** Somebody else held the lock until the wait was over. */
export class NotAcquired extends Error {}

/** The wait would never end. Let go of what you hold, then begin again. */
export class Deadlock extends Error {}

/** The hold was over before it was released: others may have worked at the same time. */
export class LockLost extends Error {}

/**
 * Calls `work` while the lock is held, and returns what it returns. Milliseconds for `wait` and `lease` (what is
 * left to the hold if the server fails over; at least 1000). `work` gets the token, and a signal that is aborted
 * when the hold is lost.
 */
export async function withLock(client, key, options, work) {
  const { mode = 'WRITE', wait = 10_000, lease = 10_000, owner = randomUUID() } = options;
  const connection = client.duplicate({ socket: { ...client.options.socket, reconnectStrategy: false } });
  const lost = new AbortController();
  connection.on('error', (cause) => lost.abort(new LockLost(`the connection that held ${key} is gone`, { cause })));
  await connection.connect();
  try {
    const token = await acquire(connection, [key, owner, mode], wait, lease);
    const result = await work({ token, signal: lost.signal });
    lost.signal.throwIfAborted();
    // A second RELEASE cannot follow on this connection, so with TOKEN a refusal means: it was lost.
    await connection.sendCommand(['RLOCK.RELEASE', key, owner, mode, 'TOKEN', String(token)]);
    return result;
  } catch (error) {
    throw lost.signal.aborted ? lost.signal.reason : said(error);
  } finally {
    // Whatever happened, the end of the connection ends the hold and lets the next one in.
    connection.destroy();
  }
}

async function acquire(connection, lock, wait, lease) {
  // BLOCK 0 would wait for ever, so the shortest wait is 1 ms.
  const words = ['SESSION', 'LEASE', String(lease), 'BLOCK', String(Math.max(1, wait)), 'DEPTH', '1'];
  const token = await connection.sendCommand(['RLOCK.ACQUIRE', ...lock, ...words]);
  if (token === null) throw new NotAcquired(`${lock[0]} was not free within ${wait} ms`);
  return token;
}

/** An error of the server by its first word. */
function said(error) {
  if (error.message?.startsWith('DEADLOCK')) return new Deadlock(error.message, { cause: error });
  if (error.message?.startsWith('NOTHELD')) return new LockLost(error.message, { cause: error });
  return error;
}
