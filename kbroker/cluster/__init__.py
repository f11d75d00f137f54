"""Topics, configs, producer-id blocks, ownership: the metadata image and the stores behind it."""
