"""The pages (Markdown) that a release publishes, and the files that they link to.

    pages.py closure PATH...    the files below PATH, those that their pages link to, and so on: one path a line
    pages.py check FOLDER       fails if a link of a page below FOLDER leads nowhere
"""

import pathlib
import re
import subprocess
import sys

LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")
FENCED = re.compile(r"^```.*?^```", re.M | re.S)


def links(page: pathlib.Path) -> list[str]:
    prose = FENCED.sub("", page.read_text())
    return [link for link in LINK.findall(prose) if "://" not in link]


def committed(path: str) -> list[str]:
    """The committed files at or below the path."""
    listed = subprocess.run(["git", "ls-files", "-z", "--", path], check=True, capture_output=True, text=True)
    return [name for name in listed.stdout.split("\0") if name]


def closure(paths: list[str]) -> None:
    found: set[str] = set()
    ahead = list(paths)
    root = pathlib.Path.cwd()
    while ahead:
        for name in committed(ahead.pop()):
            if name in found:
                continue
            found.add(name)
            if name.endswith(".md"):
                page = root / name
                ahead.extend(str((page.parent / link).resolve().relative_to(root)) for link in links(page))
    print("\n".join(sorted(found)))


def check(folder: str) -> None:
    pages = sorted(pathlib.Path(folder).rglob("*.md"))
    checked, broken = 0, []
    for page in pages:
        for link in links(page):
            checked += 1
            if not (page.parent / link).exists():
                broken.append(f"{page.relative_to(folder)}: {link}")
    if broken or not checked:
        sys.exit("links that lead nowhere:\n" + "\n".join(broken))
    print(f"{checked} links of {len(pages)} pages lead to what is here")


if sys.argv[1] == "closure":
    closure(sys.argv[2:])
else:
    check(*sys.argv[2:])
