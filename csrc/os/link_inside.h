/* link_inside.h - what link.c (life and streams) and link_info.c (questions) share. */
#ifndef SOLO_OS_LINK_INSIDE_H
#define SOLO_OS_LINK_INSIDE_H

#include "os/link.h"
#include "os/link_queue.h"
#include "os/pace.h"

enum link_state {
    LINK_DIALING,
    LINK_OPEN,
    LINK_DRAINING, /* one stream was closed in good order: the others still deliver */
    LINK_LOST,
};

struct stream {
    struct link *link;
    struct conn *conn; /* NULL: free */
    bool open, arrives;
    struct frame arriving; /* if it arrives: has room, and is not whole yet */
};

struct link {
    struct link_config config;
    struct conn_config conn_config;
    enum link_state state;
    bool dialed, finishing, no_more_streams;
    struct solo_url to;
    struct frame greeting;
    uint8_t greeting_payload[LINK_GREETING_MAX];

    struct stream streams[LINK_STREAMS_MAX];
    uint32_t streams_end; /* behind the last that was ever used: mostly there are few */
    uint32_t next_stream; /* whose turn it is */
    uint32_t streams_wanted;
    struct link_queue queue;
    struct loop_timer deadline; /* of finishing, or of draining */
    char peer[ADDR_TEXT_MAX];

    struct pace pace;
    uint64_t rtt_asked_us;
    uint64_t send_bytes_max; /* of one stream */
    uint64_t closed_sent_bytes, closed_received_bytes;
};

#endif
