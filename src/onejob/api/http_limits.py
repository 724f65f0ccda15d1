"""The limit of what frames a request, for a parser that has none: httptools takes heads and trailers of any size."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_LIMIT = 64 * 1024
"""How many bytes there may be beside a body: as many as h11, uvicorn's other parser, waits for in a head."""
FRAMING = 16
"""How many bytes each byte of a body may take to say how long its parts are."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which refuses a request of which too much is not its body."""

    _frame = 0

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._frame = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, which pays for its framing."""
        self._frame -= (1 + FRAMING) * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Count anew: what comes next belongs to another request."""
        super().on_message_complete()
        self._frame = 0

    def data_received(self, data: bytes) -> None:
        """Parse what has come, and refuse to take more of a request that frames too much."""
        self._frame += len(data)
        super().data_received(data)
        if self._frame > HEAD_LIMIT and not self.transport.is_closing():
            self.send_400_response(f"There may be {HEAD_LIMIT} bytes in a request beside its body.")
