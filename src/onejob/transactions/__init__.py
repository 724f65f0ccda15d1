"""Taking part in the database transactions of users."""
