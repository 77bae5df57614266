"""The quick benchmarks, each in its own process: one JSON object a figure.

Run: python benchmarks/run.py [NAME ...]
"""

import subprocess
import sys
from pathlib import Path

QUICK = {
    "softmax_head": ["--repeats", "7"],
    "read_log": ["--quick"],
    "logging_policy": ["--quick"],
    "uncertainty_coverage": ["--quick"],
}
"""Options that bring each one down to about half a minute; without them it measures at full size."""


def main() -> int:
    chosen = sys.argv[1:] or list(QUICK)
    unknown = [name for name in chosen if name not in QUICK]
    if unknown:
        print(f"No quick benchmark is named {', '.join(unknown)}. There are {', '.join(QUICK)}.", file=sys.stderr)
        return 2
    folder = Path(__file__).parent
    failed = [
        name
        for name in chosen
        if subprocess.run([sys.executable, folder / f"{name}.py", "--json", *QUICK[name]], check=False).returncode
    ]
    if failed:
        print(f"Failed: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
