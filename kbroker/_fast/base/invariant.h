/* Conditions that only a mistake of this program can break; never for bytes from outside, which get an error.
 * A debug build (KBROKER_DEBUG=1) names the broken one on stderr and aborts; any other build does not evaluate them. */
#ifndef KBROKER_INVARIANT_H
#define KBROKER_INVARIANT_H

#ifdef KBROKER_DEBUG
#include <stdio.h>
#include <stdlib.h>

static inline void kb_invariant_broken(const char *file, int line, const char *condition) {
    fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, condition);
    fflush(stderr);
    abort();
}

#define KB_DEBUG_BUILD 1
#define KB_INVARIANT(holds) ((holds) ? (void)0 : kb_invariant_broken(__FILE__, __LINE__, #holds))
#else
#define KB_DEBUG_BUILD 0
#define KB_INVARIANT(holds) ((void)0)
#endif

#endif
