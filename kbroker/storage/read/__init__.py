"""Reading records back from objects, through caches."""
