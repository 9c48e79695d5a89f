"""A small schema registry over HTTP that answers as Confluent's does, for tests."""

import json
import threading
import urllib.parse
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class TestRegistry:
    """Subjects with versions; requests are counted."""

    __test__ = False

    def __init__(self):
        self.subjects = {}
        self.by_id = {}
        self.requests = []
        self.failures_left = 0
        self.url = ""

    def register(self, subject, schema, kind="AVRO", references=()):
        """Add a version; its id comes back."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        content = {"schema": text}
        if kind != "AVRO":
            content["schemaType"] = kind
        if references:
            content["references"] = list(references)
        new_id = len(self.by_id) + 1
        self.by_id[new_id] = content
        self.subjects.setdefault(subject, []).append(new_id)
        return new_id

    def answer(self, path):
        """The status and the content for a path."""
        self.requests.append(path)
        if self.failures_left:
            self.failures_left -= 1
            return 500, {"error_code": 50001}
        match [urllib.parse.unquote(each) for each in path.strip("/").split("/")]:
            case ["schemas", "ids", number] if int(number) in self.by_id:
                return 200, self.by_id[int(number)]
            case ["subjects", subject, "versions"] if subject in self.subjects:
                return 200, list(range(1, len(self.subjects[subject]) + 1))
            case ["subjects", subject, "versions", version] if subject in self.subjects:
                ids = self.subjects[subject]
                at = len(ids) if version == "latest" else int(version)
                return 200, {"subject": subject, "version": at, "id": ids[at - 1]} | self.by_id[
                    ids[at - 1]
                ]
        return 404, {"error_code": 40401, "message": "not found"}


@contextmanager
def serving():
    """A registry on a free port."""
    registry = TestRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, content = registry.answer(self.path)
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
