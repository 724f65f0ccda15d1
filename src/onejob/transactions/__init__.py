"""Submissions and effects in the database transactions of the application."""
