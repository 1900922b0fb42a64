#include "device.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "number.h"

#define PROCESSORS_MAX 8192 /* the most that Linux is built for; a cpu_set_t has 1,024 */

/* ---- what is there ---------------------------------------------------------------------- */

static int count_entries(const char *path)
{
    DIR *dir = opendir(path);
    int count = 0;
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        count += entry->d_name[0] != '.';
    }
    if (dir) {
        closedir(dir);
    }
    return count;
}

/* The driver's management library, where /proc is not to be seen (some containers). */
static int count_by_nvml(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!library) {
        return 0;
    }
    int (*init)(void) = NULL, (*count)(unsigned *) = NULL;
    unsigned found = 0;
    *(void **)&init = dlsym(library, "nvmlInit_v2");
    *(void **)&count = dlsym(library, "nvmlDeviceGetCount_v2");
    return init && count && init() == 0 && count(&found) == 0 ? (int)found : 0;
}

int device_gpus(void)
{
    int count = count_entries("/proc/driver/nvidia/gpus");
    return count ? count : count_by_nvml();
}

/* Whole cores that a quota in a period allows, 0 if it does not limit. */
static int cores_of(const char *quota_text, const char *period_text)
{
    uint64_t quota, period;
    if (!quota_text || !period_text || !number_next(&quota_text, 10, &quota) ||
        !number_next(&period_text, 10, &period) || !period) {
        return 0; /* "max", or -1 */
    }
    return (int)((quota + period - 1) / period);
}

static int quota_of(const char *folder)
{
    char *text = text_read_file(text_format("/sys/fs/cgroup%s/cpu.max", folder), 64);
    return text ? cores_of(text, strchr(text, ' ')) : 0;
}

static int quota_v1(void)
{
    return cores_of(text_read_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", 32),
                    text_read_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us", 32));
}

int device_cores(void)
{
    cpu_set_t *set = CPU_ALLOC(PROCESSORS_MAX);
    size_t size = CPU_ALLOC_SIZE(PROCESSORS_MAX);
    int cores = set && sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 1;
    CPU_FREE(set);
    char *membership = text_read_file("/proc/self/cgroup", 4096);
    char *folder = membership ? strstr(membership, "0::") : NULL;
    int limit = quota_v1();
    if (folder) { /* the tightest quota on the way to the root */
        folder = text_copy_count(folder + 3, strcspn(folder + 3, "\n"));
        for (;;) {
            int quota = quota_of(folder);
            limit = quota && (!limit || quota < limit) ? quota : limit;
            char *slash = strrchr(folder, '/');
            if (!slash) {
                break;
            }
            *slash = 0;
        }
    }
    cores = limit && limit < cores ? limit : cores;
    return cores > 0 ? cores : 1;
}

/* ---- what the ranks get ------------------------------------------------------------------ */

static struct list split(const char *text)
{
    struct list list = {0};
    while (*text) {
        size_t count = strcspn(text, ",");
        char *item = text_trim(text_copy_count(text, count));
        if (!*item || strcmp(item, "-1") == 0) {
            break; /* CUDA stops at the first that is none */
        }
        list_add(&list, item);
        text += count + (text[count] == ',');
    }
    return list;
}

static char *join(const struct list *list)
{
    char *text = text_copy("");
    for (size_t i = 0; i < list->count; i++) {
        text = text_format("%s%s%s", text, i ? "," : "", list->items[i]);
    }
    return text;
}

/* What GPUs may be used, and in which words to speak of them. */
struct pool {
    struct list allotted; /* entries of CUDA_VISIBLE_DEVICES */
    bool limited;         /* it was set */
    int count;
    const char *words;
};

/* CUDA would drop what follows an odd entry, and take a GPU twice, without a word. */
static struct finding check_gpu_words(const char *text, const struct list *wanted)
{
    size_t commas = 0;
    for (const char *at = text; *at; at++) {
        commas += *at == ',';
    }
    if (wanted->count != commas + 1) {
        return fail(CODE_DEVICES, text_format("--gpus %s", text),
                    "an entry between the commas is empty or negative",
                    "--gpus 0,2, or none for no GPU", NULL);
    }
    for (size_t i = 0; i < wanted->count; i++) {
        for (size_t j = 0; j < i; j++) {
            if (strcmp(wanted->items[i], wanted->items[j]) == 0) {
                return fail(
                    CODE_DEVICES, text_format("--gpus %s", text),
                    text_format("%s is there twice: two ranks would share it", wanted->items[i]),
                    "name each GPU once", NULL);
            }
        }
    }
    return fine("%s", text);
}

static struct finding choose_gpus(const struct device_request *request, struct pool *pool,
                                  struct device_choice *out)
{
    if (!request->gpus) {
        return fine("all");
    }
    if (strcasecmp(request->gpus, "none") == 0) {
        pool->count = 0;
        pool->words = "--gpus none leaves 0";
        out->visible = "";
        return fine("no GPU");
    }
    struct list wanted = split(request->gpus), chosen = {0};
    struct finding finding = check_gpu_words(request->gpus, &wanted);
    if (finding.level == LEVEL_FAIL) {
        return finding;
    }
    for (size_t i = 0; i < wanted.count; i++) {
        uint64_t index;
        if (!number_count(wanted.items[i], 0, 1024, &index)) {
            if (!text_starts(wanted.items[i], "GPU-") && !text_starts(wanted.items[i], "MIG-")) {
                return fail(CODE_DEVICES, text_format("--gpus %s", request->gpus),
                            text_format("%s is neither an index nor a UUID", wanted.items[i]),
                            "--gpus 0,2", "nvidia-smi -L");
            }
            list_add(&chosen, wanted.items[i]);
        } else if (index >= (uint64_t)pool->count) {
            return fail(CODE_DEVICES, text_format("--gpus %s, but %s", request->gpus, pool->words),
                        "indices count inside CUDA_VISIBLE_DEVICES, so that an allotment is "
                        "never left",
                        pool->count ? text_format("indices from 0 to %d", pool->count - 1)
                                    : "--gpus none",
                        NULL);
        } else {
            list_add(&chosen,
                     index < pool->allotted.count ? pool->allotted.items[index] : wanted.items[i]);
        }
    }
    pool->count = (int)chosen.count;
    pool->words = text_format("--gpus %s names %d", request->gpus, pool->count);
    pool->allotted = chosen;
    pool->limited = true;
    out->visible = join(&chosen);
    return fine("%s", out->visible);
}

static struct finding choose_device(const struct device_request *request, struct pool *pool,
                                    struct device_choice *out)
{
    const char *device = request->device;
    if (!device) {
        return fine("free");
    }
    uint64_t index = 0;
    bool one = text_starts(device, "cuda:");
    if (strcmp(device, "cpu") == 0) {
        pool->count = 0;
        pool->limited = false;
        out->visible = "";
        out->device = "cpu";
        return fine("cpu");
    }
    if (strcmp(device, "cuda") != 0 && (!one || !number_count(device + 5, 0, 1024, &index))) {
        return fail(CODE_VALUE, text_format("--device %s", device), NULL, "cpu, cuda or cuda:N",
                    NULL);
    }
    if (index >= (uint64_t)pool->count) {
        return fail(CODE_DEVICES, text_format("--device %s, but %s", device, pool->words),
                    "no such GPU for this process", "--device cpu, or make the GPU visible",
                    "nvidia-smi -L");
    }
    out->device = "cuda";
    if (one) {
        out->visible =
            index < pool->allotted.count ? pool->allotted.items[index] : text_copy(device + 5);
        pool->count = 1;
        pool->limited = true;
        pool->words = text_format("--device %s is 1", device);
    }
    return fine("%s", device);
}

static struct finding choose_count(const struct device_request *request, const struct pool *pool,
                                   struct device_choice *out)
{
    const char *text = request->count;
    uint64_t count;
    if (!text) {
        out->count = pool->count && request->gpu_count ? pool->count : 1;
        return fine("%d", out->count);
    }
    bool automatic = strcmp(text, "auto") == 0;
    if (strcmp(text, "cpu") == 0 || (automatic && !pool->count)) {
        out->count = request->core_count;
    } else if (automatic || strcmp(text, "gpu") == 0) {
        out->count = pool->count;
    } else if (number_count(text, 1, 4096, &count)) {
        out->count = (int)count;
    } else {
        return fail(CODE_VALUE, text_format("--device_count %s", text), NULL,
                    "a number from 1, or auto, cpu, gpu", NULL);
    }
    bool bounded = pool->limited ? pool->count > 0 : request->gpu_count > 0 && pool->count > 0;
    if (out->count == 0 || (bounded && out->count > pool->count && strcmp(text, "cpu") != 0)) {
        if (!request->count_explicit && pool->count > 0) {
            out->count = pool->count; /* a scheduler speaks of the node, not of this process */
            return fine("%d", out->count);
        }
        return fail(CODE_DEVICES, text_format("--device_count %s, but %s", text, pool->words),
                    "each rank needs a GPU of its own",
                    pool->count ? text_format("--device_count %d, or --device cpu", pool->count)
                                : "--device_count cpu, or a number",
                    "nvidia-smi -L");
    }
    return fine("%d", out->count);
}

struct finding device_choose(const struct device_request *request, struct device_choice *out)
{
    *out = (struct device_choice){0};
    struct pool pool = {.count = request->gpu_count,
                        .words = text_format("this node has %d GPUs", request->gpu_count)};
    if (request->visible) {
        pool.allotted = split(request->visible);
        pool.limited = true;
        pool.count = (int)pool.allotted.count;
        pool.words = text_format("CUDA_VISIBLE_DEVICES=%s names %d", request->visible, pool.count);
        if (request->gpu_count && pool.count > request->gpu_count) {
            pool.count = request->gpu_count;
        }
    }
    struct finding finding = choose_gpus(request, &pool, out);
    if (finding.level != LEVEL_FAIL) {
        finding = choose_device(request, &pool, out);
    }
    if (finding.level != LEVEL_FAIL) {
        finding = choose_count(request, &pool, out);
    }
    if (finding.level == LEVEL_FAIL) {
        return finding;
    }
    return fine("%d rank%s, %d GPUs, %d cores", out->count, out->count == 1 ? "" : "s",
                request->gpu_count, request->core_count);
}
