// One subscription at each server for all waits by ticket there. Messages are hints; if it breaks, all are woken.

import { Broken, Unsent } from './errors.js';
import type { Link, Route } from './links.js';
import { LOOKS } from './machine/index.js';

export interface Turn {
  came: Promise<void>;
  stop(): void;
}

/** An owner's name as the server publishes it: its very bytes, but for NUL, which an event cannot carry. */
export const published = (owner: string) => owner.replaceAll('\0', '\\x00');

export class Turns {
  #ears = new Map<string, Promise<Ears>>();

  constructor(private readonly route: Route) {}

  async listen(key: string, owner: string): Promise<Turn> {
    const at = await this.route.locate(key);
    let ears = this.#ears.get(at);
    if (ears === undefined) {
      ears = this.route.open(at).then((link) => {
        const [begin, forget] = [performance.now(), () => this.#ears.delete(at)];
        // One that broke at once is not replaced at once: all who listen would ask, and subscribe, without a pause.
        link.onClose(() => {
          const left = begin + LOOKS - performance.now();
          if (left > 0) setTimeout(forget, left).unref();
          else forget();
        });
        return new Ears(link);
      });
      ears.catch(() => this.#ears.delete(at));
      this.#ears.set(at, ears);
    }
    return (await ears).listen(`__keyevent@${this.route.maker.db}__:rlock.turn:${published(owner)}`);
  }
}

class Ears {
  #calls = new Map<string, Set<() => void>>();

  constructor(private readonly link: Link) {
    link.onMessage((channel) => this.#wake(channel));
    link.onClose(() => {
      for (const channel of [...this.#calls.keys()]) this.#wake(channel);
    });
  }

  #wake(channel: string): void {
    for (const call of this.#calls.get(channel) ?? []) call();
  }

  async listen(channel: string): Promise<Turn> {
    if (!this.link.isOpen) throw new Unsent('the subscription broke');
    let wake!: () => void;
    const came = new Promise<void>((resolve) => (wake = resolve));
    const calls = this.#calls.get(channel) ?? new Set();
    this.#calls.set(channel, calls.add(wake));
    const stop = () => {
      calls.delete(wake);
      if (calls.size === 0 && this.#calls.get(channel) === calls) {
        this.#calls.delete(channel);
        this.link.unsubscribe(channel);
      }
    };
    if (calls.size === 1) {
      await this.link.subscribe(channel).catch((error) => {
        // Without the right to subscribe, tickets poll. But what is silent is replaced: it holds up each of them.
        if (error instanceof Broken) this.link.close();
      });
    }
    return { came, stop };
  }
}
