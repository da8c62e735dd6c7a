"""Listeners, connections, dispatch and limits."""
