"""The core of the client: engine, connections, metadata, operations. Pure, except sockets.py."""
