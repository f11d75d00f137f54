"""Topics, configs, producer-id blocks, ownership: the metadata image, its log and its stores."""
