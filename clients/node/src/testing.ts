/**
 * A real server with the module, for tests: on a free port, and without data. Nothing here imitates a lock.
 *
 * ```ts
 * import { before, after, beforeEach, test } from 'node:test'; // or beforeAll, afterAll and beforeEach of jest
 * import { startServer } from 'rlock-client/testing';
 *
 * let server;
 * before(async () => { server = await startServer(); });
 * after(() => server.stop());
 * beforeEach(() => server.empty());
 * ```
 *
 * The environment says which one: RLOCK_MODULE is the path of librlock.so, and RLOCK_SERVER that of redis-server or
 * valkey-server, unless one of these is on the PATH.
 *
 * @module
 */

import { type ChildProcess, spawn } from 'node:child_process';
import { accessSync, closeSync, constants, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { delimiter, join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

export interface ServerOptions {
  /** The path of redis-server or valkey-server. Default: RLOCK_SERVER, or what is on the PATH. */
  server?: string;
  /** The path of librlock.so. Default: RLOCK_MODULE. */
  module?: string;
  /** Further words of its command line, such as `--maxclients`, `50`. */
  words?: readonly string[];
}

/** How long a server may start, in milliseconds. */
const STARTS = 20_000;
/** How often it is started anew because somebody else has taken its port. */
const TRIES = 5;

const isThere = (path: string, mode: number) => {
  try {
    accessSync(path, mode);
    return true;
  } catch {
    return false;
  }
};

function found(server: string | undefined): string {
  const folders = (process.env['PATH'] ?? '').split(delimiter).filter((each) => each !== '');
  const all = ['valkey-server', 'redis-server'].flatMap((name) => folders.map((folder) => join(folder, name)));
  const program = server ?? (process.env['RLOCK_SERVER'] || all.find((path) => isThere(path, constants.X_OK)));
  if (program === undefined) throw new Error('there is no server: set RLOCK_SERVER to the path of redis-server or valkey-server');
  return program;
}

function freePort(): Promise<number> {
  return new Promise((done, failed) => {
    const taken = createServer().on('error', failed);
    taken.listen(0, '127.0.0.1', () => {
      const address = taken.address();
      taken.close(() => done(typeof address === 'object' && address !== null ? address.port : 0));
    });
  });
}

/** A server of its own. */
export class Server {
  port = 0;
  readonly #folder = mkdtempSync(join(tmpdir(), 'rlock-testing-'));
  readonly #program: string;
  readonly #words: string[];
  #process: ChildProcess | undefined;
  #ended: Promise<void> = Promise.resolve();

  /** @internal */
  constructor(program: string, words: readonly string[]) {
    this.#program = program;
    this.#words = ['--bind', '127.0.0.1', '--dir', this.#folder, '--save', '', ...words];
  }

  get url(): string {
    return `redis://127.0.0.1:${this.port}`;
  }

  /** Starts it, or starts it again after `kill`, at the same port. */
  async start(): Promise<void> {
    for (let tries = 0; tries < TRIES; tries++) {
      const port = this.port || (await freePort());
      const log = openSync(join(this.#folder, 'log'), 'a');
      const begun = (this.#process = spawn(this.#program, [...this.#words, '--port', String(port)], { stdio: ['ignore', log, log] }));
      closeSync(log);
      this.#ended = new Promise((done) => begun.once('exit', () => done()).once('error', () => done()));
      if (await this.#answers(port)) {
        this.port = port;
        return;
      }
    }
    throw new Error(`the server did not start:\n${readFileSync(join(this.#folder, 'log'), 'utf8').slice(-2_000)}`);
  }

  async #answers(port: number): Promise<boolean> {
    let isOver = false;
    void this.#ended.then(() => (isOver = true));
    for (const end = performance.now() + STARTS; !isOver && performance.now() < end; await sleep(10)) {
      const said = await asked(port, 'INFO server\r\n', /process_id:(\d+)\r|^-NOAUTH/).catch(() => undefined);
      if (said && (said[1] === undefined || Number(said[1]) === this.#process?.pid)) return true;
    }
    await this.kill();
    return false;
  }

  /** Removes all data. */
  async empty(): Promise<void> {
    await asked(this.port, 'FLUSHALL\r\n', /^\+OK\r/);
  }

  /** Ends it, as a crash does. */
  async kill(): Promise<void> {
    this.#process?.kill('SIGKILL');
    await this.#ended;
  }

  /** Ends it, and removes its folder. */
  async stop(): Promise<void> {
    await this.kill();
    rmSync(this.#folder, { recursive: true, force: true });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }
}

/** What a server replies to one line, once it has said that. */
function asked(port: number, line: string, said: RegExp): Promise<RegExpExecArray> {
  return new Promise((done, failed) => {
    let text = '';
    const socket = connect(port, '127.0.0.1', () => socket.write(line));
    socket.setEncoding('utf8').setTimeout(1_000, () => socket.destroy(new Error('no reply in time')));
    socket.on('data', (more) => {
      const match = said.exec((text += more));
      if (match === null) return;
      socket.destroy();
      done(match);
    });
    socket.on('error', failed).on('close', () => failed(new Error(`it replied ${text}`)));
  });
}

/** Starts a server with the module. Stop it at the end. */
export async function startServer(options: ServerOptions = {}): Promise<Server> {
  const program = found(options.server);
  const module = options.module ?? process.env['RLOCK_MODULE'];
  if (!module || !isThere(module, constants.R_OK)) throw new Error(`there is no module: set RLOCK_MODULE to the path of librlock.so (it is ${module})`);
  const server = new Server(program, ['--loadmodule', resolve(module), ...(options.words ?? [])]);
  try {
    await server.start();
  } catch (error) {
    await server.stop();
    throw error;
  }
  return server;
}
