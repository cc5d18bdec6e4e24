"""`python -m tests.fuzz KIND COUNT [--seed N]`: as many as there is time for. Exit status 1 if anything was found."""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.fuzz.command_lines import CommandLines
from tests.fuzz.requests import Requests
from tests.fuzz.rule import findings

KINDS = {"requests": Requests, "command-lines": CommandLines}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0, help="of the first; the next has the next")
    parser.add_argument("--json", action="store_true", help="machine-readable results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = KINDS[args.kind](Path(folder))
        found = findings(fuzzer.try_one, args.count, args.seed, progress=not args.json)
    if args.json:
        print(json.dumps({"findings": found, "tally": fuzzer.tally}))
    else:
        print(*found, sep="\n")
        print(f"{args.kind}: {args.count} tried, {len(found)} findings; {dict(fuzzer.tally)}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
