"""One file per API, named as the API."""
