// The names of owners that nobody has named.

import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';

const HERE = `${hostname().slice(0, 128)}/${process.pid}`;
// Another process may have the same number later.
const START = randomBytes(4).toString('hex');
let names = 0;

/** A new owner, whose name begins with that name. */
export const newOwner = (name = HERE) => `${name}/${START}-${++names}`;

/** How many bytes that adds to the name, at most. */
export const ADDED = START.length + 13;
