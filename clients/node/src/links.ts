// The package's own connections, with the settings of the user's client; and which server has a key.

import { onAbort } from './abort.js';
import { Broken, isFault, isReply, Refused, Silent, translated, Unsent } from './errors.js';
import { REPLY, Server } from './machine/index.js';
import { ioredis, type Maker, nodeRedis, split } from './makers.js';
import { Gate, type Queuer } from './send.js';

/** A client of ioredis (`Redis`, `Cluster`) or node-redis (`createClient`, `createCluster`, `createSentinel`). */
export interface Client {
  on(event: string, listener: (...args: any[]) => void): unknown;
}

export type Word = string | number;

/** One connection. It never reconnects: a broken one is discarded. */
export class Link {
  isOpen = true;
  /** Whether the other end closed it. */
  isBroken = false;
  #isGathering = false;
  #unanswered = 0;
  #heardAt = performance.now();
  #onClose: (() => void)[] = [];
  #heard: (channel: string) => void = () => {};
  /** Why it broke, where no retry helps: a library says so only in an event. */
  #fault: Error | undefined;

  private constructor(
    private readonly conn: any,
    private readonly isIo: boolean,
    readonly address: string,
  ) {
    conn.on('error', (error: unknown) => {
      if (isFault(error)) this.#fault = translated(error, address);
    });
    const broke = () => {
      this.isBroken ||= this.isOpen;
      this.close();
    };
    for (const event of ['error', 'close', 'end', 'reconnecting']) conn.on(event, broke);
    if (isIo) conn.on('message', (channel: string) => this.#heard(channel));
  }

  /** Connects `conn`, a client that is not connected yet. Bounded in time, even if the server is silent. */
  static async connect(conn: any, isIo: boolean, address: string | undefined): Promise<Link> {
    let heard: any;
    conn.on('error', (error: unknown) => (heard ??= error));
    try {
      await inTime(conn.connect(), REPLY);
      // ioredis goes on in database 0 where its own SELECT is refused.
      if (isIo && conn.options.db > 0) await inTime(conn.select(conn.options.db), REPLY);
    } catch (error) {
      destroy(conn, isIo);
      // A password that is refused is refused again: ioredis says so only in an event.
      const problem = translated(isReply(heard) || isFault(heard) ? heard : error, address ?? addressOf(conn));
      throw problem instanceof Broken ? new Broken(why(heard, problem.message, address ?? addressOf(conn)), { cause: error }) : problem;
    }
    const stream = conn.stream;
    return new Link(conn, isIo, address ?? (stream ? `${stream.remoteAddress}:${stream.remotePort}` : addressOf(conn) ?? ''));
  }

  /**
   * ioredis writes each command by itself, a system call for each: what is sent at the same time is written at once.
   * But not what is sent alone, for which that takes longer.
   */
  private gather(): void {
    const { stream } = this.conn;
    if (!this.isIo || this.#isGathering || this.#unanswered === 0 || !stream?.cork) return;
    this.#isGathering = true;
    stream.cork();
    process.nextTick(() => {
      this.#isGathering = false;
      stream.uncork();
    });
  }

  send(words: Word[]): Promise<unknown> {
    if (!this.isOpen) return Promise.reject(this.#fault ?? new Broken(`the connection to ${this.address} is closed`));
    const texts = words.map(String);
    this.gather();
    this.#unanswered++;
    const reply: Promise<unknown> = this.isIo ? this.conn.call(...texts) : this.conn.sendCommand(texts);
    return reply.then(this.#answered, this.#failed);
  }

  #answered = (reply: unknown) => {
    this.#unanswered--;
    this.#heardAt = performance.now();
    return reply;
  };

  #failed = (error: unknown) => {
    this.#unanswered--;
    this.#heardAt = performance.now();
    throw this.#fault ?? translated(error, this.address);
  };

  /** Whether nobody waits for a reply, and none came since then. */
  isQuietSince(time: number): boolean {
    return this.#unanswered === 0 && this.#heardAt < time;
  }

  /** Reports the channels of messages to `heard`. */
  onMessage(heard: (channel: string) => void): void {
    this.#heard = heard;
  }

  async subscribe(channel: string): Promise<void> {
    try {
      await inTime(this.isIo ? this.conn.subscribe(channel) : this.conn.subscribe(channel, (_: string, from: string) => this.#heard(from)), REPLY);
    } catch (error) {
      throw translated(error);
    }
  }

  unsubscribe(channel: string): void {
    if (this.isOpen) this.conn.unsubscribe(channel).catch(() => {});
  }

  /** Calls `call` when the connection has closed, whoever closed it. */
  onClose(call: () => void): void {
    if (this.isOpen) this.#onClose.push(call);
    else call();
  }

  close(): void {
    if (!this.isOpen) return;
    this.isOpen = false;
    destroy(this.conn, this.isIo);
    for (const call of this.#onClose) call();
  }
}

/** What broke, and where. ioredis says only in an event what it was; for a name with two addresses there are two errors. */
function why(heard: any, otherwise: string, address: string | undefined): string {
  const texts = [heard, ...(heard?.errors ?? [])].map((error) => error?.message).filter(Boolean);
  const text = texts.join(', ') || otherwise;
  return address === undefined || /:\d+\b/.test(text) ? text : `${address}: ${text}`;
}

/** Of a client for one server. */
function addressOf(conn: any): string | undefined {
  const { host, port, socket, sentinels } = conn.options ?? {};
  const at = socket ?? { host, port };
  return at.port === undefined || sentinels ? undefined : `${at.host ?? 'localhost'}:${at.port}`;
}

function destroy(conn: any, isIo: boolean): void {
  try {
    if (isIo) {
      conn.disconnect(false);
      conn.stream?.destroy?.(); // also where the other end is silent
    } else conn.destroy();
  } catch {
    // it was closed already
  }
}

export const isReadOnly = (error: unknown): error is Refused => error instanceof Refused && error.code === 'READONLY';

/** The result of `promise`, or Silent after `ms`. */
export function inTime<T>(promise: Promise<T>, ms: number): Promise<T> {
  if (ms === Infinity) return promise;
  return new Promise((resolve, reject) => {
    // A loop that was blocked runs its timers before it reads what lies in its sockets: that goes first.
    const end = () => setImmediate(() => reject(new Silent(`no reply within ${Math.round(ms)} ms`)));
    const timer = setTimeout(() => setImmediate(end), Math.min(Math.max(0, ms), 2 ** 31 - 1));
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

/** The result of `promise`; rejects with the signal's reason as soon as that is aborted. */
export async function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return await promise;
  let abort!: () => void;
  const aborted = new Promise<never>((_, reject) => (abort = () => reject(signal.reason)));
  const deafen = onAbort(signal, abort);
  if (signal.aborted) abort();
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    deafen();
  }
}

/** Which server has a key, and the connections to it. */
export class Route {
  readonly maker: Maker;
  #slots = new Map<number, string>();
  #seeds: string[] = [];
  #learnt: Promise<void> | undefined;
  #turn = 0;
  /** Which nodes were not reached since the user's client was last asked for its nodes. */
  #failed = new Set<string>();
  #learning: Promise<void> | undefined;
  /** Is told what a server is, once somebody wants to know: on the first connection, and on the first one after a failure. */
  join: ((told: string[]) => void) | undefined;
  #told = new Set<string>();
  #shared = new Map<string, Promise<Link>>();
  #ready = new Map<string, Link>();
  #idle = new Map<string, Link[]>();
  #gates = new Map<string, Gate>();
  /** All that are open, whoever has them. */
  #links = new Set<Link>();
  #dials = new Map<string, { server: Server; why: string; over: Promise<void> }>();
  #isClosed = false;
  #remap: (address: string) => string;

  constructor(client: any) {
    const has = (method: string) => typeof client?.[method] === 'function';
    if (!has('duplicate') && !has('nodes') && !has('sendCommand')) throw new TypeError('client must be a client of ioredis or node-redis');
    this.maker = has('sendCommand') && !has('call') ? nodeRedis(client) : ioredis(client);
    const map = client.options?.natMap ?? client._self?._options?.nodeAddressMap;
    this.#remap = (address) => {
      const to = typeof map === 'function' ? map(address) : map?.[address];
      return to ? `${to.host}:${to.port}` : address;
    };
  }

  /** The address of the key's server; empty for the only primary. */
  async locate(key: string): Promise<string> {
    if (!this.maker.isCluster) return '';
    this.#learnt ??= this.maker.learn().then(({ slots, seeds }) => {
      this.#slots = slots;
      this.#seeds = seeds;
    });
    const learnt = this.#learnt;
    learnt.catch(() => this.#learnt === learnt && (this.#learnt = undefined));
    try {
      await inTime(learnt, REPLY);
    } catch (error) {
      throw new Unsent((error as Error).message);
    }
    const slot = slotOf(key);
    if (this.#failed.size > 0 && !this.#slots.has(slot)) await this.#learnAgain();
    return this.#slots.get(slot) ?? this.#seeds[++this.#turn % this.#seeds.length] ?? '';
  }

  /** All nodes may have new addresses, which the user's client has heard of. It may be closed by now: it is not waited for. */
  async #learnAgain(): Promise<void> {
    this.#learning ??= this.maker.learn().then(({ seeds }) => {
      const known = [...new Set([...seeds, ...this.#seeds])].filter((seed) => !this.#failed.has(seed));
      // As long as it knows nothing better, they may come back.
      if (known.length > 0) this.#seeds = known;
      this.#failed.clear();
    }).catch(() => {}).finally(() => (this.#learning = undefined));
    await Promise.race([this.#learning, new Promise(setImmediate)]);
  }

  /** The connection shared by all requests that are answered at once. */
  async shared(at: string): Promise<Link> {
    const known = this.#shared.get(at);
    if (known) return known;
    const made = this.open(at);
    this.#shared.set(at, made);
    const forget = () => this.#shared.get(at) === made && this.#shared.delete(at);
    made.then((link) => {
      if (this.#shared.get(at) === made) this.#ready.set(at, link);
      link.onClose(() => {
        forget();
        if (this.#ready.get(at) === link) this.#ready.delete(at);
      });
    }, forget);
    return made;
  }

  /** The shared connection, if there is no need to wait for it. */
  ready(at: string): Link | undefined {
    return this.#ready.get(at);
  }

  /** A connection of one's own for one request, when fewer than `most` others have one. To be given back. */
  async borrow(at: string, most: number, who: Queuer): Promise<Link> {
    const gate = this.#gates.get(at) ?? new Gate(most);
    this.#gates.set(at, gate);
    await gate.enter(who);
    try {
      return this.idle(at) ?? (await this.open(at));
    } catch (error) {
      gate.leave();
      throw error;
    }
  }

  giveBack(at: string, link: Link, most: number): void {
    this.keep(at, link, most);
    this.#gates.get(at)!.leave();
  }

  /** Whether a server has executed what only a primary does. */
  wasPrimary = false;

  /**
   * That error, or, for -READONLY, that the server is a replica: if it has been nothing else for these locks, and follows a
   * primary that is there, no failover is under way that would end it. Behind Sentinel the primary is looked for again.
   */
  async judged(error: Refused, address: string, ask: (words: Word[]) => Promise<unknown>): Promise<Refused> {
    if (this.wasPrimary || !this.maker.isOneServer) return error;
    const about = await inTime(ask(['INFO', 'replication']), REPLY).then(String, () => '');
    const field = (name: string) => new RegExp(`^${name}:(.*?)\r?$`, 'm').exec(about)?.[1];
    if (field('role') !== 'slave' || field('master_link_status') !== 'up') return error;
    const primary = `${field('master_host')}:${field('master_port')}`;
    return new Refused('REPLICA', `${address} is a replica of ${primary}, and only a primary locks: ${error.message}`, { cause: error });
  }

  /** What a server says that it is; where it may not be asked, what its client was given. */
  async whatItIs(ask: (words: Word[]) => Promise<unknown>): Promise<string[]> {
    const { maker } = this;
    try {
      const said = await ask(maker.isCluster ? ['CLUSTER', 'SLOTS'] : ['INFO', 'server']);
      if (maker.isCluster) return (said as any[]).map((range) => `node ${range[2][2]}`);
      return [`run ${/^run_id:(\w+)/m.exec(String(said))?.[1] ?? maker.identity} ${maker.db}`];
    } catch (error) {
      if (error instanceof Refused && error.code === 'NOPERM') return [maker.identity];
      throw error;
    }
  }

  /** Nobody has that new connection before it is known whose seats are at its server. */
  async #meet(at: string, link: Link): Promise<void> {
    if (!this.join || this.#told.has(at)) return;
    this.#told.add(at);
    try {
      this.join(await this.whatItIs((words) => inTime(link.send(words), REPLY)));
    } catch (error) {
      this.#told.delete(at);
      if (error instanceof Refused) return;
      link.close();
      throw error;
    }
  }

  /** A connection that nobody uses. */
  idle(at: string): Link | undefined {
    const links = this.#idle.get(at);
    for (let link = links?.pop(); link; link = links?.pop()) if (link.isOpen) return link;
    return undefined;
  }

  async open(at: string): Promise<Link> {
    const dials = this.#dials.get(at) ?? { server: new Server(), why: '', over: Promise.resolve() };
    this.#dials.set(at, dials);
    for (;;) {
      const need = dials.server.need(performance.now());
      if (this.#isClosed) throw new Unsent('the locks are closed');
      if (need === 'rest') throw new Unsent(dials.why);
      if (need === 'dial') break;
      await dials.over;
    }
    let over!: () => void;
    dials.over = new Promise((resolve) => (over = resolve));
    try {
      const [conn, address] = await this.maker.make(at || undefined);
      const link = await Link.connect(conn, this.maker.isIo, address);
      this.#links.add(link);
      link.onClose(() => {
        this.#links.delete(link);
        if (link.isBroken) this.#told.delete(at); // another server may be there when it is connected to again
      });
      if (!this.#isClosed) await this.#meet(at, link);
      dials.server.dialled();
      if (this.#isClosed) {
        link.close();
        throw new Unsent('the locks are closed');
      }
      return link;
    } catch (error) {
      this.forget(at);
      this.#failed.add(at);
      const problem = translated(error);
      dials.why = problem.message;
      // However many wait, a server that is not there is connected to a few times a second.
      if (problem instanceof Broken) dials.server.failed(performance.now(), Math.floor(Math.random() * 1_000));
      else dials.server.dialled();
      throw problem instanceof Broken ? new Unsent(problem.message, { cause: error }) : problem;
    } finally {
      over();
    }
  }

  keep(at: string, link: Link, most: number): void {
    const idle = this.#idle.get(at) ?? [];
    this.#idle.set(at, idle);
    if (link.isOpen && idle.length < most) idle.push(link);
    else link.close();
  }

  /**
   * Records where -MOVED and -ASK point to, or, for another refusal, that another server may be the primary by now; then
   * `link` is closed as well, so that nobody finds it idle.
   */
  redirected(refused: Refused, at: string, link?: Link): string | undefined {
    if (this.maker.isCluster && (refused.code === 'MOVED' || refused.code === 'ASK')) {
      const [, slot, place] = refused.message.split(' ') as [string, string, string];
      const to = this.#remap(place.startsWith(':') ? split(at).host + place : place);
      if (refused.code === 'MOVED') {
        this.#slots.set(Number(slot), to);
        if (!this.#seeds.includes(to)) this.#seeds.push(to);
      }
      return to;
    }
    if (['READONLY', 'UNBLOCKED', 'MASTERDOWN', 'LOADING'].includes(refused.code)) {
      this.forget(at);
      link?.close();
    }
    return undefined;
  }

  /** That server did not answer, or is not the primary: reconnect, and ask another one where the key is. */
  forget(at: string): void {
    for (const [slot, to] of this.#slots) if (to === at) this.#slots.delete(slot);
    this.#told.delete(at);
    const shared = this.#shared.get(at);
    this.#shared.delete(at);
    this.#ready.delete(at);
    shared?.then((link) => link.close(), () => {});
    for (const link of this.#idle.get(at) ?? []) link.close();
    this.#idle.delete(at);
  }

  /** A request on another connection to that server was not answered since then. One that has requests finds out by them. */
  distrust(at: string, since: number): void {
    this.#told.delete(at);
    for (const link of [this.#ready.get(at), ...(this.#idle.get(at) ?? [])]) if (link?.isQuietSince(since)) link.close();
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  close(): void {
    this.#isClosed = true;
    for (const { server } of this.#dials.values()) server.close();
    for (const link of [...this.#links]) link.close();
    this.#shared.clear();
    this.#idle.clear();
  }
}

/** The key's slot in a cluster. */
export function slotOf(key: string): number {
  const open = key.indexOf('{');
  const close = key.indexOf('}', open + 1);
  const part = open >= 0 && close > open + 1 ? key.slice(open + 1, close) : key;
  let crc = 0;
  for (const byte of Buffer.from(part)) {
    crc ^= byte << 8;
    for (let i = 0; i < 8; i++) crc = ((crc << 1) ^ (crc & 0x8000 ? 0x1021 : 0)) & 0xffff;
  }
  return crc % 16384;
}
