"""AlterPartition, version 3: change the ISR at a leader's request. Brokers only.

The controller decides; an error in the response is its decision.
"""

from headrace.requests.broker_to_controller import handle, refuse

__all__ = ["handle", "refuse"]
