// The decisions of clients/ALGORITHM.md, by its names: without I/O, clock or randomness. A machine gets one input at a
// time, with the time in ms, and answers with outputs, of which at most one is an operation that takes time. The
// simulation plays the same machine, written in Rust; tests/traces.mjs replays its traces here.
//
// Here and where it is driven, what is private is so by TypeScript, and fields are assigned, not defined (tsconfig.json):
// else a new machine takes microseconds (Node 20).

/** How long a reply may take. */
export const REPLY = 2_000;
/** For a reply at the end of the patience, and again for what is undone at once. */
export const LATE = 50;
/** The pause, more or less, before a server that was not reached is connected to again. */
const DIALS = 200;
/** How often a wait is asked again: a message that was lost costs at most this. */
export const LOOKS = 1_000;
/** The same with `ACKS`: a request that is asked again begins anew to wait for acknowledgments. */
export const ACKS = 3 * REPLY;
/** How long before the end of a wait with `ACKS` its request ends, at most: the reason comes before the patience is over. */
export const AHEAD = 250;
export const FIRST_PAUSE = 10;
export const LONGEST_PAUSE = 500;
export const AGAIN = 500;
/** How long what is left is undone after `close`. */
export const CLOSES = 1_000;
/** How long who does not wait stays for another request of the same owner. */
const SOON = 2 * LATE;
export const HOPS = 5;
const PASSING = new Set(['UNBLOCKED', 'READONLY', 'LOADING', 'MOVED', 'ASK', 'TRYAGAIN', 'CLUSTERDOWN', 'NOREPLICAS', 'MASTERDOWN']);

/** Whether an error of the server ends by itself: no server can decide for now. */
export const passes = (code: string) => PASSING.has(code);

/** How a request ended. `unsent`: surely not executed; `broken`, `silent`: it may have been, or may still be. */
export type Outcome = { is: 'token'; token: number } | { is: 'refused'; code: string } | { is: 'nil' | 'waiting' | 'unsent' | 'broken' | 'silent' };

/** What has happened, for a machine to decide on. */
export type Input =
  | { on: 'call' | 'opened' | 'lost' | 'time' | 'taken' | 'cancel' | 'close' | 'untied' | 'releasing' | 'released' | 'gone' }
  | { on: 'listening'; rtt: number }
  /**
   * A request on a shared connection ended, or opening an own one or subscribing failed; `own`: the one on the own
   * connection, or, during a wait, that connection; `message`: the one for the latest request.
   */
  | { on: 'ended' | 'own' | 'message'; outcome: Outcome }
  | { on: 'seat'; depth: number | undefined }
  | { on: 'extend'; sent: number };

/** What is asked on a shared connection. */
export type Request =
  /** For how long it waits at the server; 0 is for ever. */
  | { ask: 'acquire'; block: number | undefined }
  | { ask: 'cancel' | 'info' }
  | { ask: 'renew'; token: number }
  | { ask: 'release'; token: number; depth: number };

/** What comes of a call. */
export type Tell =
  | { told: 'granted'; token: number; sent: number; lingers: boolean }
  | { told: 'refused'; code: string }
  | { told: 'nil' | 'released' | 'lost' | 'unavailable' | 'noreplicas' | 'cancelled' | 'closed' };

/** What a machine has done. Those up to `seat` are operations, until `by` at the latest. */
export type Output =
  | { do: 'open' | 'await' | 'listen' | 'wait' | 'sleep'; by: number }
  | { do: 'own'; block?: number | undefined; session: boolean; depth?: number; by: number }
  | { do: 'send'; request: Request; by: number }
  | { do: 'seat' }
  | { do: 'keep' | 'drop' | 'undo' | 'free' | 'doubt' | 'tied' | 'leave' | 'done' }
  | { do: 'tell'; tell: Tell };

export interface Machine {
  step(now: number, input: Input): Output[];
}

/** What requests may have left at the server. */
export interface Left {
  /** Something was sent, and its outcome is unknown or nobody has taken it. */
  inDoubt: boolean;
  /** Something was never answered, and may still be executed. */
  lingers: boolean;
  /** Of a grant that nobody takes. */
  token: number | undefined;
}

export const isUnknown = (outcome: Outcome) => outcome.is === 'broken' || outcome.is === 'silent';
export const isRefused = (outcome: Outcome, code: string) => outcome.is === 'refused' && outcome.code === code;

/** How long a request waits for a seat that is not free, and the result then. Undoing ends by itself, so that is waited for. */
export function come(now: number, isUndone: boolean, wait: number, patience: number): { by: number; told: 'nil' | 'unavailable' } {
  return { by: now + (wait > 0 ? wait : isUndone ? patience : SOON), told: isUndone ? 'unavailable' : 'nil' };
}

/** Limits connection attempts to one server: one at a time, and none for a moment after a failed one. */
export class Server {
  private isDialling = false;
  private isClosed = false;
  private restsUntil = 0;

  need(now: number): 'dial' | 'join' | 'rest' {
    if (this.isClosed || now < this.restsUntil) return 'rest';
    if (this.isDialling) return 'join';
    this.isDialling = true;
    return 'dial';
  }

  dialled(): void {
    this.isDialling = false;
  }

  /** `random` is below 1000. */
  failed(now: number, random: number): void {
    this.isDialling = false;
    this.restsUntil = now + Math.floor((DIALS * (500 + random)) / 1000);
  }

  close(): void {
    this.isClosed = true;
  }
}
