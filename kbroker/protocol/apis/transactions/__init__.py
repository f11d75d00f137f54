"""APIs of producer ids and transactions."""
