"""What these tests need of a store is on SQLite."""

from tests.conftest import on_stores

fresh_address = on_stores("sqlite")
