# Internal invariants of the C structures: checked in a debug build, gone in any other.

cdef extern from "invariant.h" nogil:
    const bint KB_DEBUG_BUILD        # for conditions that cost something to state: `if KB_DEBUG_BUILD: invariant(...)`
    # Aborts the process when `holds` is false, in a debug build. The condition must have no side effect.
    void invariant "KB_INVARIANT"(bint holds) noexcept
