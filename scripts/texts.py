#!/usr/bin/env python3
"""Checks what texts repeat: each figure of README.md is in a page that it links to, times are those of the bench, the
version is the same everywhere, the files and Rust functions that texts name exist, comments use a precise verb for who
learns what, diagrams are as drawn, docs/operations.md explains each field of INFO, and no commit's subject is longer
than 72 columns.

Figures below 10 without a decimal point are not checked, and neither is text in code. Names are those between
backticks. tests/server/documented/links.rs checks links and the targets of `make`.
"""

import csv
import fnmatch
import os
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import diagrams

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


def times_not_measured() -> list[str]:
    """The times in µs that are not the rounded median of any measurement on Redis 7.0."""
    rows = csv.reader(line for line in text("bench/results/redis-7.0.csv").splitlines() if not line.startswith("#"))
    medians = [float(row[3]) for row in list(rows)[1:]]
    wrong = []
    for name in ["README.md", "docs/capacity.md"]:
        times = set(re.findall(r"(\d+(?:\.\d+)?) µs", text(name)))
        is_measured = {time: any(f"{median:.{len(time.partition('.')[2])}f}" == time for median in medians) for time in times}
        wrong += [f"{name}: no measurement took {time} µs" for time in sorted(times) if not is_measured[time]]
        if len(times) < 2:
            wrong.append(f"{name}: only {len(times)} times were found")
    return wrong


# Commits before this one are not checked: they are older than the check, and published history is not rewritten.
FIRST_CHECKED = "b1fd863e75000c627f2acbd50e18e601bb59c154"


def long_subjects() -> list[str]:
    """Checks subjects only if this checkout knows its history."""
    words = ["git", "-C", str(ROOT), "log", "--no-merges", "--format=%h %s", f"{FIRST_CHECKED}..HEAD"]
    said = subprocess.run(words, capture_output=True, text=True)
    commits = [line.partition(" ") for line in said.stdout.splitlines()] if said.returncode == 0 else []
    return [f"{commit}: its subject has {len(subject)} columns, not at most 72" for commit, _, subject in commits if len(subject) > 72]


def fields_without_row() -> list[str]:
    """The fields of `INFO rlock` that docs/operations.md does not explain. Of a histogram, the page names only some
    buckets."""
    source, page = text("src/metrics.rs"), text("docs/operations.md")
    names = re.findall(r'^    \w+ = "(\w+)",$|^ +\("(\w+)", \w[\w.]*\),$|\btell\("(\w+)"', source, re.M)
    fields = {f"rlock_{''.join(groups)}" for groups in names}
    rows = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`rlock_[^|]*) \|", page, re.M))))
    wrong = [f"docs/operations.md: its table lacks the field {field}" for field in sorted(fields - rows)]
    if len(fields) < 30:
        wrong.append(f"src/metrics.rs: only {len(fields)} fields of INFO were found")
    return wrong


def number(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def versions() -> list[str]:
    version = re.search(r'^version = "([^"]+)"', text("Cargo.toml"), re.M).group(1)
    major, minor, patch = number(version)
    said = {
        "CHANGELOG.md": r"\A(?:(?!^## ).*\n)*## ([0-9.]+)",
        "clients/cli/Cargo.toml": r'^rlock-client = .*version = "([^"]+)"',
        "clients/node/package.json": r'"version": "([^"]+)"',
        "clients/go/rlockotel/go.mod": r"rlock v([0-9.]+)$",
        "clients/go/README.md": r"rlock\S*@v([0-9.]+)",
        "images/Dockerfile": r"(?:^ARG VERSION=|-t rlock:)([0-9.]*[0-9])",
        "images/compose.yaml": r"rlock:([0-9.]*[0-9])-",
        "images/kubernetes.yaml": r"rlock:([0-9.]*[0-9])-",
        "images/kubernetes-ha.yaml": r"rlock:([0-9.]*[0-9])-",
        "docs/platforms.md": r"docker run rlock:([0-9.]*[0-9])-",
    }
    poms = [pom for pom in (ROOT / "clients/java").rglob("pom.xml") if "target" not in pom.parts]
    others = ["examples/java/pom.xml", "examples/java/spring/pom.xml", "clients/java/README.md", "docs/coming-from/redisson.md"]
    for name in [*(str(pom.relative_to(ROOT)) for pom in poms), *others]:
        said[name] = r"<artifactId>rlock-[^<]*</artifactId>\s*[+]?\s*<version>([^<$]+)<"
    wrong = []
    for name, pattern in said.items():
        found = re.findall(pattern, text(name), re.M)
        others = sorted({one for one in found if one != version}) or ["no version"]
        if not found or others != ["no version"]:
            wrong.append(f"{name}: {', '.join(others)}, and Cargo.toml has {version}")
    listed = re.search(r"^const VERSION: .* = (\d+);", text("src/lib.rs"), re.M).group(1)
    if int(listed) != major * 10000 + minor * 100 + patch:
        wrong.append(f"src/lib.rs: MODULE LIST shows {listed}, and Cargo.toml has {version}")
    return wrong


def tracked() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [name for name in listed if (ROOT / name).is_file()]


def unmerged() -> list[str]:
    """Lines that git wrote where two changes met, and that were committed by mistake."""
    mark = re.compile(rb"^(?:<{7}|>{7}) ", re.M)
    return [f"{name}: it has the marks of a merge" for name in tracked() if mark.search((ROOT / name).read_bytes())]


def names_of_nothing() -> list[str]:
    """Names in texts of files or Rust functions that were moved or renamed."""
    files = tracked()
    folders = {str(parent) for name in files for parent in pathlib.PurePath(name).parents} - {"."}
    places = {*files, *folders}
    # A text may name a file or folder by the end of its path, such as `gate.rs` or `support/naive`.
    ends = {"/".join(parts[start:]) for parts in (place.split("/") for place in places) for start in range(len(parts))}
    rust = "\n".join(text(name) for name in files if name.endswith(".rs"))
    words = set(re.findall(r"\w+", re.sub(r"//.*", "", rust)))
    tops = "|".join(sorted({re.escape(place.split("/")[0]) for place in folders}))
    is_file = re.compile(rf"(?:{tops})/[\w.*/-]*|[\w-][\w./-]*\.(?:rs|sh|py)")
    wrong, seen = [], 0
    for page in files:
        # The changelog names files that existed at its time.
        if page == "CHANGELOG.md" or not page.endswith((".md", ".rs", ".sh", ".py")):
            continue
        own = text(page) if page.endswith(".md") else "\n".join(re.findall(r"(?://|#).*", text(page)))
        for name in set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```|^    \S[^\n]*$", " ", own, flags=re.S | re.M))):
            path = name.rstrip("/")
            if is_file.fullmatch(name) and "NAME" not in name:
                seen += 1
                beside = os.path.normpath(os.path.join(os.path.dirname(page), path))
                is_there = path in ends or beside in places or ("*" in path and fnmatch.filter(files, path))
            elif page.endswith(".md") and re.fullmatch(r"\w+(?:::\w+)+", name):
                seen += 1
                is_there = name.split("::")[-1] in words
            else:
                continue
            if not is_there:
                wrong.append(f"{page}: `{name}` is nowhere")
    if seen < 100:
        wrong.append(f"only {seen} names of files and functions were found")
    return wrong


# A comment says who learns what, and whether from a reply, a message or an event. Of 1000 lines of comments, at most
# this many may use a word that leaves this out.
TOLD_MAX = 3
# Folders whose comments have more, and how many such lines they have. These numbers may only fall.
TOLD_STILL = {"core": 81, "engine": 43}
SLASHES = re.compile(r"(?<![:\w\"'`])//.*|^\s*\*\s.*|/\*.*", re.M)
HASHES = re.compile(r'(?:^|\s)#[: ].*|"""(?:.|\n)*?"""', re.M)


def told_in_comments() -> list[str]:
    """`TELL` is allowed in capitals or between backticks, where it is the name of an option."""
    lines, told = {}, {}
    for name in tracked():
        kind = pathlib.PurePath(name).suffix
        if kind not in {".rs", ".go", ".java", ".ts", ".py", ".sh"}:
            continue
        parts = name.split("/")
        room = "/".join(parts[:2]) if parts[0] == "clients" else parts[0]
        comments = (HASHES if kind in {".py", ".sh"} else SLASHES).findall(text(name))
        comments = [line for comment in comments for line in comment.split("\n")]
        found = [line for line in comments if re.search(r"(?<![-\w])(?:[Tt]old|[Tt]ells?)\b", re.sub(r"`[^`]*`", "", line))]
        lines[room], told[room] = lines.get(room, 0) + len(comments), told.get(room, []) + found
    wrong = []
    for room, found in told.items():
        most = TOLD_STILL.get(room, lines[room] * TOLD_MAX // 1000)
        if len(found) > most:
            wrong += [f"{room}: {len(found)} comments have told or tell(s), not at most {most}:", *found]
    if sum(lines.values()) < 8000:
        wrong.append(f"only {sum(lines.values())} lines of comments were found")
    return wrong


def main() -> int:
    wrong = figures_without_source() + times_not_measured() + versions() + unmerged() + long_subjects() + names_of_nothing() + fields_without_row() + told_in_comments() + diagrams.wrong()
    print("\n".join(wrong) or "texts: each figure has its source, the version is one, what is named exists, comments are precise, and diagrams as drawn")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
