"""ApiVersions, versions 0 to 4: list the supported APIs and versions.

- wire/api_versions.py responds, before message classes are loaded; requests/dispatch.py calls it.
- Omits the APIs between brokers.
- Versions: 0 to 4. A higher one gets UNSUPPORTED_VERSION in version 0, and the client retries.

Gaps: no features are listed. A feature with minimum version 0 would break Java clients up to 3.8,
and transaction.version would enable a protocol that is not supported.
"""
