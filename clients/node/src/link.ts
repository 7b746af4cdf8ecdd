// One connection, with the settings of the user's client.

import { Broken, isFault, isReply, translated, Unsent } from './errors.js';
import { REPLY } from './machine/index.js';
import { inTime } from './time.js';

/** A client of ioredis (`Redis`, `Cluster`) or node-redis (`createClient`, `createCluster`, `createSentinel`). */
export interface Client {
  on(event: string, listener: (...args: any[]) => void): unknown;
}

export type Word = string | number;

/** Where a request goes: to that server, with ASKING or not, and on which dedicated connection, if any. */
export interface Place {
  readonly at: string;
  readonly isAsk: boolean;
  readonly link?: Link;
}

/** One connection. It never reconnects: a broken one is discarded. */
export class Link {
  isOpen = true;
  /** Whether the other end closed it. */
  isBroken = false;
  #isGathering = false;
  #unanswered = 0;
  #heardAt = performance.now();
  #onClose: (() => void)[] = [];
  /** The channels that it is subscribed to. */
  readonly channels = new Set<string>();
  /** Called with each message on a channel, and when the server has unsubscribed the connection. */
  onMessage: (text: string) => void = () => {};
  onUnsubscribed: (channel: string) => void = () => {};
  /** Called when it breaks, for whoever has it exclusively. */
  onBroken: (() => void) | undefined;
  /** Why it broke, if no retry helps: a library reports that only in an event. */
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
    const ended = (channel: string) => this.channels.delete(channel) && this.onUnsubscribed(channel);
    if (isIo) {
      conn.on('smessage', (_: string, text: string) => this.onMessage(text));
      conn.on('moved', () => {
        const still: string[] = conn.condition?.subscriber ? conn.condition.subscriber.channels('ssubscribe') : [];
        for (const each of [...this.channels]) if (!still.includes(each)) ended(each);
      });
    } else conn.on('sharded-channel-moved', ended);
  }

  /** Connects `conn`, a client that is not connected yet. Has a time limit, in case the server is silent. */
  static async connect(conn: any, isIo: boolean, address: string | undefined): Promise<Link> {
    let heard: any;
    conn.on('error', (error: unknown) => (heard ??= error));
    try {
      await inTime(conn.connect(), REPLY);
      // If its own SELECT is refused, ioredis continues in database 0.
      if (isIo && conn.options.db > 0) await inTime(conn.select(conn.options.db), REPLY);
    } catch (error) {
      destroy(conn, isIo);
      // A refused password would be refused again: ioredis reports it only in an event.
      const problem = translated(isReply(heard) || isFault(heard) ? heard : error, address ?? addressOf(conn));
      throw problem instanceof Broken ? new Broken(why(heard, problem.message, address ?? addressOf(conn)), { cause: error }) : problem;
    }
    const stream = conn.stream;
    return new Link(conn, isIo, address ?? (stream ? `${stream.remoteAddress}:${stream.remotePort}` : addressOf(conn) ?? ''));
  }

  /**
   * ioredis writes each command with a system call of its own: here, commands that are sent together are written
   * together. A command that is sent alone is not delayed for that.
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
    if (!this.isOpen) return Promise.reject(this.#fault ?? new Unsent(`the connection to ${this.address} is closed`));
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
    throw this.#failure(error);
  };

  #failure = (error: unknown) => this.#fault ?? translated(error, this.address);

  /** Whether nobody waits for a reply, and nothing was received since then. */
  isQuietSince(time: number): boolean {
    return this.#unanswered === 0 && this.#heardAt < time;
  }

  /** Subscribes to a shard channel; `isAsk`: of a slot that is being imported. */
  async subscribe(channel: string, isAsk: boolean): Promise<void> {
    if (!this.isOpen) throw this.#fault ?? new Unsent(`the connection to ${this.address} is closed`);
    if (isAsk) this.send(['ASKING']).catch(() => {});
    try {
      await inTime(this.isIo ? this.conn.ssubscribe(channel) : this.conn.sSubscribe(channel, (text: string) => this.onMessage(text)), REPLY);
      this.channels.add(channel);
    } catch (error) {
      throw this.#failure(error);
    }
  }

  /** Calls `call` when the connection has closed, whoever closed it. */
  onClose(call: () => void): void {
    if (this.isOpen) this.#onClose.push(call);
    else call();
  }

  close(): void {
    if (!this.isOpen) return;
    this.isOpen = false;
    this.channels.clear();
    destroy(this.conn, this.isIo);
    this.onBroken?.();
    for (const call of this.#onClose) call();
  }
}

/**
 * What broke, and where. ioredis reports the cause only in an event; for a name with two addresses, there are two
 * errors.
 */
function why(heard: any, otherwise: string, address: string | undefined): string {
  const texts = [heard, ...(heard?.errors ?? [])].map((error) => error?.message).filter(Boolean);
  const text = texts.join(', ') || otherwise;
  return address === undefined || /:\d+\b/.test(text) ? text : `${address}: ${text}`;
}

/** The address of a client for one server. */
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
