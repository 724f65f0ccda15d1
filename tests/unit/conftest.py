"""What these tests need of a store is on SQLite, and some of it on `every_store`."""

from tests.conftest import on_stores

fresh_address = on_stores("sqlite")
