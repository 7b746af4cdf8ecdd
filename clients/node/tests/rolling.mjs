// A service of Express for clients/conformance/rolling.py: the README's, with requests that work under a lock.

import { readFileSync, rmSync, writeFileSync } from 'node:fs';

const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
const service = /^```javascript express\n(.*?)^```/ms.exec(readme)[1];

const work = `
import { appendFileSync } from 'node:fs';
import { NotAcquired } from 'rlock-client';

const note = (...words) => appendFileSync(process.env.JOURNAL, [process.pid, ...words].join(' ') + '\\n');

for (const [kind, options] of Object.entries({ plain: { lease: 5_000 }, session: { session: true } })) {
  app.post('/' + kind + '/:key', async (request, response) => {
    const { request: name, ms } = request.query;
    note('came', name);
    await locks.lock(request.params.key, options).using({ wait: 20_000 }, async (hold) => {
      note('enters', name, hold.key, hold.token);
      const first = await client.call('RLOCK.CHECK', hold.key, hold.token);
      await new Promise((resolve) => setTimeout(resolve, Number(ms)));
      const last = await client.call('RLOCK.CHECK', hold.key, hold.token);
      note('leaves', name, hold.key, first, last);
    });
    response.json(null);
  });
}
app.use((error, request, response, next) => {
  if (error instanceof NotAcquired) response.sendStatus(423);
  else next(error);
});

app.use((error`;

const file = new URL(`rolling-${process.pid}.mjs`, import.meta.url);
const { PORT, HTTP_PORT } = process.env;
writeFileSync(file, service.replace('app.use((error', work).replace('6380', PORT).replace('8080', HTTP_PORT));
try {
  await import(file);
} finally {
  rmSync(file);
}
