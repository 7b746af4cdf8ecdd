// Compiled, not run: the types as a strict TypeScript program sees them, with either client.

import { Redis } from 'ioredis';
import { createClient, createCluster, createSentinel } from 'redis';
import { type Counts, Deadlock, type Hold, type Listener, type Lock, type LockError, Locks, LockLost } from 'rlock-client';
import { otel } from 'rlock-client/otel';

export async function uses(signal: AbortSignal): Promise<number> {
  const locks: Locks = new Locks(new Redis(), { patience: 1_000 });
  new Locks(createClient());
  new Locks(createCluster({ rootNodes: [] }));
  new Locks(createSentinel({ name: 'locks', sentinelRootNodes: [] }));
  const listener: Listener = otel({ keys: true });
  const listening = new Locks(new Redis(), { listener }).on('error', (error: LockError) => error.message);
  const counts: Counts = listening.counts();
  await locks.using(['a', 'b'], counts.held, { wait: 1_000 }, async (signal, { token }) => signal.error?.message ?? token);
  const lock: Lock = locks.lock('order:42', { lease: 10_000, session: true, acks: 1, maxQueue: 10, owner: 'me' });
  const hold: Hold | null = await lock.acquire({ wait: 0, signal });
  // @ts-expect-error wait is a number of milliseconds
  await lock.acquire({ wait: 'ten' });
  // @ts-expect-error may be null
  hold.token;
  await using other = await locks.readLock('order:42').acquire();
  other?.signal.throwIfAborted();
  try {
    return await locks.permit('gpu', 4).using({ wait: 1_000 }, ({ token }) => token);
  } catch (error) {
    if (error instanceof Deadlock) return error.code.length;
    if (error instanceof LockLost) return 0;
    throw error;
  }
}
