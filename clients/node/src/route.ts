// Which server has a key, and the connections to it.

import { Broken, Refused, translated, Unsent } from './errors.js';
import { Inboxes } from './inbox.js';
import { Link, type Place, type Word } from './link.js';
import { REPLY, Server } from './machine/index.js';
import { ioredis, type Maker, nodeRedis, split } from './makers.js';
import { slotOf } from './slots.js';
import { inTime } from './time.js';

export const isReadOnly = (error: unknown): error is Refused => error instanceof Refused && error.code === 'READONLY';

/** Which server has a key, and the connections to it. */
export class Route {
  readonly maker: Maker;
  #slots = new Map<number, string>();
  #seeds: string[] = [];
  #learnt: Promise<void> | undefined;
  #turn = 0;
  /** The nodes that could not be reached since the user's client was last asked for its nodes. */
  #failed = new Set<string>();
  #learning: Promise<void> | undefined;
  /**
   * Called with a server's names when somebody needs them: on the first connection, and on the first one after a
   * failure.
   */
  join: ((told: string[]) => void) | undefined;
  #told = new Set<string>();
  #shared = new Map<string, { made: Promise<Link>; link?: Link }>();
  /** Connections whose session has ended, one for each server. */
  #idle = new Map<string, Link>();
  /** The subscriptions for late replies. */
  readonly inboxes: Inboxes;
  /** All open connections, whoever uses them. */
  #links = new Set<Link>();
  #dials = new Map<string, { server: Server; why: string; over: Promise<void> }>();
  #isClosed = false;
  #remap: (address: string) => string;
  /** About how long a reply takes, measured since the first one. */
  rtt = Number.MAX_VALUE;

  constructor(client: any) {
    const has = (method: string) => typeof client?.[method] === 'function';
    if (!has('duplicate') && !has('nodes') && !has('sendCommand')) throw new TypeError('client must be a client of ioredis or node-redis');
    this.maker = has('sendCommand') && !has('call') ? nodeRedis(client) : ioredis(client);
    this.inboxes = new Inboxes((at) => this.open(at), (ms) => this.took(ms), this.maker.isCluster);
    const map = client.options?.natMap ?? client._self?._options?.nodeAddressMap;
    this.#remap = (address) => {
      const to = typeof map === 'function' ? map(address) : map?.[address];
      return to ? `${to.host}:${to.port}` : address;
    };
  }

  /** A single fast reply replaces all slower ones: otherwise, waits after a pause of the server would end too early. */
  took(ms: number): void {
    this.rtt = Math.min(ms, REPLY, this.rtt + (Math.min(ms, REPLY) - this.rtt) / 8);
  }

  /** The address of the key's server, as far as it is known; empty for the only primary. */
  known(key: string): string | undefined {
    return this.maker.isCluster ? this.#slots.get(slotOf(key)) : '';
  }

  /** Where the key is. */
  async placeOf(key: string): Promise<Place> {
    return { at: this.known(key) ?? (await this.#locate(key)), isAsk: false };
  }

  async #locate(key: string): Promise<string> {
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
    if (this.#failed.size > 0 && this.known(key) === undefined) await this.#learnAgain();
    return this.known(key) ?? this.#seeds[++this.#turn % this.#seeds.length] ?? '';
  }

  /**
   * All nodes may have new addresses, which the user's client has learned. That client may be closed by now, so nothing
   * waits for it.
   */
  async #learnAgain(): Promise<void> {
    this.#learning ??= this.maker.learn().then(({ seeds }) => {
      const known = [...new Set([...seeds, ...this.#seeds])].filter((seed) => !this.#failed.has(seed));
      // If no other server is known, keep the old ones: they may come back.
      if (known.length > 0) this.#seeds = known;
      this.#failed.clear();
    }).catch(() => {}).finally(() => (this.#learning = undefined));
    await Promise.race([this.#learning, new Promise(setImmediate)]);
  }

  /** The connection shared by all requests. */
  async shared(at: string): Promise<Link> {
    const known = this.#shared.get(at);
    if (known) return known.made;
    const one: { made: Promise<Link>; link?: Link } = { made: this.open(at) };
    this.#shared.set(at, one);
    const forget = () => {
      if (this.#shared.get(at) !== one) return;
      this.#shared.delete(at);
      this.inboxes.forget(at); // another server may be there by now, which nobody has subscribed at
    };
    one.made.then((link) => (one.link = link).onClose(forget), forget);
    return one.made;
  }

  /** The shared connection, if it is available at once. */
  ready(at: string): Link | undefined {
    return this.#shared.get(at)?.link;
  }

  /** Whether a server has executed something that only a primary does. */
  wasPrimary = false;

  /**
   * The same error; or, for -READONLY, the error that the server is a replica: if it has never been anything else for
   * these locks, and follows a primary that is reachable, there is no failover that would end this. Behind Sentinel,
   * the search for the primary begins again.
   */
  async judged(error: Refused, address: string, ask: (words: Word[]) => Promise<unknown>): Promise<Refused> {
    if (this.wasPrimary || !this.maker.isOneServer) return error;
    const about = await inTime(ask(['INFO', 'replication']), REPLY).then(String, () => '');
    const field = (name: string) => new RegExp(`^${name}:(.*?)\r?$`, 'm').exec(about)?.[1];
    if (field('role') !== 'slave' || field('master_link_status') !== 'up') return error;
    const primary = `${field('master_host')}:${field('master_port')}`;
    return new Refused('REPLICA', `${address} is a replica of ${primary}, and only a primary locks: ${error.message}`, { cause: error });
  }

  /** A server's report about its identity; if it may not be asked, what its client was given. */
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

  /** Nobody gets that new connection before it is known whose seats belong to its server. */
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
    const link = this.#idle.get(at);
    this.#idle.delete(at);
    return link?.isOpen ? link : undefined;
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
      // However many callers wait, connecting to an unreachable server is attempted only a few times a second.
      if (problem instanceof Broken) dials.server.failed(performance.now(), Math.floor(Math.random() * 1_000));
      else dials.server.dialled();
      throw problem instanceof Broken ? new Unsent(problem.message, { cause: error }) : problem;
    } finally {
      over();
    }
  }

  keep(at: string, link: Link): void {
    link.onBroken = undefined;
    if (link.isOpen && !this.#idle.get(at)?.isOpen) this.#idle.set(at, link);
    else link.close();
  }

  /**
   * Records the target of -MOVED or -ASK; after any other refusal, that another server may be the primary now: then
   * `link` is closed as well, so that nobody reuses it.
   */
  redirected(refused: Refused, at: string, link?: Link): Place | undefined {
    if (this.maker.isCluster && (refused.code === 'MOVED' || refused.code === 'ASK')) {
      const [, slot, place] = refused.message.split(' ') as [string, string, string];
      const to = this.#remap(place.startsWith(':') ? split(at).host + place : place);
      if (refused.code === 'MOVED') {
        this.#slots.set(Number(slot), to);
        this.inboxes.moved(at, Number(slot));
        if (!this.#seeds.includes(to)) this.#seeds.push(to);
      }
      return { at: to, isAsk: refused.code === 'ASK' };
    }
    if (['READONLY', 'UNBLOCKED', 'MASTERDOWN', 'LOADING'].includes(refused.code)) {
      this.forget(at);
      link?.close();
    }
    return undefined;
  }

  /** That server did not answer, or is not the primary: reconnects, and asks another server which one has the key. */
  forget(at: string): void {
    this.inboxes.forget(at);
    for (const [slot, to] of this.#slots) if (to === at) this.#slots.delete(slot);
    this.#told.delete(at);
    const shared = this.#shared.get(at);
    this.#shared.delete(at);
    shared?.made.then((link) => link.close(), () => {});
    this.idle(at)?.close();
  }

  /**
   * A request on another connection to that server has gone unanswered since then. Connections with requests in
   * progress find out by those.
   */
  distrust(at: string, since: number): void {
    this.#told.delete(at);
    for (const link of [this.ready(at), this.inboxes.at(at), this.#idle.get(at)]) if (link?.isQuietSince(since)) link.close();
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
