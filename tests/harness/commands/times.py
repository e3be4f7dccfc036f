"""How long each file of tests took: `python -m tests.harness.commands.times times.xml`, which pytest wrote with
`--junitxml`.

A table, the longest first; processor time is shared, so two files at a time take longer than one.
"""

import sys
from collections import Counter
from xml.etree import ElementTree


def main(path: str) -> None:
    seconds, count = Counter[str](), Counter[str]()
    for case in ElementTree.parse(path).iter("testcase"):
        file = case.attrib["classname"].replace(".", "/") + ".py"
        seconds[file] += float(case.attrib["time"])
        count[file] += 1
    print("| file | tests | seconds |\n|---|---|---|")
    for file, total in seconds.most_common():
        print(f"| `{file}` | {count[file]:,} | {total:,.0f} |")
    print(f"| all | {sum(count.values()):,} | {sum(seconds.values()):,.0f} |")


if __name__ == "__main__":
    main(sys.argv[1])
