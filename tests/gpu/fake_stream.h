/* fake_stream.h - what a stream of the fake device looks like to the fake NCCL. */
#ifndef FAKE_STREAM_H
#define FAKE_STREAM_H

struct fake_stream {
    void (*enqueue)(struct fake_stream *stream, void (*act)(void *), void *context);
};

#endif
