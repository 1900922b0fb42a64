/* device.h - GPUs and cores of this node, and which of them its ranks get. */
#ifndef LAUNCHER_DEVICE_H
#define LAUNCHER_DEVICE_H

#include <stdbool.h>

#include "message.h"

/* GPUs the driver shows to this process; 0: none or no driver. */
int device_gpus(void);

/* Cores by affinity and cgroup quota; at least 1. */
int device_cores(void);

struct device_request {
    const char *count;   /* --device_count, NULL: not given */
    bool count_explicit; /* a user said it, not a scheduler */
    const char *gpus;    /* --gpus */
    const char *device;  /* --device */
    const char *visible; /* CUDA_VISIBLE_DEVICES, NULL: unset */
    int gpu_count, core_count;
};

struct device_choice {
    int count;           /* ranks */
    const char *visible; /* CUDA_VISIBLE_DEVICES of the ranks, NULL: as it is */
    const char *device;  /* for SOLO_DEVICE: NULL: ranks choose */
};

/* Pure. */
struct finding device_choose(const struct device_request *request, struct device_choice *out);

#endif
