#include "node/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/err.h"
#include "node/job_inside.h"
#include "wire/crc32c.h"

#define STATE_FORMAT 1u
static const char magic[8] = "solostat";

void state_name(const char *job_id, uint32_t node_rank, char *name, size_t size)
{
    int length = snprintf(name, size, "%s-%u.state", job_id, node_rank);
    for (int i = 0; i < length && (size_t)i + 1 < size; i++) {
        char c = name[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     c == '-' || c == '_' || (c == '.' && i > 0);
        name[i] = plain ? c : '_';
    }
}

struct header {
    uint64_t layout_hash;
    struct state_version version;
    uint64_t theta_bytes, integers_bytes, momentum_bytes;
    uint32_t body_crc;
    char words[LAYOUT_WORDS_MAX];
};

static void write_header(uint8_t *bytes, const struct header *header)
{
    memset(bytes, 0, STATE_HEADER_BYTES);
    struct writer writer = writer_of(bytes, STATE_HEADER_BYTES - 4);
    write_bytes(&writer, magic, sizeof magic);
    write_uint(&writer, STATE_FORMAT, 4);
    const uint64_t fields[] = {header->layout_hash,      header->version.version,
                               header->version.job_step, header->version.digest,
                               header->theta_bytes,      header->integers_bytes,
                               header->momentum_bytes,   header->body_crc};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        write_uint(&writer, fields[i], 8);
    }
    write_text(&writer, header->words);
    MUST(writer.ok);
    struct writer tail = writer_of(bytes + STATE_HEADER_BYTES - 4, 4);
    write_uint(&tail, crc32c(0, bytes, STATE_HEADER_BYTES - 4), 4);
}

static int read_header(const uint8_t *bytes, struct header *out)
{
    struct reader tail = reader_of(bytes + STATE_HEADER_BYTES - 4, 4);
    if (memcmp(bytes, magic, sizeof magic) != 0) {
        return err_set(SOLO_ECORRUPT, "it is not a state file of solo");
    }
    if (read_u32(&tail) != crc32c(0, bytes, STATE_HEADER_BYTES - 4)) {
        return err_set(SOLO_ECORRUPT, "its header fails its checksum");
    }
    struct reader reader = reader_of(bytes + sizeof magic, STATE_HEADER_BYTES - 4 - sizeof magic);
    uint32_t format = read_u32(&reader);
    uint64_t fields[8];
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        fields[i] = read_u64(&reader);
    }
    *out = (struct header){fields[0], {fields[1], fields[2], fields[3]},
                           fields[4], fields[5],
                           fields[6], (uint32_t)fields[7],
                           ""};
    read_text(&reader, out->words, sizeof out->words);
    if (format != STATE_FORMAT || !reader.ok) {
        return err_set(SOLO_EVERSION, "its format is %u, this solo reads %u", format, STATE_FORMAT);
    }
    return 0;
}

/* ---- writing ----------------------------------------------------------------------------- */

struct writing {
    struct store *store;
    bool (*going_on)(void *context);
    void *context;
    uint32_t crc;
};

static int write_area(struct writing *writing, const struct area *area)
{
    const uint8_t *at = area->base;
    for (size_t left = area->size; left;) {
        size_t size = left < STATE_PIECE_BYTES ? left : STATE_PIECE_BYTES;
        if (!writing->going_on(writing->context)) {
            return SOLO_EABORTED;
        }
        writing->crc = crc32c(writing->crc, at, size);
        TRY(store_write(writing->store, at, size));
        at += size;
        left -= size;
    }
    return 0;
}

int state_write(const struct job *job, const struct state_version *version, const char *folder,
                const char *name, bool (*going_on)(void *context), void *context,
                struct store *store_out)
{
    struct header header = {
        job->layout.hash, *version, job->theta.size, job->integers.size, job->momentum.size, 0, ""};
    memcpy(header.words, job->layout.words, sizeof header.words);
    uint8_t bytes[STATE_HEADER_BYTES] = {0};
    TRY(store_begin(store_out, folder, name));
    struct writing writing = {store_out, going_on, context, 0};
    int rc = store_write(store_out, bytes, sizeof bytes); /* its place; known at the end */
    rc = rc < 0 ? rc : write_area(&writing, &job->theta);
    rc = rc < 0 ? rc : write_area(&writing, &job->integers);
    rc = rc < 0 ? rc : write_area(&writing, &job->momentum);
    if (rc >= 0) {
        header.body_crc = writing.crc;
        write_header(bytes, &header);
        rc = store_write_at(store_out, 0, bytes, sizeof bytes);
    }
    if (rc < 0) {
        store_abandon(store_out);
    }
    return rc;
}

/* ---- reading ----------------------------------------------------------------------------- */

static int check_fit(const struct job *job, const struct header *header, uint64_t file_bytes)
{
    if (header->layout_hash != job->layout.hash) {
        return err_set(SOLO_EMISMATCH, "it holds another model: %s; this one: %s", header->words,
                       job->layout.words);
    }
    if (header->momentum_bytes != job->momentum.size) {
        return err_set(
            SOLO_EMISMATCH, "it was written %s outer momentum and this run's outer step is %s it",
            header->momentum_bytes ? "with" : "without", job->momentum.size ? "with" : "without");
    }
    if (file_bytes !=
        STATE_HEADER_BYTES + job->theta.size + job->integers.size + job->momentum.size) {
        return err_set(SOLO_ECORRUPT, "it has %" PRIu64 " bytes, which is not its whole length",
                       file_bytes);
    }
    return 0;
}

static int read_body(struct job *job, int fd, const struct header *header)
{
    const struct area *const areas[3] = {&job->theta, &job->integers, &job->momentum};
    uint32_t crc = 0;
    for (size_t i = 0; i < 3; i++) {
        TRY(store_read(fd, areas[i]->base, areas[i]->size));
        crc = crc32c(crc, areas[i]->base, areas[i]->size);
    }
    if (crc != header->body_crc) {
        return err_set(SOLO_ECORRUPT, "its content fails its checksum");
    }
    if (job_hash(job) != header->version.digest) {
        return err_set(SOLO_ECORRUPT, "its content has not the digest of version %" PRIu64,
                       header->version.version);
    }
    return 0;
}

int state_read(struct job *job, const char *folder, const char *name,
               struct state_version *version_out)
{
    int fd = -1;
    uint64_t file_bytes = 0;
    TRY(store_open(folder, name, &fd, &file_bytes));
    uint8_t bytes[STATE_HEADER_BYTES];
    struct header header = {0};
    int rc = store_read(fd, bytes, sizeof bytes);
    rc = rc < 0 ? rc : read_header(bytes, &header);
    rc = rc < 0 ? rc : check_fit(job, &header, file_bytes);
    rc = rc < 0 ? rc : read_body(job, fd, &header);
    store_close(fd);
    if (rc < 0) {
        return err_set(rc, "cannot go on from %.200s/%s: %.160s. Remove it to begin anew", folder,
                       name, err_text());
    }
    job->digest = header.version.digest;
    job->has_anchor = true;
    *version_out = header.version;
    return 0;
}
