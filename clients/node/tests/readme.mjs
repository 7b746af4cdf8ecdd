// Runs what README.md shows on the server at $PORT: the first block, which is a program, and then all blocks as one
// module. The closing lines of the first come last there.

import { execFileSync } from 'node:child_process';
import { readFileSync, unlinkSync, writeFileSync } from 'node:fs';

const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
const blocks = [...readme.matchAll(/^```javascript\n(.*?)^```/gms)].map(([, block]) => block.replaceAll('6380', process.env.PORT));
const [program, ...others] = blocks;
const [opening, closing] = program.split('\nawait locks.close();');
if (others.length < 5 || closing === undefined) throw new Error('the blocks were not found');
const file = new URL('readme-blocks.mjs', import.meta.url);
try {
  writeFileSync(file, program);
  execFileSync(process.execPath, [file.pathname], { timeout: 30_000 });
  writeFileSync(file, [opening, ...others].join('\n'));
  await import(file);
} finally {
  unlinkSync(file);
}
