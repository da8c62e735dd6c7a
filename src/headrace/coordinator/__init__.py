"""A coordinator runtime: keeps state in the records of an internal topic's partitions."""
