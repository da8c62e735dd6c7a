"""`headrace tour`: shows live how Headrace works, on a temporary cluster."""
