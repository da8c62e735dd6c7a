"""`headrace tour`: the idea of the system, shown live on a cluster of its own."""
