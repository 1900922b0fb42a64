/* master_type.c - solo._C.Master: a job's master on a thread of this process, and asking one. */
#include "py.h" /* first, as Python.h must be */

#include <unistd.h>

typedef struct {
    PyObject base;
    struct solo_master *master; /* NULL: closed */
    pid_t pid;
    int running; /* a thread is inside solo_master_run */
} Master;

static int config_parse(PyObject *arguments, PyObject *keywords, struct solo_master_config *config)
{
    static char *names[] = {
        "url",      "job_id",      "listen_fd",      "token",
        "insecure", "min_nodes",   "expected_nodes", "timeout_ms",
        "lease_ms", "events_path", "linger",         NULL,
    };
    *config = (struct solo_master_config){.size = sizeof *config};
    int parsed = PyArg_ParseTupleAndKeywords(
        arguments, keywords, "s|$zizpIIIIzp:Master", names, &config->url, &config->job_id,
        &config->listen_fd, &config->token, &config->insecure, &config->min_nodes,
        &config->expected_nodes, &config->timeout_ms, &config->lease_ms, &config->events_path,
        &config->linger);
    return parsed ? 0 : -1;
}

static PyObject *master_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    struct solo_master_config config;
    if (config_parse(arguments, keywords, &config) < 0) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Master *self = (Master *)allocate(type, 0);
    if (!self) {
        return NULL;
    }
    self->pid = getpid();
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = solo_master_open(&config, &self->master);
    Py_END_ALLOW_THREADS;
    if (rc < 0) {
        self->master = NULL;
        py_raise(rc);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void shut(Master *self)
{
    struct solo_master *master = self->master;
    if (!master || self->running) {
        return;
    }
    self->master = NULL;
    if (self->pid == getpid()) {
        Py_BEGIN_ALLOW_THREADS;
        solo_master_close(master);
        Py_END_ALLOW_THREADS;
    }
}

static void master_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    shut((Master *)object);
    free_object(object);
    Py_DECREF(type);
}

static PyObject *master_run(PyObject *object, PyObject *unused)
{
    (void)unused;
    Master *self = (Master *)object;
    if (!self->master) {
        return py_raise_text(SOLO_ECLOSED, "this master was closed");
    }
    if (self->running) {
        return py_raise_text(SOLO_EINUSE, "this master is already running in another thread");
    }
    int rc;
    self->running = 1;
    Py_BEGIN_ALLOW_THREADS;
    rc = solo_master_run(self->master);
    Py_END_ALLOW_THREADS;
    self->running = 0;
    if (rc < 0) {
        return py_raise(rc);
    }
    Py_RETURN_NONE;
}

static PyObject *master_stop(PyObject *object, PyObject *unused)
{
    (void)unused;
    Master *self = (Master *)object;
    if (self->master) {
        solo_master_stop(self->master);
    }
    Py_RETURN_NONE;
}

static PyObject *master_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    shut((Master *)object);
    Py_RETURN_NONE;
}

static PyMethodDef master_methods[] = {
    {"run", master_run, METH_NOARGS, "Runs until the job is over or stop(); blocks its thread."},
    {"stop", master_stop, METH_NOARGS, "Ends run(), from any thread."},
    {"close", master_close, METH_NOARGS, "Closes the port; not while run() is under way."},
    {NULL, NULL, 0, NULL},
};

PyObject *py_master_type(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_doc, (void *)"The membership service of one job; see solo.h."},
        {Py_tp_new, (void *)master_new},
        {Py_tp_dealloc, (void *)master_dealloc},
        {Py_tp_methods, master_methods},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "solo._C.Master",
        .basicsize = sizeof(Master),
        .flags = Py_TPFLAGS_DEFAULT,
        .slots = slots,
    };
    return PyType_FromModuleAndSpec(module, &spec, NULL);
}

static PyObject *status_dict(const struct solo_status *status)
{
    PyObject *members = PyList_New(0);
    for (uint32_t i = 0; members && i < status->listed && i < SOLO_MEMBERS_MAX; i++) {
        const struct solo_status_member *member = &status->members[i];
        PyObject *row =
            Py_BuildValue("{s:I,s:I,s:I,s:N,s:K,s:K,s:N,s:N,s:N,s:N}", "node_rank",
                          member->node_rank, "slot", member->slot, "device_count",
                          member->device_count, "live", PyBool_FromLong(member->live), "version",
                          member->version, "last_seen_ms", member->last_seen_ms, "name",
                          py_text(member->name), "address", py_text(member->address), "state",
                          py_text(member->state), "left", py_text(member->left));
        if (!row || PyList_Append(members, row) < 0) {
            Py_CLEAR(members);
        }
        Py_XDECREF(row);
    }
    return members ? Py_BuildValue("{s:N,s:K,s:K,s:K,s:I,s:I,s:I,s:N,s:N}", "job_id",
                                   py_text(status->job_id), "epoch", status->epoch, "round",
                                   status->round, "version", status->version, "min_nodes",
                                   status->min_nodes, "expected_nodes", status->expected_nodes,
                                   "member_count", status->member_count, "over",
                                   PyBool_FromLong(status->over), "members", members)
                   : NULL;
}

PyObject *py_status(PyObject *module, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"url", "job_id", "token", "timeout_ms", NULL};
    (void)module;
    const char *url;
    const char *job_id = NULL;
    const char *token = NULL;
    unsigned timeout_ms = 1000;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "s|zzI:status", names, &url, &job_id,
                                     &token, &timeout_ms)) {
        return NULL;
    }
    struct solo_status *status = PyMem_Calloc(1, sizeof *status);
    if (!status) {
        return PyErr_NoMemory();
    }
    status->size = sizeof *status;
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = solo_status_get(url, job_id, token, timeout_ms, status);
    Py_END_ALLOW_THREADS;
    PyObject *answer = rc < 0 ? py_raise(rc) : status_dict(status);
    PyMem_Free(status);
    return answer;
}
