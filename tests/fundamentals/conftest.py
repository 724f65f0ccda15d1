"""The tutorial's ledger is on SQLite; `tests/stores` has the laws of the stores."""

from tests.conftest import on_stores

fresh_address = on_stores("sqlite")
