"""What the staff does not see."""


def redact(job: object, what: str, value: object) -> object:
    return f"hidden {what}"
