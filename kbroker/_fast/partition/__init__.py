"""One partition: append, high watermark, waiters, producers."""
