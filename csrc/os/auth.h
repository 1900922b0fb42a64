/* auth.h - proof that both ends of a connection hold the same token, without sending it.
 *
 * Any thread. HMAC-SHA256 (RFC 2104) over both sides' hellos, fresh random numbers included,
 * keyed by the token; a label for each direction, so that a proof cannot be sent back. */
#ifndef SOLO_OS_AUTH_H
#define SOLO_OS_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AUTH_KEY_BYTES   32u
#define AUTH_PROOF_BYTES 32u
#define AUTH_NONCE_BYTES 32u

struct auth_key {
    uint8_t bytes[AUTH_KEY_BYTES];
    bool open;     /* no token: the proof is computed with a key known to all */
    bool insecure; /* no token, and addresses other than loopback are fine */
};

/* The key of a token; NULL or "": open. */
int auth_key_init(struct auth_key *key, const char *token, bool insecure);

/* The proof of one side: HMAC(key, label, dialer's hello, acceptor's hello). */
int auth_proof(const struct auth_key *key, bool by_dialer, const void *dialer_hello,
               size_t dialer_size, const void *acceptor_hello, size_t acceptor_size,
               uint8_t out[AUTH_PROOF_BYTES]);

bool auth_equal(const uint8_t *a, const uint8_t *b, size_t size); /* in constant time */

#endif
