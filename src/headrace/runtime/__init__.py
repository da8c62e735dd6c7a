"""Workers, links to other brokers, and a request on its way through the broker."""
