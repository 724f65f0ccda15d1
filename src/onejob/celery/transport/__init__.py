"""The kombu transport `onejob://`: the ledger's database as the broker."""
