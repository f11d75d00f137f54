"""The bytes of stored objects and the keys that they lie under."""
