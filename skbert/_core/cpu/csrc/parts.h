/* Memory for what lies between operations. */

#ifndef SKBERT_PARTS_H
#define SKBERT_PARTS_H

#include <stdint.h>
#include <stdlib.h>

#include "vectors.h"

typedef struct {
    char **place; /* where it begins, to be written */
    int64_t n_bytes;
} Part;

static inline int64_t in_lines(int64_t n_bytes) {
    return (n_bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

/* Memory for these in one piece, to be freed where the first begins; 0 where there is none. */
static inline int allocate_parts(const Part *parts, int n_parts) {
    int64_t offset = 0;
    for (int i = 0; i < n_parts; i++) offset += in_lines(parts[i].n_bytes);
    char *memory = aligned_alloc(CACHE_LINE, offset);
    for (int i = 0; memory && i < n_parts; i++) {
        *parts[i].place = memory;
        memory += in_lines(parts[i].n_bytes);
    }
    return memory != NULL;
}

static inline void free_each(const Part *parts, int n_parts) {
    for (int i = 0; i < n_parts; i++) free(*parts[i].place);
}

/* The same in pieces, as an allocator takes large ones, fresh each time, from the system. */
static inline int allocate_each(const Part *parts, int n_parts) {
    int failed = 0;
    for (int i = 0; i < n_parts; i++) {
        *parts[i].place = aligned_alloc(CACHE_LINE, in_lines(parts[i].n_bytes));
        failed |= !*parts[i].place;
    }
    if (failed) free_each(parts, n_parts);
    return !failed;
}

#endif
