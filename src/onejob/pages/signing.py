"""MACs that all processes of a ledger compute alike, since the ledger keeps the secret."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable

from onejob.ledger.ledger import Ledger

SECRET_BYTES = 32
READ_AGAIN_AFTER = 3600.0
"""Seconds after which the secret is read again, which extends its life."""
KEEP_SECRET_FOR = 90 * 86400.0


class Signer:
    """Signs texts with the secret of an id; the first process that needs the secret makes it."""

    def __init__(self, ledger: Callable[[], Ledger], secret_id: str) -> None:
        self._ledger = ledger
        self._secret_id = secret_id
        self._secret = ""
        self._read_at = float("-inf")

    def sign(self, *texts: str) -> str:
        """Return a MAC over texts without NUL characters, equal in all processes. Raises `StoreError`."""
        if time.monotonic() > self._read_at + READ_AGAIN_AFTER:
            new = secrets.token_hex(SECRET_BYTES)
            self._secret = self._ledger().keep_event(self._secret_id, new, keep_for=KEEP_SECRET_FOR) or new
            self._read_at = time.monotonic()
        return hmac.new(self._secret.encode(), "\0".join(texts).encode(), hashlib.sha256).hexdigest()
