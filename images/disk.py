"""Fills the disk of the primary in the set of a compose or a Kubernetes file, with real servers and Sentinels and with
images/node.sh, and measures for how long no lock is granted.

    disk.py SERVER-FOLDER MODULE FILE WORK-FOLDER

Before that, it does the same to a single server, with `appendfsync always` and with `everysec`.

The primary's volume is a file system of 64 MiB. Members that end are started again as Docker does: after 100 ms at
first, and then after twice as long each time, until one has run for ten seconds. Needs root, Linux and iproute2.
"""

import pathlib
import subprocess
import sys
import threading
import time

from members import Member, Members, connect_inside, inside, until

LIMIT = 12


def alone(folder: pathlib.Path, server: pathlib.Path, module: pathlib.Path, policy: str) -> str:
    """Fills the disk of a single server, and checks what the runbook says about it."""
    volume = folder / policy
    volume.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", volume], check=True)
    words = [server / "redis-server", "--port", "6379", "--appendonly", "yes", "--appendfsync", policy, "--save", "", "--dir", volume, "--loadmodule", module]
    with open(folder / f"{policy}.log", "w") as log:
        process = subprocess.Popen(list(map(str, words)), stdout=log, stderr=log)
    cli = [server / "redis-cli", "-e"]
    until("it runs", lambda: subprocess.run([*cli, "ping"], capture_output=True).returncode == 0)
    subprocess.run(["dd", "if=/dev/zero", f"of={volume / 'fill'}", "bs=4096"], stderr=subprocess.DEVNULL)
    said = []

    def is_over() -> bool:
        reply = subprocess.run([*cli, "rlock.acquire", f"lock:{len(said)}", "owner"], capture_output=True, text=True)
        said.append(reply.stdout + reply.stderr)
        return process.poll() is not None or "MISCONF" in said[-1]

    until("it ends or refuses", is_over)
    ended = process.poll() is not None
    process.kill()
    process.wait()
    why = "Can't recover from AOF write error when the AOF fsync policy is 'always'. Exiting"
    if ended != (policy == "always") or ended != (why in (folder / f"{policy}.log").read_text()):
        sys.exit(f"FAILED: appendfsync {policy}: ended {ended}, {said[-1]}")
    return f"appendfsync {policy}: {'it ends' if ended else '-MISCONF'} after {len(said)} requests"


def keep(member: Member, ends: list[str], stop: threading.Event) -> None:
    delay = 0.1
    while not stop.is_set():
        started = time.monotonic()
        member.start()
        while member.process.poll() is None and not stop.is_set():
            time.sleep(0.02)
        if stop.is_set():
            return
        lasted = time.monotonic() - started
        ends.append(f"{member.name} ended after {lasted:.1f} s")
        delay = 0.1 if lasted > 10 else delay
        stop.wait(delay)
        delay *= 2


def play(set_: Members) -> str:
    stop, ends = threading.Event(), []
    primary = set_.servers[0]
    primary.data.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", primary.data], check=True)
    keepers = [threading.Thread(target=keep, args=(one, ends, stop)) for one in set_.servers]
    try:
        for one in [*keepers, *set_.sentinels]:
            one.start()
        until("the first start", set_.is_whole, members=set_)
        token = set_.grants("app:kept", "ann")
        fill = primary.data / "fill"
        subprocess.run(["dd", "if=/dev/zero", f"of={fill}", "bs=4096"], stderr=subprocess.DEVNULL)
        began = last = time.monotonic()
        longest, grants = 0.0, 0
        while time.monotonic() - began < 75:
            if set_.grants(f"app:{grants}", "ben") is not None:
                grants += 1
                longest = max(longest, time.monotonic() - last)
                last = time.monotonic()
            time.sleep(0.01)
        longest = max(longest, time.monotonic() - last)
        taken_over = set_.primary()
        held = taken_over is not None and taken_over.ask("rlock.check", "app:kept", token) == 1
        waits = [line for line in primary.log.read_text().splitlines() if "has no room" in line]
        fill.unlink()
        until("the old primary is back", set_.is_whole, members=set_)
        said = f"{grants} grants, longest pause {longest:.1f} s; " + ", ".join(ends)
        if not (held and waits and longest < LIMIT and taken_over is not primary):
            sys.exit(f"FAILED: held {held}, {waits}, {said}")
        return f"{said}; {taken_over.name} took over; with room again, {primary.name} follows"
    finally:
        stop.set()
        for one in keepers:
            one.join()
        set_.kill_all()


def main(server: str, module: str, file: str, work: str, where: str = "") -> None:
    if where != "inside":
        sys.exit(subprocess.run(inside(server, module, file, work, "inside")).returncode)
    folder = pathlib.Path(work).resolve()
    connect_inside(folder, folder)
    binaries, library = pathlib.Path(server).resolve(), pathlib.Path(module).resolve()
    for policy in ("always", "everysec"):
        print(alone(folder, binaries, library, policy), flush=True)
    print(play(Members(file, folder, binaries, library)), flush=True)


main(*sys.argv[1:])
