#!/usr/bin/env python3
"""Draws a terminal. `terminal.py FILE.svg COLUMNS ROWS SECONDS COMMAND...` runs COMMAND in a terminal of that size for
at most SECONDS, and draws what it showed. The picture repeats the whole run as an animation; a viewer without
animations shows the last moment. With `--last` before FILE.svg, it shows only the last moment. Needs pyte, which
understands the control codes of a terminal."""

import fcntl
import os
import pathlib
import pty
import select
import signal
import struct
import sys
import termios
import time
from html import escape

import pyte

WIDTH, HEIGHT, PAD = 8.4, 18, 12
COLORS = {"default": "#d8dee9", "black": "#2e3440", "red": "#e08080", "green": "#a3d08c", "brown": "#ebcb8b", "yellow": "#ebcb8b",
          "blue": "#81a1f1", "magenta": "#c79dd0", "cyan": "#88c0d0", "white": "#eceff4"}
GROUND = "#1d222c"
REST = 3.0  # for this many seconds, the last moment stays


def record(columns, rows, seconds, command):
    """Records (seconds, rows of the screen) at each change."""
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(columns), LINES=str(rows))
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    os.kill(child, signal.SIGWINCH)
    begun, moments = time.monotonic(), []
    while (left := begun + seconds - time.monotonic()) > 0:
        if not select.select([terminal], [], [], left)[0]:
            break
        # Output that arrives together counts as one moment.
        data = b""
        try:
            while select.select([terminal], [], [], 0.02)[0]:
                some = os.read(terminal, 65536)
                data += some
                if not some:
                    break
        except OSError:  # it has ended
            if not data:
                break
        stream.feed(data)
        seen = [cells(screen, row) for row in range(rows)]
        if not moments or moments[-1][1] != seen:
            moments.append((time.monotonic() - begun, seen))
    try:
        os.kill(child, signal.SIGTERM)
    except ProcessLookupError:
        pass
    os.waitpid(child, 0)
    return moments


def cells(screen, row):
    """Runs of cells that look the same: (column, text, color, ground, is bold)."""
    runs = []
    for column in range(screen.columns):
        cell = screen.buffer[row][column]
        fore, ground = COLORS.get(cell.fg, f"#{cell.fg}"), None if cell.bg == "default" else COLORS.get(cell.bg, f"#{cell.bg}")
        if cell.reverse:
            fore, ground = ground or GROUND, fore
        look = (fore, ground, cell.bold)
        if runs and runs[-1][2:] == look:
            runs[-1] = (runs[-1][0], runs[-1][1] + cell.data, *look)
        else:
            runs.append((column, cell.data, *look))
    return tuple(run for run in runs if run[1].strip() or run[3])


def drawn(row, runs):
    y, out = PAD + row * HEIGHT, []
    for column, text, fore, ground, is_bold in runs:
        x = PAD + column * WIDTH
        if ground:
            out.append(f'<rect x="{x:.1f}" y="{y}" width="{len(text) * WIDTH:.1f}" height="{HEIGHT}" fill="{ground}"/>')
        stripped = text.rstrip()
        begins = len(stripped) - len(stripped.lstrip())
        if stripped:
            words, x = stripped[begins:], x + begins * WIDTH
            bold = ' font-weight="bold"' if is_bold else ""
            out.append(f'<text x="{x:.1f}" y="{y + 13}" fill="{fore}"{bold} textLength="{len(words) * WIDTH:.1f}" '
                       f'lengthAdjust="spacingAndGlyphs" xml:space="preserve">{escape(words)}</text>')
    return "".join(out)


def svg(title, columns, rows, moments, is_last):
    if is_last:
        moments = moments[-1:]
    width, height = columns * WIDTH + 2 * PAD, rows * HEIGHT + 2 * PAD
    whole = moments[-1][0] + REST
    # For how long each row stayed unchanged.
    spans = []
    for row in range(rows):
        for at, (begin, seen) in enumerate(moments):
            end = moments[at + 1][0] if at + 1 < len(moments) else whole
            if seen[row] and spans and spans[-1][:2] == (row, seen[row]) and spans[-1][3] == begin:
                spans[-1] = (row, seen[row], spans[-1][2], end)
            elif seen[row]:
                spans.append((row, seen[row], begin, end))
    style, body = [], []
    for number, (row, runs, begin, end) in enumerate(spans):
        is_at_the_end = end == whole
        # Without animations, only the last moment is visible.
        hidden = "" if is_at_the_end else ' visibility="hidden"'
        if is_last or (is_at_the_end and begin == moments[0][0]):
            body.append(drawn(row, runs))
            continue
        percent = [f"{100 * at / whole:.3f}%" for at in (begin, end)]
        last = "" if is_at_the_end else f"{percent[1]},100%{{visibility:hidden}}"
        style.append(f"@keyframes r{number}{{0%{{visibility:hidden}}{percent[0]}{{visibility:visible}}{last}}}"
                     f"#r{number}{{animation:r{number} {whole:.2f}s step-end infinite}}")
        body.append(f'<g id="r{number}"{hidden}>{drawn(row, runs)}</g>')
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" '
        'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14" role="img">',
        f"<title>{escape(title)}</title>", f"<style>{''.join(style)}</style>",
        f'<rect width="100%" height="100%" rx="8" fill="{GROUND}"/>', *body, "</svg>", ""])


def main(words):
    is_last = words[0] == "--last"
    file, columns, rows, seconds, *command = words[is_last:]
    moments = record(int(columns), int(rows), float(seconds), command)
    with open(file, "w") as out:
        out.write(svg(f"{pathlib.Path(file).stem}, in a terminal", int(columns), int(rows), moments, is_last))


main(sys.argv[1:])
