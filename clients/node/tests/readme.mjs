// Runs what README.md shows on the server at $PORT: the first block, which is a program, and then all blocks as one
// module, which a strict TypeScript program could be. The closing lines of the first come last there.

import { execFileSync } from 'node:child_process';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';

const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
const blocks = [...readme.matchAll(/^```javascript\n(.*?)^```/gms)].map(([, block]) => block.replaceAll('6380', process.env.PORT));
const [program, ...others] = blocks;
const [opening, closing] = program.split('\nawait locks.close();');
if (others.length < 5 || closing === undefined) throw new Error('the blocks were not found');
const file = new URL('readme-blocks.mjs', import.meta.url);
const typed = new URL('readme-blocks.mts', import.meta.url);
const options = '--ignoreConfig --noEmit --strict --target es2022 --lib es2023,esnext.disposable,dom --types node --module nodenext';
try {
  writeFileSync(typed, [opening, ...others].join('\n'));
  execFileSync('node_modules/.bin/tsc', [...options.split(' '), typed.pathname], { cwd: new URL('..', import.meta.url), stdio: 'inherit' });
  writeFileSync(file, program);
  execFileSync(process.execPath, [file.pathname], { timeout: 30_000 });
  writeFileSync(file, [opening, ...others].join('\n'));
  await import(file);
} finally {
  for (const written of [file, typed]) rmSync(written, { force: true });
}
