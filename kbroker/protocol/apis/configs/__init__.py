"""APIs of configurations."""
