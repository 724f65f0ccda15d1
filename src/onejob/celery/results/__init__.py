"""The results of jobs, read from the ledger."""
