#!/usr/bin/env python3
"""Counts again what `KEEP=folder scripts/failovers.sh` wrote, also if xz has compressed it (tests/torture/claims): the
claims that were in effect when the new primary was asked, and how many of them were lost, by the way in which they were
confirmed, or by the client that claimed. Fails if a confirmed claim was lost, if two owners claimed one lock at once, or if the control lost nothing."""

import collections
import json
import lzma
import sys

CONFIRMED = {"Acked", "Waited"}
CONTROLS = {"OneAck", "Plain"}


def read(path):
    """The lines of one run: the first line, and each failover with its claims."""
    with (lzma.open if path.endswith(".xz") else open)(path, "rt") as lines:
        head, failovers = json.loads(next(lines)), []
        for line in map(json.loads, lines):
            if "failover" in line:
                failovers.append((line["failover"], []))
            else:
                failovers[-1][1].append(line)
    return head, failovers


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


def total(counts, sort):
    return sum(count for place, count in counts.items() if place[0] == sort)


def main(paths):
    wrong, variants = [], collections.Counter()
    claimed, lost, cut_short = collections.Counter(), collections.Counter(), collections.Counter()
    for path in paths:
        head, failovers = read(path)
        print(f"{path}: {head['server']}, commit {head['commit']}, SEED={head['seed']}, {len(failovers)} failovers")
        for failover, claims in failovers:
            variants[failover["variant"]] += 1
            wrong.extend(conflicts(failover, claims))
            for claim in claims:
                place = claim["sort"], failover["variant"]
                if claim["until_ms"] <= failover["judged_from_ms"]:
                    cut_short[place] += is_cut_short(failover, claim)
                    continue
                claimed[place] += 1
                if claim["lost"]:
                    lost[place] += 1
                    if claim["sort"] in CONFIRMED:
                        wrong.append(f"{claim} was lost")
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(variants.items()))
    print(f"{sum(variants.values())} failovers: {kinds}")
    for sort in sorted({sort for sort, _ in claimed}):
        places = [(sort, variant) for variant in sorted(variants) if claimed[sort, variant]]
        print(f"{sort}: {total(claimed, sort)} claims, {total(lost, sort)} of them lost:",
              ", ".join(f"{place[1]} {lost[place]} of {claimed[place]}" for place in places))
        if total(cut_short, sort):
            print(f"    {total(cut_short, sort)} more had ended by the new primary's clock, and not for their owners")
        if sort in CONTROLS and not total(lost, sort):
            wrong.append(f"the control {sort} has lost nothing: this run shows nothing")
    print("\n".join(wrong) if wrong else "no violation")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
