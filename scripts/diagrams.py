#!/usr/bin/env python3
"""docs/pictures: draws the diagrams that no run can draw, because they show no times: the states of a request, and how
to read the runbook. `texts.py` checks that the files are what this script draws, and that each section in a flow chart
is one of the page."""

import pathlib
from html import escape

PICTURES = pathlib.Path(__file__).resolve().parents[1] / "docs/pictures"


class Drawing:
    """Boxes on a grid of columns and rows, and arrows between them."""

    def __init__(self, title, width, height, column, row, box):
        self.title, self.width, self.height, self.column, self.row, self.box = title, width, height, column, row, box
        self.places, self.shapes = {}, []

    def put(self, name, column, row, *lines, fill="#fff", wide=1.0):
        """A box with some lines of text. The first is its name."""
        x, y, width = 20 + self.column * column, 52 + self.row * row, self.box[0] * wide
        self.places[name] = (x, y, width)
        self.shapes.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{self.box[1]}" rx="6" fill="{fill}" stroke="#000"/>')
        lines = [name, *lines]
        for number, line in enumerate(lines):
            height = y + self.box[1] / 2 + 5 + 17 * (number - (len(lines) - 1) / 2)
            weight = ' font-weight="bold"' if number == 0 else ""
            self.shapes.append(f'<text x="{x + width / 2:g}" y="{height:g}" text-anchor="middle"{weight}>{escape(line)}</text>')

    def side(self, name, which):
        x, y, width = self.places[name]
        height = self.box[1]
        return {"left": (x, y + height / 2), "right": (x + width, y + height / 2), "top": (x + width / 2, y), "bottom": (x + width / 2, y + height)}[which]

    def join(self, one, side, other, where, *words, bend=None):
        """An arrow, straight or with a corner; `bend` is the height of a detour. The words are at its longest part."""
        (x, y), (to_x, to_y) = self.side(one, side), self.side(other, where)
        if bend is not None:
            points = [(x, y), (x, bend), (to_x, bend), (to_x, to_y)]
        elif side in ("top", "bottom") and where in ("left", "right"):
            points = [(x, y), (x, to_y), (to_x, to_y)]
        else:
            points = [(x, y), (to_x, to_y)]
        path = " ".join(f"{px:g},{py:g}" for px, py in points)
        self.shapes.append(f'<polyline points="{path}" fill="none" stroke="#000" stroke-width="1.3" marker-end="url(#head)"/>')
        parts = list(zip(points, points[1:]))
        (ax, ay), (bx, by) = max(parts, key=lambda part: abs(part[0][0] - part[1][0]) + abs(part[0][1] - part[1][1]))
        for number, line in enumerate(words):
            height = (ay + by) / 2 + 4 + 15 * (number - (len(words) - 1) / 2)
            for around in (' stroke="#fff" stroke-width="5"', ""):
                self.shapes.append(f'<text x="{(ax + bx) / 2:g}" y="{height:g}" text-anchor="middle" font-size="12"{around}>{escape(line)}</text>')

    def svg(self):
        head = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}" '
                'font-family="sans-serif" font-size="13" role="img">', f"<title>{escape(self.title)}</title>",
                '<rect width="100%" height="100%" fill="#fff"/>',
                '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto"><path d="M0,0L10,5L0,10z"/></marker>',
                f'<text x="20" y="26" font-weight="bold">{escape(self.title)}</text>']
        return "\n".join([*head, *self.shapes, "</svg>", ""])


HELD = "#e6f2e6"


def request():
    it = Drawing("The states of a request", 1250, 376, 340, 120, (190, 64))
    it.put("asked", 0, 1, "RLOCK.ACQUIRE")
    it.put("waiting", 1, 0, "BLOCK, TELL or QUEUE")
    it.put("turn", 2, 0, "reserved: ticket, group")
    it.put("withdrawn", 3, 0, "nil or an error")
    it.put("pending", 2, 1, "held, not reported", fill=HELD)
    it.put("confirmed", 3, 1, "held, and reported", fill=HELD)
    it.put("refused", 0, 2, "nil or an error")
    it.put("revoked", 2, 2, "-NOACKS, or no reply")
    it.put("ended", 3, 2, "others get the lock")
    it.join("asked", "top", "waiting", "left", "must wait")
    it.join("asked", "bottom", "refused", "top", "may not wait")
    it.join("waiting", "top", "withdrawn", "top", "its time is up, CANCEL, -DEADLOCK, nobody listens", bend=38)
    it.join("waiting", "right", "turn", "left", "turn comes")
    it.join("turn", "right", "withdrawn", "left", "the same")
    it.join("waiting", "bottom", "pending", "left", "granted")
    it.join("turn", "bottom", "pending", "top", "granted")
    it.join("asked", "right", "pending", "left")
    it.join("pending", "right", "confirmed", "left", "n replicas have it", "(at once without ACKS)")
    it.join("pending", "bottom", "revoked", "top", "too late, or the connection closed")
    it.join("confirmed", "bottom", "ended", "top", "released, expired, forced")
    return it


# The questions of the chart, from top to bottom: what to look at, and the section to read if the answer is yes.
QUESTIONS = [
    (("Does the server answer?", "RLOCK.QUEUES"), "no", "A server does not answer"),
    (("unknown command?",), "yes", "A server without the module"),
    (("-NOREPLICAS or -NOACKS?",), "yes", "Too few replicas"),
    (("rlock_gate_shut:1, -MISCONF, -OOM?", "INFO rlock"), "yes", "The gate is shut"),
    (("-DEADLOCK?", "RLOCK.SLOWLOG GET -1"), "yes", "A wait would have caused a deadlock"),
    (("-NOTHELD, or a session closed?", "RLOCK.SLOWLOG GET -1"), "yes", "A hold was lost"),
    (("Same token twice, a long wait?", "RLOCK.QUEUES, RLOCK.INFO key"), "yes", "A lock is stuck"),
    (("Tokens change, the queue is long?", "RLOCK.INFO key"), "yes", "A queue grows"),
]


def runbook():
    it = Drawing("Something is wrong with a lock: where to look, from top to bottom", 750, 64 + 76 * len(QUESTIONS), 400, 76, (310, 52))
    for row, ((question, *look), answer, section) in enumerate(QUESTIONS):
        it.put(question, 0, row, *look)
        it.put(section, 1, row, fill="#f3ead6")
        it.join(question, "right", section, "left", answer)
        if row:
            it.join(QUESTIONS[row - 1][0][0], "bottom", question, "top")
    return it


DRAWINGS = {"request.svg": request, "runbook.svg": runbook}


def wrong() -> list[str]:
    """Where the files or the page differ from this script."""
    page = (PICTURES.parent / "runbook.md").read_text()
    sections = [section for _, _, section in QUESTIONS if f"\n## {section}\n" not in page]
    stale = [name for name, draw in DRAWINGS.items() if (PICTURES / name).read_text() != draw().svg()]
    return [f"docs/runbook.md: the chart leads to {section!r}, which is no section" for section in sections] + \
        [f"docs/pictures/{name}: scripts/diagrams.py draws something else: run it" for name in stale]


if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (PICTURES / name).write_text(draw().svg())
        print(f"ok {name}")
