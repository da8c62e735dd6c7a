"""The classic group protocol: states, members, decisions. Pure."""
