// Plots and the graph of who waits for whom, as SVG. Lines differ by dashes, marks and names, not by color.

const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "7 4", "2 3", "10 3 2 3"];
const MARKS = [
  "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0",
  "M-4,-4h8v8h-8z",
  "M0,-5l5,9h-10z",
  "M-5,0l5,-5l5,5l-5,5z",
];

function draw(parent, name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

function sized(svg, width, height) {
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
}

function steps(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  const step = [0.2, 0.5, 1, 2].map((factor) => factor * power).find((size) => most / size <= 5) ?? 2 * power;
  const all = [];
  for (let at = 0; at < most + step; at += step) all.push(at);
  return all;
}

function decades(least, most) {
  const all = [];
  for (let at = 10 ** Math.floor(Math.log10(least)); at < most * 10; at *= 10) all.push(at);
  return all.length > 1 ? all : [all[0], all[0] * 10];
}

// series: [{name, points: [[ms, value or null], …]}]; how: {label, form, isLog, now}
export function plot(svg, series, how) {
  const width = Math.max(280, svg.parentElement.clientWidth), height = 210;
  const [left, right, top, bottom] = [58, width - 92, 22, height - 40];
  sized(svg, width, height);
  const values = series.flatMap((one) => one.points.map((point) => point[1])).filter((value) => value !== null && (!how.isLog || value > 0));
  draw(svg, "text", { x: 4, y: 13 }, how.label);
  if (values.length === 0) {
    draw(svg, "text", { x: left + 8, y: (top + bottom) / 2 }, "nothing yet");
    return;
  }
  const most = Math.max(...values, how.isLog ? 1 : 1);
  const ticks = how.isLog ? decades(Math.min(...values), most) : steps(most);
  const [low, high] = [ticks[0], ticks.at(-1)];
  const scale = (value) => how.isLog ? Math.log10(Math.max(value, low) / low) / Math.log10(high / low) : value / high;
  const y = (value) => bottom - scale(value) * (bottom - top);
  const first = Math.min(...series.flatMap((one) => one.points.map((point) => point[0])));
  const span = Math.max(60_000, how.now - first);
  const x = (at) => right - ((how.now - at) / span) * (right - left);
  for (const tick of ticks) {
    draw(svg, "line", { class: "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) });
    draw(svg, "text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, how.form(tick));
  }
  const minutes = [1, 2, 5].find((step) => span / 60_000 / step <= 4) ?? 5;
  for (let ago = 0; ago * 60_000 <= span; ago += minutes) {
    draw(svg, "line", { class: "axis", x1: x(how.now - ago * 60_000), x2: x(how.now - ago * 60_000), y1: bottom, y2: bottom + 5 });
    draw(svg, "text", { x: x(how.now - ago * 60_000), y: bottom + 18, "text-anchor": "middle" }, ago ? `−${ago}` : "now");
  }
  draw(svg, "text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, "minutes");
  draw(svg, "line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom });
  draw(svg, "line", { class: "axis", x1: left, x2: left, y1: top, y2: bottom });
  const ends = [];
  series.forEach((one, at) => {
    let path = "", isOpen = false, last = null;
    for (const [time, value] of one.points) {
      if (value === null || (how.isLog && value <= 0)) { isOpen = false; continue; }
      path += `${isOpen ? "L" : "M"}${x(time).toFixed(1)},${y(value).toFixed(1)}`;
      isOpen = true;
      last = [x(time), y(value), value];
    }
    if (!last) return;
    draw(svg, "path", { class: "series", d: path, "stroke-dasharray": DASHES[at % DASHES.length] });
    draw(svg, "path", { class: "mark", d: MARKS[at % MARKS.length], transform: `translate(${last[0]},${last[1]})` });
    ends.push({ name: one.name, at, y: last[1], value: last[2] });
  });
  // Names beside the ends of their lines, one below the other where the lines meet.
  ends.sort((a, b) => a.y - b.y);
  ends.forEach((end, at) => { end.named = Math.max(end.y, at ? ends[at - 1].named + 15 : top); });
  ends.reduceRight((lowest, end) => (end.named = Math.min(end.named, lowest)) - 15, bottom - 2);
  for (const end of ends) {
    draw(svg, "path", { class: "mark", d: MARKS[end.at % MARKS.length], transform: `translate(${right + 12},${end.named})` });
    draw(svg, "text", { x: right + 20, y: end.named + 4 }, end.name);
  }
  svg.setAttribute("aria-label", `${how.label}: ${ends.map((end) => `${end.name} ${how.form(end.value)}`).join(", ")}`);
}

// edges: [{from, to, key, isRefused}] by the owners' names; at most some dozens.
export function graph(svg, edges) {
  svg.classList.toggle("empty", edges.length === 0);
  if (edges.length === 0) return;
  const names = [...new Set(edges.flatMap((edge) => [edge.from, edge.to]))];
  // Who holds and does not wait stands on the right; who waits for those, one to the left.
  const rank = new Map(names.map((name) => [name, 0]));
  for (let round = 0; round < 5; round++) {
    for (const edge of edges) {
      if (edge.isRefused) continue;
      rank.set(edge.from, Math.max(rank.get(edge.from), Math.min(5, rank.get(edge.to) + 1)));
    }
  }
  const width = Math.max(320, svg.parentElement.clientWidth);
  const columns = Math.max(...rank.values()) + 1;
  const rows = Array(columns).fill(0);
  const margin = 34; // for the arrows within a column
  const [w, h, gap] = [Math.min(180, (width - 2 * margin) / columns - 50), 30, 54];
  const places = new Map();
  for (const name of names) {
    const column = columns - 1 - rank.get(name);
    places.set(name, [margin + column * ((width - 2 * margin - w) / Math.max(1, columns - 1)), 10 + rows[column]++ * gap]);
  }
  sized(svg, width, 10 + Math.max(...rows) * gap);
  const defs = draw(svg, "defs", {});
  const head = draw(defs, "marker", { id: "head", viewBox: "0 0 10 10", refX: 9, refY: 5, markerWidth: 8, markerHeight: 8, orient: "auto-start-reverse" });
  draw(head, "path", { d: "M0,0L10,5L0,10z", class: "node" });
  for (const edge of edges) {
    const { start, bend, end, label } = route(places.get(edge.from), places.get(edge.to), w, h, margin);
    draw(svg, "path", {
      class: edge.isRefused ? "edge refused" : "edge", "marker-end": "url(#head)",
      d: `M${start[0]},${start[1]}Q${bend[0]},${bend[1]} ${end[0]},${end[1]}`,
    });
    draw(svg, "text", { class: "halo", x: label[0], y: label[1], "text-anchor": label[2] }, shortened(edge.key, Math.min(18, Math.floor((w / 2 + margin) / 7))));
  }
  for (const [name, [x, y]] of places) {
    draw(svg, "rect", { class: "node", x, y, width: w, height: h, rx: 5 });
    draw(svg, "text", { x: x + w / 2, y: y + 19, "text-anchor": "middle" }, shortened(name, Math.floor(w / 7.5)));
  }
}

// Where an arrow begins, bends and ends, and where its name is: straight to a column on the right, below the boxes to one
// on the left, and within a column down on the right side and up on the left, so that a circle looks like one.
function route(from, to, w, h, margin) {
  if (to[0] > from[0]) {
    const [start, end] = [[from[0] + w, from[1] + h / 2], [to[0], to[1] + h / 2]];
    const middle = [(start[0] + end[0]) / 2, (start[1] + end[1]) / 2];
    return { start, bend: middle, end, label: [middle[0], middle[1] - 3, "middle"] };
  }
  if (to[0] < from[0]) {
    const [start, end] = [[from[0] + w / 2, from[1] + h], [to[0] + w / 2, to[1] + h]];
    const middle = [(start[0] + end[0]) / 2, (start[1] + end[1]) / 2];
    return { start, bend: [middle[0], middle[1] + 36], end, label: [middle[0], middle[1] + 14, "middle"] };
  }
  const isDown = to[1] > from[1];
  const side = from[0] + (isDown ? w : 0), out = side + (isDown ? 1.6 : -1.6) * margin;
  const [start, end] = [[side, from[1] + h / 2], [side, to[1] + h / 2]];
  const middle = (start[1] + end[1]) / 2;
  return { start, bend: [out, middle], end, label: [side + (isDown ? 0.6 : -0.6) * margin, middle + 4, isDown ? "end" : "start"] };
}

export function shortened(text, most) {
  return text.length <= most ? text : `${text.slice(0, Math.ceil(most / 2) - 1)}…${text.slice(text.length - Math.floor(most / 2))}`;
}
