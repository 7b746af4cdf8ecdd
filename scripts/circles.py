#!/usr/bin/env python3
"""Finds files that import each other in a circle, in each Rust crate, in the Python and in the Node package. There must
be none.

A module may use the modules inside it, and they may use it. The root of a crate does not count: it declares everything.
"""

import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUST = ["src", "core/src", "engine/src", "simulation/src", "testkit/src", "bench/src", "clients/rust/src", "clients/cli/src"]

USE = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?use ([^;]+);", re.M)

Name = tuple[str, ...]
Arrows = dict[Name, set[Name]]


def without_comments(path: pathlib.Path) -> str:
    return re.sub(r"//.*", "", path.read_text().split("#[cfg(test)]\nmod")[0])


def paths_of(use: str) -> list[Name]:
    """The paths that `a::{b, c::{d, e}}` stands for."""
    head, brace, rest = use.partition("{")
    start = tuple(word for word in head.split("::") if word)
    if not brace:
        return [start]
    parts, depth = [""], 0
    for letter in rest[: rest.rindex("}")]:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [start + path for part in parts if part for path in paths_of(part)]


class Crate:
    def __init__(self, folder: str):
        self.files: dict[Name, str] = {}
        for path in (ROOT / folder).rglob("*.rs"):
            name = path.relative_to(ROOT / folder).with_suffix("").parts
            name = name[:-1] if name[-1] == "mod" else name
            self.files[() if name in {("lib",), ("main",)} else name] = without_comments(path)
        # An item that a file re-exports belongs to the file that it comes from.
        self.exports = {
            (*file, path[-1]): (file, path)
            for file, code in self.files.items()
            for use in re.findall(r"^\s*pub(?:\([^)]*\))? use ([^;]+);", code, re.M)
            for path in paths_of(re.sub(r"\s", "", use))
        }

    def absolute(self, file: Name, path: Name) -> Name | None:
        if path[0] == "crate":
            return path[1:]
        if path[0] in {"self", "super"}:
            base = file
            for word in path:
                base = base[:-1] if word == "super" else base
            return base + tuple(word for word in path if word not in {"self", "super"})
        return (*file, *path) if (*file, path[0]) in self.files else None

    def home(self, file: Name, path: Name) -> Name | None:
        """The file that contains what a path names."""
        full = self.absolute(file, path)
        for _ in range(5):
            if full is None:
                return None
            end = next(end for end in range(len(full), -1, -1) if full[:end] in self.files)
            again = self.exports.get(full[: end + 1]) if end < len(full) else None
            if again is None:
                return full[:end]
            full, rest = self.absolute(*again), full[end + 1 :]
            full = full and full + rest
        return None

    def arrows(self) -> Arrows:
        found: Arrows = {}
        for file, code in self.files.items():
            paths = [path for use in USE.findall(code) for path in paths_of(re.sub(r"\s", "", use))]
            paths += [tuple(path.split("::")) for path in re.findall(r"\b[a-z_]\w*(?:::\w+)+", USE.sub("", code))]
            homes = {self.home(file, path) for path in paths if path}
            found[file] = {home for home in homes if home is not None and not related(home, file)}
        return found


def related(one: Name, other: Name) -> bool:
    """Whether the two are the same, or one of them is inside the other."""
    return one == other[: len(one)] or other == one[: len(other)]


def python(folder: str) -> Arrows:
    files = {path.relative_to(ROOT / folder).with_suffix("").parts: path.read_text() for path in (ROOT / folder).rglob("*.py")}
    found: Arrows = {}
    for file, code in files.items():
        code = re.sub(r"if TYPE_CHECKING:\n(?:    .*\n)+", "", code)
        homes: set[Name] = set()
        for dots, path, names in re.findall(r"^\s*from (\.+)([\w.]*) import (\([^)]*\)|[^\n]*)", code, re.M):
            beside = (*file[: len(file) - len(dots)], *path.split(".")) if path else file[: len(file) - len(dots)]
            homes |= {place for place in (beside, *((*beside, name) for name in re.findall(r"\w+", names))) if place in files}
            if (*beside, "__init__") in files and path:
                homes.add((*beside, "__init__"))
        found[file] = homes - {file}
    return found


def node(folder: str) -> Arrows:
    found: Arrows = {}
    for path in (ROOT / folder).rglob("*.ts"):
        beside = path.parent.relative_to(ROOT / folder)
        named = re.findall(r"(?:from|import) ['\"](\.[^'\"]+)['\"]", path.read_text())
        homes = {os.path.splitext(os.path.normpath(beside / name))[0] for name in named}
        found[(str(path.relative_to(ROOT / folder).with_suffix("")),)] = {(home,) for home in homes}
    return found


def circles(arrows: Arrows) -> list[list[Name]]:
    def reached(start: Name) -> set[Name]:
        seen: set[Name] = set()
        todo = [start]
        while todo:
            new = arrows.get(todo.pop(), set()) - seen
            seen |= new
            todo += new
        return seen

    reach = {file: reached(file) for file in arrows}
    each = {frozenset(other for other in reach[file] if file in reach.get(other, ())) for file in arrows if file in reach[file]}
    return sorted(sorted(circle) for circle in each)


def main() -> int:
    all_arrows = {folder: Crate(folder).arrows() for folder in RUST}
    all_arrows["clients/python/src/rlock"] = python("clients/python/src/rlock")
    all_arrows["clients/node/src"] = node("clients/node/src")
    wrong = []
    for folder, arrows in all_arrows.items():
        found = circles(arrows)
        wrong += [f"{folder}: {', '.join('/'.join(file) for file in circle)} import each other in a circle" for circle in found]
        if sum(map(len, arrows.values())) < len(arrows) // 2:
            wrong.append(f"{folder}: hardly an import was found")
    print("\n".join(wrong) or "circles: no files import each other in a circle")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
