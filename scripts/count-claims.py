#!/usr/bin/env python3
"""Counts again what `KEEP=folder scripts/failovers.sh` wrote, also if xz has compressed it (tests/torture/claims): the
claims that were in effect when the new primary was asked, and how many of them were lost, by the way in which they were
confirmed, or by the client that claimed. Fails if a confirmed claim was lost, if two owners claimed one lock at once,
or if the control lost nothing.

`count-claims.py --each FILE` prints the counts of each failover instead, as lines that this program reads too."""

import collections
import json
import lzma
import sys

CONFIRMED = {"Acked", "Waited"}
CONTROLS = {"OneAck", "Plain"}


def read(path):
    """The first line of one run, and then each failover with its claims; or only its counts, if it has no claims."""
    with (lzma.open if path.endswith(".xz") else open)(path, "rt") as lines:
        yield json.loads(next(lines))
        failover, claims = None, []
        for line in map(json.loads, lines):
            if "failover" not in line:
                claims.append(line)
                continue
            if failover:
                yield failover, claims
            failover, claims = line, []
        if failover:
            yield failover, claims


def conflicts(failover, claims):
    """Locks that one owner claimed for WRITE, and another one at all, when the primary died."""
    by_key = collections.defaultdict(list)
    for claim in claims:
        # A string that is used as a lock has no such promise.
        if claim["until_ms"] > failover["fallen_ms"] and claim["sort"] != "SetNx":
            by_key[claim["key"]].append(claim)
    for key, those in by_key.items():
        owners = {claim["owner"] for claim in those}
        if len(owners) > 1 and any(claim["mode"] == "WRITE" for claim in those):
            yield f"{failover['variant']} round {failover['round']}: {sorted(owners)} all claimed {key}"


def is_cut_short(failover, claim):
    """Whether it has ended by the clock of the new primary, and not for its owner. Older runs have one clock only."""
    return claim.get("owner_until_ms", 0) > failover.get("asked_ms", failover["judged_from_ms"])


def count(failover, claims):
    """For each sort of claims: how many were in effect, how many of them were lost, and how many had been cut short."""
    counts = {}
    for claim in claims:
        of = counts.setdefault(claim["sort"], {"claims": 0, "lost": 0, "cut_short": 0})
        if claim["until_ms"] <= failover["judged_from_ms"]:
            of["cut_short"] += is_cut_short(failover, claim)
        else:
            of["claims"] += 1
            of["lost"] += claim["lost"] is not None
    return counts


def total(counts, sort, what):
    return sum(of[what] for place, of in counts.items() if place[0] == sort)


def report(totals, variants):
    """Prints the sums, and returns what is wrong with them."""
    kinds = ", ".join(f"{name} {number}" for name, number in sorted(variants.items()))
    print(f"{sum(variants.values())} failovers: {kinds}")
    for sort in sorted({sort for sort, _ in totals}):
        places = [(variant, totals[sort, variant]) for variant in sorted(variants) if totals[sort, variant]["claims"]]
        lost = total(totals, sort, "lost")
        print(f"{sort}: {total(totals, sort, 'claims')} claims, {lost} of them lost:",
              ", ".join(f"{variant} {of['lost']} of {of['claims']}" for variant, of in places))
        if cut_short := total(totals, sort, "cut_short"):
            print(f"    {cut_short} more had ended by the new primary's clock, and not for their owners")
        if sort in CONFIRMED and lost:
            yield f"{lost} claims of {sort} were lost"
        if sort in CONTROLS and not lost:
            yield f"the control {sort} has lost nothing: this run shows nothing"


def main(args):
    prints_each, paths = args[:1] == ["--each"], [path for path in args if path != "--each"]
    wrong, variants, totals = [], collections.Counter(), collections.defaultdict(collections.Counter)
    for path in paths:
        run = read(path)
        head = next(run)
        print(json.dumps(head) if prints_each else
              f"{path}: {head['server']}, commit {head['commit']}, SEED={head['seed']}")
        for line, claims in run:
            failover = line["failover"]
            variants[failover["variant"]] += 1
            wrong.extend(conflicts(failover, claims))
            wrong.extend(f"{claim} was lost" for claim in claims if claim["lost"] and claim["sort"] in CONFIRMED)
            counts = line.get("counts") or count(failover, claims)
            for sort, of in counts.items():
                totals[sort, failover["variant"]].update(of)
            if prints_each:
                print(json.dumps({"failover": failover, "counts": counts}))
    if not prints_each:
        wrong.extend(report(totals, variants))
        print("\n".join(wrong) if wrong else "no violation")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
