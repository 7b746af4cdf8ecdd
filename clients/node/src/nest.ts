/**
 * A module of Nest: provides `Locks`, and drains them when the application shuts down.
 *
 * ```ts
 * @Module({ imports: [LocksModule.forRoot({ client, drain: 20_000 })] })
 * class AppModule {}
 *
 * const app = await NestFactory.create(AppModule);
 * app.enableShutdownHooks();
 * ```
 *
 * @module
 */

import { type BeforeApplicationShutdown, type DynamicModule, Logger, type OnModuleInit } from '@nestjs/common';
import { type Client, Locks, type LocksOptions } from './index.js';

export interface LocksModuleOptions extends LocksOptions {
  /** The client of ioredis or node-redis. It stays the application's to close. */
  client: Client;
  /** How long the application waits, in milliseconds, until what is held has been released. Default: 20 000. */
  drain?: number;
  /** Checks at the start, with the lock of this key, that locks can be acquired: the application does not start otherwise. */
  check?: string;
}

/** What the module does when the application starts and ends. */
class Service implements OnModuleInit, BeforeApplicationShutdown {
  constructor(
    private readonly locks: Locks,
    private readonly drain: number,
    private readonly key: string | undefined,
  ) {}

  async onModuleInit(): Promise<void> {
    if (this.key !== undefined) await this.locks.check(this.key);
  }

  async beforeApplicationShutdown(): Promise<void> {
    const left = await this.locks.drain(this.drain);
    if (left.length > 0) new Logger('rlock').warn(`the application ends, and still holds ${left.join(', ')}`);
  }
}

/** Provides `Locks` to all modules of the application. */
export class LocksModule {
  static forRoot({ client, drain = 20_000, check, ...options }: LocksModuleOptions): DynamicModule {
    return {
      module: LocksModule,
      global: true,
      providers: [
        { provide: Locks, useFactory: () => new Locks(client, options) },
        { provide: Service, useFactory: (locks: Locks) => new Service(locks, drain, check), inject: [Locks] },
      ],
      exports: [Locks],
    };
  }
}
