/* Any bytes to either side of the handshake: it fails or waits, and never ends well, for nobody
 * can guess the proof. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "wire/hello.h"

/* A stand-in whose value no input of a fuzzer contains by chance. */
static void proof(const void *key, size_t key_size, const void *bytes, size_t size, uint8_t *out)
{
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < key_size + size; i++) {
        uint8_t byte =
            i < key_size ? ((const uint8_t *)key)[i] : ((const uint8_t *)bytes)[i - key_size];
        hash = (hash ^ byte) * 0xd6e8feb86659fd93u;
        hash ^= hash >> 32;
    }
    for (size_t i = 0; i < 32; i++) {
        hash = hash * 0xd6e8feb86659fd93u + i;
        out[i] = (uint8_t)(hash >> 56);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    struct hello hello;
    struct hello_config config = {
        .token = data[0] & 1 ? "secret" : NULL, .job_id = "job", .roles = 2, .hmac = proof};
    memset(config.nonce, data[1], sizeof config.nonce);
    if (data[0] & 2) {
        hello_client(&hello, &config);
    } else {
        hello_server(&hello, &config);
    }
    size_t piece = 1 + (data[0] >> 2);
    for (size_t at = 2; at < size && hello_want(&hello) > 0;) {
        size_t count = hello_want(&hello) < piece ? hello_want(&hello) : piece;
        count = count < size - at ? count : size - at;
        if (hello_feed(&hello, data + at, count) < 0) {
            break;
        }
        at += count;
        hello_sent(&hello);
    }
    if (hello_over(&hello) && config.token) {
        abort();
    }
    return 0;
}
