#!/usr/bin/env python3
"""Checks what texts repeat: each figure of README.md is in a page that it links to, and the version is one everywhere.

Figures below 10 without a decimal point are not checked, nor is what stands in code.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Thousands are grouped by spaces: 505 809.
FIGURE = re.compile(r"(?<![\w.-])\d{1,3}(?: \d{3})+(?![\d])|(?<![\w.-])\d+(?:\.\d+)*(?![\w-])")


def text(name: str) -> str:
    return (ROOT / name).read_text()


def figures(page: str) -> set[str]:
    prose = re.sub(r"```.*?```|^    \S[^\n]*$|`[^`]*`|\]\([^)]*\)|<!--.*?-->", " ", page, flags=re.S | re.M)
    found = FIGURE.findall(re.sub(r"\s+", " ", prose))
    return {figure.replace(" ", "") for figure in found if "." in figure or len(figure) > 1}


def figures_without_source() -> list[str]:
    readme = text("README.md")
    linked = {link for link in re.findall(r"\]\(([^)#\s]+\.md)", readme) if (ROOT / link).is_file()}
    sources = set().union(*(figures(text(link)) for link in linked))
    wrong = [f"README.md: {figure} is in no page that it links to" for figure in sorted(figures(readme) - sources)]
    if len(figures(readme)) < 20:
        wrong.append(f"README.md: only {len(figures(readme))} figures were found")
    return wrong


def number(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def versions() -> list[str]:
    version = re.search(r'^version = "([^"]+)"', text("Cargo.toml"), re.M).group(1)
    major, minor, patch = number(version)
    said = {
        "CHANGELOG.md": r"^## ([0-9.]+)",
        "clients/cli/Cargo.toml": r'^rlock-client = .*version = "([^"]+)"',
        "clients/node/package.json": r'"version": "([^"]+)"',
        "images/Dockerfile": r"^ARG VERSION=(\S+)",
    }
    poms = [pom for pom in (ROOT / "clients/java").rglob("pom.xml") if "target" not in pom.parts]
    for pom in [*poms, ROOT / "examples/java/pom.xml", ROOT / "clients/java/README.md"]:
        said[str(pom.relative_to(ROOT))] = r"<artifactId>rlock-[^<]*</artifactId>\s*<version>([^<]+)<"
    wrong = []
    for name, pattern in said.items():
        found = re.findall(pattern, text(name), re.M)
        if not found or found[0] != version:
            wrong.append(f"{name}: {found[0] if found else 'no version'}, and Cargo.toml has {version}")
    listed = re.search(r"^const VERSION: .* = (\d+);", text("src/lib.rs"), re.M).group(1)
    if int(listed) != major * 10000 + minor * 100 + patch:
        wrong.append(f"src/lib.rs: MODULE LIST shows {listed}, and Cargo.toml has {version}")
    for since in re.findall(r'"(\d+\.\d+\.\d+)"', text("core/src/grammar/commands.rs") + text("core/src/grammar/words.rs")):
        if number(since) > number(version):
            wrong.append(f"core/src/grammar: a command is since {since}, and Cargo.toml has {version}")
    return wrong


def main() -> int:
    wrong = figures_without_source() + versions()
    print("\n".join(wrong) or "texts: each figure has its source, and the version is one")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
