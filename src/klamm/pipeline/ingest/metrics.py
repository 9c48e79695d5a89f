"""The progress of an ingestion for Prometheus, served over HTTP."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from klamm.errors import ConfigError

if TYPE_CHECKING:
    from klamm.pipeline.ingest.run import Summary

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
#: Field of the summary: kind and help.
_METRICS: Final = {
    "records": ("counter", "Records read and committed by this run."),
    "bytes": ("counter", "Bytes of keys and values of these records."),
    "rows": ("counter", "Rows made of these records."),
    "bad": ("counter", "Records that do not parse."),
    "batches": ("counter", "Batches committed by this run."),
    "compactions": ("counter", "Compactions of small files."),
    "lag": ("gauge", "Offsets that are in the topics and not yet in the table."),
    "seconds": ("gauge", "How long the run has taken."),
}


def prometheus_text(summary: "Summary") -> str:
    """The metrics in Prometheus' text format."""
    lines = []
    for name, (kind, help_text) in _METRICS.items():
        metric = f"klamm_ingest_{name}{'_total' if kind == 'counter' else ''}"
        lines += [f"# HELP {metric} {help_text}", f"# TYPE {metric} {kind}"]
        lines.append(f"{metric} {getattr(summary, name)}")
    lines += [
        "# HELP klamm_ingest_broken_total Rows that break an expectation.",
        "# TYPE klamm_ingest_broken_total counter",
    ]
    for sql, count in sorted(summary.broken.items()):
        escaped = sql.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines.append(f'klamm_ingest_broken_total{{expectation="{escaped}"}} {count}')
    return "\n".join(lines) + "\n"


@contextmanager
def serve_metrics(port: int | None) -> Iterator[Callable[["Summary"], None]]:
    """Serve `/metrics` on this port meanwhile; what is yielded is called with each summary."""
    if port is None:
        yield lambda _: None
        return
    text = [""]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = text[0].encode()
            self.send_response(200)
            self.send_header("Content-Type", _TEXT)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Requests are not logged: progress has the terminal."""

    try:
        server = ThreadingHTTPServer(("", port), Handler)
    except OSError as error:
        raise ConfigError(f"--metrics-port {port} cannot be used: {error.strerror}") from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield lambda summary: text.__setitem__(0, prometheus_text(summary))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
