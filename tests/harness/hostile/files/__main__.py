"""Open the cases of the named families, or of all: one line per family, and one per case that did harm."""

import argparse
import sys

from tests.harness.hostile.files import families, family, try_case


def main(names: list[str], every: int) -> int:
    """Number of the cases that did harm, of each `every`th one."""
    num_harmful = 0
    for name in names or families():
        found = family(name)
        found.warm_up()
        outcomes = {case.name: try_case(found, case) for case in list(found.cases())[::every]}
        harmful = {case: outcome.harm for case, outcome in outcomes.items() if outcome.harm}
        num_harmful += len(harmful)
        max_bytes = max(outcome.num_bytes for outcome in outcomes.values())
        longest_s = max(outcome.duration_s for outcome in outcomes.values())
        print(
            f"{name}: {len(outcomes)} cases, {len(harmful)} did harm; at most {max_bytes >> 20} MiB, {longest_s:.1f} s"
        )
        for case, harm in harmful.items():
            print(f"  {case}: {harm}")
    return num_harmful


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="FAMILY", help=", ".join(families()))
    parser.add_argument("--every", type=int, default=1, help="open each Nth case only")
    arguments = parser.parse_args()
    sys.exit(bool(main(arguments.names, arguments.every)))
