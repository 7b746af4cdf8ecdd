// Checks arguments: an error names the argument, its range and its unit. Nothing has been sent at that point.

/** The limits of the server. Its own settings may be narrower. */
export const LONGEST_LEASE = 604_800_000;
const SHORTEST_OF_A_SESSION = 1_000;
const LONGEST_NAME = 512;
const MOST = 1_000_000;

/** A value, as it appears in an error. */
function shown(given: unknown): string {
  if (typeof given === 'string') return JSON.stringify(given.length > 64 ? `${given.slice(0, 64)}…` : given);
  if (given === null || (typeof given !== 'object' && typeof given !== 'function')) return String(given);
  if (Array.isArray(given)) return 'an array';
  return typeof given === 'function' ? 'a function' : `an object (${Object.getPrototypeOf(given)?.constructor?.name ?? 'without a prototype'})`;
}

const wrong = (what: string, must: string, given: unknown) => new TypeError(`${what} must be ${must}, not ${shown(given)}`);

/** An integer in that range, or undefined. */
export function integer(what: string, given: unknown, least: number, most: number, unit: string): void {
  if (given === undefined) return;
  const must = `an integer from ${least} to ${most} ${unit}`;
  if (!Number.isInteger(given)) throw wrong(what, must, given);
  if ((given as number) < least || (given as number) > most) throw new RangeError(`${what} must be ${must}, not ${given}`);
}

/** A number of milliseconds, which may be Infinity; or undefined. */
export function milliseconds(what: string, given: unknown): void {
  if (given === undefined) return;
  const must = 'a number of milliseconds from 0 to Infinity';
  if (typeof given !== 'number' || Number.isNaN(given)) throw wrong(what, must, given);
  if (given < 0) throw new RangeError(`${what} must be ${must}, not ${given}`);
}

export function lease(given: unknown, isSession = false): void {
  if (given === undefined) return;
  integer(isSession ? 'lease with session' : 'lease', given, isSession ? SHORTEST_OF_A_SESSION : 1, LONGEST_LEASE, 'milliseconds');
}

const LONE_SURROGATE = /\p{Surrogate}/u;

function text(what: string, given: unknown): asserts given is string {
  if (typeof given !== 'string') throw wrong(what, 'a string', given);
  // All of these would become the same name: the server gets U+FFFD for each.
  if (LONE_SURROGATE.test(given)) throw new TypeError(`${what} must be a string that UTF-8 can encode, without a lone surrogate`);
}

export function key(given: unknown): void {
  text('key', given);
}

/** A name that leaves `spare` bytes for additions; or undefined. */
export function name(what: string, given: unknown, spare = 0): void {
  if (given === undefined) return;
  text(what, given);
  const [size, most] = [Buffer.byteLength(given), LONGEST_NAME - spare];
  if (size < 1 || size > most) throw new RangeError(`${what} must be 1 to ${most} bytes long, not ${size}`);
}

export function flag(what: string, given: unknown): void {
  if (given !== undefined && typeof given !== 'boolean') throw wrong(what, 'true or false', given);
}

export function permits(given: unknown): void {
  if (given === undefined) throw wrong('limit', `an integer from 1 to ${MOST} permits`, given);
  integer('limit', given, 1, MOST, 'permits');
}

export const waiters = (given: unknown) => integer('maxQueue', given, 0, MOST, 'waiters');
export const replicas = (given: unknown) => integer('acks', given, 0, 16, 'replicas');

export function signal(given: unknown): void {
  if (given === undefined) return;
  const { aborted, addEventListener } = (given ?? {}) as Partial<AbortSignal>;
  if (typeof aborted !== 'boolean' || typeof addEventListener !== 'function') throw wrong('signal', 'an AbortSignal', given);
}

export function called(what: string, given: unknown): void {
  if (typeof given !== 'function') throw wrong(what, 'a function', given);
}

/** Throws a TypeError for an unknown option: a wait with a misspelled time limit would never end. */
export function options(given: unknown, known: Record<string, 1>): void {
  if (typeof given !== 'object' || given === null) throw new TypeError(`options must be an object, not ${given === null ? null : shown(given)}`);
  for (const each in given) {
    if (!Object.hasOwn(known, each)) throw new TypeError(`unknown option '${each}'; the options are ${Object.keys(known).join(', ')}`);
  }
}
