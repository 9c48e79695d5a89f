"""The page on which a broker shows its metrics."""

import urllib.request


def read_metrics(port: int) -> dict[str, float]:
    """Each sample by its name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in samples}
