"""One migration for each version of the ledger's schema."""
