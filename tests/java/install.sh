#!/usr/bin/env bash
# Installs what tests/java needs and is not there: Java 17 and Maven and kcat from Debian.
# Apache Kafka's jars come from Maven, into .cache/, when the tests ask for them.
set -euo pipefail

missing=()
command -v javac >/dev/null || missing+=(default-jdk-headless)
command -v mvn >/dev/null || missing+=(maven)
command -v kcat >/dev/null || missing+=(kcat)
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi

echo "Installing ${missing[*]} with apt-get"
if ! command -v apt-get >/dev/null; then
    echo "This is no Debian: install a JDK (17 or newer), Maven and kcat, then try again." >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
install=("${as_root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}")
"${install[@]}" >/dev/null || { "${as_root[@]}" apt-get update -q >/dev/null && "${install[@]}" >/dev/null; }
