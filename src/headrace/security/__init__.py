"""Authorization: the question that every API asks before it works on a resource."""
