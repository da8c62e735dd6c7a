"""The composition root: start and stop order of one broker."""
