#include "node/handle.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "os/clock.h"

int handle_new(struct solo_handle **out)
{
    struct solo_handle *handle = calloc(1, sizeof *handle);
    if (!handle) {
        return err_set(SOLO_ENOMEM, "no memory for a merge handle");
    }
    latch_init(&handle->latch);
    atomic_init(&handle->owners, 2);
    *out = handle;
    return 0;
}

void handle_drop(struct solo_handle *handle)
{
    if (atomic_fetch_sub_explicit(&handle->owners, 1, memory_order_acq_rel) == 1) {
        latch_deinit(&handle->latch);
        free(handle);
    }
}

void handle_finish(struct solo_handle *handle, int rc, const char *text,
                   const struct solo_result *result)
{
    if (result) {
        handle->result = *result;
    }
    latch_set(&handle->latch, rc, text);
    handle_drop(handle);
}

/* Callers built against an older or newer header see as much as both know. */
static void copy_result(const struct solo_result *from, struct solo_result *out)
{
    size_t size = out->size && out->size < sizeof *from ? out->size : sizeof *from;
    size_t caller_size = out->size;
    memcpy(out, from, size);
    out->size = caller_size;
}

int solo_wait(struct solo_handle *handle, uint32_t timeout_ms, struct solo_result *out)
{
    int rc;
    uint64_t deadline_us = timeout_ms ? clock_us() + (uint64_t)timeout_ms * 1000 : 0;
    if (!latch_wait(&handle->latch, deadline_us, &rc)) {
        return err_set(SOLO_EAGAIN, "the merge is still in flight");
    }
    if (rc >= 0 && out) {
        copy_result(&handle->result, out);
    }
    handle_drop(handle);
    return rc;
}
