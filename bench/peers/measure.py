"""Times one piece of work of one peer and prints the result as one line of JSON.

    measure.py --peer NAME --work WORK [--threads N] [--processes P] [--warm-up S] [--note TEXT]
               [--load PERCENT] -- WORKER...

Starts `WORKER... WORK N SECONDS` P times; each worker finds the name of the lock in PEER_KEY. A worker
connects, prints `ready`, waits for the end of its standard input, prints `started NS` and works for
SECONDS with N contenders. Then it prints one line for each time that a contender held the lock, and
ends without waiting for contenders that are still waiting:

    CONTENDER ACQUIRED RELEASING

ACQUIRED is the moment at which the acquire returned, RELEASING the moment just before the release was
called. Both are in nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share. ACQUIRED is
0 if the client gave up.

The work `arrivals` is different. Jobs are due at random moments, which the file PEER_ARRIVALS lists in
nanoseconds after the start, and each job holds the lock for PEER_HOLD_NS. The moments are chosen so that
a lock that is handed over in no time would be held for PERCENT of the time. A free contender takes the
next job. After SECONDS the worker finishes the jobs that have arrived, for at most PEER_DRAIN_SECONDS.
Each of its lines has a fourth number: the moment at which the job was due, even if the worker was late.
All peers get the same moments. A job fails if the client gives it up, or if it is still waiting at the
end; in the latter case its wait up to the end counts.
The peer PERFECT has no worker: it is a computed queue without any delay.

All figures of a work are derived here from these lines, in the same way for every peer. Two exclusive
holds that overlap are an error, because then the lock did not work.
"""

import argparse
import ctypes
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import uuid
from collections import Counter, namedtuple

WORKS = {
    "free": "free pair",
    "contended": "contended",
    "hand-off": "hand-off",
    "shared": "shared",
    "arrivals": "arrivals",
}
# How long a job works while it holds the lock.
HOLD_NS = 5_000_000
PERFECT = "a queue without any delay (computed)"
# The gaps between jobs are the same for all peers and, apart from their scale, for all loads.
SEED = 1
# A worker that has not ended this long after its time is considered hung. This includes its start on a busy machine.
PATIENCE_SECONDS = 180
# With fewer hand-offs than this, the 99th percentile would just be the largest value.
ENOUGH_FOR_P99 = 100
# If a client wants a lock and nobody gets it for this long, the note says so. No peer polls less often than that.
SILENCE_SECONDS = 1

Grant = namedtuple("Grant", "contender acquired releasing")
Job = namedtuple("Job", "arrived acquired releasing")


class Failed(Exception):
    """The work was not done, or not in the way that the peer promises."""


def main():
    args = parse(sys.argv[1:])
    seconds = float(os.environ.get("PEER_SECONDS", "3"))
    try:
        if args.work == "arrivals":
            sleep_exactly()
            return print_line(args, waits_of(args, seconds))
        outputs = run(args, args.warm_up + seconds)
        started, grants, refused = read(outputs)
        begin = max(started) + int(args.warm_up * 1e9)
        figures = summary(
            grants,
            refused,
            window=(begin, begin + int(seconds * 1e9)),
            contenders=args.threads * args.processes,
            exclusive=args.work != "shared",
        )
    except Failed as reason:
        sys.exit(f"{args.peer}, {args.work}: {reason}")
    print_line(args, figures)


def print_line(args, figures):
    note = "; ".join(part for part in (args.note, figures.pop("note")) if part)
    print(
        json.dumps(
            {
                "peer": args.peer,
                "on_disk": os.environ.get("PEER_ON_DISK") == "1",
                "work": WORKS[args.work],
                "threads": args.threads,
                "processes": args.processes,
                **figures,
                "note": note,
            }
        ),
        flush=True,
    )


def parse(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", required=True)
    parser.add_argument("--work", required=True, choices=WORKS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--warm-up", type=float, default=0.5)
    parser.add_argument("--note", default="")
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("worker", nargs="*")
    return parser.parse_args(argv)


def arrivals(load, seconds):
    """The moments at which jobs are due, in nanoseconds: a Poisson process whose jobs hold the lock for `load` % of the
    time."""
    gaps, moments, at = random.Random(SEED), [], 0.0
    while True:
        at += gaps.expovariate(load / 100 / (HOLD_NS / 1e9))
        if at >= seconds:
            return moments
        moments.append(int(at * 1e9))


def perfect(moments):
    """The jobs as a queue would serve them that hands the lock over in no time."""
    jobs, free = [], 0
    for moment in moments:
        acquired = max(moment, free)
        free = acquired + HOLD_NS
        jobs.append(Job(moment, acquired, free))
    return jobs


def waits_of(args, seconds):
    """The figures of the work `arrivals` with one process. Jobs that are due during the warm-up do not count."""
    moments = arrivals(args.load, args.warm_up + seconds)
    warm = int(args.warm_up * 1e9)
    if args.peer == PERFECT:
        return {"load": args.load, **waiting(perfect(moments), warm, moments, args.threads)}
    with tempfile.NamedTemporaryFile("w", prefix="arrivals-") as file:
        file.write("\n".join(map(str, moments)))
        file.flush()
        [output] = run(
            args,
            args.warm_up + seconds,
            {
                "PEER_ARRIVALS": file.name,
                "PEER_HOLD_NS": str(HOLD_NS),
                # A lock that cannot keep up need not be watched for longer than this.
                "PEER_DRAIN_SECONDS": str(seconds / 2),
            },
        )
    first, *lines = output.splitlines()
    started = int(first.removeprefix("started "))
    jobs = []
    for line in lines:
        _, acquired, releasing, arrived = map(int, line.split())
        jobs.append(Job(arrived, acquired, releasing))
    return {"load": args.load, **waiting(jobs, started + warm, [started + at for at in moments], args.threads)}


def waiting(jobs, begin, moments, contenders):
    """How long those jobs waited that were due from `begin` on. `moments` are those of all jobs."""
    served = sorted((job for job in jobs if job.acquired), key=lambda job: job.acquired)
    for before, after in zip(served, served[1:]):
        if after.acquired < before.releasing:
            raise Failed(f"two held the lock at once: {before} and {after}")
    inside = [job for job in served if job.arrived >= begin]
    if not jobs:
        raise Failed("no job was served")
    counted = [moment for moment in moments if moment >= begin]
    # No two jobs are due at the same nanosecond.
    end = max(job.releasing for job in jobs)
    unserved = sorted(set(counted) - {job.arrived for job in jobs})
    waits = [(job.acquired - job.arrived) / 1e6 for job in inside]
    waits += [(end - moment) / 1e6 for moment in unserved]
    overtaken, latest = 0, 0
    for job in served:  # in the order in which they got the lock
        if job.arrived >= begin:
            overtaken += job.arrived < latest
        latest = max(latest, job.arrived)
    gave_up = len(counted) - len(inside) - len(unserved)
    notes = []
    if unserved:
        notes.append(f"{len(unserved)} jobs still waited at the end")
    if (peak := most_at_once(jobs, moments, end)) > contenders:
        notes.append(f"up to {peak} jobs had arrived and were not done, more than the contenders")
    return {
        "jobs": len(counted),
        "wait_p50_ms": percentile(waits, 50),
        "wait_p99_ms": percentile(waits, 99),
        "wait_max_ms": round(max(waits), 1),
        # If this is not 0, the percentiles are lower bounds.
        "still_waiting_percent": round(100 * len(unserved) / len(counted), 2),
        "failed_percent": round(100 * (gave_up + len(unserved)) / len(counted), 2),
        "overtaken_percent": round(100 * overtaken / len(inside), 2) if inside else None,
        "held_ms": round(sum(job.releasing - job.acquired for job in inside) / len(inside) / 1e6, 2) if inside else None,
        "note": "; ".join(notes),
    }


def most_at_once(jobs, moments, end):
    """The greatest number of jobs that were due and not done at the same time."""
    done = {job.arrived: job.releasing for job in jobs}
    changes = sorted([(moment, 1) for moment in moments] + [(done.get(moment, end), -1) for moment in moments])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def sleep_exactly():
    """Makes the sleeps of the workers end on time. By default Linux lets them end up to 50 µs later, to save wake-ups.
    Child processes inherit the setting."""
    set_timer_slack, nanosecond = 29, 1
    ctypes.CDLL(None).prctl(set_timer_slack, nanosecond)


def run(args, seconds, more=None):
    """The output of each worker. All workers start together, once the last of them is ready."""
    command = [*args.worker, args.work, str(args.threads), str(seconds)]
    # The lock has a new name, so that nothing left behind by an earlier worker is in the way.
    environment = {**os.environ, "PEER_KEY": f"peers:{uuid.uuid4()}", **(more or {})}
    with tempfile.TemporaryFile("w+") as errors:
        workers = [
            subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            for _ in range(args.processes)
        ]
        alarm = threading.Timer(seconds + PATIENCE_SECONDS, lambda: [w.kill() for w in workers])
        alarm.start()
        try:
            if all(worker.stdout.readline() == "ready\n" for worker in workers):
                for worker in workers:
                    worker.stdin.close()
            outputs = [worker.stdout.read() for worker in workers]
            codes = [worker.wait() for worker in workers]
        finally:
            alarm.cancel()
            for worker in workers:
                worker.kill()
        if any(codes):
            errors.seek(0)
            raise Failed(f"workers ended with {codes}: {errors.read()[-2000:]}")
    return outputs


def read(outputs):
    """The moments at which the workers started, all grants in order of time, and the moments of all refusals."""
    started, grants, refused = [], [], []
    for process, output in enumerate(outputs):
        first, *lines = output.splitlines()
        started.append(int(first.removeprefix("started ")))
        for line in lines:
            contender, acquired, releasing = map(int, line.split())
            if acquired:
                grants.append(Grant((process, contender), acquired, releasing))
            else:
                refused.append(releasing)
    return started, sorted(grants, key=lambda grant: grant.acquired), refused


def summary(grants, refused, window, contenders, exclusive):
    """The figures of those grants that are inside the window."""
    begin, end = window
    inside = [grant for grant in grants if begin <= grant.acquired < end]
    hand_offs = []
    for before, after in zip(grants, grants[1:]):
        if exclusive and after.acquired < before.releasing:
            raise Failed(f"two held the lock at once: {before} and {after}")
        if exclusive and before.contender != after.contender and begin <= after.acquired < end:
            hand_offs.append((after.acquired - before.releasing) / 1000)
    shares = Counter(grant.contender for grant in inside)
    notes = []
    if exclusive and contenders > 1:
        notes.append(f"{len(hand_offs)} hand-offs to another in {len(inside)} grants")
    if len(shares) < contenders:
        notes.append(f"{contenders - len(shares)} of {contenders} contenders got nothing")
    moments = [begin, *(grant.acquired for grant in inside), end]
    silence = max(after - before for before, after in zip(moments, moments[1:])) / 1e9
    if silence >= SILENCE_SECONDS:
        notes.append(f"nobody was granted for {silence:.1f} s")
    gave_up = sum(begin <= moment < end for moment in refused)
    if gave_up:
        notes.append(f"gave up {gave_up} times")
    fair = contenders > 1 and len(shares) == contenders
    return {
        "ops_per_s": round(len(inside) / ((end - begin) / 1e9), 1),
        "hand_off_p50_us": percentile(hand_offs, 50) if hand_offs else None,
        "hand_off_p99_us": percentile(hand_offs, 99) if len(hand_offs) >= ENOUGH_FOR_P99 else None,
        "max_min_share": round(max(shares.values()) / min(shares.values()), 2) if fair else None,
        "note": "; ".join(notes),
    }


def percentile(values, percent):
    """The percentile, by nearest rank."""
    return round(sorted(values)[math.ceil(len(values) * percent / 100) - 1], 1)


if __name__ == "__main__":
    main()
