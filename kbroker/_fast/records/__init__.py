"""Record batches: parse, check, build, compress, compact."""
