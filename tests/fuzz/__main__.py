"""`python -m tests.fuzz COUNT [--seed N]`: as many as there is time for. Exit status 1 if anything was found."""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.fuzz.requests import Requests
from tests.fuzz.rule import findings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0, help="of the first; the next has the next")
    parser.add_argument("--json", action="store_true", help="machine-readable results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Requests(Path(folder))
        found = findings(fuzzer.try_one, args.count, args.seed, progress=not args.json)
    if args.json:
        print(json.dumps({"findings": found, "tally": fuzzer.tally}))
    else:
        print(*found, sep="\n")
        print(f"{args.count} tried, {len(found)} findings; {dict(fuzzer.tally)}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
