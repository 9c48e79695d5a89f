"""What the system says about processes."""

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        # A zombie whose parent has not asked yet is as dead as any.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> set[int]:
    """The children of a process, and theirs."""
    found: set[int] = set()
    todo = [pid]
    while todo:
        each = todo.pop()
        for tasks in Path(f"/proc/{each}/task").glob("*/children"):
            children = [int(child) for child in tasks.read_text().split()]
            found.update(children)
            todo += children
    return found


def memory_kb(pid: int) -> int:
    """The resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])
