"""The interface through which a partition notifies its coordinator of commits.  # HOT"""

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class CommitListener:
    def advanced(self) -> None:
        """The high watermark has risen."""
        raise NotImplementedError

    def shrunk(self) -> None:
        """The ISR is smaller than min.insync.replicas: nothing is committed until it grows."""
        raise NotImplementedError

    def failed(self) -> None:
        """The log is offline, or this broker is no longer leader: it commits no more records."""
        raise NotImplementedError
