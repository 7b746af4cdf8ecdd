// A shop: `PORT=6380 node dist/main.js` serves http://127.0.0.1:3000/sell/A1/ann.

import 'reflect-metadata';
import { ConflictException, Controller, Injectable, Module, Param, Post } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Locks } from 'rlock-client';
import { Locked, LocksModule } from './locks.js';

@Injectable()
export class Shop {
  readonly sold = new Map<string, string>(); // a real shop has a database

  constructor(readonly locks: Locks) {}

  @Locked((seat: string) => `nest:${seat}`, { wait: 5_000 })
  async sell(seat: string, buyer: string): Promise<string> {
    if (this.sold.has(seat)) throw new ConflictException(`${seat} is sold`);
    await new Promise((resolve) => setTimeout(resolve, 50)); // anything that takes time
    this.sold.set(seat, buyer);
    return buyer;
  }
}

@Controller()
export class Sales {
  constructor(private readonly shop: Shop) {}

  @Post('sell/:seat/:buyer')
  sell(@Param('seat') seat: string, @Param('buyer') buyer: string): Promise<string> {
    return this.shop.sell(seat, buyer);
  }
}

@Module({ imports: [LocksModule], controllers: [Sales], providers: [Shop] })
export class App {}

const app = await NestFactory.create(App, { logger: ['error', 'warn'] });
app.enableShutdownHooks();
await app.listen(Number(process.env['HTTP_PORT'] ?? 3000), '127.0.0.1');
console.log(await app.getUrl());
