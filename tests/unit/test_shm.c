#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "os/clock.h"
#include "os/ring.h"
#include "os/shm.h"
#include "os/thread.h"

enum { SIZE = 3 << 20 };
#define SOON (clock_us() + 5000000)

static void child_maps_and_answers(int socket)
{
    char word[4];
    int fd = -1;
    struct shm shm = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    CHECK_EQ(shm_receive_fds(socket, word, sizeof word, &fd, 1, SOON), 0);
    CHECK(memcmp(word, "take", 4) == 0);
    CHECK_EQ(shm_attach(fd, SIZE, &shm), 0);
    CHECK_STR((char *)shm.base, "from the parent");
    memcpy(shm.base + SIZE - 16, "from the child", 15);
    CHECK_EQ(shm_send_fds(socket, "done", 4, NULL, 0, SOON), 0);
    shm_close(&shm);
}

TEST(two_processes_see_one_segment)
{
    int pair[2];
    char word[4];
    struct shm shm = {0};
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    CHECK_EQ(shm_create("test", SIZE, &shm), 0);
    memcpy(shm.base, "from the parent", 16);
    pid_t child = fork();
    if (child == 0) {
        child_maps_and_answers(pair[1]);
        _exit(0);
    }
    CHECK_EQ(shm_send_fds(pair[0], "take", 4, &shm.fd, 1, SOON), 0);
    CHECK_EQ(shm_receive_fds(pair[0], word, sizeof word, NULL, 0, SOON), 0);
    CHECK_STR((char *)shm.base + SIZE - 16, "from the child");
    int status = 1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    shm_close(&shm);
    close(pair[0]);
    close(pair[1]);
}

TEST(a_segment_that_could_shrink_or_is_too_small_is_refused)
{
    struct shm small = {0}, out = {0};
    CHECK_EQ(shm_create("test", 4096, &small), 0);
    CHECK_EQ(shm_attach(dup(small.fd), 8192, &out), SOLO_EPEER);
    CHECK_HAS(solo_error_text(), "8192");
    shm_close(&small);
    int pipes[2];
    CHECK_EQ(pipe(pipes), 0);
    CHECK_EQ(shm_attach(pipes[0], 1, &out), SOLO_EPEER); /* has no seals at all */
    CHECK_HAS(solo_error_text(), "not sealed");
    close(pipes[1]);
}

TEST(a_receiver_of_descriptors_waits_no_longer_than_its_deadline)
{
    int pair[2], fd = -1;
    char word[4];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    CHECK_EQ(shm_receive_fds(pair[0], word, 4, &fd, 1, clock_us() + 2000), SOLO_ETIMEDOUT);
    CHECK_EQ(shm_send_fds(pair[1], "word", 4, NULL, 0, SOON), 0);
    CHECK_EQ(shm_receive_fds(pair[0], word, 4, &fd, 1, SOON), SOLO_EPEER);
    close(pair[1]);
    CHECK_EQ(shm_receive_fds(pair[0], word, 4, &fd, 1, SOON), SOLO_ECLOSED);
    close(pair[0]);
}

TEST(a_local_name_belongs_to_one_listener)
{
    int listener = -1, second = -1, fd = -1, accepted = -1;
    char name[64];
    snprintf(name, sizeof name, "solo-test/%d", (int)getpid());
    CHECK_EQ(shm_connect(name, &fd), SOLO_ENOENT);
    CHECK_EQ(shm_listen(name, &listener), 0);
    CHECK_EQ(shm_listen(name, &second), SOLO_EINUSE);
    CHECK_EQ(shm_accept(listener, &accepted), SOLO_EAGAIN);
    CHECK_EQ(shm_connect(name, &fd), 0);
    CHECK_EQ(shm_accept(listener, &accepted), 0);
    close(fd);
    close(accepted);
    close(listener);
}

/* ---- the ring ----------------------------------------------------------------------------- */

enum { RING_TOTAL = 24 << 20 };

static uint8_t byte_at(size_t index)
{
    return (uint8_t)(index * 2654435761u >> 13);
}

static void write_all(void *context)
{
    struct ring ring;
    CHECK_EQ(ring_open(context, 0, &ring), 0);
    static uint8_t bytes[300001];
    for (size_t done = 0; done < RING_TOTAL;) {
        size_t size = 1 + done % sizeof bytes;
        size = size < RING_TOTAL - done ? size : RING_TOTAL - done;
        for (size_t i = 0; i < size; i++) {
            bytes[i] = byte_at(done + i);
        }
        for (size_t at = 0; at < size;) {
            int64_t count = ring_write(&ring, bytes + at, size - at);
            CHECK(count >= 0);
            at += (size_t)count;
        }
        done += size;
    }
    ring_close(&ring);
}

TEST(a_ring_carries_every_byte_in_order_between_two_threads)
{
    struct shm shm = {0};
    struct thread thread = {0};
    static uint8_t bytes[70001];
    struct ring ring;
    CHECK_EQ(shm_create("test", RING_SEGMENT_BYTES(1), &shm), 0);
    CHECK_EQ(ring_open(&shm, 0, &ring), 0);
    CHECK_EQ(thread_start(&thread, "writer", write_all, &shm), 0);
    for (size_t done = 0; done < RING_TOTAL;) {
        int64_t count = ring_read(&ring, bytes, 1 + done % sizeof bytes);
        CHECK(count >= 0);
        for (int64_t i = 0; i < count; i++) {
            CHECK_EQ(bytes[i], byte_at(done + (size_t)i));
        }
        done += (size_t)count;
    }
    thread_join(&thread);
    ring_close(&ring);
    shm_close(&shm);
}

TEST(a_ring_with_impossible_counters_is_the_peers_fault)
{
    struct shm shm = {0};
    uint8_t byte = 0;
    struct ring ring;
    const uint8_t *there;
    uint8_t *room;
    CHECK_EQ(shm_create("test", RING_SEGMENT_BYTES(1), &shm), 0);
    CHECK_EQ(ring_open(&shm, 0, &ring), 0);
    struct ring_shared *shared = ring.shared;
    atomic_store(&shared->head, RING_BYTES + 1u);
    CHECK_EQ(ring_read(&ring, &byte, 1), SOLO_EPEER);
    atomic_store(&shared->head, UINT64_MAX);
    CHECK_EQ(ring_read(&ring, &byte, 1), SOLO_EPEER);
    CHECK_EQ(ring_peek(&ring, 1, &there), SOLO_EPEER);
    atomic_store(&shared->tail, 1);
    CHECK_EQ(ring_write(&ring, &byte, 1), SOLO_EPEER);
    CHECK_EQ(ring_room(&ring, 1, 0, &room), SOLO_EPEER);
    ring_close(&ring);
    shm_close(&shm);
}

TEST(a_full_or_empty_ring_asks_for_a_bell_once)
{
    struct shm shm = {0};
    static uint8_t bytes[RING_BYTES];
    struct ring writer, reader;
    CHECK_EQ(shm_create("test", RING_SEGMENT_BYTES(1), &shm), 0);
    CHECK_EQ(ring_open(&shm, 0, &writer), 0);
    CHECK_EQ(ring_open(&shm, 0, &reader), 0);
    CHECK_EQ(ring_read(&reader, bytes, 1), 0);
    CHECK_EQ(ring_write(&writer, bytes, 1), 1);
    CHECK(writer.bell);
    writer.bell = false;
    size_t filled = 1;
    while (filled < RING_BYTES) {
        filled += (size_t)ring_write(&writer, bytes, RING_BYTES - filled);
    }
    CHECK(!writer.bell);
    CHECK_EQ(ring_write(&writer, bytes, 1), 0);
    CHECK(ring_read(&reader, bytes, 1) == 1 && !reader.bell); /* not for one byte */
    while (ring_read(&reader, bytes, RING_BYTES) > 0) {
    }
    CHECK(reader.bell);
    ring_close(&writer);
    ring_close(&reader);
    shm_close(&shm);
}

/* Made and used where they lie, over the end of the memory too; seen when they are whole. */
TEST(bytes_are_made_and_used_in_a_ring_without_a_copy)
{
    struct shm shm = {0};
    struct ring writer, reader;
    const uint8_t *there = NULL;
    uint8_t *room = NULL;
    enum { PART = 300000, SPARE = 1000 };
    CHECK_EQ(shm_create("test", RING_SEGMENT_BYTES(2), &shm), 0);
    CHECK_EQ(ring_open(&shm, 1, &writer), 0);
    CHECK_EQ(ring_open(&shm, 1, &reader), 0);
    for (uint32_t round = 0; round < 20; round++) {
        CHECK_EQ(ring_room(&writer, PART, SPARE, &room), PART);
        memset(room, (int)round, PART);
        CHECK_EQ(ring_peek(&reader, PART, &there), 0);
        ring_put(&writer, PART - 1);
        CHECK_EQ(ring_peek(&reader, PART, &there), 0);
        CHECK(!writer.bell); /* not before all that is waited for is there */
        ring_put(&writer, 1);
        CHECK(writer.bell);
        writer.bell = false;
        CHECK_EQ(ring_peek(&reader, PART, &there), PART);
        CHECK(there[0] == round && memcmp(there, there + 1, PART - 1) == 0);
        ring_take(&reader, PART);
    }
    ring_close(&writer);
    ring_close(&reader);
    shm_close(&shm);
}

TEST(a_ring_without_room_asks_for_a_bell_when_there_is_enough)
{
    struct shm shm = {0};
    struct ring writer, reader;
    uint8_t *room = NULL;
    enum { PART = RING_BYTES / 4 };
    CHECK_EQ(shm_create("test", RING_SEGMENT_BYTES(1), &shm), 0);
    CHECK_EQ(ring_open(&shm, 0, &writer), 0);
    CHECK_EQ(ring_open(&shm, 0, &reader), 0);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(ring_room(&writer, PART, 0, &room), PART);
        ring_put(&writer, PART);
    }
    CHECK_EQ(ring_room(&writer, PART, 2 * PART, &room), 0);
    ring_take(&reader, PART);
    CHECK(!reader.bell);
    ring_take(&reader, PART);
    CHECK(reader.bell);
    CHECK_EQ(ring_room(&writer, PART, 2 * PART, &room), PART);
    ring_close(&writer);
    ring_close(&reader);
    shm_close(&shm);
}
