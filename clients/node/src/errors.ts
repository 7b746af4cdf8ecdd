/** Every error of this package. */
export class LockError extends Error {
  override name = this.constructor.name;
}

/** The lock was not free in time (`using`; `acquire` resolves to null). */
export class NotAcquired extends LockError {}

/** There is nothing to release: it was released before. */
export class NotHeld extends LockError {}

/** The hold ended before it was released: others may have worked at the same time. */
export class LockLost extends LockError {}

/** No server was reached, or none could decide, in time. */
export class Unavailable extends LockError {}

/** The locks are closed, or are being drained: nothing is acquired any more. */
export class Closed extends Unavailable {
  constructor() {
    super('the locks are closed');
  }
}

/** Too few replicas were connected for all that time. */
export class NoReplicas extends Unavailable {}

/** The server refused. `code` is the first word of its error. */
export class Refused extends LockError {
  constructor(
    readonly code: string,
    text: string,
    options?: ErrorOptions,
  ) {
    super(text, options);
  }
}

/** The wait would never end: release what you hold, then start over. */
export class Deadlock extends Refused {}

/** A limit of the server is reached: waiters, tickets, sessions or depth. */
export class TooMany extends Refused {}

/** Too few replicas acknowledged in time; the lock was released. */
export class NoAcks extends Refused {}

/** The user of this client may not do that. */
export class NoPermission extends Refused {}

/** A connection broke, or there was no reply in time: the request may have been executed or not. */
export class Broken extends Error {}

/** There is no connection: nothing was executed. */
export class Unsent extends Broken {}

/** There was no reply in time. */
export class Silent extends Broken {}

/** The error after the last retry. */
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

/** What OpenSSL and Node call problems with a certificate. */
const UNTRUSTED = /^(.*CERT.*|UNABLE_TO_(GET|VERIFY|DECRYPT|DECODE)_.*|HOSTNAME_MISMATCH|INVALID_(CA|PURPOSE)|PATH_LENGTH_EXCEEDED)$/;

/** The problem, if the client does not lead to a server that it may use: no retry helps. */
function faultOf(error: unknown): { code: string; what: string } | undefined {
  if (typeof error !== 'object' || error === null) return undefined;
  const { code, message } = error as { code?: unknown; message?: unknown };
  const text = String(message);
  if (typeof code === 'string') {
    if (/^ERR_SSL_.*ALERT/.test(code)) return { code: 'TLS', what: 'refuses the TLS connection' };
    if (/^ERR_SSL_/.test(code) || (code === 'EPROTO' && /SSL/.test(text))) return { code: 'TLS', what: 'does not speak TLS as this client does' };
    if (UNTRUSTED.test(code)) return { code: 'TLS', what: 'is not trusted by TLS' };
  }
  if (/^Protocol error, got .* as reply type byte|^Unknown RESP type/.test(text)) return { code: 'PROTOCOL', what: 'is no Redis or Valkey server' };
  return undefined;
}

export const isFault = (error: unknown) => faultOf(error) !== undefined;

/** Converts an error of a client library, on a connection to `address`. */
export function translated(error: unknown, address?: string): Error {
  if (error instanceof Refused || error instanceof Broken) return error;
  const text = error instanceof Error ? error.message : String(error);
  const fault = faultOf(error);
  if (fault) return new Refused(fault.code, `${address || 'the server'} ${fault.what}: ${text}`, { cause: error });
  if (!isReply(error)) return new Broken(text || String(error), { cause: error });
  const code = /^[A-Z]+/.exec(text)?.[0] ?? 'ERR';
  const isWithoutModule = /^ERR unknown command/.test(text) && text.includes('RLOCK.');
  return new (KINDS[code] ?? Refused)(code, isWithoutModule ? `the server has not loaded the RLOCK module: ${text}` : text);
}

/** How a server's error begins. No library's error about a broken connection begins like that. */
const CODE = /^[A-Z]{2,} /;

/**
 * Whether the server sent this error. Both libraries have a class for those, under different names, which a minifier may
  * have changed: then only the text shows it.
 */
export function isReply(error: unknown): boolean {
  if (typeof error !== 'object' || error === null) return false;
  const { name, message } = error as Error;
  if (name === 'ReplyError' || (!('code' in error) && !('errno' in error) && CODE.test(message))) return true;
  for (let kind: object | null = error; kind; kind = Object.getPrototypeOf(kind)) {
    const name = kind.constructor?.name;
    if (name === 'ErrorReply' || name === 'ReplyError') return true;
  }
  return false;
}
