"""Object storage on this machine: moto, a real server of S3's protocol."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from moto.server import ThreadedMotoServer
from pyarrow import fs

BUCKET = "lake"


@contextmanager
def object_storage() -> Iterator[str]:
    """A server with a bucket, and an environment in which clients and their children find it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    told = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "user",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        store = fs.S3FileSystem(
            endpoint_override=f"{host}:{port}", scheme="http", allow_bucket_creation=True
        )
        store.create_dir(BUCKET)
        yield f"s3://{BUCKET}"
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        server.stop()
