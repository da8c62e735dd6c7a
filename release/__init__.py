"""Builds, checks and measures the files of a release: see `make dist`."""
