/* The last words of a rank to the others: why it gives up, or that it leaves in good order. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "comm/net_inside.h"
#include "os/clock.h"

#define FAREWELL_US 300000u
#define GOODBYE_US  50000u

static bool borrows(const struct net *net)
{
    for (uint32_t i = 0; i < net->world * NET_LANES; i++) {
        const struct end *end = &net->peers[i / NET_LANES].ends[i % NET_LANES];
        if (end->link && !end->rc && end->borrowed) {
            return true;
        }
    }
    return false;
}

/* Says something to every rank that is linked, and waits a moment for it to go out. What others
 * send meanwhile is read: a connection closed with bytes unread would be reset, and the word
 * lost. */
static void say_to_all(struct net *net, const struct frame *frame, const char *text,
                       uint64_t patience_us)
{
    for (uint32_t i = 0; i < net->world * NET_LANES; i++) {
        struct end *end = &net->peers[i / NET_LANES].ends[i % NET_LANES];
        if (end->link && !end->rc &&
            link_send(end->link, frame, text, strlen(text), TAG_OWN) == 0) {
            end->borrowed++;
            link_resume(end->link);
        }
    }
    uint64_t deadline_us = clock_us() + patience_us;
    do {
        loop_turn(net->loop, clock_us() + 2000);
    } while (borrows(net) && clock_us() < deadline_us);
}

void net_tell_fault(struct net *net, int rc, const char *text)
{
    if (net->failing) {
        return;
    }
    net->failing = true;
    snprintf(net->own_text, sizeof net->own_text, "%s", text);
    struct frame frame = {.type = FRAME_GROUP, .flags = NET_FAULT, .extra = (uint64_t)-rc};
    say_to_all(net, &frame, net->own_text, FAREWELL_US);
    for (uint32_t i = 0; i < net->world * NET_LANES; i++) {
        struct end *end = &net->peers[i / NET_LANES].ends[i % NET_LANES];
        if (end->borrowed) { /* memory of callers who are about to be told */
            net_cut(net, end->rank, end->lane);
        }
    }
}

void net_say_goodbye(struct net *net)
{
    struct frame frame = {.type = FRAME_GROUP, .flags = NET_GOODBYE};
    say_to_all(net, &frame, "", GOODBYE_US);
}

bool net_has_left(const struct net *net, uint32_t rank)
{
    return net->peers[rank].left;
}

int net_told_fault(const struct net *net)
{
    if (net->told_rc && net->told_by == net->rank) {
        return err_set(net->told_rc, "%s", net->told_text);
    }
    return net->told_rc ? err_set(net->told_rc, "rank %u reports: %s", net->told_by, net->told_text)
                        : 0;
}

void net_blame(struct net *net, int rc, const char *text)
{
    if (!net->told_rc) {
        net->told_rc = rc;
        net->told_by = net->rank;
        snprintf(net->told_text, sizeof net->told_text, "%s", text);
    }
}

void net_expect_word(struct net *net, bool expected)
{
    atomic_store(&net->expects_word, expected);
}

int net_listen(struct net *net)
{
    if (!atomic_load(&net->expects_word) || !net_try_enter(net)) {
        return 0;
    }
    int rc = loop_turn(net->loop, 0);
    rc = rc < 0 ? rc : net_told_fault(net);
    net_leave(net);
    return rc;
}
