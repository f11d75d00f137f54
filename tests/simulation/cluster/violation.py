"""The exception that ends a history."""


class Violation(AssertionError):
    """Something that must never happen has happened."""
