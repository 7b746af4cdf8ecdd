// The package's own connections, with the settings of the user's client; and which server has a key.

import { Broken, isReply, Refused, Silent, translated, Unsent } from './errors.js';
import { REPLY, Server } from './machine/index.js';

/** A client of ioredis (`Redis`, `Cluster`) or node-redis (`createClient`, `createCluster`, `createSentinel`). */
export interface Client {
  on(event: string, listener: (...args: any[]) => void): unknown;
}

export type Word = string | number;

/** One connection. It never reconnects: a broken one is discarded. */
export class Link {
  isOpen = true;
  #isGathering = false;
  #unanswered = 0;
  #onClose: (() => void)[] = [];
  #heard: (channel: string) => void = () => {};

  private constructor(
    private readonly conn: any,
    private readonly isIo: boolean,
    readonly address: string,
  ) {
    const close = () => this.close();
    for (const event of ['error', 'close', 'end', 'reconnecting']) conn.on(event, close);
    if (isIo) conn.on('message', (channel: string) => this.#heard(channel));
  }

  /** Connects `conn`, a client that is not connected yet. Bounded in time, even if the server is silent. */
  static async connect(conn: any, isIo: boolean, address: string | undefined): Promise<Link> {
    let heard: any;
    conn.on('error', (error: unknown) => (heard ??= error));
    try {
      await inTime(conn.connect(), REPLY);
    } catch (error) {
      destroy(conn, isIo);
      // A password that is refused is refused again: ioredis says so only in an event.
      const problem = translated(isReply(heard) ? heard : error);
      throw problem instanceof Broken ? new Broken(why(heard, problem.message, address ?? addressOf(conn)), { cause: error }) : problem;
    }
    const stream = conn.stream;
    return new Link(conn, isIo, address ?? (stream ? `${stream.remoteAddress}:${stream.remotePort}` : ''));
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
    if (!this.isOpen) return Promise.reject(new Broken(`the connection to ${this.address} is closed`));
    const texts = words.map(String);
    this.gather();
    this.#unanswered++;
    const reply: Promise<unknown> = this.isIo ? this.conn.call(...texts) : this.conn.sendCommand(texts);
    return reply.then(this.#answered, this.#failed);
  }

  #answered = (reply: unknown) => {
    this.#unanswered--;
    return reply;
  };

  #failed = (error: unknown) => {
    this.#unanswered--;
    throw translated(error);
  };

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
  signal.addEventListener('abort', abort);
  if (signal.aborted) abort();
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener('abort', abort);
  }
}

/** How one client library opens connections. */
interface Maker {
  readonly isIo: boolean;
  readonly isCluster: boolean;
  readonly db: number;
  /** Equal for clients that certainly lead to the same locks. */
  readonly identity: string;
  /** For a cluster: the slots and nodes that its client knows. */
  learn(): Promise<{ slots: Map<number, string>; seeds: string[] }>;
  /** A client that is not connected yet: to the primary, or to a node of a cluster. And where it leads, if known. */
  make(address?: string): Promise<[any, string?]>;
}

const IO = {
  lazyConnect: true,
  retryStrategy: () => null,
  sentinelRetryStrategy: () => null,
  reconnectOnError: null,
  maxRetriesPerRequest: 0,
  enableReadyCheck: false,
  autoResubscribe: false,
  autoResendUnfulfilledCommands: false,
  enableAutoPipelining: false,
  commandTimeout: undefined,
  socketTimeout: undefined,
  connectTimeout: REPLY,
  keyPrefix: '',
  readOnly: false,
};

function ioredis(client: any): Maker {
  const isCluster = typeof client.nodes === 'function';
  const options = client.options ?? {};
  const where = isCluster
    ? client.startupNodes.map((node: any) => (typeof node === 'object' ? `${node.host}:${node.port}` : String(node))).sort()
    : [options.name, options.sentinels, options.path, options.host, options.port, options.db];
  return {
    isIo: true,
    isCluster,
    db: isCluster ? 0 : (options.db ?? 0),
    identity: JSON.stringify(where),
    async learn() {
      if (client.status !== 'ready') await new Promise((resolve) => client.once('ready', resolve));
      const slots = new Map<number, string>();
      client.slots.forEach((nodes: string[], slot: number) => nodes[0] && slots.set(slot, nodes[0]));
      return { slots, seeds: client.nodes('master').map((node: any) => `${node.options.host}:${node.options.port}`) };
    },
    async make(address) {
      if (address === undefined) return [client.duplicate(IO)];
      const [node] = client.nodes('all');
      if (!node) throw new Broken('the cluster client knows no node');
      return [node.duplicate({ ...IO, ...split(address) }), address];
    },
  };
}

function nodeRedis(client: any): Maker {
  const isCluster = Array.isArray(client.masters);
  const isSentinel = typeof client.getMasterNode === 'function';
  const plain = (node: any, socket: object) =>
    node.duplicate({
      socket: { ...node.options?.socket, ...socket, reconnectStrategy: false, connectTimeout: REPLY, socketTimeout: undefined },
      disableOfflineQueue: true,
      commandOptions: { timeout: undefined }, // the package's own: a signal for each command is a tenth of its cost
      keyPrefix: undefined,
      pingInterval: undefined,
      clientSideCache: undefined,
      maintNotifications: 'disabled',
    });
  const own = client._self ?? client;
  const options = client.options ?? {};
  return {
    isIo: false,
    isCluster,
    db: isCluster || isSentinel ? 0 : (options.database ?? 0),
    // Where a cluster or a Sentinel client leads to is not to be seen from outside: each is a space of its own.
    identity: isCluster || isSentinel ? `node-redis ${++others}` : JSON.stringify([options.url, options.socket?.host, options.socket?.port, options.socket?.path, options.database]),
    async learn() {
      if (client.masters.length === 0) throw new Broken('the cluster client is not connected yet');
      const slots = new Map<number, string>();
      own.slots.forEach((shard: any, slot: number) => slots.set(slot, shard.master.address));
      return { slots, seeds: client.masters.map((node: any) => node.address) };
    },
    async make(address) {
      if (address !== undefined) {
        const node = await inTime(Promise.resolve(client.nodeClient(client.masters[0])), REPLY);
        return [plain(node, split(address)), address];
      }
      if (!isSentinel) return [plain(client, {})];
      const node: any = await inTime(own._execute(false, async (primary: any) => primary), REPLY);
      const { host, port } = node.options.socket;
      return [plain(node, {}), `${host}:${port}`];
    },
  };
}

let others = 0;

function split(address: string): { host: string; port: number } {
  const at = address.lastIndexOf(':');
  return { host: address.slice(0, at), port: Number(address.slice(at + 1)) };
}

/** Which server has a key, and the connections to it. */
export class Route {
  readonly maker: Maker;
  #slots = new Map<number, string>();
  #seeds: string[] = [];
  #learnt: Promise<void> | undefined;
  #turn = 0;
  #shared = new Map<string, Promise<Link>>();
  #ready = new Map<string, Link>();
  #idle = new Map<string, Link[]>();
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
    return this.#slots.get(slotOf(key)) ?? this.#seeds[++this.#turn % this.#seeds.length] ?? '';
  }

  /** The connection shared by all requests that are answered at once. `lane`: a second one, for those that are not. */
  async shared(at: string, lane = ''): Promise<Link> {
    const known = this.#shared.get(at + lane);
    if (known) return known;
    const made = this.open(at);
    this.#shared.set(at + lane, made);
    const forget = () => this.#shared.get(at + lane) === made && this.#shared.delete(at + lane);
    made.then((link) => {
      if (this.#shared.get(at + lane) === made) this.#ready.set(at + lane, link);
      link.onClose(() => {
        forget();
        if (this.#ready.get(at + lane) === link) this.#ready.delete(at + lane);
      });
    }, forget);
    return made;
  }

  /** The shared connection, if there is no need to wait for it. */
  ready(at: string, lane: string): Link | undefined {
    return this.#ready.get(at + lane);
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
      dials.server.dialled();
      if (this.#isClosed) {
        link.close();
        throw new Unsent('the locks are closed');
      }
      this.#links.add(link);
      link.onClose(() => this.#links.delete(link));
      return link;
    } catch (error) {
      this.forget(at);
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

  /** Records where -MOVED and -ASK point to, or, for another refusal, that another server may be the primary by now. */
  redirected(refused: Refused, at: string): string | undefined {
    if (this.maker.isCluster && (refused.code === 'MOVED' || refused.code === 'ASK')) {
      const [, slot, place] = refused.message.split(' ') as [string, string, string];
      const to = this.#remap(place.startsWith(':') ? split(at).host + place : place);
      if (refused.code === 'MOVED') {
        this.#slots.set(Number(slot), to);
        if (!this.#seeds.includes(to)) this.#seeds.push(to);
      }
      return to;
    }
    if (['READONLY', 'UNBLOCKED', 'MASTERDOWN', 'LOADING'].includes(refused.code)) this.forget(at);
    return undefined;
  }

  /** That server did not answer, or is not the primary: reconnect, and ask another one where the key is. */
  forget(at: string): void {
    for (const [slot, to] of this.#slots) if (to === at) this.#slots.delete(slot);
    for (const [name, link] of this.#shared) {
      if (name === at || name.startsWith(`${at}#`)) {
        this.#shared.delete(name);
        this.#ready.delete(name);
        link.then((one) => one.close(), () => {});
      }
    }
    for (const link of this.#idle.get(at) ?? []) link.close();
    this.#idle.delete(at);
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
