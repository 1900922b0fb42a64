/* hello.h - the first bytes of every connection: what we speak, which job, and proof of the
 * token, both ways, before anything else is parsed.
 *
 *     client -> server   HELLO_OPEN_BYTES   magic, wire version, role, flags, job hash, nonce c
 *     server -> client   HELLO_REPLY_BYTES  magic, wire version, answer, nonce s
 *     client -> server   HELLO_PROOF_BYTES  proof C
 *     server -> client   HELLO_END_BYTES    answer, proof S
 *
 * proof = HMAC-SHA256(token, label || role || job hash || nonce c || nonce s), the label being
 * "solo server" or "solo client", so that no proof can be sent back or carried to another
 * connection. The client proves first: a stranger who connects gets nothing that is made from the
 * token, with which to try guesses at home. Without a token both proofs are a fixed marker.
 * Versions that differ are told in words before the connection closes. Byte tables: docs/wire.md.
 *
 * Pure: the HMAC is passed in, nonces too; the caller moves the bytes and keeps the deadline. */
#ifndef SOLO_WIRE_HELLO_H
#define SOLO_WIRE_HELLO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "solo.h"

#define HELLO_MAGIC       "solo-hi\n"
#define HELLO_NONCE_BYTES 32u
#define HELLO_PROOF_BYTES 32u
#define HELLO_OPEN_BYTES  56u
#define HELLO_REPLY_BYTES 48u
#define HELLO_END_BYTES   33u
#define HELLO_BYTES_MAX   HELLO_OPEN_BYTES

enum hello_role { HELLO_CONTROL = 1, HELLO_DATA = 2, HELLO_STATUS = 3, HELLO_GROUP = 4 };

/* HMAC-SHA256 of `size` bytes under `key` into 32 bytes. */
typedef void (*hello_hmac_fn)(const void *key, size_t key_size, const void *bytes, size_t size,
                              uint8_t *out);

struct hello_config {
    const char *token; /* borrowed while the handshake lasts; NULL: none */
    const char *job_id;
    uint32_t roles; /* server: bit set of 1u << role it takes; client: exactly one bit */
    hello_hmac_fn hmac;
    uint8_t nonce[HELLO_NONCE_BYTES]; /* fresh, from the system's random source */
};

enum hello_state {
    HELLO_OPENING,
    HELLO_REPLYING,
    HELLO_PROVING,
    HELLO_ENDING,
    HELLO_OVER,
    HELLO_FAILED
};

struct hello {
    struct hello_config config;
    bool server;
    enum hello_state state;
    enum hello_role role; /* of the connection; valid from the server's first reply on */
    uint64_t job_hash;
    uint8_t nonce_client[HELLO_NONCE_BYTES], nonce_server[HELLO_NONCE_BYTES];
    uint8_t in[HELLO_BYTES_MAX], out[HELLO_BYTES_MAX];
    uint32_t in_size, out_size;
    int rc;                /* of a failure */
    enum solo_reach reach; /* how it went, for status and messages */
};

void hello_client(struct hello *hello, const struct hello_config *config);
void hello_server(struct hello *hello, const struct hello_config *config);

/* How many bytes the next read may take at most (never one that belongs to the first frame);
 * 0: nothing is awaited. */
size_t hello_want(const struct hello *hello);

/* Takes `size` <= hello_want bytes. 0: go on, send hello->out first. SOLO_EPEER: not ours;
 * SOLO_EVERSION, SOLO_EAUTH, SOLO_EREFUSED (another job, a role not taken): the text says it.
 * After an error send what hello_out holds (the reason, for the other side), then close. */
int hello_feed(struct hello *hello, const void *bytes, size_t size);

/* The bytes to send now; size 0: none. They stay valid until the next feed. */
const uint8_t *hello_out(struct hello *hello, size_t *size_out);
void hello_sent(struct hello *hello); /* all of hello_out went out */
bool hello_over(const struct hello *hello);

#endif
