#include "wire/hello.h"

#include <string.h>

#include "base/bytes.h"
#include "base/err.h"

#define TRANSCRIPT_MAX 96u

/* In a proof's place, without a final zero. */
static const char no_token[HELLO_PROOF_BYTES] = "solo: no token, trusted network\n";

enum { FLAG_TOKEN = 1 };

enum hello_answer {
    ANSWER_YES = 0,
    ANSWER_VERSION = 1, /* another wire version; the reply says which */
    ANSWER_JOB = 2,
    ANSWER_ROLE = 3,
    ANSWER_TOKEN = 4,    /* yours is wrong, or you have none and I do */
    ANSWER_NO_TOKEN = 5, /* you have one and I do not */
};

static uint64_t job_hash_of(const char *job_id)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a, 64 bits: tells jobs apart, proves nothing */
    for (const char *at = job_id; *at; at++) {
        hash = (hash ^ (uint8_t)*at) * 0x100000001b3u;
    }
    return hash;
}

static bool has_token(const struct hello *hello)
{
    return hello->config.token && hello->config.token[0];
}

static void proof_of(const struct hello *hello, bool by_server, uint8_t *proof)
{
    if (!has_token(hello)) {
        memcpy(proof, no_token, sizeof no_token);
        return;
    }
    uint8_t transcript[TRANSCRIPT_MAX];
    struct writer writer = writer_of(transcript, sizeof transcript);
    write_bytes(&writer, by_server ? "solo server" : "solo client", 11);
    write_uint(&writer, (uint64_t)hello->role, 1);
    write_uint(&writer, hello->job_hash, 8);
    write_bytes(&writer, hello->nonce_client, HELLO_NONCE_BYTES);
    write_bytes(&writer, hello->nonce_server, HELLO_NONCE_BYTES);
    MUST(writer.ok);
    hello->config.hmac(hello->config.token, strlen(hello->config.token), transcript,
                       (size_t)(writer.at - transcript), proof);
}

static bool equal_in_constant_time(const uint8_t *a, const uint8_t *b, size_t size)
{
    uint8_t difference = 0;
    for (size_t i = 0; i < size; i++) {
        difference |= (uint8_t)(a[i] ^ b[i]);
    }
    return difference == 0;
}

static int fail(struct hello *hello, int rc, enum solo_reach reach)
{
    hello->state = HELLO_FAILED;
    hello->rc = rc;
    hello->reach = reach;
    return rc;
}

static void hello_init(struct hello *hello, const struct hello_config *config, bool server)
{
    memset(hello, 0, sizeof *hello);
    hello->config = *config;
    hello->server = server;
    hello->state = HELLO_OPENING;
    hello->job_hash = job_hash_of(config->job_id ? config->job_id : "");
    hello->reach = SOLO_NO_ANSWER;
    memcpy(server ? hello->nonce_server : hello->nonce_client, config->nonce, HELLO_NONCE_BYTES);
}

void hello_client(struct hello *hello, const struct hello_config *config)
{
    hello_init(hello, config, false);
    while (hello->role < 7 && !(config->roles & 1u << hello->role)) {
        hello->role = (enum hello_role)(hello->role + 1);
    }
    struct writer writer = writer_of(hello->out, sizeof hello->out);
    write_bytes(&writer, HELLO_MAGIC, 8);
    write_uint(&writer, SOLO_WIRE_VERSION, 2);
    write_uint(&writer, (uint64_t)hello->role, 1);
    write_uint(&writer, has_token(hello) ? FLAG_TOKEN : 0, 1);
    write_uint(&writer, 0, 4);
    write_uint(&writer, hello->job_hash, 8);
    write_bytes(&writer, hello->nonce_client, HELLO_NONCE_BYTES);
    hello->out_size = (uint32_t)(writer.at - hello->out);
    MUST(hello->out_size == HELLO_OPEN_BYTES);
    hello->state = HELLO_REPLYING;
}

void hello_server(struct hello *hello, const struct hello_config *config)
{
    hello_init(hello, config, true);
}

static uint32_t hello_awaits(const struct hello *hello)
{
    switch (hello->state) {
    case HELLO_OPENING:
        return HELLO_OPEN_BYTES;
    case HELLO_REPLYING:
        return HELLO_REPLY_BYTES;
    case HELLO_PROVING:
        return HELLO_PROOF_BYTES;
    case HELLO_ENDING:
        return HELLO_END_BYTES;
    case HELLO_OVER:
    case HELLO_FAILED:
        return 0;
    }
    return 0;
}

size_t hello_want(const struct hello *hello)
{
    uint32_t awaits = hello_awaits(hello);
    return awaits > hello->in_size ? awaits - hello->in_size : 0;
}

/* ---- the server ------------------------------------------------------------------------- */

static void reply(struct hello *hello, enum hello_answer answer)
{
    struct writer writer = writer_of(hello->out, sizeof hello->out);
    write_bytes(&writer, HELLO_MAGIC, 8);
    write_uint(&writer, SOLO_WIRE_VERSION, 2);
    write_uint(&writer, (uint64_t)answer, 1);
    write_uint(&writer, 0, 5);
    write_bytes(&writer, hello->nonce_server, HELLO_NONCE_BYTES);
    hello->out_size = (uint32_t)(writer.at - hello->out);
    MUST(hello->out_size == HELLO_REPLY_BYTES);
}

static int refuse(struct hello *hello, enum hello_answer answer, int rc, enum solo_reach reach)
{
    reply(hello, answer);
    return fail(hello, rc, reach);
}

static int on_open(struct hello *hello)
{
    struct reader reader = reader_of(hello->in, HELLO_OPEN_BYTES);
    read_bytes(&reader, 8); /* the magic was checked as it came */
    uint16_t version = read_u16(&reader);
    uint8_t role = read_u8(&reader);
    uint8_t flags = read_u8(&reader);
    read_u32(&reader);
    uint64_t job_hash = read_u64(&reader);
    memcpy(hello->nonce_client, read_bytes(&reader, HELLO_NONCE_BYTES), HELLO_NONCE_BYTES);
    if (version != SOLO_WIRE_VERSION) {
        err_set(SOLO_EVERSION,
                "the other side speaks wire version %u, this one %u: run the "
                "same solo on all nodes",
                version, SOLO_WIRE_VERSION);
        return refuse(hello, ANSWER_VERSION, SOLO_EVERSION, SOLO_OTHER_WIRE);
    }
    bool token = flags & FLAG_TOKEN;
    if (token != has_token(hello)) {
        err_set(SOLO_EAUTH, token ? "the other side has a token and this one has none"
                                  : "the other side brought no token");
        return refuse(hello, token ? ANSWER_NO_TOKEN : ANSWER_TOKEN, SOLO_EAUTH, SOLO_BAD_TOKEN);
    }
    if (role == HELLO_STATUS && job_hash == job_hash_of("")) {
        hello->job_hash = job_hash; /* who only asks need not know whose master this is */
    }
    if (job_hash != hello->job_hash) {
        err_set(SOLO_EREFUSED, "the other side belongs to another job");
        return refuse(hello, ANSWER_JOB, SOLO_EREFUSED, SOLO_OTHER_JOB);
    }
    if (role > 7 || !(hello->config.roles & 1u << role)) {
        err_set(SOLO_EREFUSED, "connections of kind %u are not taken here", role);
        return refuse(hello, ANSWER_ROLE, SOLO_EREFUSED, SOLO_NOT_SOLO);
    }
    hello->role = (enum hello_role)role;
    reply(hello, ANSWER_YES);
    hello->state = HELLO_PROVING;
    return 0;
}

static int on_proof(struct hello *hello)
{
    uint8_t proof[HELLO_PROOF_BYTES];
    proof_of(hello, false, proof);
    bool right = equal_in_constant_time(proof, hello->in, sizeof proof);
    memset(hello->out, 0, HELLO_END_BYTES);
    hello->out[0] = right ? ANSWER_YES : ANSWER_TOKEN;
    hello->out_size = HELLO_END_BYTES;
    if (!right) {
        err_set(SOLO_EAUTH, "the other side's token is another one");
        return fail(hello, SOLO_EAUTH, SOLO_BAD_TOKEN);
    }
    proof_of(hello, true, hello->out + 1);
    hello->state = HELLO_OVER;
    hello->reach = SOLO_REACHED;
    return 0;
}

/* ---- the client ------------------------------------------------------------------------- */

static int on_refusal(struct hello *hello, unsigned answer, unsigned version)
{
    switch (answer) {
    case ANSWER_VERSION:
        err_set(SOLO_EVERSION,
                "the other side speaks wire version %u, this one %u: run the "
                "same solo on all nodes",
                version, SOLO_WIRE_VERSION);
        return fail(hello, SOLO_EVERSION, SOLO_OTHER_WIRE);
    case ANSWER_JOB:
        err_set(SOLO_EREFUSED,
                "another job runs there: give both the same --job_id (or SOLO_JOB_ID)");
        return fail(hello, SOLO_EREFUSED, SOLO_OTHER_JOB);
    case ANSWER_ROLE:
        err_set(SOLO_EREFUSED, "what listens there is solo, but not for this kind of connection "
                               "(is it a master's address?)");
        return fail(hello, SOLO_EREFUSED, SOLO_NOT_SOLO);
    case ANSWER_NO_TOKEN:
        err_set(SOLO_EAUTH, "this side has a token and the other has none");
        return fail(hello, SOLO_EAUTH, SOLO_BAD_TOKEN);
    case ANSWER_TOKEN:
        err_set(SOLO_EAUTH, has_token(hello) ? "the token is not that of the other side"
                                             : "the other side asks for a token");
        return fail(hello, SOLO_EAUTH, SOLO_BAD_TOKEN);
    default:
        err_set(SOLO_EPEER, "an unknown answer (%u) in the handshake", answer);
        return fail(hello, SOLO_EPEER, SOLO_NOT_SOLO);
    }
}

static int on_reply(struct hello *hello)
{
    struct reader reader = reader_of(hello->in, HELLO_REPLY_BYTES);
    read_bytes(&reader, 8);
    uint16_t version = read_u16(&reader);
    uint8_t answer = read_u8(&reader);
    read_bytes(&reader, 5);
    memcpy(hello->nonce_server, read_bytes(&reader, HELLO_NONCE_BYTES), HELLO_NONCE_BYTES);
    if (answer != ANSWER_YES || version != SOLO_WIRE_VERSION) {
        return on_refusal(hello, answer == ANSWER_YES ? ANSWER_VERSION : answer, version);
    }
    proof_of(hello, false, hello->out);
    hello->out_size = HELLO_PROOF_BYTES;
    hello->state = HELLO_ENDING;
    return 0;
}

static int on_ending(struct hello *hello)
{
    if (hello->in[0] != ANSWER_YES) {
        return on_refusal(hello, hello->in[0], SOLO_WIRE_VERSION);
    }
    uint8_t proof[HELLO_PROOF_BYTES];
    proof_of(hello, true, proof);
    if (!equal_in_constant_time(proof, hello->in + 1, sizeof proof)) {
        err_set(SOLO_EAUTH, "the other side's token is another one");
        return fail(hello, SOLO_EAUTH, SOLO_BAD_TOKEN);
    }
    hello->state = HELLO_OVER;
    hello->reach = SOLO_REACHED;
    return 0;
}

/* ---- both ------------------------------------------------------------------------------- */

/* A first byte that is wrong ends it at once: a port scan or another protocol costs nothing. */
static int check_magic(struct hello *hello)
{
    if (hello->state != HELLO_OPENING && hello->state != HELLO_REPLYING) {
        return 0;
    }
    size_t size = hello->in_size < 8 ? hello->in_size : 8;
    if (memcmp(hello->in, HELLO_MAGIC, size) == 0) {
        return 0;
    }
    err_set(SOLO_EPEER, "the other side does not speak solo");
    return fail(hello, SOLO_EPEER, SOLO_NOT_SOLO);
}

int hello_feed(struct hello *hello, const void *bytes, size_t size)
{
    MUST(size <= hello_want(hello));
    if (size) {
        memcpy(hello->in + hello->in_size, bytes, size);
        hello->in_size += (uint32_t)size;
    }
    TRY(check_magic(hello));
    if (hello_want(hello) > 0) {
        return 0;
    }
    hello->in_size = 0;
    switch (hello->state) {
    case HELLO_OPENING:
        return on_open(hello);
    case HELLO_REPLYING:
        return on_reply(hello);
    case HELLO_PROVING:
        return on_proof(hello);
    case HELLO_ENDING:
        return on_ending(hello);
    case HELLO_OVER:
    case HELLO_FAILED:
        return hello->rc;
    }
    return 0;
}

const uint8_t *hello_out(struct hello *hello, size_t *size_out)
{
    *size_out = hello->out_size;
    return hello->out;
}

void hello_sent(struct hello *hello)
{
    hello->out_size = 0;
}

bool hello_over(const struct hello *hello)
{
    return hello->state == HELLO_OVER;
}
