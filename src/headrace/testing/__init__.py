"""Shipped to users: brokers as pytest fixtures, and simulated twins."""
