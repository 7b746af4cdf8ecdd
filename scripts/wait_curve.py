#!/usr/bin/env python3
"""docs/pictures/wait.svg, from the figures of `make bench-wait` in bench/results: the 99th percentile of the wait, on a
logarithmic scale, over the load. Each line has its name beside it, with the share of its jobs that failed at the
highest load."""

import csv
import math
import pathlib
from html import escape

ROOT = pathlib.Path(__file__).parents[1]
LINES = (ROOT / "bench/results/redis-7.0.csv").read_text().splitlines()
FIGURES = list(csv.DictReader(line for line in LINES if not line.startswith("#")))
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1000, 520, 70, 470, 50, 60
X, Y = (20, 100), (0, 5)  # percent; powers of ten, in ms
GAP = 17  # between two names, at least
OURS, OTHERS, PERFECT = "#1f5fa8", "#a8481f", "#555"


def at(load, ms):
    across = (load - X[0]) / (X[1] - X[0])
    up = (math.log10(max(ms, 1)) - Y[0]) / (Y[1] - Y[0])
    return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)


def shown(ms):
    return f"{ms} ms" if ms < 1000 else f"{ms // 1000} s"


def of(section):
    """The figures of each lock, by load."""
    locks = {}
    for one in FIGURES:
        if one["section"] == section:
            locks.setdefault(one["row"], []).append((int(one["column"].rstrip(" %")), float(one["value"])))
    return {lock: sorted(points) for lock, points in locks.items()}


def color_of(name):
    return OURS if name.startswith("RLOCK") else PERFECT if name.startswith("a queue") else OTHERS


def axes():
    for power in range(Y[0], Y[1] + 1):
        x, y = at(X[0], 10**power)
        yield (f'<line x1="{x:.1f}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
               f'<text x="{x - 10:.1f}" y="{y + 4:.1f}" text-anchor="end">{shown(10**power)}</text>')
    for load in range(X[0], X[1] + 1, 20):
        x, y = at(load, 1)
        yield f'<text x="{x:.1f}" y="{y + 20:.1f}" text-anchor="middle">{load} %</text>'
    yield (f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 14}" text-anchor="middle">'
           'load: how much of the time the jobs alone hold the lock</text>')


def lines():
    """Draws the highest line first, so that the names are placed from the top."""
    waits, failed = of("arrivals: p99 of the wait, ms"), of("arrivals: jobs that failed, %")
    lowest = 0.0
    for name, points in sorted(waits.items(), key=lambda one: -one[1][-1][1]):
        color, line = color_of(name), [at(load, ms) for load, ms in points]
        dashes = ' stroke-dasharray="5 4"' if color == PERFECT else ""
        yield (f'<path d="M{"L".join(f"{x:.1f},{y:.1f}" for x, y in line)}" fill="none" stroke="{color}" '
               f'stroke-width="2"{dashes}/>')
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in line)
        x, y = line[-1]
        lowest = max(y, lowest + GAP)
        share = failed[name][-1][1]
        failures = f" ({share:.0f} % failed)" if share >= 0.5 else ""
        yield (f'<path d="M{x + 4:.1f},{y:.1f}L{WIDTH - RIGHT + 14},{lowest:.1f}" fill="none" stroke="#bbb"/>'
               f'<text x="{WIDTH - RIGHT + 18}" y="{lowest + 4:.1f}" fill="{color}">{escape(name)}{failures}</text>')


def main():
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="13" role="img">',
        "<title>How long jobs wait for a lock, over the load</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-weight="bold">Jobs of 5 ms that arrive at random for one lock: '
        "99 of 100 wait no longer than this</text>",
        *axes(),
        *lines(),
        "</svg>",
        "",
    ]
    (ROOT / "docs/pictures/wait.svg").write_text("\n".join(out))
    print("ok wait")


if __name__ == "__main__":
    main()
