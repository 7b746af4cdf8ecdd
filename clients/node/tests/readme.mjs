// Runs what README.md shows, all blocks as one module, on the server at $PORT.

import { readFileSync, unlinkSync, writeFileSync } from 'node:fs';

const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
const blocks = [...readme.matchAll(/^```javascript\n(.*?)^```/gms)].map(([, block]) => block);
if (blocks.length < 5) throw new Error('the blocks were not found');
const file = new URL('readme-blocks.mjs', import.meta.url);
writeFileSync(file, `const PORT = ${Number(process.env.PORT)};\n${blocks.join('\n')}`);
try {
  await import(file);
} finally {
  unlinkSync(file);
}
