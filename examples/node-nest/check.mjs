// Buys the same seat five times at once, and stops the program. The program must sell the seat once, and exit.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';

const program = spawn(process.execPath, ['dist/main.js'], { env: { ...process.env, HTTP_PORT: '0' }, stdio: ['ignore', 'pipe', 'inherit'] });
const [url] = await once(program.stdout.setEncoding('utf8'), 'data');
const codes = await Promise.all([...'abcde'].map(async (buyer) => (await fetch(`${url.trim()}/sell/A1/${buyer}`, { method: 'POST' })).status));
assert.deepEqual(codes.sort(), [201, 409, 409, 409, 409]);
program.kill('SIGTERM');
await once(program, 'exit');
console.log('sold once, and stopped');
