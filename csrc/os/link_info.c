/* What can be asked of a link. */
#include "os/link_inside.h"
#include "os/ring.h"

uint32_t link_streams(const struct link *link)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < link->streams_end; i++) {
        count += link->streams[i].open;
    }
    return count;
}

bool link_is_open(const struct link *link)
{
    return link->state == LINK_OPEN;
}

bool link_is_shm(const struct link *link)
{
    return link->streams[0].open && conn_is_shm(link->streams[0].conn);
}

static bool same_frame(const struct frame *a, const struct frame *b)
{
    return a->type == b->type && a->flags == b->flags && a->chunk == b->chunk &&
           a->round == b->round && a->attempt == b->attempt && a->extra == b->extra &&
           epoch_compare(a->epoch, b->epoch) == 0;
}

bool link_arrives(const struct link *link, const struct frame *frame)
{
    for (uint32_t i = 0; i < link->streams_end; i++) {
        const struct stream *stream = &link->streams[i];
        if (stream->arrives && same_frame(&stream->arriving, frame)) {
            return true;
        }
    }
    return false;
}

_Static_assert(LINK_HALF_BYTES == RING_BYTES / 2, "what link.h says");

/* A payload has to be there whole: half of the ring, so that what follows it is on its way. */
bool link_in_place(const struct link *link, size_t size)
{
    return link_is_shm(link) && size <= LINK_HALF_BYTES;
}

uint32_t link_rtt_us(const struct link *link)
{
    return link->pace.rtt_us;
}

uint64_t link_sent_bytes(const struct link *link)
{
    uint64_t bytes = link->closed_sent_bytes;
    for (uint32_t i = 0; i < link->streams_end; i++) {
        bytes += link->streams[i].conn ? conn_sent_bytes(link->streams[i].conn) : 0;
    }
    return bytes;
}

uint64_t link_received_bytes(const struct link *link)
{
    uint64_t bytes = link->closed_received_bytes;
    for (uint32_t i = 0; i < link->streams_end; i++) {
        bytes += link->streams[i].conn ? conn_received_bytes(link->streams[i].conn) : 0;
    }
    return bytes;
}
