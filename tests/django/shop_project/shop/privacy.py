"""What the staff does not see."""


def redact(job: object, what: str, value: object) -> object:
    """Hide every value."""
    return f"hidden {what}"
