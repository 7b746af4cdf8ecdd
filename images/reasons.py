"""Checks that each number that a Kubernetes file chooses has a comment with its reason: at most six lines above it, or
above the same line earlier in the file. Also checks that each image has the tag of one release, which does not move.

    reasons.py FILE...
"""

import re
import sys

CHOSEN = re.compile(
    r"\b(replicas|maxUnavailable|\w*Seconds|\w*Threshold|cpu|memory|storage|runAs\w+|fsGroup|\w*maxmemory)\b:? .*\d", re.IGNORECASE
)
IMAGE = re.compile(r"\bimage: (\S+)")
RELEASE = re.compile(r":.*\d+\.\d+\.\d+")
NEAR = 6


def without_reason(path: str) -> list[str]:
    missing, explained, distance = [], set(), NEAR + 1
    with open(path) as file:
        for number, line in enumerate(file, 1):
            words = line.strip()
            if words.startswith("#"):
                distance = 0
                continue
            distance += 1
            image = IMAGE.search(words)
            if image and not RELEASE.search(image[1]):
                missing.append(f"{path}:{number}: {image[1]}: not the tag of one release")
            if CHOSEN.search(words):
                if distance <= NEAR:
                    explained.add(words)
                elif words not in explained:
                    missing.append(f"{path}:{number}: {words}: no comment says why")
    return missing


wrong = [line for path in sys.argv[1:] for line in without_reason(path)]
print("\n".join(wrong) or f"each number of {', '.join(sys.argv[1:])} has its reason, each image its release")
sys.exit(bool(wrong))
