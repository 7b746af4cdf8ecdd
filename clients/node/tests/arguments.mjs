// One client library (argv[2]) at the server on $PORT: every argument of every function, and one signal for many waits.
// Each line of output is a test that passed.

import assert from 'node:assert/strict';
import { limit, Locks, LockLost, read, Unavailable } from '../dist/esm/index.js';
import { closed, connect, holders, own, port, say, test, until, waiting } from './common.mjs';

await say(own, 'FLUSHALL'); // a lease of another test may not have ended yet
const locks = new Locks(own);
const never = () => assert.fail('it was called');
const call = async (work) => work();

await test('an argument that is wrong is named, with its range and its unit, and nothing is sent', async () => {
  const hold = await locks.lock('args:held').acquire();
  const keys = [undefined, null, 5, NaN, {}, [], ['a'], Buffer.from([0xff]), new Uint8Array(2), true, Symbol('a'), () => 'a', 'lone \ud800'];
  const numbers = [null, NaN, '300', 'abc', {}, [], true, -1, -Infinity, Symbol('1'), 5n];
  const counts = [...numbers, 1.5, Infinity, 2 ** 53];
  const names = [null, 5, {}, Buffer.from('me'), '', 'x'.repeat(513), 'ë'.repeat(257), '\udc00', []];
  const flags = [null, 0, 1, 'true', {}];
  const functions = [undefined, null, 5, 'work', {}];
  const rows = [
    ['key', keys, (each) => locks.lock(each)],
    ['key', keys, (each) => locks.readLock(each)],
    ['key', keys, (each) => locks.permit(each, 2)],
    ['key', keys, (each) => read(each)],
    ['key', keys, (each) => limit(each, 2)],
    ['key', keys, (each) => locks.election(each)],
    ['key', keys.filter((each) => !Array.isArray(each) && each?.length !== 0), (each) => locks.all(['a', each])],
    ['key', keys.filter((each) => !Array.isArray(each)), (each) => locks.using(each, 1_000, never)],
    ['lease', counts.concat(0, 604_800_001), (each) => locks.lock('a', { lease: each })],
    ['lease', counts.concat(0), (each) => locks.all(['a'], { lease: each })],
    ['lease', counts.concat(0), (each) => locks.using('a', each, never)],
    ['lease with session', counts.concat(999), (each) => locks.lock('a', { lease: each, session: true })],
    ['lease with session', counts.concat(999), (each) => locks.election('a', { lease: each })],
    ['owner', names, (each) => locks.lock('a', { owner: each })],
    ['name', names.filter((each) => each !== ''), (each) => locks.election('a', { name: each })],
    ['maxQueue', counts.concat(1_000_001), (each) => locks.lock('a', { maxQueue: each })],
    ['acks', counts.concat(17), (each) => locks.lock('a', { acks: each })],
    ['limit', counts.concat(undefined, 0, 1_000_001), (each) => locks.permit('a', each)],
    ['limit', counts.concat(undefined, 0), (each) => limit('a', each)],
    ['limit', counts.concat(0), (each) => locks.all([{ key: 'a', mode: 'READ', limit: each }])],
    ...['session', 'renew', 'upgrade'].map((what) => [what, flags, (each) => locks.lock('a', { [what]: each, owner: 'me' })]),
    ['wait', numbers, (each) => locks.lock('a').acquire({ wait: each })],
    ['wait', numbers, (each) => locks.lock('a').using({ wait: each }, never)],
    ['wait', numbers, (each) => locks.using('a', 1_000, { wait: each }, never)],
    ['wait', numbers, (each) => locks.election('a').campaign({ wait: each })],
    ['signal', [null, 5, 'signal', {}, new AbortController()], (each) => locks.lock('a').acquire({ signal: each })],
    ['signal', [null, {}], (each) => locks.election('a').observe({ signal: each })],
    ['what is called while the lock is held', functions, (each) => locks.lock('a').using({}, each)],
    ['what is called while the locks are held', functions, (each) => locks.using('a', 1_000, {}, each)],
    ['lease', counts.concat(0, 604_800_001), (each) => hold.extend(each)],
    ['patience', numbers, (each) => new Locks(own, { patience: each })],
    ['listener.lost', [null, 5], (each) => new Locks(own, { listener: { lost: each } })],
    ['listener', functions, (each) => locks.on('error', each)],
    ['options', [null, 5, 'a'], (each) => locks.lock('a', each)],
    ['options', [null, 5, 'a'], (each) => new Locks(own, each)],
    ['options', [null, 5, 'a'], (each) => locks.lock('a').acquire(each)],
  ];
  let count = 0;
  for (const [what, wrong, asks] of rows) {
    for (const each of wrong) {
      const error = await call(() => asks(each)).then(() => undefined, (problem) => problem);
      const kinds = [TypeError, RangeError].some((kind) => error instanceof kind);
      assert(kinds && error.message.startsWith(`${what} must be `), `${what}: ${String(error)}`);
      count++;
    }
  }
  for (const event of [undefined, 'lost']) assert.throws(() => locks.on(event, never), TypeError);
  await assert.rejects(call(() => locks.lock('a', { upgrade: true })), /^TypeError: upgrade needs an owner/);
  for (const ones of [undefined, null, 'a', 5]) assert.throws(() => locks.all(ones), TypeError);
  await assert.rejects(locks.lock('a').acquire({ wait: NaN }), { name: 'TypeError', message: 'wait must be a number of milliseconds from 0 to Infinity, not NaN' });
  assert.throws(() => locks.lock('a', { lease: 0 }), { name: 'RangeError', message: 'lease must be an integer from 1 to 604800000 milliseconds, not 0' });
  assert.throws(() => locks.lock(undefined), { name: 'TypeError', message: 'key must be a string, not undefined' });
  assert.throws(() => locks.lock(Buffer.from([0xff])), { name: 'TypeError', message: 'key must be a string, not an object (Buffer)' });
  assert.deepEqual(await say(own, 'KEYS', '*'), ['args:held']);
  assert(hold.held);
  await hold.release();
  assert(count > 380, `${count} arguments`);
});

await test('an unknown option is refused by its name', async () => {
  const unknown = (name) => ({ name: 'TypeError', message: new RegExp(`^unknown option '${name}'`) });
  assert.throws(() => new Locks(own, { retryCount: 0 }), unknown('retryCount'));
  await say(own, 'RLOCK.ACQUIRE', 'options', 'somebody');
  await assert.rejects(locks.using(['options'], 5_000, { retryCount: 0 }, never), unknown('retryCount'));
  await assert.rejects(locks.using(['options'], 5_000, { wait: 0, automaticExtensionThreshold: 1 }, never), unknown('automaticExtensionThreshold'));
  await assert.rejects(locks.lock('options').acquire({ timeout: 10 }), unknown('timeout'));
  await assert.rejects(locks.lock('options').using({ toString: 10 }, never), unknown('toString'));
  await assert.rejects(locks.lock('options').acquire(10), { name: 'TypeError', message: 'options must be an object, not 10' });
  for (const make of [(o) => locks.lock('options', o), (o) => locks.readLock('options', o), (o) => locks.permit('options', 2, o)]) {
    assert.throws(() => make({ ttl: 1_000 }), unknown('ttl'));
  }
  // A missing number means no limit, so it must not be accepted.
  for (const most of [undefined, null, NaN, '2', 1.5]) {
    const refused = { name: 'TypeError', message: `limit must be an integer from 1 to 1000000 permits, not ${most === '2' ? '"2"' : most}` };
    assert.throws(() => locks.permit('options', most), refused);
    assert.throws(() => limit('options', most), refused);
  }
  assert.throws(() => locks.all(['a', 'b'], { upgrade: true }), unknown('upgrade'));
  assert.throws(() => locks.election('options', { session: true }), unknown('session'));
  await assert.rejects(locks.election('options').campaign({ waiting: 1 }), unknown('waiting'));
  assert.throws(() => locks.election('options').observe({ wait: 1 }), unknown('wait'));
  assert.equal(await holders(own, 'options'), 1);
  await say(own, 'RLOCK.FORCE', 'options');
});

await test('what is at the ends of the ranges is taken', async () => {
  const at = async (options, wait = 0) => (await locks.lock('args:ends', options).acquire({ wait })).release();
  for (const options of [{ lease: 604_800_000 }, { lease: 1_000, session: true }, { maxQueue: 1_000_000 }, { acks: 0 }, { owner: 'x'.repeat(512) }, { owner: undefined }]) await at(options);
  for (const wait of [0, 0.5, Infinity, undefined]) await at({}, wait);
  for (const most of [1, 1_000_000]) await (await locks.permit('args:ends', most).acquire()).release();
  await (await locks.lock('').acquire()).release(); // a key, to a server
});

await test('names are what they are: none is taken for another one', async () => {
  const names = ['plain', 'Zoë', '用户', 'CORP\\alice', 'a\nb\r\n', 'a b', 'nul\0byte', '\0', '*?[a-z]', '{tag}', '{', '\u{1f512}', '\ufeffbom', "'\"", 'undefined', 'null', 'x'.repeat(512)];
  const others = new Locks(own);
  for (const key of names) {
    const hold = await locks.lock(key).acquire({ wait: 0 });
    assert.equal(hold.key, key);
    for (const other of names) assert.equal(await holders(own, other), other === key ? 1 : 0, JSON.stringify([key, other]));
    await hold.release();
  }
  for (const owner of names) {
    const outer = await locks.lock('args:names', { owner }).acquire({ wait: 0 });
    const inner = await locks.lock('args:names', { owner }).acquire({ wait: 0 });
    assert.equal(inner.token, outer.token);
    await inner.release();
    const waits = others.lock('args:names', { owner: `${owner.slice(0, 500)}+` }).acquire();
    await until('it waits', async () => (await waiting(own, 'args:names')) === 1);
    await outer.release();
    await (await waits).release();
    const election = others.election('args:names', { name: owner.slice(0, 480) });
    const leaders = election.observe();
    assert.equal((await leaders.next()).value, null);
    const next = leaders.next(); // a message
    const term = await election.campaign();
    assert.equal((await next).value.name, owner.slice(0, 480));
    await term.release();
    await leaders.return();
  }
  assert.equal((await say(own, 'PUBSUB', 'SHARDCHANNELS', '*')).length, 1, 'one channel is for all');
  await others.close();
  await until('it is subscribed no more', async () => (await say(own, 'PUBSUB', 'SHARDCHANNELS', '*')).length === 0);
});

await test('one signal serves any number of waits', async () => {
  const warnings = [];
  const warn = (warning) => warnings.push(warning);
  process.on('warning', warn);
  const abort = new AbortController();
  const { signal } = abort;
  const many = Array.from({ length: 40 }, (_, i) => i);
  await Promise.all(many.map((i) => locks.lock(`args:signal:${i % 3}`).using({ signal }, () => {})));
  await Promise.all(many.map((i) => locks.lock('args:owner', { owner: `owner ${i % 3}` }).using({ signal }, () => {})));
  const blocked = await locks.lock('args:signal').acquire();
  const waits = many.map(() => locks.lock('args:signal').acquire({ signal }).then(() => 'granted', (error) => error));
  waits.push(...many.map(() => locks.lock('args:signal', { owner: 'me' }).acquire({ signal }).then(() => 'granted', (error) => error)));
  await until('they wait', async () => (await waiting(own, 'args:signal')) > 30);
  // A signal for each hold, for the work done meanwhile.
  await Promise.all(many.map((i) => locks.lock(`args:inner:${i}`).using({ signal: blocked.signal }, () => {})));
  const reason = new Error('enough');
  abort.abort(reason);
  for (const each of await Promise.all(waits)) assert.equal(each, reason);
  await until('nobody waits', async () => (await waiting(own, 'args:signal')) === 0);
  await blocked.release();
  await assert.rejects(locks.lock('args:signal').acquire({ signal }), /^Error: enough$/);
  await new Promise(setImmediate);
  process.off('warning', warn);
  assert.deepEqual(warnings, []);
});

await test('an error of the release replaces nothing', async () => {
  const mine = new Error('mine');
  const lose = (hold) => say(own, 'RLOCK.FORCE', hold.key);
  const work = (end) => async (hold) => {
    await lose(hold);
    return end();
  };
  const fails = () => Promise.reject(mine);
  const throws = () => {
    throw mine;
  };
  for (const end of [fails, throws]) {
    await assert.rejects(locks.lock('args:end').using({}, work(end)), (error) => error === mine);
    await assert.rejects(locks.lock('args:end', { session: true }).using({}, work(end)), (error) => error === mine);
    await assert.rejects(locks.all(['args:end', 'args:end2']).using({}, work(end)), (error) => error === mine);
    await assert.rejects(locks.using(['args:end'], 5_000, (_, hold) => work(end)(hold)), (error) => error === mine);
    await assert.rejects(locks.using(['args:end', 'args:end2'], 5_000, {}, (_, hold) => work(end)(hold)), (error) => error === mine);
  }
  const abort = new AbortController();
  const aborted = locks.lock('args:end').using({ signal: abort.signal }, work(() => (abort.abort(mine), abort.signal.throwIfAborted())));
  await assert.rejects(aborted, (error) => error === mine);
  // If there is no other error, it is thrown.
  await assert.rejects(locks.lock('args:end').using({}, work(() => 5)), LockLost);
  // A disposal that throws combines both errors, as the language demands: TypeScript and Node make a SuppressedError of
  // them.
  const hold = await locks.lock('args:end').acquire();
  await lose(hold);
  await assert.rejects(hold[Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')](), LockLost);
  // A release that fails for another reason is reported to listeners of errors.
  const client = await connect(port);
  const others = new Locks(client, { patience: 200 });
  const told = [];
  others.on('error', (error) => told.push(error));
  await assert.rejects(others.lock('args:closed').using({}, async () => {
    await others.close();
    throw mine;
  }), (error) => error === mine);
  await until('it is told', () => told.some((error) => error instanceof Unavailable));
  closed(client);
  await say(own, 'RLOCK.FORCE', 'args:closed');
});

await locks.close();
closed(own);
