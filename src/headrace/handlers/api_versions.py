"""ApiVersions, versions 0 to 4: list the supported APIs and versions.

wire/api_versions.py responds before other modules are loaded; dispatch.py calls it.
"""
