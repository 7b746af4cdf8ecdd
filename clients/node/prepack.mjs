// Creates what `npm pack` packs: ES and CommonJS modules with their types, the licences, and the module's version.

import { execFileSync } from 'node:child_process';
import { copyFileSync, existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';

const here = new URL('.', import.meta.url);
const run = (program, ...words) => execFileSync(program, words, { cwd: here, stdio: ['ignore', 2, 2] });

if (!existsSync(new URL('node_modules/typescript', here))) run('npm', 'ci', '--no-audit', '--no-fund');
rmSync(new URL('dist', here), { recursive: true, force: true });
run('node_modules/.bin/tsc');
run('node_modules/.bin/tsc', '--module', 'commonjs', '--moduleResolution', 'bundler', '--outDir', 'dist/cjs');
writeFileSync(new URL('dist/cjs/package.json', here), '{"type":"commonjs"}\n');

const cargo = readFileSync(new URL('../../Cargo.toml', here), 'utf8');
const [, version] = /^version = "(.+)"$/m.exec(cargo);
const manifest = readFileSync(new URL('package.json', here), 'utf8');
const current = manifest.replace(/"version": ".*"/, `"version": "${version}"`);
if (current !== manifest) writeFileSync(new URL('package.json', here), current);
for (const name of ['LICENSE-MIT', 'LICENSE-APACHE']) copyFileSync(new URL(`../../${name}`, here), new URL(name, here));
