# Whether a commit waits a moment for company, to share its sync (decision 004).
#
# Producers with a few requests in flight send the next when one is acknowledged. What they send then comes just after the
# next commit has begun, so they fall into two halves, each of which waits for the other's sync as well as its own. Waiting
# until all have come back costs less than a sync when they come back within a part of one.

from libc.stdint cimport int32_t, int64_t

cdef enum:
    GATHER_BYTES_MAX = 65536    # more needs no company: writing it takes longer than the sync
    GATHER_NS_MAX = 500000
    ENTRY_NS = 10000            # that an entry costs on its way round: while many do, the log should be writing
    VAIN_MAX = 6                # after so many waits in vain, one commit in 63 tries

cdef struct GroupCommit:
    int64_t cut                 # entries that commits have covered so far
    int64_t awaited             # how many there are once all that were on their way during the last commit (covered by
                                # it, or come meanwhile) have come again; 0: none are waited for
    int64_t wait_ns             # how long a commit may wait for them
    bint alone                  # the last commit had one entry, and nothing came beside it
    int32_t vain                # waits in a row that did not see them all, at most VAIN_MAX
    int32_t skip                # commits, the one that waited included, before the next try


cdef inline bint should_gather(const GroupCommit* g, int64_t entries, int64_t pending_bytes) noexcept nogil:
    return g.skip == 0 and entries < g.awaited and pending_bytes < GATHER_BYTES_MAX


cdef inline void gathered(GroupCommit* g, bint all_came) noexcept nogil:
    g.vain = 0 if all_came else min(g.vain + 1, <int32_t>VAIN_MAX)
    g.skip = (1 << g.vain) - 1


cdef inline void committed(GroupCommit* g, int64_t cut, int64_t entries, int64_t size, int64_t sync_ns) noexcept nogil:
    """A commit of so many bytes has covered the entries up to `cut`; there are `entries` by now."""
    if g.skip > 0:
        g.skip -= 1
    cdef int64_t on_the_way = entries - g.cut
    g.awaited = cut + on_the_way if size < GATHER_BYTES_MAX and on_the_way * ENTRY_NS <= sync_ns else 0
    g.alone = on_the_way <= 1
    g.cut = cut
    g.wait_ns = min(sync_ns - sync_ns // 4, <int64_t>GATHER_NS_MAX)
