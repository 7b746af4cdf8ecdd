#!/usr/bin/env python3
"""docs/pictures/wait.svg, from what `make bench-wait` measured (bench/results/wait.jsonl): the 99th percentile of the wait,
on a logarithmic scale, over the load. Beside each line, its name, and how many of its jobs failed at the highest load."""

import json
import math
import pathlib
from html import escape

ROOT = pathlib.Path(__file__).parents[1]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 520, 80, 300, 50, 60
Y = (0, 5)  # powers of ten, in ms
GAP = 17  # between two names
OURS, OTHERS = "#1f5fa8", "#a8481f"


def at(load, ms):
    across = load / 100
    up = (math.log10(max(ms, 1)) - Y[0]) / (Y[1] - Y[0])
    return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)


def shown(ms):
    return f"{ms:,} ms".replace(",", " ") if ms < 1000 else f"{ms // 1000} s"


def series():
    """Of each peer its measurements by load, the highest line first."""
    lines = [json.loads(line) for line in (ROOT / "bench/results/wait.jsonl").read_text().splitlines()]
    peers = {}
    for line in lines:
        if line["wait_p99_ms"] is not None:
            peers.setdefault(line["peer"], []).append((line["load"], line["wait_p99_ms"], line["failed_percent"]))
    return sorted(((name, sorted(points)) for name, points in peers.items()), key=lambda one: -one[1][-1][1])


def main():
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="13" role="img">',
        "<title>How long jobs wait for a lock, over the load</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-weight="bold">Jobs of 5 ms that arrive at random: 99 of 100 wait less than this for their lock</text>',
    ]
    for power in range(Y[0], Y[1] + 1):
        x, y = at(0, 10**power)
        out.append(f'<line x1="{x:.1f}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/><text x="{x - 10:.1f}" y="{y + 4:.1f}" text-anchor="end">{shown(10**power)}</text>')
    for load in range(0, 101, 20):
        x, y = at(load, 1)
        out.append(f'<text x="{x:.1f}" y="{y + 20:.1f}" text-anchor="middle">{load} %</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 14}" text-anchor="middle">of the time, the lock would be held if nobody lost any</text>')
    lowest = 0.0
    for name, points in series():
        color = OURS if name.startswith("RLOCK") else OTHERS
        line = [at(load, ms) for load, ms, _ in points]
        out.append(f'<path d="M{"L".join(f"{x:.1f},{y:.1f}" for x, y in line)}" fill="none" stroke="{color}" stroke-width="2"/>')
        out.extend(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in line)
        x, y = line[-1]
        lowest = max(y, lowest + GAP)
        failed = points[-1][2]
        failures = f" ({failed:.0f} % failed)" if failed >= 0.5 else ""
        out.append(
            f'<path d="M{x + 4:.1f},{y:.1f}L{x + 26:.1f},{lowest:.1f}" fill="none" stroke="#bbb"/>'
            f'<text x="{x + 30:.1f}" y="{lowest + 4:.1f}" fill="{color}">{escape(name)}{failures}</text>'
        )
    (ROOT / "docs/pictures/wait.svg").write_text("\n".join([*out, "</svg>", ""]))
    print("ok wait")


if __name__ == "__main__":
    main()
