// The traces that the Rust machine wrote in the simulation: this machine must give the same outputs. `node traces.mjs
// FILE…`

import assert from 'node:assert/strict';
import { createReadStream } from 'node:fs';
import { createInterface } from 'node:readline';
import { Attempt } from '../dist/esm/machine/attempt.js';
import { Holding } from '../dist/esm/machine/hold.js';
import { Release } from '../dist/esm/machine/undo.js';

const number = (text) => (text === 'forever' ? Infinity : Number(text));
const time = (ms) => (ms === Infinity ? 'forever' : String(ms));

function outcome([is, value]) {
  if (is === 'token') return { is, token: Number(value) };
  return is === 'refused' ? { is, code: value } : { is };
}

function input([on, ...rest]) {
  switch (on) {
    case 'listening':
      return { on, rtt: Number(rest[0]) };
    case 'own':
    case 'message':
      return { on, outcome: outcome(rest) };
    case 'seat':
      return { on, depth: rest[0] === 'yes' ? Number(rest[1]) : undefined };
    case 'extend':
      return { on, sent: Number(rest[0]) };
    case 'ended':
      return { on: 'untied' };
    case 'token':
    case 'nil':
    case 'waiting':
    case 'refused':
    case 'unsent':
    case 'broken':
    case 'silent':
      return { on: 'ended', outcome: outcome([on, ...rest]) };
  }
  return { on };
}

function request({ ask, token, depth, block }) {
  if (block !== undefined) return `${ask} block=${block}`;
  return [ask, token, depth].filter((word) => word !== undefined).join(' ');
}

function output(out) {
  const by = 'by' in out ? ` by=${time(out.by)}` : '';
  switch (out.do) {
    case 'own': {
      const block = out.block === undefined ? '' : ` block=${out.block}`;
      return `own acquire${block}${out.session ? ' session' : ''}${out.depth === undefined ? '' : ` depth=${out.depth}`}${by}`;
    }
    case 'send':
      return `send ${request(out.request)}${by}`;
    case 'tell': {
      const { told, token, sent, lingers, code } = out.tell;
      if (told === 'granted') return `tell granted ${token} sent=${sent}${lingers ? ' lingers=1' : ''}`;
      return code === undefined ? `tell ${told}` : `tell refused ${code}`;
    }
  }
  return out.do + by;
}

/** The machine of a first line, as a function from a time and words to its outputs. */
function begun([, , kind, ...pairs]) {
  const value = Object.fromEntries(pairs.map((pair) => pair.split('=')).map(([name, text]) => [name, number(text)]));
  const asked = { ...value, hears: value.hears === 1, session: value.session === 1, hasAcks: value.acks === 1 };
  const steps = (machine) => (now, words) => machine.step(now, input(words)).map(output).join('; ');
  switch (kind) {
    case 'attempt':
      return steps(new Attempt(asked));
    case 'release':
      return steps(new Release({ ...value, lingers: value.lingers === 1 }));
    case 'hold':
      return steps(new Holding({ ...asked, renews: value.renews === 1 }));
  }
  throw new Error(`no machine is called ${kind}`);
}

let count = 0;
for (const file of process.argv.slice(2)) {
  let [machine, title] = [undefined, ''];
  const before = count;
  for await (const text of createInterface({ input: createReadStream(file) })) {
    const words = text.split(' ');
    if (text === '' || words[0] === '#' || words[0] === 'end') continue;
    if (words[0] === 'trace') {
      [machine, title] = [begun(words), text];
      count++;
      continue;
    }
    const arrow = words.indexOf('->');
    const answer = machine(Number(words[0]), words.slice(1, arrow));
    assert.equal(`${words.slice(0, arrow + 1).join(' ')} ${answer || '-'}`, text, title);
  }
  assert(count > before, `no traces in ${file}`);
}
console.log(`${count} traces`);
