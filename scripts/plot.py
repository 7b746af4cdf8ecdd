#!/usr/bin/env python3
"""docs/pictures/grants.svg, from the figures of `make bench` in bench/results: grants per second over clients, both
logarithmic. Each series has its name beside it, and its own mark, so that a series that lies on another one is
visible."""

import csv
import math
import pathlib
from html import escape

ROOT = pathlib.Path(__file__).parents[1]
LINES = (ROOT / "bench/results/redis-7.0.csv").read_text().splitlines()
FIGURES = list(csv.DictReader(line for line in LINES if not line.startswith("#")))
SECTION = "contended: grants per second, one lock, so many clients"
SERIES = [  # name in the results, name in the picture, mark, color, dashes, and the distance of its name from its end
    ("RLOCK, deadlock detection on", "RLOCK", "circle", "#1f5fa8", "", (-14, -16)),
    ("RLOCK, deadlock detection off", "RLOCK, deadlock detection off", "square", "#1f5fa8", "2 4", (-190, 26)),
    ("Redisson's way (all subscribed, scripts)", "Redisson's way", "triangle", "#a8481f", "7 4", (14, 4)),
]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 90, 60, 50, 60
X, Y = (0, 4), (1, 5)  # powers of ten


def at(clients, grants):
    across = (math.log10(clients) - X[0]) / (X[1] - X[0])
    up = (math.log10(grants) - Y[0]) / (Y[1] - Y[0])
    return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)


def spaced(number):
    return f"{number:,}".replace(",", " ")


def mark(kind, x, y, color):
    look = f'fill="none" stroke="{color}" stroke-width="2"'
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {look}/>'
    if kind == "square":
        return f'<rect x="{x - 7:.1f}" y="{y - 7:.1f}" width="14" height="14" {look}/>'
    return f'<path d="M{x:.1f},{y - 6:.1f}l6,10h-12z" {look}/>'


def points(row):
    found = [one for one in FIGURES if one["section"] == SECTION and one["row"] == row]
    assert len(found) >= 4, row
    return sorted((int(one["column"].replace(" ", "")), float(one["value"])) for one in found)


def main():
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
           'font-family="sans-serif" font-size="13" role="img">', "<title>Grants per second of one lock, over clients</title>",
           '<rect width="100%" height="100%" fill="#fff"/>',
           f'<text x="{LEFT}" y="24" font-weight="bold">Grants per second of one lock (Redis 7.0.15)</text>']
    for power in range(X[0], X[1] + 1):
        x, y = at(10 ** power, 10 ** Y[0])
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{y:.1f}" stroke="#ddd"/>'
                   f'<text x="{x:.1f}" y="{y + 20:.1f}" text-anchor="middle">{spaced(10 ** power)}</text>')
    for power in range(Y[0], Y[1] + 1):
        x, y = at(10 ** X[0], 10 ** power)
        out.append(f'<line x1="{x:.1f}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                   f'<text x="{x - 10:.1f}" y="{y + 4:.1f}" text-anchor="end">{spaced(10 ** power)}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 14}" text-anchor="middle">clients that want the lock</text>')
    out.append(f'<text x="22" y="{middle}" text-anchor="middle" transform="rotate(-90 22 {middle})">grants per second</text>')
    for row, name, kind, color, dashes, (right, down) in SERIES:
        line = [at(*point) for point in points(row)]
        path = "L".join(f"{x:.1f},{y:.1f}" for x, y in line)
        out.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dashes}"/>')
        out.extend(mark(kind, x, y, color) for x, y in line)
        x, y = line[-1]
        out.append(f'<text x="{x + right:.1f}" y="{y + down:.1f}" fill="{color}">{escape(name)}</text>')
    (ROOT / "docs/pictures/grants.svg").write_text("\n".join([*out, "</svg>", ""]))
    print("ok grants")


main()
