/* arguments.c - Python lists and keywords as the structs of solo.h. */
#include "py.h" /* first, as Python.h must be */

#include <string.h>

/* One row (name, count, dtype, role). */
static int parse_row(PyObject *row, struct solo_tensor *tensor)
{
    const char *name;
    unsigned long long count;
    int dtype;
    int role;
    if (!PyTuple_Check(row)) {
        PyErr_SetString(PyExc_TypeError, "a layout is a list of (name, count, dtype, role)");
        return -1;
    }
    if (!PyArg_ParseTuple(row, "sKii", &name, &count, &dtype, &role)) {
        return -1;
    }
    *tensor = (struct solo_tensor){name, count, (enum solo_dtype)dtype, (enum solo_role)role};
    return 0;
}

int py_layout_parse(PyObject *list, struct py_layout *layout)
{
    Py_ssize_t count = PyList_Size(list);
    if (count < 0) {
        return -1;
    }
    layout->count = count;
    layout->tensors = PyMem_Calloc((size_t)count + 1, sizeof *layout->tensors);
    if (!layout->tensors) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (parse_row(PyList_GetItem(list, i), &layout->tensors[i]) < 0) {
            py_layout_free(layout);
            return -1;
        }
    }
    return 0;
}

void py_layout_free(struct py_layout *layout)
{
    PyMem_Free(layout->tensors);
    layout->tensors = NULL;
}

void **py_addresses(PyObject *list, Py_ssize_t count)
{
    Py_ssize_t given = PyList_Size(list);
    if (given < 0) {
        return NULL;
    }
    if (given != count) {
        PyErr_Format(PyExc_ValueError, "%zd addresses for %zd tensors", given, count);
        return NULL;
    }
    void **addresses = PyMem_Calloc((size_t)count + 1, sizeof *addresses);
    if (!addresses) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        addresses[i] = PyLong_AsVoidPtr(PyList_GetItem(list, i));
        if (!addresses[i] && PyErr_Occurred()) {
            PyMem_Free(addresses);
            return NULL;
        }
    }
    return addresses;
}

int py_config_parse(PyObject *arguments, PyObject *keywords, struct solo_config *config)
{
    static char *names[] = {
        "job_id",       "master_url", "worker_url", "node_name",     "node_rank",
        "device_count", "token",      "insecure",   "min_nodes",     "timeout_ms",
        "lease_ms",     "streams",    "start_step", "interval",      "outer",
        "codec",        "versions",   "state_dir",  "same_host_shm", NULL,
    };
    memset(config, 0, sizeof *config);
    config->size = sizeof *config;
    config->device_count = 1;
    config->same_host_shm = 1;
    int parsed = PyArg_ParseTupleAndKeywords(
        arguments, keywords, "|$zzzzIIzpIIIIIzzzzzi:Engine", names, &config->job_id,
        &config->master_url, &config->worker_url, &config->node_name, &config->node_rank,
        &config->device_count, &config->token, &config->insecure, &config->min_nodes,
        &config->timeout_ms, &config->lease_ms, &config->streams, &config->start_step,
        &config->interval, &config->outer, &config->codec, &config->versions, &config->state_dir,
        &config->same_host_shm);
    return parsed ? 0 : -1;
}
