"""Frames, headers and codecs of the Kafka protocol. Bytes in, values out; no I/O."""
