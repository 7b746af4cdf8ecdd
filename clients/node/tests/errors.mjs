// Which errors of the libraries came from a server, even in a bundle that renames classes. Needs no server.

import assert from 'node:assert/strict';
import { Broken, NoPermission, Refused, translated } from '../dist/esm/errors.js';

class a extends Error {} // as a minifier leaves ErrorReply, or ReplyError, whose `name` is that of its class
class b extends Error {
  get name() {
    return this.constructor.name;
  }
}

for (const kind of [a, b, Error]) {
  for (const text of ['NOTHELD not held', 'ERR unknown command', 'MOVED 1 127.0.0.1:1', "READONLY You can't write against a read only replica."]) {
    const error = translated(new kind(text));
    assert(error instanceof Refused && error.code === text.split(' ')[0], text);
  }
}
assert(translated(new a('NOPERM this user has no permissions')) instanceof NoPermission);
assert.equal(translated(Object.assign(new Error('no code'), { name: 'ReplyError' })).code, 'ERR');

const broken = [
  'Connection is closed.', "Stream isn't writeable and enableOfflineQueue options is false", 'Command timed out', 'connect ETIMEDOUT',
  'Command aborted due to connection close', 'None of startup nodes is available', 'Cluster is ended.', 'Connection is aborted', 'Node is disconnected',
  'Socket closed unexpectedly', 'The client is closed', 'The client is offline', 'Disconnects client', 'Connection timeout', 'The command was aborted',
  'All the root nodes are unavailable', 'None of the sentinels are available', 'Socket timeout timeout. Expecting data', '', 'A proxy broke',
  'connect ECONNREFUSED 127.0.0.1:1', 'getaddrinfo ENOTFOUND nowhere', 'read ECONNRESET', 'write EPIPE',
];
for (const text of broken) {
  const error = translated(new a(text));
  assert(error instanceof Broken, text);
}
// An error of the system, whatever its text is.
assert(translated(Object.assign(new Error('TLS handshake failed'), { code: 'ECONNRESET' })) instanceof Broken);
assert(translated(undefined) instanceof Broken);
console.log('ok what a server sent is known by its text, and no broken connection is taken for it');
