"""Participation in database transactions of the application."""
