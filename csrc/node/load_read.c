/* load_read.c - solo_read_* of solo_ckpt.h: a plan of ckpt/ carried out by a crew of os/.
 *
 * Each piece is read by one thread in blocks that fit its cache; checksums are taken while a
 * block is still there. Parts of a checksum from several pieces are joined at the end. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/read_plan.h"
#include "os/crew.h"
#include "os/file.h"
#include "os/host.h"
#include "os/pages.h"

#define PIECE_BYTES        (8u << 20) /* what a thread takes at a time, at most */
#define PIECE_LEAST_BYTES  (4u << 20) /* two huge pages */
#define PIECES_EACH        16u /* of small files, so that no thread waits long for the last */
#define PIECE_DIRECT_BYTES (4u << 20)
#define BLOCK_BYTES        (512u << 10)
#define GAP_MAX            4096u
#define GAP_DIRECT_MAX     (64u << 10)
#define SEGMENTS_MAX       256u
#define DIRECT_LEAST_BYTES (64u << 20) /* below, the page cache's read-ahead is as good */
#define DIRECT_THREADS     8u          /* the depth of the queue at the disk */
#define THREADS_MAX        8u
#define HEADER_MAX         8192u

struct part {
    uint32_t crc;
    uint64_t bytes;
};

struct solo_reading {
    struct solo_file *file;
    struct solo_read_options options;
    struct read_plan plan;
    struct part *parts;
    struct crew *crew;
    uint8_t *rooms; /* per thread: sink of gaps, or the bounce buffer of direct reads */
    size_t room_bytes;
    bool direct, finished;
    uint32_t threads;
    atomic_uint_fast64_t done;
    struct pages pages; /* of where it all goes */
};

struct block { /* what one turn of a piece works on */
    struct solo_reading *reading;
    const struct read_plan_piece *piece;
    uint8_t *room;
    uint64_t at, end;
    size_t next;                 /* the read that holds or follows `at` */
    const uint8_t *from, *ready; /* memory that has its pages, as far as we know */
};

struct segment {
    struct solo_ckpt_read *read; /* NULL: a gap */
    uint8_t *to;
    size_t bytes, index;
};

static uint8_t *place(const struct solo_ckpt_read *read, uint64_t at)
{
    return (uint8_t *)read->to + (at - read->offset);
}

/* Whether the whole piece lies in memory as it lies in the file, gaps included. */
static bool is_uniform(const struct solo_reading *reading, const struct read_plan_piece *piece)
{
    struct solo_ckpt_read *const *reads = reading->plan.order + piece->first;
    if (!reading->options.gaps_writable) {
        return piece->count == 1;
    }
    for (size_t i = 1; i < piece->count; i++) {
        if (place(reads[i], piece->offset) != place(reads[0], piece->offset)) {
            return false;
        }
    }
    return true;
}

static void add_crc(struct solo_reading *reading, const struct read_plan_piece *piece,
                    const struct segment *segment)
{
    if (segment->read && segment->read->crc) {
        struct part *part = &reading->parts[piece->part + segment->index - piece->first];
        part->crc = solo_crc32(part->crc, segment->to, segment->bytes);
        part->bytes += segment->bytes;
    }
}

/* The zip header in front of a storage must say what the directory said. */
static int check_header(struct solo_reading *reading, const struct solo_ckpt_read *read,
                        const uint8_t *in_memory)
{
    const struct solo_ckpt_storage *storages;
    uint64_t bytes = read->offset - (read->header_offset + reading->options.base);
    uint8_t room[HEADER_MAX];
    if (!in_memory) {
        bytes = bytes < sizeof room ? bytes : sizeof room;
        struct iovec vector = {room, (size_t)bytes};
        TRY(file_read_vectors(reading->file, read->header_offset + reading->options.base, &vector,
                              1));
        in_memory = room;
    }
    solo_ckpt_storages(read->ckpt, &storages);
    return solo_ckpt_local_check(read->ckpt, &storages[read->storage], in_memory, (size_t)bytes);
}

static int check_headers(struct solo_reading *reading, const struct read_plan_piece *piece,
                         bool uniform)
{
    for (size_t i = 0; i < piece->count; i++) {
        const struct solo_ckpt_read *read = reading->plan.order[piece->first + i];
        if (read->header_offset == SOLO_CKPT_NONE || read->offset < piece->offset) {
            continue; /* none, or checked by who read the beginning */
        }
        uint64_t header = read->header_offset + reading->options.base;
        bool here = uniform && header >= piece->offset && piece->count > 1;
        TRY(check_header(reading, read, here ? place(read, header) : NULL));
    }
    return 0;
}

/* Before memory is filled. Neighbours in the file are mostly neighbours in memory as well, so
 * what was given last is all that is remembered. */
static void give_pages(struct block *block, const uint8_t *to, size_t bytes)
{
    if (to < block->from || to > block->ready) {
        block->from = block->ready = to;
    }
    while (block->ready < to + bytes) {
        block->ready = pages_give(&block->reading->pages, block->ready);
    }
}

/* The next segment of the block: a gap, or what one read has of it. */
static struct segment take_segment(struct block *block, uint64_t until)
{
    struct solo_ckpt_read *read = block->reading->plan.order[block->next];
    struct segment segment = {.index = block->next};
    uint64_t stop = read->offset;
    if (block->at >= read->offset) {
        segment.read = read;
        segment.to = place(read, block->at);
        stop = read->offset + read->bytes;
    }
    stop = stop < until ? stop : until;
    segment.bytes = (size_t)(stop - block->at);
    block->at = stop;
    if (segment.read && stop == read->offset + read->bytes) {
        block->next++;
    }
    return segment;
}

static int read_block(struct block *block)
{
    struct segment segments[SEGMENTS_MAX];
    struct iovec vectors[SEGMENTS_MAX];
    uint64_t start = block->at;
    uint64_t until = start + BLOCK_BYTES < block->end ? start + BLOCK_BYTES : block->end;
    int count = 0;
    while (block->at < until && count < (int)SEGMENTS_MAX) {
        struct segment segment = take_segment(block, until);
        segments[count] = segment;
        if (segment.read) {
            give_pages(block, segment.to, segment.bytes);
        }
        vectors[count++] = (struct iovec){segment.read ? segment.to : block->room, segment.bytes};
    }
    TRY(file_read_vectors(block->reading->file, start, vectors, count));
    for (int i = 0; i < count; i++) {
        add_crc(block->reading, block->piece, &segments[i]);
    }
    return 0;
}

/* The same where memory is as the file: one vector, gaps and all. */
static int read_uniform_block(struct block *block, uint8_t *to)
{
    uint64_t until = block->at + BLOCK_BYTES < block->end ? block->at + BLOCK_BYTES : block->end;
    struct iovec vector = {to, (size_t)(until - block->at)};
    give_pages(block, to, vector.iov_len);
    TRY(file_read_vectors(block->reading->file, block->at, &vector, 1));
    while (block->at < until) {
        struct segment segment = take_segment(block, until);
        add_crc(block->reading, block->piece, &segment);
    }
    return 0;
}

static int read_buffered(struct block *block, bool uniform)
{
    const struct solo_ckpt_read *first = block->reading->plan.order[block->piece->first];
    while (block->at < block->end) {
        TRY(uniform ? read_uniform_block(block, place(first, block->at)) : read_block(block));
    }
    return 0;
}

/* Whole blocks past the page cache: into place if memory and file agree on where a block
 * begins, else through a buffer. */
static int read_direct(struct block *block, bool uniform)
{
    const uint64_t mask = FILE_BLOCK_BYTES - 1;
    const struct solo_ckpt_read *first = block->reading->plan.order[block->piece->first];
    uint64_t low = block->at & ~mask, high = (block->end + mask) & ~mask;
    bool in_place = uniform && block->reading->options.gaps_writable &&
                    ((uintptr_t)place(first, low) & mask) == 0;
    uint8_t *to = in_place ? place(first, low) : block->room;
    size_t got;
    if (in_place) {
        give_pages(block, to, (size_t)(high - low));
    }
    TRY(file_read_direct(block->reading->file, low, to, (size_t)(high - low), &got));
    if (low + got < block->end) {
        return err_set(SOLO_ECORRUPT, "%s ends early: it became shorter",
                       block->reading->file->path);
    }
    while (block->at < block->end) {
        uint64_t at = block->at;
        struct segment segment = take_segment(block, block->end);
        if (segment.read && !in_place) {
            memcpy(segment.to, to + (at - low), segment.bytes);
        }
        add_crc(block->reading, block->piece, &segment);
    }
    return 0;
}

static int read_piece(void *context, uint32_t thread, size_t item)
{
    struct solo_reading *reading = context;
    const struct read_plan_piece *piece =
        (struct read_plan_piece *)reading->plan.pieces.items + item;
    struct block block = {.reading = reading,
                          .piece = piece,
                          .at = piece->offset,
                          .end = piece->offset + piece->bytes,
                          .next = piece->first,
                          .room = reading->rooms + thread * reading->room_bytes};
    bool uniform = is_uniform(reading, piece);
    TRY(reading->direct ? read_direct(&block, uniform) : read_buffered(&block, uniform));
    TRY(check_headers(reading, piece, uniform && reading->options.gaps_writable));
    atomic_fetch_add(&reading->done, piece->bytes);
    return 0;
}

static bool wants_direct(struct solo_reading *reading, const struct solo_ckpt_read *reads,
                         size_t count)
{
    if (reading->options.direct == SOLO_DIRECT_NEVER || !count) {
        return false;
    }
    uint64_t low = UINT64_MAX, high = 0, bytes = 0;
    for (size_t i = 0; i < count; i++) {
        low = reads[i].offset < low ? reads[i].offset : low;
        high = reads[i].offset + reads[i].bytes > high ? reads[i].offset + reads[i].bytes : high;
        bytes += reads[i].bytes;
    }
    if (reading->options.direct == SOLO_DIRECT_AUTO) {
        int cached =
            bytes < DIRECT_LEAST_BYTES ? -1 : solo_file_cached(reading->file, low, high - low);
        if (cached < 0 || cached >= 50) {
            return false;
        }
    }
    return file_direct_open(reading->file);
}

static uint32_t threads_of(const struct solo_reading *reading)
{
    uint32_t threads = reading->options.threads;
    if (!threads) {
        threads = host_processors();
        threads = threads < THREADS_MAX ? threads : THREADS_MAX;
    }
    if (reading->direct && threads < DIRECT_THREADS) {
        threads = DIRECT_THREADS;
    }
    return threads < CREW_THREADS_MAX ? threads : CREW_THREADS_MAX;
}

static uint64_t piece_bytes(const struct solo_reading *reading, const struct solo_ckpt_read *reads,
                            size_t count, uint32_t threads)
{
    uint64_t total = 0, piece = PIECE_BYTES;
    if (reading->direct) {
        return PIECE_DIRECT_BYTES;
    }
    for (size_t i = 0; i < count; i++) {
        total = total + reads[i].bytes < total ? UINT64_MAX : total + reads[i].bytes;
    }
    while (piece > PIECE_LEAST_BYTES && total / piece < (uint64_t)threads * PIECES_EACH) {
        piece /= 2;
    }
    return piece;
}

static int start(struct solo_reading *reading, struct solo_ckpt_read *reads, size_t count)
{
    reading->direct = wants_direct(reading, reads, count);
    uint32_t threads = threads_of(reading);
    TRY(read_plan_make(reads, count, reading->direct ? GAP_DIRECT_MAX : GAP_MAX,
                       piece_bytes(reading, reads, count, threads), &reading->plan));
    for (size_t i = 0; i < reading->plan.count; i++) {
        TRY(pages_add(&reading->pages, reading->plan.order[i]->to,
                      (size_t)reading->plan.order[i]->bytes));
    }
    pages_ready(&reading->pages);
    reading->room_bytes =
        reading->direct ? PIECE_DIRECT_BYTES + 2 * FILE_BLOCK_BYTES : GAP_MAX + FILE_BLOCK_BYTES;
    reading->room_bytes = (reading->room_bytes + FILE_BLOCK_BYTES - 1) & ~(FILE_BLOCK_BYTES - 1u);
    reading->parts = calloc(reading->plan.parts + 1, sizeof *reading->parts);
    reading->rooms = aligned_alloc(FILE_BLOCK_BYTES, threads * reading->room_bytes);
    if (!reading->parts || !reading->rooms) {
        return err_set(SOLO_ENOMEM, "no memory to read %zu ranges", count);
    }
    return crew_start(threads, reading->plan.pieces.count, read_piece, reading, &reading->crew);
}

int solo_read_start(struct solo_file *file, struct solo_ckpt_read *reads, size_t count,
                    const struct solo_read_options *options, struct solo_reading **out)
{
    struct solo_reading *reading = calloc(1, sizeof *reading);
    if (!reading) {
        return err_set(SOLO_ENOMEM, "no memory to read");
    }
    reading->file = file;
    if (options) {
        memcpy(&reading->options, options,
               options->size < sizeof *options ? options->size : sizeof *options);
    }
    for (size_t i = 0; i < count; i++) {
        reads[i].offset += reading->options.base;
    }
    int rc = start(reading, reads, count);
    if (rc < 0) {
        solo_read_free(reading);
        return rc;
    }
    *out = reading;
    return 0;
}

static void join_checksums(struct solo_reading *reading)
{
    const struct read_plan_piece *pieces = reading->plan.pieces.items;
    for (size_t i = 0; i < reading->plan.pieces.count; i++) {
        for (size_t k = 0; k < pieces[i].count; k++) {
            struct solo_ckpt_read *read = reading->plan.order[pieces[i].first + k];
            const struct part *part = &reading->parts[pieces[i].part + k];
            bool whole = part->bytes == read->bytes;
            if (read->crc) {
                read->crc_found =
                    whole ? part->crc : solo_crc32_join(read->crc_found, part->crc, part->bytes);
            }
        }
    }
}

int solo_read_wait(struct solo_reading *reading, uint32_t timeout_ms)
{
    TRY(crew_wait(reading->crew, timeout_ms));
    if (!reading->finished) {
        reading->finished = true;
        join_checksums(reading);
        TRY(file_unchanged(reading->file));
    }
    return 0;
}

void solo_read_stop(struct solo_reading *reading)
{
    crew_stop(reading->crew);
}

void solo_read_progress_get(struct solo_reading *reading, struct solo_read_progress *out)
{
    *out = (struct solo_read_progress){atomic_load(&reading->done), reading->plan.bytes,
                                       reading->direct};
}

void solo_read_free(struct solo_reading *reading)
{
    if (reading) {
        crew_free(reading->crew);
        read_plan_free(&reading->plan);
        pages_free(&reading->pages);
        free(reading->parts);
        free(reading->rooms);
        free(reading);
    }
}
