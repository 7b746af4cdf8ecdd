// The live page. Names of locks and owners come from strangers: they are set as text, never as markup.

import { graph, plot, shortened } from "./plots.js";

const $ = (id) => document.getElementById(id);
const KEEP_MS = 15 * 60_000;
const SILENT_MS = 4_000;
const KINDS = { block: "blocked", queue: "ticket", tell: "by message" };

let points = [];
let look = null;
let heardAt = 0;
let source = null;
let followed = null; // the key in hexadecimal
let followedAt = null; // the server, where several may have a lock of that key
let followedDb = null; // the database, where all are shown
let circles = new Map(); // prevented deadlocks, which other entries push out of the slow log
let story = null; // of the lock that is followed: what was seen since the page was opened

// --- words --------------------------------------------------------------------------------------

export function span(ms) {
  if (ms === null || ms === undefined) return "forever";
  if (ms < 1) return "0 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${(ms / 1000).toFixed(1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
}

const micros = (us) => (us < 1000 ? `${Math.round(us)} µs` : span(us / 1000));
const short = (us) => us < 1000 ? `${us} µs` : us < 1e6 ? `${us / 1000} ms` : `${us / 1e6} s`;
const count = (number) => number.toLocaleString("en");
const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
const connection = (id, address) => (id ? `${id}${address ? ` (${address})` : ""}` : "none");

// --- elements -----------------------------------------------------------------------------------

function element(name, text, properties = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  return Object.assign(made, properties);
}

// Servers that are named may each have a lock of the same key.
const areApart = () => look.is_fixed && look.servers.length > 1;

function lockLink(key, server, db) {
  const isElsewhere = look.is_everywhere && db !== undefined;
  const text = isElsewhere ? `${key.text} (database ${db})` : key.text;
  if (key.hex === null) return element("span", text);
  const words = new URLSearchParams({ lock: key.hex });
  if (areApart()) words.set("server", server);
  if (isElsewhere) words.set("db", db);
  return element("a", text, { href: `#${words}` });
}

// rows: [{id, cells: [text or element, …]}]. What is as it was is left alone, so that focus and selection stay.
function fill(table, rows) {
  table.classList.toggle("empty", rows.length === 0);
  const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const body = table.tBodies[0];
  const old = new Map([...body.rows].map((row) => [row.dataset.id, row]));
  rows.forEach((row, at) => {
    let tr = old.get(row.id);
    if (!tr) {
      tr = document.createElement("tr");
      tr.dataset.id = row.id;
      for (const title of titles) {
        const td = document.createElement("td");
        td.dataset.title = title;
        tr.append(td);
      }
    }
    old.delete(row.id);
    if (body.rows[at] !== tr) body.insertBefore(tr, body.rows[at] ?? null);
    row.cells.forEach((cell, column) => {
      const td = tr.cells[column];
      const text = cell instanceof Node ? cell.textContent : String(cell);
      if (td.textContent === text && (!(cell instanceof Node) || td.firstElementChild)) return;
      td.replaceChildren(cell);
    });
  });
  for (const row of old.values()) row.remove();
}

function tiles(list, all) {
  list.replaceChildren(...all.map(([title, value, isBad]) => {
    const tile = element("div", "", { className: isBad ? "bad" : "" });
    tile.append(element("dt", title), element("dd", value));
    return tile;
  }));
}

// --- the page of all locks ----------------------------------------------------------------------

function showServers() {
  $("servers").replaceChildren(...look.servers.map((server) => {
    const { name } = server;
    if (!server.is_up) return element("li", `✗ ${name} does not answer properly: ${server.why}`, { className: "bad" });
    const role = server.role === "master" ? "primary" : "replica";
    const db = look.is_everywhere ? "all databases" : `database ${server.db}`;
    return element("li", `✓ ${name}: ${server.version}, ${role}, ${db}`);
  }));
}

function warnings() {
  const all = look.trouble ? [look.trouble] : [];
  for (const server of look.servers.filter((one) => one.is_up)) {
    const { numbers, persistence } = server;
    if (numbers.gate_shut) all.push(`${server.name}: the gate has been shut since ${clock(numbers.gate_shut_since_ms)}: no lock is handed over and no session is renewed`);
    if (server.role === "master" && server.noreplicas && !server.replicas.some((one) => one.state === "online")) {
      all.push(`${server.name}: no replica follows, and ${count(server.noreplicas)} requests got -NOREPLICAS`);
    }
    if (numbers.evicted) all.push(`${server.name}: ${count(numbers.evicted)} locks were evicted: two owners may hold one`);
    if (persistence.aof_status && persistence.aof_status !== "ok") all.push(`${server.name}: the append-only file cannot be written`);
    if (persistence.rdb_status && persistence.rdb_status !== "ok") all.push(`${server.name}: the last snapshot could not be saved`);
    const isOld = look.unix_ms / 1000 - persistence.rdb_last_save > 3600;
    if (!persistence.aof && persistence.unsaved > 0 && isOld) {
      all.push(`${server.name}: nothing has been saved for ${span(look.unix_ms - persistence.rdb_last_save * 1000)}, and there is no append-only file: a restart loses the locks`);
    }
  }
  return all;
}

function showNow() {
  const number = (name) => look.numbers[name] ?? 0;
  const gate = number("gate_shut") ? "▲ SHUT" : "open";
  tiles($("tiles"), [
    ["locks held", count(number("locks"))],
    ["blocked connections", count(number("waiters"))],
    ["waits by message", count(number("tells"))],
    ["tickets", count(number("tickets"))],
    ["sessions", count(number("sessions"))],
    ["grants waiting for replicas", count(number("acks_pending"))],
    ["gate", gate, number("gate_shut") > 0],
    ...["observers", "groups"].filter((name) => name in look.numbers).map((name) => [name, count(number(name))]),
  ]);
  const all = warnings();
  $("warnings").className = all.length ? "bad" : "";
  if ($("warnings").textContent !== all.map((text) => `▲ ${text}`).join(" ")) {
    $("warnings").textContent = all.map((text) => `▲ ${text}`).join(" ");
  }
}

function showPlots() {
  const line = (name, field) => ({ name, points: points.map((point) => [point.at, point[field] ?? null]) });
  const now = look.unix_ms;
  plot($("rates"), [line("acquired", "acquired"), line("handed off", "handed_off"), line("refused", "refused")], { label: "per second", form: count, now });
  plot($("waits"), [line("50 %", "p50"), line("90 %", "p90"), line("99 %", "p99")], { label: "time waited (logarithmic)", form: short, isLog: true, now });
  plot($("waiting"), [line("blocked", "waiters"), line("by message", "tells"), line("tickets", "tickets")], { label: "waits", form: count, now });
}

function showQueues() {
  $("queues-none").hidden = look.queues.length > 0;
  fill($("queues"), look.queues.map((queue) => {
    const [first] = queue.lock?.holders ?? [];
    const others = (queue.lock?.holder_count ?? 0) - 1;
    const owner = first ? `${first.owner.text}${others > 0 ? ` and ${count(others)} more` : ""}` : "nobody";
    return {
      id: `${queue.server} ${queue.db} ${queue.key.text}`,
      cells: [lockLink(queue.key, queue.server, queue.db), count(queue.length), span(queue.head_ms), queue.lock?.mode ?? "", owner,
        first ? span(first.held_ms) : "", first ? left(first) : "", first ? first.token : "", first ? connection(first.session, first.address) : ""],
    };
  }));
  const isDenied = look.servers.some((server) => server.is_denied);
  const more = look.queue_count - look.queues.length;
  const atLeast = look.queue_count >= look.queue_count_max ? "at least " : "";
  const others = more > 0 ? `and ${atLeast}${count(more)} shorter queues` : "";
  $("queues-more").textContent = isDenied ? `${others} This user may not send RLOCK.INFO, which shows holders and waiters.` : others;
}

const left = (hold) => hold.session ? `session (${span(hold.left_ms)})` : span(hold.left_ms);

// Whoever waits for one lock and holds another is part of a chain; a refused deadlock is a circle.
function showGraph() {
  const holding = new Set(look.queues.flatMap((queue) => (queue.lock?.holders ?? []).map((hold) => hold.owner.text)));
  const edges = [];
  for (const queue of look.queues) {
    for (const wait of queue.lock?.waiters ?? []) {
      for (const hold of queue.lock.holders) {
        if (hold.owner.text !== wait.owner.text) edges.push({ from: wait.owner.text, to: hold.owner.text, key: queue.key.text });
      }
    }
  }
  const inChain = edges.filter((edge) => holding.has(edge.from));
  const ends = new Set(inChain.flatMap((edge) => [edge.from, edge.to]));
  const shown = edges.filter((edge) => holding.has(edge.from) || ends.has(edge.to)).slice(0, 24);
  const words = [];
  for (const server of look.servers) {
    for (const entry of server.slow?.entries ?? []) {
      if (entry.kind === "deadlock") circles.set(`${server.name} ${entry.unix_ms} ${entry.owner.hex}`, entry);
    }
  }
  const newest = [...circles].sort(([, a], [, b]) => b.unix_ms - a.unix_ms).slice(0, 3);
  circles = new Map(newest);
  for (const [, entry] of newest) {
    const circle = entry.holders.filter((pair) => pair.length === 2);
    circle.forEach(([owner, key], at) => {
      shown.push({ from: owner, to: circle[(at + 1) % circle.length][0], key, isRefused: true });
    });
    words.push(`${clock(entry.unix_ms)}: prevented a deadlock (dashed): ${circle.map(([owner, key]) => `${owner} waits for ${key}`).join(", ")}`);
  }
  $("graph-none").hidden = shown.length > 0;
  graph($("graph"), shown);
  $("graph-words").replaceChildren(...words.map((text) => element("li", text)));
}

function showSlow() {
  const each = look.servers.flatMap((server) => (server.slow?.entries ?? []).map((entry) => ({ server, entry })));
  const why = look.servers.map((server) => server.slow?.why).find((text) => text);
  $("slow-why").textContent = why ?? (each.length ? "" : "The slow log is empty.");
  each.sort((a, b) => b.entry.unix_ms - a.entry.unix_ms);
  fill($("slow"), each.slice(0, 10).map(({ server, entry }) => ({
    id: `${server.name} ${entry.unix_ms} ${entry.kind} ${entry.key.text} ${entry.owner.text} ${entry.ms}`,
    cells: [clock(entry.unix_ms), entry.kind, lockLink(entry.key, server.name, entry.db), entry.owner.text, span(entry.ms), entry.outcome, entry.holders.map((names) => names.join(" for ")).join(", ")],
  })));
}

function showSessions() {
  const each = look.queues.flatMap((queue) => (queue.lock?.holders ?? []).filter((hold) => hold.session).map((hold) => ({ queue, hold })));
  $("sessions-none").hidden = each.length > 0;
  fill($("sessions"), each.map(({ queue, hold }) => ({
    id: `${queue.server} ${queue.db} ${hold.session} ${queue.key.text} ${hold.mode}`,
    cells: [hold.session, hold.address ?? "", hold.owner.text, lockLink(queue.key, queue.server, queue.db), span(hold.held_ms)],
  })));
}

function showReplicas() {
  const up = look.servers.filter((server) => server.is_up);
  const each = up.flatMap((server) => server.replicas.map((replica) => ({ server, replica })));
  $("replicas-none").hidden = each.length > 0;
  fill($("replicas"), each.map(({ server, replica }) => ({
    id: `${server.name} ${replica.ip}:${replica.port}`,
    cells: [server.name, `${replica.ip}:${replica.port}`, replica.state === "online" ? "✓ online" : `▲ ${replica.state}`,
      replica.behind === null ? "" : `${count(replica.behind)} bytes`, `${replica.lag} s ago`],
  })));
  const number = (name) => look.numbers[name] ?? 0;
  const acked = number("acks_us_count");
  tiles($("acks"), [
    ["acknowledged", count(acked)],
    ["mean time until acknowledged", acked ? micros(number("acks_us_sum") / acked) : "none"],
    ["too late (NOACKS)", count(number("noacks"))],
    // Those that the module refused, and those that min-replicas-to-write did.
    ["refused (NOREPLICAS)", count(up.reduce((sum, server) => sum + server.noreplicas, 0))],
  ]);
}

function showEnds() {
  const names = [["released", "released"], ["lease expired", "expired"], ["connection lost", "disconnected"], ["forced", "forced"], ["evicted", "evicted"]];
  tiles($("ends"), names.map(([title, name]) => [title, count(look.numbers[name] ?? 0)]));
}

// --- the search ---------------------------------------------------------------------------------

const FOUND_MAX = 200;
let search = 0; // a later one ends the earlier ones

async function find() {
  const own = ++search;
  const text = $("find-text").value;
  const found = new Map();
  let read = 0;
  const hex = [...new TextEncoder().encode(text)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  $("find-exact").replaceChildren(...(text ? [element("a", `The lock with exactly the name ${text}`, { href: `#lock=${hex}` })] : []));
  fill($("found"), []);
  for (let at = ""; at !== null && found.size < FOUND_MAX;) {
    $("find-said").textContent = `Searching: ${count(found.size)} found.`;
    const words = new URLSearchParams(at ? { find: text, at } : { find: text });
    const answer = await fetch(`/locks?${words}`);
    const told = answer.ok ? await answer.json() : { why: (await answer.text()).trim() };
    if (own !== search) return;
    if (told.why) {
      $("find-said").textContent = `▲ ${told.why}`;
      return;
    }
    for (const one of told.locks) found.set(`${one.server} ${one.db} ${one.key.text}`, one);
    read += told.read;
    at = told.next;
    showFound(found);
  }
  const more = found.size >= FOUND_MAX ? " There may be more: enter a longer part." : "";
  $("find-said").textContent = `${count(found.size)} found, of ${count(read)} locks that were looked at.${more}`;
}

function showFound(found) {
  fill($("found"), [...found].slice(0, FOUND_MAX).map(([id, { server, db, key, lock }]) => {
    const [first] = lock.holders;
    const others = lock.holder_count - 1;
    const owner = `${first.owner.text}${others > 0 ? ` and ${count(others)} more` : ""}`;
    return { id, cells: [lockLink(key, server, db), lock.mode, owner, span(first.held_ms), left(first), first.token, connection(first.session, first.address), count(lock.length)] };
  }));
}

// --- the page of one lock -----------------------------------------------------------------------

function remember(lock) {
  story.points.push({ at: look.unix_ms, waiting: lock.length });
  story.points = story.points.filter((point) => point.at > look.unix_ms - KEEP_MS);
  const now = new Map(lock.holders.map((hold) => [`${hold.owner.hex} ${hold.mode} ${hold.token}`, hold]));
  const tell = (text) => story.lines.unshift(`${clock(look.unix_ms)} ${text}`);
  for (const [id, hold] of story.holders) {
    if (!now.has(id)) tell(`${hold.owner.text} no longer holds ${hold.mode}, token ${hold.token}`);
  }
  for (const [id, hold] of now) {
    if (!story.holders.has(id)) tell(`${hold.owner.text} holds ${hold.mode}, token ${hold.token}, for ${span(hold.held_ms)}`);
  }
  story.holders = now;
  story.lines.length = Math.min(story.lines.length, 200);
}

function showLock() {
  const lock = look.lock;
  if (!lock) return;
  if (lock.trouble) {
    $("lock-state").textContent = `▲ ${lock.trouble}`;
    return;
  }
  remember(lock);
  const state = lock.mode === "free" ? "It is free." : `Held for ${lock.mode} by ${count(lock.holder_count)}.`;
  $("lock-state").textContent = `${state} ${lock.length ? `${count(lock.length)} wait.` : "Nobody waits."}`;
  const server = followedAt ?? (areApart() ? null : look.queues.find((queue) => queue.key.hex === followed && (followedDb === null || queue.db === followedDb))?.server ?? (look.servers.length === 1 ? look.servers[0].name : null));
  const kill = (id) => look.can_act && id && server ? actionButton(`kill ${id}`, { do: "kill", server, client: id }) : "";
  fill($("holders"), lock.holders.map((hold) => ({
    id: `${hold.owner.hex} ${hold.mode} ${hold.token}`,
    cells: [hold.owner.text, hold.mode, hold.depth, span(hold.held_ms), left(hold), hold.token, connection(hold.session, hold.address), hold.acks === "none" ? "not asked for" : hold.acks, kill(hold.session)],
  })));
  fill($("waiters"), lock.waiters.map((wait, at) => ({
    id: `${wait.owner.hex} ${wait.mode} ${wait.client || wait.channel}${wait.client ? "" : ` ${at}`}`,
    cells: [wait.owner.text, wait.mode, wait.has_turn ? `${KINDS[wait.kind] ?? wait.kind}, has its turn` : KINDS[wait.kind] ?? wait.kind, span(wait.waited_ms), span(wait.left_ms), wait.channel || connection(wait.client, wait.address), wait.limit || "",
      look.can_act ? actionButton(`cancel ${wait.owner.text}`, { do: "cancel", key: followed, owner: wait.owner.hex, server: followedAt, db: followedDb }) : ""],
  })));
  if (look.can_act && !$("lock-actions").firstElementChild) {
    $("lock-actions").replaceChildren(actionButton("force: end all holds", { do: "force", key: followed, server: followedAt, db: followedDb }));
  }
  plot($("lock-waiting"), [{ name: "waiting", points: story.points.map((point) => [point.at, point.waiting]) }], { label: "waiters", form: count, now: look.unix_ms });
  $("lock-history").replaceChildren(...story.lines.map((text) => element("li", text)));
}

// --- actions ------------------------------------------------------------------------------------

function actionButton(text, action) {
  const button = element("button", shortened(text, 40), { type: "button" });
  button.addEventListener("click", async () => {
    $("actions").open = true;
    if (!$("token").value) {
      $("action-said").textContent = "Enter the token first.";
      $("token").focus();
      return;
    }
    if (!confirm(`${text}?\n\nThe former holder may continue to work until it learns of this.`)) return;
    const answer = await fetch("/actions", {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${$("token").value}` },
      body: JSON.stringify(action),
    });
    $("action-said").textContent = `${text}: ${answer.ok ? "ended" : "refused:"} ${(await answer.text()).trim()}`;
  });
  return button;
}

// --- what arrives -------------------------------------------------------------------------------

function show() {
  showServers();
  $("actions").hidden = !look.can_act;
  const share = look.share * 100;
  const slowly = look.every_ms > 5000 ? " The servers answer slowly, so this page asks less often." : "";
  $("load").textContent = `This page asks the servers every ${span(look.every_ms)}, which takes ${share < 0.01 ? "less than 0.01" : share.toFixed(2)} % of the busiest one's time.${slowly}`;
  // While no server answers, there is nothing to show, and "nobody waits" would be wrong.
  const isKnown = look.servers.some((server) => server.is_up);
  for (const section of document.querySelectorAll("#all section.now")) section.hidden = !isKnown;
  if (followed !== null) {
    showLock();
  } else if (isKnown) {
    showNow();
    showPlots();
    showQueues();
    showGraph();
    showSlow();
    showSessions();
    showReplicas();
    showEnds();
  }
}

function showState() {
  const silent = Date.now() - heardAt;
  const state = $("state");
  let text;
  if (!look) text = "… connecting";
  else if (silent > look.every_ms + SILENT_MS) text = `▲ no news for ${span(silent)}: this page is out of date`;
  else if (look.trouble || look.servers.some((server) => !server.is_up)) text = `▲ not all servers answer, at ${clock(look.unix_ms)}`;
  else text = `● live, ${clock(look.unix_ms)}`;
  state.classList.toggle("bad", text.startsWith("▲"));
  if (state.textContent !== text) state.textContent = text;
}

function follow() {
  source?.close();
  const words = new URLSearchParams(location.hash.slice(1));
  followed = /^(?:[0-9a-f]{2})*$/.test(words.get("lock") ?? "?") ? words.get("lock") : null;
  followedAt = words.get("server");
  followedDb = /^\d+$/.test(words.get("db") ?? "") ? Number(words.get("db")) : null;
  $("all").hidden = followed !== null;
  $("one").hidden = followed === null;
  if (followed !== null) {
    story = { points: [], lines: [], holders: new Map() };
    const place = (followedDb === null ? "" : ` in database ${followedDb}`) + (followedAt === null ? "" : ` at ${followedAt}`);
    $("lock-name").textContent = nameOf(followed) + place;
    for (const id of ["lock-state", "lock-actions"]) $(id).replaceChildren();
    for (const id of ["holders", "waiters"]) fill($(id), []);
  }
  const server = followedAt === null ? "" : `&server=${encodeURIComponent(followedAt)}`;
  const db = followedDb === null ? "" : `&db=${followedDb}`;
  source = new EventSource(followed === null ? "/events" : `/events?key=${followed}${server}${db}`);
  source.addEventListener("history", (event) => { points = JSON.parse(event.data).points; });
  source.addEventListener("look", (event) => {
    look = JSON.parse(event.data);
    heardAt = Date.now();
    if (look.point) points.push(look.point);
    points = points.filter((point, at) => point.at > look.unix_ms - KEEP_MS && point.at !== points[at - 1]?.at);
    show();
    showState();
  });
}

// As the server writes names: bytes outside of printable ASCII as \xhh.
function nameOf(hex) {
  const bytes = hex.match(/../g) ?? [];
  return bytes.map((pair) => {
    const byte = parseInt(pair, 16);
    const isPlain = byte >= 0x20 && byte < 0x7f && byte !== 0x5c && byte !== 0x22 && byte !== 0x27;
    return isPlain ? String.fromCharCode(byte) : { 9: "\\t", 10: "\\n", 13: "\\r", 0x5c: "\\\\", 0x22: '\\"', 0x27: "\\'" }[byte] ?? `\\x${pair}`;
  }).join("");
}

$("find").addEventListener("submit", (event) => {
  event.preventDefault();
  find().catch((error) => { $("find-said").textContent = `▲ ${error.message}`; });
});
addEventListener("hashchange", follow);
setInterval(showState, 1000);
follow();
