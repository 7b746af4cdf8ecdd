// From a call to its hold: first the seat of its owner, and then a request, which goes as its machine says.

import { onAbort, unlessAborted } from './abort.js';
import * as args from './args.js';
import type { Driver } from './drive.js';
import { Closed, Unavailable, unavailable } from './errors.js';
import { Hold } from './handle.js';
import { Attempt } from './machine/attempt.js';
import { come, FIRST_PAUSE, LATE, LONGEST_PAUSE, REPLY } from './machine/index.js';
import { sendInTime } from './send.js';
import { type Asked, isPassing, type Shared } from './shared.js';
import { heldAt, join, nameOf, problemOf, run, Seat, seatsOf, Tenure } from './tenure.js';
import { now } from './time.js';
import { type AcquireOptions, OF_ACQUIRE } from './using.js';

/** Acquires for one client, and knows what is held. */
export class Acquirer {
  readonly tenures = new Set<Tenure>();
  #seats: Map<string, Seat> | undefined;

  constructor(readonly shared: Shared) {}

  async acquire(asked: Asked, isGiven: boolean, options: AcquireOptions): Promise<Hold | null> {
    args.options(options, OF_ACQUIRE);
    args.milliseconds('wait', options.wait);
    args.signal(options.signal);
    const ended = this.shared.telemetry.waits(() => nameOf(asked));
    try {
      const hold = await this.#acquire(asked, isGiven, options);
      ended(hold !== null);
      return hold;
    } catch (error) {
      ended(false, error);
      throw error;
    }
  }

  async #acquire(asked: Asked, isGiven: boolean, options: AcquireOptions): Promise<Hold | null> {
    const wait = options.wait ?? Infinity;
    const { signal } = options;
    this.#goesOn(signal);
    const begin = now();
    const seat = isGiven ? await this.#sit(asked, wait, begin, signal) : new Seat();
    if (!seat) return null;
    let held: Tenure | undefined;
    try {
      this.#goesOn(signal); // it may have ended between the seat and here
      held = heldAt(seat);
      if (!held && this.shared.isDraining) throw new Closed();
    } catch (error) {
      seat.leave();
      throw error;
    }
    if (held && (asked.parts || held.asked.parts)) {
      seat.leave();
      throw new RangeError(`${asked.owner} holds ${asked.key} already: by itself, or with others`);
    }
    const hasAcks = (asked.acks ?? 0) > 0;
    const { route, patience, outage } = this.shared;
    const hears = wait > 0 && route.inboxes.hears(route.known(asked.key), asked.key);
    const depth = (held?.depth ?? 0) + 1;
    // The clock is rounded down to milliseconds, but a wait must not be short.
    const left = wait > 0 ? Math.max(1, begin + Math.ceil(wait) - now() + 1) : 0;
    const machine = new Attempt({
      wait: left, patience, outage, lease: asked.lease, depth, below: held?.token, hears, session: asked.session === true, hasAcks,
    });
    return await new Promise((resolve, reject) => {
      const driver: Driver = run(this.shared, seat, asked, depth, machine, (tell) => {
        deafen();
        driver.isNew = false;
        driver.onPause = undefined; // what it left is undone by itself
        if (tell.told === 'nil') return resolve(null);
        if (tell.told !== 'granted') {
          if (tell.told === 'lost') held?.lose();
          return reject(tell.told === 'cancelled' ? signal?.reason : problemOf(tell, nameOf(asked), driver.trouble));
        }
        const tenure = held ?? new Tenure(this.shared, seat, asked, tell, this.tenures);
        seat.tenure = tenure;
        tenure.entered(tell, asked, driver);
        resolve(new Hold(tenure));
        driver.tell({ on: 'taken' });
      });
      const deafen = onAbort(signal, () => driver.tell({ on: 'cancel' }));
      const warnsAt = begin + patience;
      driver.onPause = (trouble) => {
        if (wait === 0 || now() < warnsAt) return;
        driver.onPause = undefined;
        if (this.shared.telemetry.error(() => unavailable(`${asked.key}: still waiting`, trouble))) return;
        this.shared.worries.warn(asked.key, trouble as Error);
      };
      driver.isNew = !held;
      driver.tell({ on: 'call' });
    });
  }

  /** Throws if the acquisition was aborted, or the locks are closed. */
  #goesOn(signal: AbortSignal | undefined): void {
    signal?.throwIfAborted();
    if (this.shared.closing.signal.aborted) throw new Closed();
  }

  /** The seats of an owner at all of its keys, as one seat. */
  async #sit(asked: Asked, wait: number, begin: number, signal: AbortSignal | undefined): Promise<Seat | null> {
    let first: Seat | undefined;
    try {
      for (const part of asked.parts ?? [asked]) {
        const seat = await this.#sitAt({ ...asked, key: part.key, mode: part.mode }, wait, begin, signal);
        if (!seat) {
          first?.leave();
          return null;
        }
        if (!first) first = seat;
        else first.others.push(seat);
        if (asked.parts && heldAt(seat)) throw new RangeError(`${asked.owner} holds ${part.key} already`);
      }
    } catch (error) {
      first?.leave();
      throw error;
    }
    return first!;
  }

  /** The seat, when no other request has it any more; null if that takes too long. */
  async #sitAt(asked: Asked, wait: number, begin: number, signal: AbortSignal | undefined): Promise<Seat | null> {
    const { closing, outage, patience } = this.shared;
    const seats = await this.#settled(asked.key, begin + (wait > 0 ? wait : patience), signal);
    this.#goesOn(signal);
    const name = JSON.stringify([asked.key, asked.owner, asked.upgrade ? 'WRITE' : asked.mode]);
    const seat = seats.get(name) ?? new Seat(() => seats.delete(name));
    seats.set(name, seat);
    const { by, told } = come(now(), seat.isUndone, wait > 0 ? Math.max(1, begin + wait - now()) : 0, patience, outage);
    if (await seat.take(by, signal, closing.signal)) return seat;
    this.#goesOn(signal);
    if (told === 'unavailable') throw new Unavailable(`${asked.key}: an earlier request of ${asked.owner} is not yet undone`);
    return null;
  }

  /** The seats at the server of that key, which is asked for its identity: it may have two addresses. */
  async #settled(key: string, until: number, signal: AbortSignal | undefined): Promise<Map<string, Seat>> {
    until = Math.min(until, now() + this.shared.outage);
    for (let pause = FIRST_PAUSE; !this.#seats; pause = Math.min(pause * 2, LONGEST_PAUSE)) {
      let problem: unknown;
      try {
        const ms = Math.min(REPLY, until - now() + LATE);
        const { route } = this.shared;
        const told = await unlessAborted(route.whatItIs((words) => sendInTime(this.shared, key, words, ms)), signal);
        const seats = (this.#seats ??= seatsOf(told));
        route.join = (others) => join(others, seats);
        break;
      } catch (error) {
        if (!isPassing(error)) throw error;
        problem = error;
      }
      if (this.shared.isDraining) throw new Closed();
      if (now() >= until) throw unavailable(key, problem);
      await unlessAborted(new Promise((resolve) => setTimeout(resolve, Math.max(0, Math.min(pause, until - now())))), signal);
    }
    return this.#seats;
  }
}
