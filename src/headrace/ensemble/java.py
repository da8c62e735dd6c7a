"""Finds the Java that a ZooKeeper server runs on."""

from headrace.env import java

NotInstalled = java.NotInstalled


def find_java() -> str:
    return str(java.find_java("ZooKeeper", extra="cluster"))
