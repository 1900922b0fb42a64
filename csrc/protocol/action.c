#include "protocol/action.h"

#include <string.h>

#include "base/err.h"

void out_clear(struct out *out)
{
    out->count = out->msg_count = out->event_count = out->events_dropped = 0;
    out->wake_us = UINT64_MAX;
}

struct action *out_add(struct out *out, enum action_type type)
{
    MUST(out->count < OUT_ACTIONS_MAX);
    struct action *action = &out->actions[out->count++];
    *action = (struct action){.type = type};
    return action;
}

struct action *out_add_peer(struct out *out, enum action_type type, uint32_t peer, uint32_t chunk)
{
    struct action *action = out_add(out, type);
    action->peer = peer;
    action->chunk = chunk;
    return action;
}

struct msg *out_msg(struct out *out, enum frame_type type)
{
    MUST(out->msg_count < OUT_MSGS_MAX);
    struct action *action = out_add(out, ACTION_SEND_MASTER);
    action->index = out->msg_count;
    struct msg *msg = &out->msgs[out->msg_count++];
    memset(&msg->as, 0, sizeof msg->as);
    msg->type = type;
    return msg;
}

struct event *out_event(struct out *out, enum event_kind kind)
{
    if (out->event_count == OUT_EVENTS_MAX) {
        out->events_dropped++;
    } else {
        struct action *action = out_add(out, ACTION_EVENT);
        action->index = out->event_count++;
    }
    return event_blank(&out->events[out->event_count - 1], kind);
}

void out_wake(struct out *out, uint64_t at_us)
{
    if (at_us < out->wake_us) {
        out->wake_us = at_us;
    }
}
