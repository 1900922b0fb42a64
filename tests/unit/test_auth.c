#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "os/auth.h"

/* RFC 4231, test case 2. */
TEST(a_proof_is_hmac_sha256)
{
    static const uint8_t wanted[32] = {0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e,
                                       0x6a, 0x04, 0x24, 0x26, 0x08, 0x95, 0x75, 0xc7,
                                       0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27, 0x39, 0x83,
                                       0x9d, 0xec, 0x58, 0xb9, 0x64, 0xec, 0x38, 0x43};
    uint8_t out[32];
    auth_hmac("Jefe", 4, "what do ya want for nothing?", 28, out);
    CHECK(memcmp(out, wanted, sizeof out) == 0);
}

/* Of 100 processes seven met the moment. */
enum { THREADS = 32, PROCESSES = 150, APART_NS = 10000 };

static pthread_barrier_t all;

static void *prove_and_end(void *argument)
{
    uint8_t out[32];
    auth_hmac("key", 3, "bytes", 5, out);
    pthread_barrier_wait(&all);
    struct timespec turn = {0, (long)(uintptr_t)argument * APART_NS};
    nanosleep(&turn, NULL);
    return argument;
}

/* What libcrypto keeps of a thread is freed when the thread ends, and also when the process does:
 * a thread that ended at that moment ended the process with a double free. */
TEST(threads_that_end_while_their_process_exits_do_it_no_harm)
{
    for (int i = 0; i < PROCESSES; i++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_barrier_init(&all, NULL, THREADS + 1);
            pthread_t thread;
            for (uintptr_t j = 0; j < THREADS; j++) {
                CHECK_EQ(pthread_create(&thread, NULL, prove_and_end, (void *)j), 0);
                pthread_detach(thread);
            }
            pthread_barrier_wait(&all);
            exit(0);
        }
        int status = 0;
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK_EQ(status, 0);
    }
}
