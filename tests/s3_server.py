"""A server that speaks S3 over HTTP on this machine (moto); needs s3fs and moto[server], which no extra installs."""

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

BUCKET = "zoo"
_ERROR = '<?xml version="1.0"?><Error><Code>{}</Code><Message>{}</Message></Error>'


class Faulty:
    """Passes requests on; first it answers as many of them with errors as were asked for."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self.application, self.faults, self.answered = application, list[tuple[str, str]](), 0

    def fail(self, status: str, code: str, times: int) -> None:
        self.faults = [(status, code)] * times

    def __call__(self, environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        self.answered += 1
        if not self.faults:
            return self.application(environment, start)
        status, code = self.faults.pop()
        environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
        start(status, [("Content-Type", "application/xml")])
        return [] if environment["REQUEST_METHOD"] == "HEAD" else [_ERROR.format(code, status).encode()]


@contextmanager
def s3_server() -> Iterator[Faulty]:
    """Serve an empty bucket `zoo`, and set the environment of the driver; skips the test without the packages."""
    for name in ("s3fs", "moto", "flask"):
        pytest.importorskip(name, reason=f"needs {name}: pip install s3fs 'moto[server]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            pass

    application = Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    environment = {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "very-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
    }
    with mock.patch.dict(os.environ, environment):
        import boto3

        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield application
    server.shutdown()
    thread.join()
    server.server_close()
