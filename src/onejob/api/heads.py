"""The limit of a request's head, for a parser that has none: httptools keeps whatever comes before a head has ended."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_LIMIT = 64 * 1024
"""How many bytes of a head are waited for: as many as h11, uvicorn's other parser, waits for."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which refuses a head that does not end."""

    _in_head = False
    _head = 0

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._in_head, self._head = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Count no more."""
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Parse what has come, and refuse to wait for more of a head that is too large by now."""
        goes_on = self._in_head
        super().data_received(data)
        if goes_on and self._in_head and not self.transport.is_closing():
            self._head += len(data)
            if self._head > HEAD_LIMIT:
                self.send_400_response(f"The head of a request may take {HEAD_LIMIT} bytes.")
