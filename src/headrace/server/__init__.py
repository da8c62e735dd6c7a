"""Listeners, connections and limits."""
