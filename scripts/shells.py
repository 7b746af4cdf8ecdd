#!/usr/bin/env python3
"""Executes the `shell` blocks of pages, each page in an empty folder of its own: shells.py PAGE...

A line that begins with "$ " is a command for bash; if a line ends with a backslash, the next one belongs to it. The
lines up to the next command are the expected output. There, "…" stands for any text. A number of 13 digits or more (a
token, a time) stands for any such number, but equal numbers must stay equal, and a greater one must stay greater. Ports
from 6379 to 6399 are replaced by free ones. $RLOCK_SERVER, $RLOCK_CLI, $RLOCK_MODULE and $RLOCK name `redis-server`,
`redis-cli`, the module and `rlock`.
"""

import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile

END = "--this-was-it--"
LONG = re.compile(r"(?<![\w.])\d{13,}(?!\w)")


def blocks(page):
    for found in re.finditer(r"^```shell\n(.*?)^```", page, re.M | re.S):
        command, printed = None, []
        for line in found[1].splitlines():
            if command is not None and command.endswith("\\"):
                command += "\n" + line
            elif line.startswith("$ "):
                if command is not None:
                    yield command, printed
                command, printed = line[2:], []
            else:
                printed.append(line)
        yield command, printed


class Shell:
    def __init__(self, folder):
        programs = pathlib.Path(folder, ".programs")
        programs.mkdir()
        for name, variable in (("redis-server", "RLOCK_SERVER"), ("redis-cli", "RLOCK_CLI"), ("rlock", "RLOCK")):
            if variable in os.environ:
                (programs / name).write_text(f'#!/bin/sh\nexec "{os.environ[variable]}" "$@"\n')
                (programs / name).chmod(0o755)
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
        self.process = subprocess.Popen(["bash", "--norc"], cwd=folder, env=environment, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, command):
        self.process.stdin.write(f"{command}\necho {END}\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            if line == f"{END}\n":
                return lines
            lines.append(line.rstrip())
        return [*lines, "(the shell has ended)"]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def is_like(printed, said, numbers):
    pattern = "".join(".*" if part == "…" else re.escape(part) if not LONG.fullmatch(part) else r"(\d{13,})"
                      for part in re.split(r"(…|(?<![\w.])\d{13,}(?!\w))", printed))
    found = re.fullmatch(pattern, said)
    if not found:
        return False
    for wanted, got in zip(LONG.findall(printed), found.groups()):
        if numbers.setdefault(int(wanted), int(got)) != int(got):
            return False
    return [numbers[key] for key in sorted(numbers)] == sorted(numbers.values())


def play(name):
    ports, numbers, count = {}, {}, 0
    page = re.sub(r"\b63[789]\d\b", lambda found: ports.setdefault(found[0], free_port()), pathlib.Path(name).read_text())
    with tempfile.TemporaryDirectory() as folder:
        shell = Shell(folder)
        try:
            for command, printed in blocks(page):
                said, count = shell.run(command), count + 1
                same = len(printed) == len(said) and all(is_like(one, other, numbers) for one, other in zip(printed, said))
                if not same:
                    sys.exit("\n".join([f"{name}: not as printed: {command}", *(f"  printed: {one}" for one in printed), *(f"  said:    {one}" for one in said)]))
        finally:
            for port in ports.values():
                for words in ([], ["--tls", "--insecure", "--cert", "client.crt", "--key", "client.key"]):
                    stop = ["bash", "-c", 'exec "$0" "$@" shutdown nosave', str(pathlib.Path(folder, ".programs/redis-cli")), "-p", port, *words]
                    subprocess.run(stop, cwd=folder, capture_output=True, timeout=20)
            shell.process.stdin.close()
            shell.process.wait(20)
    assert count, f"{name} has no shell block"
    print(f"ok {name}: {count} commands")


for page in sys.argv[1:]:
    play(page)
