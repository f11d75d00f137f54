"""One module per API, numbered by its key: the field tables of its request and its response."""
