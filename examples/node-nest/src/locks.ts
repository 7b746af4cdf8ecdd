// A module that gives all others the locks, and a decorator.

import { Global, Module, type OnApplicationShutdown } from '@nestjs/common';
import { Redis } from 'ioredis';
import { Locks } from 'rlock-client';

const client = new Redis(Number(process.env['PORT'] ?? 6380), { lazyConnect: true });

@Global()
@Module({ providers: [{ provide: Locks, useFactory: () => new Locks(client) }], exports: [Locks] })
export class LocksModule implements OnApplicationShutdown {
  constructor(private readonly locks: Locks) {}

  /** Closes the locks before the client, so that the process can exit. */
  async onApplicationShutdown(): Promise<void> {
    await this.locks.close();
    client.disconnect();
  }
}

/** The method runs while it holds the lock that `key` names for its arguments. Its class must have a field `locks`. */
export function Locked(key: (...args: any[]) => string, options: { lease?: number; wait?: number } = {}) {
  return function <A extends unknown[], R>(_: object, __: string, method: TypedPropertyDescriptor<(...args: A) => Promise<R>>): void {
    const work = method.value!;
    method.value = function (this: { locks: Locks }, ...args: A): Promise<R> {
      const { lease = 30_000, ...waiting } = options;
      return this.locks.using(key(...args), lease, waiting, () => work.apply(this, args));
    };
  };
}
