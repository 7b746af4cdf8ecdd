// `worker.js LOCK WORK THREADS SECONDS`: ../measure.py says what it does and prints.
"use strict";

const { readFileSync } = require("node:fs");
const { randomUUID } = require("node:crypto");
const { setImmediate: nextTurn, setTimeout: sleep } = require("node:timers/promises");
const Redis = require("ioredis");
const Redlock = require("redlock");

const KEY = process.env.PEER_KEY;
const TIMERS_LATE_MS = 1.5;
const [lock, work, threads, seconds] = process.argv.slice(2);

const connect = async () => {
  const connection = new Redis(Number(process.env.PEER_PORT));
  await connection.ping();
  return connection;
};

// How one contender acquires and releases the lock: acquire() resolves to whether it has the lock.
async function handles(count) {
  if (lock === "package") {
    const { Locks } = require("rlock-client");
    const locks = new Locks(await connect());
    return Array.from({ length: count }, () => viaPackage(locks));
  }
  if (lock === "redlock") {
    const redlock = new Redlock([await connect()]);
    return Array.from({ length: count }, () => viaRedlock(redlock));
  }
  return Promise.all(Array.from({ length: count }, native));
}

function viaRedlock(redlock) {
  let held;
  return {
    async acquire() {
      try {
        held = await redlock.acquire(KEY, 30000);
        return true;
      } catch (error) {
        if (error instanceof Redlock.LockError) return false; // node-redlock gives up after its retries
        throw error;
      }
    },
    release: () => held.unlock(),
  };
}

/** This project's package for Node. */
function viaPackage(locks) {
  let held;
  return {
    acquire: async () => (held = await locks.lock(KEY).acquire()) !== null,
    release: () => held.release(),
  };
}

async function native() {
  const connection = await connect();
  const owner = randomUUID();
  return {
    acquire: async () =>
      (await connection.call("RLOCK.ACQUIRE", KEY, owner, "BLOCK", 0)) !== null,
    release: () => connection.call("RLOCK.RELEASE", KEY, owner),
  };
}

const now = () => process.hrtime.bigint();

async function contend(handle, samples) {
  for (;;) {
    const granted = await handle.acquire();
    const moment = now();
    if (granted) await handle.release();
    samples.push([granted ? moment : 0n, moment]);
  }
}

// A contender acquires the lock only once the one before it holds it, so that exactly one waits at each release.
async function alternate(handle, samples, turn, next) {
  for (;;) {
    await turn.wait();
    while (!(await handle.acquire())) samples.push([0n, now()]);
    const acquired = now();
    next.signal();
    await sleep(2 + Math.random() * 8);
    const releasing = now();
    await handle.release();
    samples.push([acquired, releasing]);
  }
}

/** Resolves at that moment. Timers can be a millisecond late, so the rest is spent in turns of the event loop. */
async function until(moment) {
  const ms = Number(moment - now()) / 1e6;
  if (ms > TIMERS_LATE_MS) await sleep(ms - TIMERS_LATE_MS);
  while (now() < moment) await nextTurn();
}

/** Hands each job to a free contender when it arrives, and waits for all of them. */
async function arrive(all, samples, started) {
  const hold = BigInt(process.env.PEER_HOLD_NS);
  const moments = readFileSync(process.env.PEER_ARRIVALS, "utf8").split("\n").map((line) => started + BigInt(line));
  const free = all.map((_, i) => i);
  const jobs = [];
  let running = 0;
  const next = () => {
    while (free.length && jobs.length) {
      const i = free.pop();
      const arrived = jobs.shift();
      running++;
      serve(all[i], samples[i], arrived, hold).then(() => {
        running--;
        free.push(i);
        next();
      }, fail);
    }
  };
  for (const moment of moments) {
    await until(moment);
    jobs.push(moment);
    next();
  }
  const drainMs = Number(process.env.PEER_DRAIN_SECONDS) * 1000;
  for (let waited = 0; (running || jobs.length) && waited < drainMs; waited += 10) await sleep(10);
}

async function serve(handle, samples, arrived, hold) {
  const granted = await handle.acquire();
  const acquired = now();
  if (!granted) return samples.push([0n, acquired, arrived]);
  await until(acquired + hold);
  const releasing = now();
  await handle.release();
  samples.push([acquired, releasing, arrived]);
}

// A permit that one contender gives and another one takes.
function turn() {
  let give;
  let given;
  const renew = () => {
    given = new Promise((resolve) => (give = resolve));
  };
  renew();
  return { wait: () => given.then(renew), signal: () => give() };
}

async function main() {
  const all = await handles(Number(threads));
  const samples = all.map(() => []);
  const turns = all.map(turn);
  turns[0].signal();
  process.stdout.write("ready\n");
  readFileSync(0);
  const started = now();
  if (work === "arrivals") {
    await arrive(all, samples, started);
    return print(started, samples);
  }
  all.forEach((handle, i) => {
    const running =
      work === "hand-off"
        ? alternate(handle, samples[i], turns[i], turns[(i + 1) % all.length])
        : contend(handle, samples[i]);
    running.catch(fail);
  });
  await sleep(Number(seconds) * 1000);
  print(started, samples);
}

function print(started, samples) {
  const lines = samples.flatMap((stamps, i) => stamps.map((stamp) => [i, ...stamp].join(" ")));
  process.stdout.write([`started ${started}`, ...lines, ""].join("\n"), () => process.exit(0));
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

main().catch(fail);
