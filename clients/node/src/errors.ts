/** Every error of this package. */
export class LockError extends Error {
  override name = this.constructor.name;
}

/** The lock was not free in time (`using`; `acquire` gives null). */
export class NotAcquired extends LockError {}

/** There is nothing to release here: it was released before. */
export class NotHeld extends LockError {}

/** The hold was over before it was released: others may have worked at the same time. */
export class LockLost extends LockError {}

/** No server was reached, or none was able to decide, until the patience was over. */
export class Unavailable extends LockError {}

/** Too few replicas were connected, until the patience was over. */
export class NoReplicas extends Unavailable {}

/** The server said no. `code` is the first word of what it said. */
export class Refused extends LockError {
  constructor(
    readonly code: string,
    text: string,
  ) {
    super(text);
  }
}

/** The wait would never end: release what you hold, then begin again. */
export class Deadlock extends Refused {}

/** A limit of the server is reached: waiters, tickets, sessions or depth. */
export class TooMany extends Refused {}

/** Too few replicas acknowledged in time; the lock was given back. */
export class NoAcks extends Refused {}

/** The user of this client may not do that. */
export class NoPermission extends Refused {}

/** A connection broke, or gave no reply in time: what was asked may have been done or not. */
export class Broken extends Error {}

/** Why it was given up, where asking again was of no use. */
export function unavailable(key: string, cause: unknown): Unavailable {
  const kind = cause instanceof Refused && cause.code === 'NOREPLICAS' ? NoReplicas : Unavailable;
  return new kind(`${key}: ${(cause as Error).message}`, { cause });
}

const KINDS: Record<string, typeof Refused> = {
  DEADLOCK: Deadlock,
  TOOMANY: TooMany,
  NOACKS: NoAcks,
  NOPERM: NoPermission,
};

/** What a client library threw, as one of ours. */
export function translated(error: unknown): Error {
  if (error instanceof Refused || error instanceof Broken) return error;
  const text = error instanceof Error ? error.message : String(error);
  if (!isReply(error)) return new Broken(text || String(error), { cause: error });
  const code = /^[A-Z]+/.exec(text)?.[0] ?? 'ERR';
  return new (KINDS[code] ?? Refused)(code, text);
}

/** Is it an error that the server sent? Both libraries have a class for those, under different names. */
function isReply(error: unknown): boolean {
  for (let kind = error; kind !== null && kind !== undefined; kind = Object.getPrototypeOf(kind)) {
    const name = (kind as object).constructor?.name;
    if (name === 'ErrorReply' || name === 'ReplyError') return true;
  }
  return false;
}
