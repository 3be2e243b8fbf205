"""python -m attacks [--area server] [--only NAME]: run the scripted attacks and count failures."""

import argparse
import json
import sys

from attacks import REGISTRY, find_areas, replay


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attacks", description=__doc__)
    areas = find_areas()
    parser.add_argument("--area", default="", choices=["", *areas], help="only this area")
    parser.add_argument("--only", default="", help="only attacks whose name contains this")
    parser.add_argument("--list", action="store_true", help="print the attacks instead of running them")
    args = parser.parse_args()
    if args.list:
        for one in REGISTRY:
            print(f"{one.area}.{one.name} [{one.variant}] {one.about}")
        return 0
    outcomes = {area: replay(area, args.only) for area in areas if args.area in ("", area)}
    for area, outcome in outcomes.items():
        line = f"{outcome.attacks} attacks, {len(outcome.failures)} failures, {outcome.seconds:.1f} s"
        print(f"{area:<12} {line}", file=sys.stderr)
        for failure in outcome.failures:
            print(f"  {ascii(failure)[1:-1]}", file=sys.stderr)
    attacks = sum(outcome.attacks for outcome in outcomes.values())
    failures = sum(len(outcome.failures) for outcome in outcomes.values())
    print(json.dumps({"attacks": attacks, "failures": failures}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
