"""The part of the cluster that every broker runs: registration, image, failure detection."""
