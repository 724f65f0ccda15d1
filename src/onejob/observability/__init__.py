"""Job events, and their listeners: logs and metrics."""
