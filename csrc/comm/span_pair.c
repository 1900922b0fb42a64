/* Several collectives at once: the one under way and, when that only waits for others, the next, and
 * so on. Their frames are told apart by the sequence; on each stream those of the first come
 * first. */
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "comm/span_inside.h"

/* The one that a frame is of; else the one that can say what is wrong with it. */
static struct span *span_of(struct span_pair *pair, uint64_t sequence)
{
    struct span *own = span_at(pair, sequence);
    return own->op && own->header.sequence == sequence ? own : span_at(pair, pair->latest);
}

static int on_place(void *context, uint32_t from, const struct frame *frame, void **room_out)
{
    if (frame->round < ((struct span_pair *)context)->passed) {
        span_blame(context, from, frame);
        return 1;
    }
    return span_place(span_of(context, frame->round), from, frame, room_out);
}

static int on_frame(void *context, uint32_t from, const struct frame *frame, const void *payload)
{
    (void)payload; /* is where it belongs */
    return span_take(span_of(context, frame->round), from, frame);
}

static void on_sent(void *context, uint32_t to, uint64_t tag)
{
    struct span_pair *pair = context;
    span_sent(span_at(pair, (uint32_t)tag >> SPAN_TAG_PLACE), to, tag);
}

int span_new(struct net *net, uint32_t world, struct span_pair **out)
{
    static const struct net_calls calls = {on_place, on_frame, on_sent};
    struct span_pair *pair = calloc(1, sizeof *pair);
    if (!pair) {
        return err_set(SOLO_ENOMEM, "no memory for collectives");
    }
    int rc = 0;
    for (uint32_t i = 0; i < SPAN_RING && rc == 0; i++) {
        rc = span_init(&pair->at[i], net, world);
    }
    if (rc < 0) {
        span_free(pair);
        return rc;
    }
    pair->net = net;
    for (uint32_t i = 0; i < SPAN_PAST; i++) {
        pair->past[i].sequence = UINT64_MAX; /* none */
    }
    net_serve(net, NET_COLLECTIVE, &calls, pair);
    *out = pair;
    return 0;
}

void span_free(struct span_pair *pair)
{
    for (uint32_t i = 0; pair && i < SPAN_RING; i++) {
        span_deinit(&pair->at[i]);
    }
    free(pair);
}

uint64_t span_bytes(const struct span_pair *pair)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < SPAN_RING; i++) {
        bytes += pair->at[i].scratch_held;
    }
    return bytes;
}

/* With this thread's error, which stays. */
static int give_up(struct span_pair *pair, int rc)
{
    char text[SOLO_TEXT_MAX];
    snprintf(text, sizeof text, "%s", err_text());
    net_tell_fault(pair->net, rc, text); /* what links borrow is given back */
    for (uint32_t i = 0; i < SPAN_RING; i++) {
        span_let_go(&pair->at[i]);
    }
    return err_set(rc, "%s", text);
}

int span_forget(struct span_pair *pair, int rc)
{
    net_enter(pair->net);
    give_up(pair, rc);
    net_leave(pair->net);
    return rc;
}

int span_run(struct span_pair *pair, const struct span_call *call)
{
    struct span *x = span_at(pair, call->sequence);
    net_enter(pair->net);
    bool begun = x->op && x->header.sequence == call->sequence; /* ahead of its turn */
    int rc = begun ? 0 : span_begin(x, call);
    if (rc == 0) {
        pair->rank = call->members[call->place];
        pair->latest = pair->passed = call->sequence;
        net_resume(pair->net, NET_COLLECTIVE);
        rc = span_go_on(pair, x, call);
    }
    if (rc < 0) {
        rc = give_up(pair, rc);
    } else {
        pair->past[call->sequence % SPAN_PAST] = x->header;
        pair->passed++;
    }
    x->op = NULL;
    net_leave(pair->net);
    return rc;
}
