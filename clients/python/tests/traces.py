"""The traces that the Rust machine wrote in the simulation: this machine must give the same outputs. `traces.py FILE…`"""

import sys

from rlock._machine import Attempt, Holding, Release
from rlock._machine.words import FOREVER


def number(text):
    return FOREVER if text == "forever" else int(text) if text.isdecimal() else text


def told(words):
    """An input."""
    match words:
        case ["seat", _, *depth]:
            return "seat", number(depth[0]) if depth else None
        case ["ended"]:
            return ("untied",)
    return tuple(number(word) for word in words)


def said(output):
    """An output in the format of a trace."""
    match output:
        case ("own", block, session, depth, _):
            words = ["own acquire", *[f"block={block}"] * (block is not None), *["session"] * session, *[f"depth={depth}"] * (depth is not None)]
        case ("send", ("acquire", block), _):
            words = ["send acquire", *[f"block={block}"] * (block is not None)]
        case ("send", request, _):
            words = ["send", *request]
        case ("tell", ("granted", token, sent, lingers)):
            return f"tell granted {token} sent={sent}" + " lingers=1" * lingers
        case ("tell", tell):
            return " ".join(("tell", *tell))
        case (name, *_):
            words = [name]
    by = [f"by={'forever' if output[-1] == FOREVER else output[-1]}"] if len(output) > 1 else []
    return " ".join(str(word) for word in [*words, *by])


NAMES = {"acks": "has_acks"}


def begun(kind, pairs):
    """The machine of a first line."""
    value = {NAMES.get(name, name): number(text) for name, text in (pair.split("=") for pair in pairs)}
    if kind == "hold":
        value.pop("session")
    return {"attempt": Attempt, "release": Release, "hold": Holding}[kind](**value)


def replay(path):
    """The number of traces."""
    machine, title, count = None, "", 0
    with open(path) as file:
        for line in file:
            match line.split():
                case ["trace", _, kind, *pairs]:
                    machine, title = begun(kind, pairs), line
                    count += 1
                case [at, *words] if "->" in words:
                    words = words[: words.index("->")]
                    answer = "; ".join(map(said, machine.step(int(at), told(words)))) or "-"
                    expected = line.strip().partition(" -> ")[2]
                    assert answer == expected, f"{title}{line}answered: {answer}"
    assert count, f"no traces in {path}"
    return count


print(sum(map(replay, sys.argv[1:])), "traces")
