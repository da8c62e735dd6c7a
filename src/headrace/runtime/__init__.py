"""What carries out work that must not hold the event loop."""
