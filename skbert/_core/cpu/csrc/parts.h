/* Memory for what lies between operations, in one piece. */

#ifndef SKBERT_PARTS_H
#define SKBERT_PARTS_H

#include <stdint.h>
#include <stdlib.h>

#define CACHE_LINE 64

typedef struct {
    char **place; /* where it begins, to be written */
    int64_t n_bytes;
} Part;

/* Memory for these, to be freed where the first begins; 0 where there is none. */
static inline int allocate_parts(const Part *parts, int n_parts) {
    int64_t offset = 0;
    for (int i = 0; i < n_parts; i++)
        offset += (parts[i].n_bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    char *memory = aligned_alloc(CACHE_LINE, offset);
    for (int i = 0; memory && i < n_parts; i++) {
        *parts[i].place = memory;
        memory += (parts[i].n_bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    }
    return memory != NULL;
}

#endif
