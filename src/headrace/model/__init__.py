"""Types that all packages share: topics, partitions, cluster image, error codes. No I/O."""
