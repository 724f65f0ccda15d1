"""What a Celery worker does for the ledger."""
