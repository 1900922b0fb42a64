#include "protocol/event.h"

const char *event_kind_name(enum event_kind kind)
{
    static const char *const names[EVENT_KIND_COUNT] = {
        [EVENT_JOINED] = "joined",
        [EVENT_LEFT] = "left",
        [EVENT_LOST] = "lost",
        [EVENT_REFUSED] = "refused",
        [EVENT_BEGIN] = "begin",
        [EVENT_COMMITTED] = "committed",
        [EVENT_ABORTED] = "aborted",
        [EVENT_NONFINITE] = "nonfinite",
        [EVENT_TWINS] = "twins",
        [EVENT_ODD] = "odd",
        [EVENT_SUMMONED] = "summoned",
        [EVENT_ALONE] = "alone",
        [EVENT_WAITING] = "waiting",
        [EVENT_SETTLED] = "settled",
        [EVENT_STATE_LOST] = "state_lost",
        [EVENT_CAUGHT_UP] = "caught_up",
        [EVENT_MASTER_LOST] = "master_lost",
        [EVENT_MASTER_FOUND] = "master_found",
        [EVENT_DROPPED] = "dropped",
        [EVENT_PEER_LOST] = "peer_lost",
        [EVENT_UNREACHED] = "unreached",
        [EVENT_DONOR_LOST] = "donor_lost",
        [EVENT_REJOINED] = "rejoined",
        [EVENT_OVER] = "over",
    };
    return (unsigned)kind < EVENT_KIND_COUNT ? names[kind] : "?";
}

struct event *event_blank(struct event *event, enum event_kind kind)
{
    *event = (struct event){.kind = kind, .rank = EVENT_NOBODY, .other_rank = EVENT_NOBODY};
    return event;
}
