"""Headrace: a commit log that speaks the Kafka wire protocol."""

__version__ = "0.1.0"


def compiled() -> bool:
    """Whether the hot modules are machine code here, or the same files interpreted."""
    from importlib.util import find_spec

    spec = find_spec("headrace.record.batch")
    return spec is not None and not (spec.origin or "").endswith(".py")
