"""Orders and their invoices."""
