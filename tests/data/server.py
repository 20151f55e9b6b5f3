"""A web server on this machine that can be told to behave badly."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """What is served, and how.

    Attributes
    ----------
    pages : dict of str to bytes
        Content by path.
    cuts : list of int
        Each request uses up one: the connection closes after so many bytes of the body.
    ranges : bool
        Whether the server honours requests for a part.
    lengths : bool
        Whether it says how long a body is.
    requests : list of (path, asked range or None)
        What came in.
    """

    address: str
    pages: dict[str, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    lengths: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)


@contextmanager
def serving() -> Iterator[Site]:
    """A site on 127.0.0.1 while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            site.requests.append((self.path, asked))
            body = site.pages.get(self.path)
            if body is None:
                self.send_error(404)
                return
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and site.ranges else 0
            if asked and site.ranges and start >= len(body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if asked and site.ranges else 200)
            if asked and site.ranges:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            if site.lengths:
                self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            cut = site.cuts.pop(0) if site.cuts else len(body)
            with suppress(ConnectionError):  # the client may have seen enough
                self.wfile.write(body[start : start + cut])

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = Site(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
