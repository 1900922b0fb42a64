#include "os/host.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/err.h"

#define PROCESSORS_MAX 8192 /* the most that Linux is built for; a cpu_set_t has 1,024 */

/* A small file of /proc or /sys as text; 0 bytes if it is not there. */
static size_t slurp(const char *path, char *out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t count = fd < 0 ? 0 : read(fd, out, size - 1);
    if (fd >= 0) {
        close(fd);
    }
    out[count > 0 ? count : 0] = 0;
    return count > 0 ? (size_t)count : 0;
}

void host_name(char *out, size_t size)
{
    if (gethostname(out, size) < 0 || out[0] == 0) {
        snprintf(out, size, "unnamed");
    }
    out[size - 1] = 0;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int host_boot_id(uint8_t out[HOST_BOOT_ID_BYTES])
{
    char text[64];
    slurp("/proc/sys/kernel/random/boot_id", text, sizeof text);
    uint8_t id[HOST_BOOT_ID_BYTES] = {0};
    size_t digits = 0;
    for (const char *c = text; *c && digits < 2 * sizeof id; c++) {
        int digit = hex_digit(*c);
        if (digit >= 0) {
            id[digits / 2] = (uint8_t)(id[digits / 2] << 4 | digit);
            digits++;
        }
    }
    if (digits == 2 * sizeof id) {
        memcpy(out, id, sizeof id);
        return 0;
    }
    TRY(host_random(out, HOST_BOOT_ID_BYTES));
    return err_set(SOLO_ENOTSUP, "the kernel's boot id cannot be read");
}

uint64_t host_pid(void)
{
    return (uint64_t)getpid();
}

/* "max 100000" or "200000 100000": quota and period of the control group (v2), else v1's two
 * files. Cores, rounded up; 0: no quota. */
static uint32_t quota_cores(void)
{
    char text[64];
    long long quota = 0, period = 0;
    if (slurp("/sys/fs/cgroup/cpu.max", text, sizeof text)) {
        char *end;
        quota = strtoll(text, &end, 10); /* "max" reads as 0 */
        period = strtoll(end, NULL, 10);
    } else if (slurp("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", text, sizeof text)) {
        quota = strtoll(text, NULL, 10);
        slurp("/sys/fs/cgroup/cpu/cpu.cfs_period_us", text, sizeof text);
        period = strtoll(text, NULL, 10);
    }
    return quota > 0 && period > 0 ? (uint32_t)((quota + period - 1) / period) : 0;
}

uint32_t host_processors(void)
{
    cpu_set_t *set = CPU_ALLOC(PROCESSORS_MAX);
    size_t size = CPU_ALLOC_SIZE(PROCESSORS_MAX);
    int count = set && sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    return count > 0 ? (uint32_t)count : 1;
}

uint32_t host_cores(void)
{
    uint32_t cores = host_processors(), quota = quota_cores();
    return quota && quota < cores ? quota : cores;
}

int host_random(void *out, size_t size)
{
    uint8_t *at = out;
    while (size > 0) {
        ssize_t count = getrandom(at, size, 0);
        if (count < 0 && errno != EINTR) {
            return err_errno("getrandom");
        }
        if (count > 0) {
            at += count;
            size -= (size_t)count;
        }
    }
    return 0;
}
