// Runs the code of README.md on the server at $PORT: the first block, which is a program; each block inside the handler
// of an HTTP server and a method of a class; and all blocks as one module. All of it must be valid strict TypeScript.
// The closing lines of the first block come last there.

import { execFileSync } from 'node:child_process';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';

const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
const blocks = [...readme.matchAll(/^```javascript\n(.*?)^```/gms)].map(([, block]) => block.replaceAll('6380', process.env.PORT));
const [program, ...others] = blocks;
const [opening, closing] = program.split('\nawait locks.close();');
if (others.length < 5 || closing === undefined) throw new Error('the blocks were not found');
const module = [opening, ...others].join('\n');

const isImport = (line) => /^import /.test(line);
const lines = [opening.slice(0, opening.indexOf('await ')), opening.slice(opening.indexOf('await ')), ...others].map((block) => block.split('\n'));
const [begin, ...bodies] = lines.map((each) => each.filter((line) => !isImport(line)).join('\n'));
// An owner that an earlier block names.
const [mine] = others.flatMap((block) => /^const mine = .*$/m.exec(block) ?? []);
const handlers = `
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
${[...new Set(lines.flat().filter(isImport))].join('\n')}
${begin}
${bodies.map((body, i) => {
  const named = body.includes('const mine') ? '' : mine;
  return `const handler${i} = async (_request: IncomingMessage, response: ServerResponse): Promise<void> => {\n${named}\n${body}\nresponse.end('done');\n};
class Service${i} {\n  async serve(): Promise<string> {\n${named}\n${body}\n    return 'done';\n  }\n}`;
}).join('\n')}
const handlers = [${bodies.map((_, i) => `handler${i}`).join(', ')}];
const services = [${bodies.map((_, i) => `new Service${i}()`).join(', ')}];
const server = createServer((request, response) => {
  handlers[Number(request.url!.slice(1))]!(request, response).catch((error) => response.writeHead(500).end(String(error)));
}).listen(0, '127.0.0.1');
await new Promise((resolve) => server.once('listening', resolve));
for (const at of handlers.keys()) {
  const said = await (await fetch(\`http://127.0.0.1:\${(server.address() as AddressInfo).port}/\${at}\`)).text();
  if (said !== 'done') throw new Error(said);
  if ((await services[at]!.serve()) !== 'done') throw new Error('it was not served');
}
server.close();
await locks.close();${closing}process.exit(0);
`;

const written = (name, text) => {
  const file = new URL(name, import.meta.url);
  writeFileSync(file, text);
  return file.pathname;
};
const options = '--ignoreConfig --strict --target es2022 --lib es2023,esnext.disposable,dom --types node --module nodenext';
const compile = (...words) => execFileSync('node_modules/.bin/tsc', [...options.split(' '), ...words], { cwd: new URL('..', import.meta.url), stdio: 'inherit' });
const run = (file) => execFileSync(process.execPath, [file], { timeout: 60_000 });
try {
  compile('--noEmit', written('readme-blocks.mts', module), written('readme-handlers.mts', handlers));
  compile(new URL('readme-handlers.mts', import.meta.url).pathname);
  run(written('readme-program.mjs', program));
  run(new URL('readme-handlers.mjs', import.meta.url).pathname);
  await import(written('readme-blocks.mjs', module));
  console.log(`ok ${blocks.length} blocks`);
} finally {
  for (const name of ['blocks.mts', 'blocks.mjs', 'handlers.mts', 'handlers.mjs', 'program.mjs']) rmSync(new URL(`readme-${name}`, import.meta.url), { force: true });
}
