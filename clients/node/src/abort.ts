// One listener for all waits with the same signal, since Node warns of a leak when a signal has eleven listeners.

const heard = new WeakMap<AbortSignal, { calls: Set<() => void>; call: () => void }>();

/** Calls `call` when the signal is aborted, unless the returned function was called before. */
export function onAbort(signal: AbortSignal | undefined, call: () => void): () => void {
  if (!signal) return () => {};
  let hub = heard.get(signal);
  if (!hub) {
    const calls = new Set<() => void>();
    hub = {
      calls,
      call() {
        heard.delete(signal);
        for (const each of [...calls]) each();
      },
    };
    heard.set(signal, hub);
    signal.addEventListener('abort', hub.call, { once: true });
  }
  const { calls } = hub;
  const mine = () => call(); // the same function may be passed twice
  calls.add(mine);
  return () => {
    if (!calls.delete(mine) || calls.size > 0 || heard.get(signal)?.calls !== calls) return;
    heard.delete(signal);
    signal.removeEventListener('abort', hub.call);
  };
}

/** The result of `promise`; rejects with the signal's reason as soon as that is aborted. */
export async function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return await promise;
  let abort!: () => void;
  const aborted = new Promise<never>((_, reject) => (abort = () => reject(signal.reason)));
  const deafen = onAbort(signal, abort);
  if (signal.aborted) abort();
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    deafen();
  }
}
