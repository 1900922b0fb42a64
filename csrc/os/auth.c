#include "os/auth.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/err.h"

void auth_hmac(const void *key, size_t key_size, const void *bytes, size_t size, uint8_t *out)
{
    unsigned int out_size = 0;
    unsigned char *done =
        HMAC(EVP_sha256(), key, (int)key_size, (const unsigned char *)bytes, size, out, &out_size);
    MUST(done && out_size == 32); /* every libcrypto has it; never go on with a weak proof */
}
