#include "os/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/err.h"

/* What libcrypto keeps of a thread is freed by the thread's end and by the process's, and both at
 * once is a double free: so nothing is left of ours, which may end while the process does. */
void auth_hmac(const void *key, size_t key_size, const void *bytes, size_t size, uint8_t *out)
{
    unsigned int out_size = 0;
    unsigned char *done =
        HMAC(EVP_sha256(), key, (int)key_size, (const unsigned char *)bytes, size, out, &out_size);
    MUST(done && out_size == 32); /* every libcrypto has it; never go on with a weak proof */
    OPENSSL_thread_stop();
}
