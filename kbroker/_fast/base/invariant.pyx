"""Whether this is a debug build, where the C structures check their invariants (see invariant.h)."""

DEBUG_BUILD = bool(KB_DEBUG_BUILD)
