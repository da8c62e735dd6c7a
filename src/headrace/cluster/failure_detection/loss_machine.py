"""Decides which responses wait because they would name a broker whose connection was just lost.

Pure: time is an argument. After a broker fails, clients request metadata within milliseconds, and
the election takes longer. A response that names the failed leader costs a client its retry backoff,
a second for librdkafka. Such a response waits until the image names another leader.

1. A broker is lost when its connection is closed or reset, for HOLD_S or until it responds on a new
   connection. Another loss of the same broker is ignored until it has responded.
2. In the LINGER_S after a loss, the first Metadata response on a connection lists the lost broker,
   even if it is no longer registered. Later ones omit it, even if it is still registered, unless
   they name it as a leader. librdkafka forgets a broker that is not listed. If the same response
   moves a partition away from that broker, librdkafka can lose the new leader as well, and waits
   for another second. If no response omits it, librdkafka backs off when it has restarted.
3. At most HELD_MAX requests wait, with at most HELD_NAMES_MAX names in them. Any other request gets
   its response immediately.
"""

HOLD_S = 0.3
"""How long a response waits, at most."""
LINGER_S = 3.0
"""How long a loss affects the brokers that Metadata responses list."""
HELD_MAX = 1000
HELD_NAMES_MAX = 10_000


class Losses:
    def __init__(self) -> None:
        self._until: dict[int, float] = {}
        """By lost broker: until when responses that name it wait; 0 once HOLD_S has passed."""
        self._lately_until: dict[int, float] = {}
        """By broker that was lost lately: until when rule 2 applies."""
        self._held_requests = 0
        self._held_names = 0

    def lost(self, node_id: int, now: float) -> bool:
        """The connection to a broker was closed or reset. Returns whether that is new."""
        if node_id in self._until:
            return False
        self._until[node_id] = now + HOLD_S
        self._lately_until[node_id] = now + LINGER_S
        return True

    def reconnected(self, node_id: int) -> bool:
        """A broker responds on a new connection. Returns whether it was lost before."""
        self._lately_until.pop(node_id, None)
        return self._until.pop(node_id, None) is not None

    def expire(self, node_id: int) -> None:
        """HOLD_S has passed: responses can name this broker, until its connection is lost again."""
        self._until[node_id] = 0.0

    def is_lost(self, node_id: int, now: float) -> bool:
        """Whether responses that name this broker wait now."""
        return self._until.get(node_id, now) > now

    def was_lost_lately(self, node_id: int, now: float) -> bool:
        """Whether this broker was lost less than LINGER_S ago, and has not responded since."""
        return self._lately_until.get(node_id, now) > now

    def hold(self, name_count: int) -> bool:
        """Count a waiting request with so many names. False if a limit is reached: do not wait."""
        if self._held_requests >= HELD_MAX or self._held_names + name_count > HELD_NAMES_MAX:
            return False
        self._held_requests += 1
        self._held_names += name_count
        return True

    def release(self, name_count: int) -> None:
        """A request no longer waits."""
        self._held_requests -= 1
        self._held_names -= name_count
