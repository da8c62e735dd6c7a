"""The one door to the operating system: clock, files, randomness; each real and simulated."""
