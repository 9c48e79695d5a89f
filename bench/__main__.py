"""Run the benchmarks: all of them, or those that are named.

    python -m bench [NAME]...

Each runs in a process of its own, so that none warms up or slows down another.
"""

import subprocess
import sys
from pathlib import Path


def main() -> None:
    here = Path(__file__).parent
    known = sorted(path.stem for path in here.glob("*.py") if not path.stem.startswith("_"))
    chosen = sys.argv[1:] or known
    for name in chosen:
        if name not in known:
            sys.exit(f"There is no benchmark {name}; there are: {', '.join(known)}.")
    failed = [name for name in chosen if not succeeded(name)]
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}.")


def succeeded(name: str) -> bool:
    print(f"== {name}", flush=True)
    return subprocess.run([sys.executable, "-m", f"bench.{name}"]).returncode == 0


if __name__ == "__main__":
    main()
