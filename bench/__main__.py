"""Run the benchmarks: all of them, or those that are named.

    python -m bench [NAME [OPTION]...]...

An option belongs to the benchmark before it, as in `python -m bench growth --sizes 1000000`.
Each runs in a process of its own, so that none warms up or slows down another.
"""

import subprocess
import sys
from pathlib import Path


def main() -> None:
    here = Path(__file__).parent
    known = sorted(path.stem for path in here.glob("*.py") if not path.stem.startswith("_"))
    chosen: list[list[str]] = [] if sys.argv[1:] else [[name] for name in known]
    for word in sys.argv[1:]:
        if word in known:
            chosen.append([word])
        elif chosen and (word.startswith("-") or len(chosen[-1]) > 1):
            chosen[-1].append(word)
        else:
            sys.exit(f"There is no benchmark {word}; there are: {', '.join(known)}.")
    failed = [name for name, *options in chosen if not succeeded(name, options)]
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}.")


def succeeded(name: str, options: list[str]) -> bool:
    print(f"== {name}", flush=True)
    return subprocess.run([sys.executable, "-m", f"bench.{name}", *options]).returncode == 0


if __name__ == "__main__":
    main()
