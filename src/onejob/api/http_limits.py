"""A limit on the size of headers and trailers, for httptools, which has none."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_LIMIT = 64 * 1024
"""The maximum number of bytes of a request besides its body: the limit of h11, uvicorn's other parser, for headers."""
FRAMING_ALLOWANCE = 16
"""The number of bytes of chunked framing that each byte of a body allows."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which refuses a request with too many bytes besides its body."""

    _overhead = 0

    def on_message_begin(self) -> None:
        """Reset the count for a new request."""
        self._overhead = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        """Subtract a part of the body and the framing that it allows."""
        self._overhead -= (1 + FRAMING_ALLOWANCE) * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Reset the count: the bytes that follow belong to another request."""
        super().on_message_complete()
        self._overhead = 0

    def data_received(self, data: bytes) -> None:
        """Parse the received bytes, and respond with 400 if they exceed the limit."""
        self._overhead += len(data)
        super().data_received(data)
        if self._overhead > HEAD_LIMIT and not self.transport.is_closing():
            self.send_400_response(f"A request must not have more than {HEAD_LIMIT} bytes besides its body.")
