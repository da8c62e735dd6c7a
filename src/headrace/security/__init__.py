"""Authentication and authorization. No I/O.

Authentication: credentials, SASL mechanisms, limits on failed logins. Authorization: the question
that every API asks before it works on a resource.
"""
