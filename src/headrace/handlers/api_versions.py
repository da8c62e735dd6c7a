"""ApiVersions, versions 0 to 4: what this broker speaks.

Answered by wire/api_versions.py before anything else is loaded; dispatch.py sends it there.
"""
