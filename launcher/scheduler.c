#include "scheduler.h"

#include <stdlib.h>
#include <string.h>

#include "number.h"
#include "solo.h"

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static void offer(struct settings *settings, enum flag_id id, const char *name)
{
    const char *value = variable(name);
    if (value) {
        settings_offer(settings, id, SOURCE_SCHEDULER, name, value);
    }
}

static void expect(struct settings *settings, const char *name)
{
    const char *value = variable(name);
    if (value && !settings->expected.value) {
        settings->expected = (struct setting){value, SOURCE_SCHEDULER, name};
    }
}

char *scheduler_first_node(const char *nodelist)
{
    size_t stem = strcspn(nodelist, ",[");
    if (nodelist[stem] != '[') {
        return stem ? text_copy_count(nodelist, stem) : NULL;
    }
    const char *number = nodelist + stem + 1;
    size_t digits = strspn(number, "0123456789");
    const char *close = strchr(number, ']');
    if (!digits || !close) {
        return NULL;
    }
    size_t tail = strcspn(close + 1, ",[");
    return text_format("%.*s%.*s%.*s", (int)stem, nodelist, (int)digits, number, (int)tail,
                       close + 1);
}

static void offer_master(struct settings *settings, const char *origin, const char *host)
{
    if (host && *host) {
        char *url = strchr(host, ':') ? text_format("tcp://[%s]:%u", host, SOLO_PORT_DEFAULT)
                                      : text_format("tcp://%s:%u", host, SOLO_PORT_DEFAULT);
        settings_offer(settings, FLAG_MASTER_URL, SOURCE_SCHEDULER, origin, url);
    }
}

/* Alone in its allotment a job stays on loopback, where it needs no token. */
static bool several(const char *name)
{
    uint64_t count;
    const char *value = variable(name);
    return value && number_count(value, 2, UINT32_MAX, &count);
}

void scheduler_offer(struct settings *settings)
{
    offer(settings, FLAG_NODE_RANK, "SLURM_NODEID");
    offer(settings, FLAG_NODE_RANK, "JOB_COMPLETION_INDEX");
    offer(settings, FLAG_NODE_RANK, "SKYPILOT_NODE_RANK");
    expect(settings, "SLURM_NNODES");
    expect(settings, "SKYPILOT_NUM_NODES");
    offer(settings, FLAG_DEVICE_COUNT, "SLURM_GPUS_ON_NODE");
    offer(settings, FLAG_DEVICE_COUNT, "SKYPILOT_NUM_GPUS_PER_NODE");
    offer(settings, FLAG_JOB_ID, "SLURM_JOB_ID");
    const char *nodes = variable("SLURM_JOB_NODELIST"), *ips = variable("SKYPILOT_NODE_IPS");
    if (nodes && several("SLURM_NNODES")) {
        offer_master(settings, "SLURM_JOB_NODELIST", scheduler_first_node(nodes));
    }
    if (ips && several("SKYPILOT_NUM_NODES")) {
        offer_master(settings, "SKYPILOT_NODE_IPS", text_copy_count(ips, strcspn(ips, "\n ")));
    }
}

struct finding scheduler_check(void)
{
    uint64_t tasks, nodes;
    const char *task_text = variable("SLURM_NTASKS"), *node_text = variable("SLURM_NNODES");
    if (variable("SLURM_PROCID") && task_text && node_text &&
        number_count(task_text, 1, UINT32_MAX, &tasks) &&
        number_count(node_text, 1, UINT32_MAX, &nodes) && tasks > nodes) {
        return fail(
            CODE_SLURM, text_format("Slurm starts %s tasks on %s nodes", task_text, node_text),
            "each solorun starts all ranks of its node itself", "srun --ntasks-per-node=1", NULL);
    }
    return fine("one task a node");
}
