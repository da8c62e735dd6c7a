"""The topics of a simulated cluster, and what may happen to their records."""

from dataclasses import dataclass, field

EVENTS, STATE, BRIEF = "events", "state", "brief"


@dataclass
class Topic:
    name: str
    partitions: int
    configs: dict[str, str] = field(default_factory=dict)
    is_compacted: bool = False
    keys: int = 8
    """How many keys a compacted topic has."""
    is_recreated: bool = False
    """Whether it is deleted and created again while clients use it."""
    incarnation: object = "the only one"
    """Another one after each creation; None while a deletion is in progress."""
    incarnations: int = 0

    @property
    def log_name(self) -> str:
        """The name in the history: each incarnation has other records."""
        return f"{self.name}#{self.incarnations}" if self.is_recreated else self.name

    @property
    def retention_ms(self) -> int:
        return int(self.configs.get("retention.ms", 7 * 86_400_000))

    @property
    def retention_bytes(self) -> int:
        return int(self.configs.get("retention.bytes", -1))
