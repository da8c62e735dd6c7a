"""The one writer of cluster state: topics, partitions, configs, producer ids."""
