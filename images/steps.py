"""Executes the steps of a Dockerfile without Docker: in copies of a system's folder, with chroot. Needs root, on Linux.

    steps.py BASE RESULT DOCKERFILE CONTEXT [NAME=VALUE...]

BASE stands for the image that the file begins FROM. The last stage becomes RESULT, and its command is printed. The
script supports FROM, ARG, COPY, RUN and CMD as images/Dockerfile uses them; anything else makes it fail, so that no
step is skipped.
"""

import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys

from dockerfile_parse import DockerfileParser


def main(base: str, result: str, dockerfile: str, context: str, *given: str) -> None:
    values = dict(pair.split("=", 1) for pair in given)
    stages: dict[str, pathlib.Path] = {}
    root, arguments, command = None, {}, None
    parser = DockerfileParser(fileobj=open(dockerfile, "rb"))
    for step in parser.structure:
        word, rest = step["instruction"], step["value"]
        if word == "COMMENT":
            continue
        print(f"{word} {rest[:90]}", flush=True)
        if word == "FROM":
            name = rest.split(" AS ")[1] if " AS " in rest else "last"
            root = stages[name] = pathlib.Path(f"{result}.{name}")
            # Each stage has a copy of its own, as with the layers of an image.
            shutil.rmtree(root, ignore_errors=True)
            subprocess.run(["cp", "-a", base, root], check=True)
            arguments = {}
        elif word == "ARG":
            name, _, default = rest.partition("=")
            arguments[name] = values.get(name, default)
        elif word == "COPY":
            copy(rest.split(), root, stages, pathlib.Path(context))
        elif word == "RUN":
            inside(root, ["/bin/sh", "-c", rest], arguments)
        elif word == "CMD":
            command = json.loads(rest)
        else:
            sys.exit(f"{dockerfile}: {word} is not supported")
    shutil.rmtree(result, ignore_errors=True)
    root.rename(result)
    for stage in stages.values():
        shutil.rmtree(stage, ignore_errors=True)
    print(json.dumps(command))


def copy(words: list[str], root: pathlib.Path, stages: dict, context: pathlib.Path) -> None:
    source = context
    if words[0].startswith("--from="):
        source = stages[words.pop(0).removeprefix("--from=")]
    *patterns, target = words
    into = root / target.lstrip("/")
    into.mkdir(parents=True, exist_ok=True)
    for pattern in patterns:
        found = glob.glob(str(source / pattern.lstrip("/")))
        if not found:
            sys.exit(f"COPY: there is no {pattern}")
        for path in found:
            if os.path.isdir(path):
                subprocess.run(["cp", "-a", f"{path}/.", into], check=True)
            else:
                subprocess.run(["cp", "-a", path, into], check=True)


def inside(root: pathlib.Path, command: list[str], variables: dict) -> None:
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **variables}
    subprocess.run(["chroot", root, *command], check=True, env=environment)


main(*sys.argv[1:])
