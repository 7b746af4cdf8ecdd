"""What long runs share: their arguments, and a line for each runner. See storm.py and rolling.py."""

import argparse
import random
import tempfile


def arguments(about):
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--server", required=True)
    parser.add_argument("--module", required=True)
    parser.add_argument("--runner", action="append", required=True, help="NAME=COMMAND; repeat it for more runners")
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    return parser


def played(args, play):
    """Returns the exit code. `play(name, command, folder)` returns figures by name, and what was wrong, if anything."""
    failed = 0
    for text in args.runner:
        name, _, command = text.partition("=")
        with tempfile.TemporaryDirectory(prefix="rlock-run-") as folder:
            figures, wrong = play(name, command, folder)
        failed += bool(wrong)
        said = ", ".join(f"{what} {figure}" for what, figure in sorted(figures.items()))
        print(f"{'FAILED' if wrong else 'ok':6} {name}: {args.seconds} s, seed {args.seed}: {said}", flush=True)
        if wrong:
            print(wrong, flush=True)
    print(f"{len(args.runner) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0
