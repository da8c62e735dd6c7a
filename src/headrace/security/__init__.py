"""Authentication and authorization. No I/O.

Authentication: credentials, SASL mechanisms, TLS, limits on failed logins. Authorization: ACLs, and
the interface with which each API checks them.
"""
