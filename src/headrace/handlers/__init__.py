"""One file per API, named after the API."""
