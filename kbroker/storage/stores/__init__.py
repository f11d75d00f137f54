"""Object stores: S3, a folder and memory behind one interface, and what wraps them."""
