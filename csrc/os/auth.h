/* auth.h - the one cryptographic function the handshake of wire/hello.h needs. Any thread. */
#ifndef SOLO_OS_AUTH_H
#define SOLO_OS_AUTH_H

#include <stddef.h>
#include <stdint.h>

/* HMAC-SHA256 (RFC 2104) of `size` bytes into 32 bytes; a hello_hmac_fn. */
void auth_hmac(const void *key, size_t key_size, const void *bytes, size_t size, uint8_t *out);

#endif
