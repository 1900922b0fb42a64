/* fake_cuda.c - as much of the CUDA driver as tells GPUs apart: GPU n has n for its UUID. */
#include <stdlib.h>
#include <string.h>

/* The entry of CUDA_VISIBLE_DEVICES with this index; 0: success. */
int cuDeviceGet(int *device_out, int index)
{
    const char *at = getenv("CUDA_VISIBLE_DEVICES");
    for (; at && index > 0; index--) {
        at = strchr(at, ',');
        at = at ? at + 1 : NULL;
    }
    *device_out = at ? atoi(at) : 0;
    return at ? 0 : 101; /* CUDA_ERROR_INVALID_DEVICE */
}

int cuDeviceGetUuid(unsigned char uuid_out[16], int device)
{
    memset(uuid_out, 0, 16);
    uuid_out[3] = (unsigned char)device;
    return 0;
}
