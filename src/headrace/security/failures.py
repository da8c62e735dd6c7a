"""Counts the failed logins of each address, and computes the delay of the next response. Pure.

1. The first FREE_FAILURES failures of an address within a minute have the configured delay. Later
   ones have a delay of DELAY_SECONDS_MAX, or the configured one if that is longer.
2. At most ADDRESSES_MAX addresses are stored. The one whose last failure is oldest is dropped.
3. At most DELAYED_MAX responses wait, and DELAYED_PER_ADDRESS_MAX of one address. Then new
   connections of this address are closed. So an address can try at most 40 passwords per second.
"""

from collections import OrderedDict

FREE_FAILURES = 10
WINDOW_SECONDS = 60.0
DELAY_SECONDS_MAX = 5.0
ADDRESSES_MAX = 10_000
DELAYED_MAX = 1_000
DELAYED_PER_ADDRESS_MAX = 200


class FailedLogins:
    def __init__(self, delay_seconds: float) -> None:
        self._delay_seconds = delay_seconds
        self._by_address: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """The start of the current minute, and the number of failures since, of each address."""
        self._delayed: dict[str, int] = {}
        """The number of waiting responses of each address."""
        self.delayed = 0
        """The number of all waiting responses."""

    def admits(self, address: str, now: float) -> bool:
        """Whether a new connection of an address can try to log in."""
        if self._delayed.get(address, 0) >= DELAYED_PER_ADDRESS_MAX:
            return False
        began, count = self._by_address.get(address, (now, 0))
        has_failed = count > FREE_FAILURES and now - began < WINDOW_SECONDS
        return self.delayed < DELAYED_MAX or not has_failed

    def failed(self, address: str, now: float) -> float | None:
        """Count a failure. Returns the delay in seconds; None: close the connection immediately.

        After the delay, call `ended`.
        """
        began, count = self._by_address.pop(address, (now, 0))
        if now - began >= WINDOW_SECONDS:
            began, count = now, 0
        self._by_address[address] = (began, count + 1)
        if len(self._by_address) > ADDRESSES_MAX:
            self._by_address.popitem(last=False)
        held = self._delayed.get(address, 0)
        if self.delayed >= DELAYED_MAX or held >= DELAYED_PER_ADDRESS_MAX:
            return None
        self.delayed += 1
        self._delayed[address] = held + 1
        is_many = count >= FREE_FAILURES
        return max(DELAY_SECONDS_MAX, self._delay_seconds) if is_many else self._delay_seconds

    def ended(self, address: str) -> None:
        """Stop counting a delayed response, because it was sent or its connection was closed."""
        self.delayed -= 1
        left = self._delayed.pop(address) - 1
        if left:
            self._delayed[address] = left
