/* Memory that a thread keeps until it ends: to touch fresh memory first takes longer than most
work that needs it. */

#ifndef SKBERT_SCRATCH_H
#define SKBERT_SCRATCH_H

#include <pthread.h>
#include <stdlib.h>

typedef struct {
    size_t n_bytes;
    char *memory;
} Scratch;

static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;

static void free_scratch(void *kept) {
    free(((Scratch *)kept)->memory);
    free(kept);
}

static void make_scratch_key(void) { pthread_key_create(&scratch_key, free_scratch); }

/* So many bytes or more, with what the last call left there; NULL where there is no memory. */
static char *scratch(size_t n_bytes) {
    pthread_once(&scratch_once, make_scratch_key);
    Scratch *kept = pthread_getspecific(scratch_key);
    if (!kept) {
        kept = calloc(1, sizeof *kept);
        if (!kept || pthread_setspecific(scratch_key, kept)) return free(kept), NULL;
    }
    if (kept->n_bytes < n_bytes) {
        free(kept->memory);
        n_bytes = (n_bytes + 4095) / 4096 * 4096;
        kept->memory = aligned_alloc(4096, n_bytes);
        kept->n_bytes = kept->memory ? n_bytes : 0;
    }
    return kept->memory;
}

#endif
