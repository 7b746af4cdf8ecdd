// The decisions of clients/ALGORITHM.md, with the names of that page, and without I/O, clock or randomness. A machine
// gets one input at a time, with the time in ms, and returns outputs, of which at most one is an operation that takes
// time. The simulation runs the same machine, written in Rust; tests/traces.mjs replays its traces here.
//
// Here and in drive.ts, private members are private only in TypeScript, and fields are assigned, not defined
// (tsconfig.json): otherwise, creating a machine takes microseconds (Node 20).

/** How long a reply may take. */
export const REPLY = 2_000;
/** How long a reply may be late at the end of the patience, and how long a caller waits for undoing. */
export const LATE = 50;
/** The average pause before the next connection to a server that could not be reached. */
const DIALS = 200;
/** How often a waiting request is sent again: a lost message costs at most this much time. */
export const LOOKS = 1_000;
/** The same with `ACKS`: a request that is sent again begins to wait for acknowledgments anew. */
export const ACKS = 3 * REPLY;
/**
 * With `ACKS`, a request ends at most this long before the wait does: so its message, with the reason, comes in time.
 */
export const AHEAD = 250;
export const FIRST_PAUSE = 10;
export const LONGEST_PAUSE = 500;
export const AGAIN = 500;
/** How long undoing may take after `close`. */
export const CLOSES = 1_000;
/** How long a request that does not wait for the lock waits for another request of the same owner. */
const SOON = 2 * LATE;
export const HOPS = 5;
const PASSING = new Set(['UNBLOCKED', 'READONLY', 'LOADING', 'MOVED', 'ASK', 'TRYAGAIN', 'CLUSTERDOWN', 'NOREPLICAS', 'MASTERDOWN']);

/** Whether the condition behind an error ends by itself: no server can decide for now. */
export const passes = (code: string) => PASSING.has(code);

/**
 * How a request ended. `unsent`: certainly not executed; `broken`, `silent`: it may have been executed, or may still
 * be.
 */
export type Outcome = { is: 'token'; token: number } | { is: 'refused'; code: string } | { is: 'nil' | 'waiting' | 'unsent' | 'broken' | 'silent' };

/** Something that happened, for a machine to decide on. */
export type Input =
  | { on: 'call' | 'opened' | 'lost' | 'time' | 'taken' | 'cancel' | 'close' | 'untied' | 'releasing' | 'released' | 'gone' }
  | { on: 'listening'; rtt: number }
  /**
   * `ended`: a request on a shared connection ended, or a dedicated connection could not be opened, or subscribing
   * failed. `own`: a request on the dedicated connection ended, or, during a wait, that connection. `message`: the
   * message for the latest request.
   */
  | { on: 'ended' | 'own' | 'message'; outcome: Outcome }
  | { on: 'seat'; depth: number | undefined }
  | { on: 'extend'; sent: number };

/** The requests on a shared connection. */
export type Request =
  /** How long it waits at the server; 0 means forever. */
  | { ask: 'acquire'; block: number | undefined }
  | { ask: 'cancel' | 'info' }
  | { ask: 'renew'; token: number }
  | { ask: 'release'; token: number; depth: number };

/** The result of a call. */
export type Tell =
  | { told: 'granted'; token: number; sent: number; lingers: boolean }
  | { told: 'refused'; code: string }
  | { told: 'nil' | 'released' | 'lost' | 'unavailable' | 'noreplicas' | 'cancelled' | 'closed' };

/** The actions of a machine. Those up to `seat` are operations, which end at `by` at the latest. */
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

/** What requests may have left behind at the server. */
export interface Left {
  /** Whether something was sent whose outcome is unknown, or whose grant nobody has taken. */
  inDoubt: boolean;
  /** Whether a request was never answered, and may still be executed. */
  lingers: boolean;
  /** The token of a grant that nobody takes. */
  token: number | undefined;
}

export const isUnknown = (outcome: Outcome) => outcome.is === 'broken' || outcome.is === 'silent';
export const isRefused = (outcome: Outcome, code: string) => outcome.is === 'refused' && outcome.code === code;

/**
 * How long a request waits for an occupied seat, and the result if it stays occupied. Undoing ends by itself, so
 * requests wait for that, but no longer than they wait without a server.
 */
export function come(now: number, isUndone: boolean, wait: number, patience: number, outage: number): { by: number; told: 'nil' | 'unavailable' } {
  if (!isUndone) return { by: now + (wait > 0 ? wait : SOON), told: 'nil' };
  return { by: now + Math.min(outage, wait > 0 ? wait : patience), told: 'unavailable' };
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
