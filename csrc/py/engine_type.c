/* engine_type.c - solo._C.Engine: struct solo as a Python object.
 *
 * One merge at a time. What a merge or attach borrows (the tensors' memory) is kept alive by
 * a reference until it has ended. In a forked child an engine is inert: its threads and
 * connections are the parent's. */
#include "py.h" /* first, as Python.h must be */

#include <unistd.h>

#define SLICE_MS    100u  /* how long a wait runs before Python may handle a signal */
#define EVENT_BYTES 8192u /* the longest event in JSON */
#define FOREVER_S   1e9   /* a longer wait is none */
#define EVENTS_MAX  256   /* events given by one call */

typedef struct {
    PyObject base;
    struct solo *solo;          /* NULL: closed */
    struct solo_handle *handle; /* the merge in flight, or NULL */
    PyObject *keep;             /* the tensors it borrows */
    void **data;                /* their addresses */
    Py_ssize_t count;           /* tensors of the model, once attached */
    pid_t pid;                  /* the process that opened it */
    int attaching;              /* another thread is inside solo_attach */
    int waiting;                /* another thread is inside solo_wait, which ends the handle */
} Engine;

/* The engine, if it may be used here and now; NULL with an exception. */
static struct solo *usable(Engine *self)
{
    if (!self->solo) {
        py_raise_text(SOLO_ECLOSED, "this engine was closed");
        return NULL;
    }
    if (self->pid != getpid()) {
        py_raise_text(SOLO_ENOTSUP, "this engine belongs to the process that this one was forked "
                                    "from; a child cannot use it");
        return NULL;
    }
    return self->solo;
}

static void release(Engine *self)
{
    self->handle = NULL;
    PyMem_Free(self->data);
    self->data = NULL;
    Py_CLEAR(self->keep);
}

static PyObject *engine_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    struct solo_config config;
    if (py_config_parse(arguments, keywords, &config) < 0) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Engine *self = (Engine *)allocate(type, 0);
    if (!self) {
        return NULL;
    }
    self->pid = getpid();
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = solo_open(&config, &self->solo);
    Py_END_ALLOW_THREADS;
    if (rc < 0) {
        self->solo = NULL;
        py_raise(rc);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* A merge in flight ends first: solo_close sees to it. */
static void shut(Engine *self)
{
    struct solo *solo = self->solo;
    if (!solo || self->attaching) {
        return; /* a thread is inside: the process is about to end, its sockets with it */
    }
    self->solo = NULL;
    if (self->pid == getpid()) {
        Py_BEGIN_ALLOW_THREADS;
        solo_close(solo);
        Py_END_ALLOW_THREADS;
        if (self->handle && !self->waiting) {
            (void)solo_wait(self->handle, 0, NULL); /* it has ended: our share of it */
        }
    }
    release(self);
}

static void engine_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    shut((Engine *)object);
    free_object(object);
    Py_DECREF(type);
}

static PyObject *engine_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    shut((Engine *)object);
    Py_RETURN_NONE;
}

static PyObject *joined_dict(const struct solo_joined *joined)
{
    return Py_BuildValue("{s:K,s:K,s:I,s:I,s:N,s:N}", "version", joined->version, "job_step",
                         joined->job_step, "slot", joined->slot, "member_count",
                         joined->member_count, "founder", PyBool_FromLong(joined->founder),
                         "replaced", PyBool_FromLong(joined->replaced));
}

static PyObject *engine_attach(PyObject *object, PyObject *arguments)
{
    Engine *self = (Engine *)object;
    PyObject *list;
    PyObject *addresses;
    struct py_layout layout;
    struct solo *solo = usable(self);
    if (!solo || !PyArg_ParseTuple(arguments, "O!O!:attach", &PyList_Type, &list, &PyList_Type,
                                   &addresses)) {
        return NULL;
    }
    if (self->attaching) {
        return py_raise_text(SOLO_EINUSE, "another thread is attaching this engine's model");
    }
    if (py_layout_parse(list, &layout) < 0) {
        return NULL;
    }
    void **data = py_addresses(addresses, layout.count);
    if (!data) {
        py_layout_free(&layout);
        return NULL;
    }
    struct solo_joined joined = {.size = sizeof joined};
    int rc;
    self->attaching = 1; /* the caller's frame holds `list` and, by contract, the tensors */
    Py_BEGIN_ALLOW_THREADS;
    rc = solo_attach(solo, layout.tensors, (size_t)layout.count, data, &joined);
    Py_END_ALLOW_THREADS;
    self->attaching = 0;
    PyObject *result = rc < 0 ? py_raise(rc) : joined_dict(&joined);
    self->count = rc < 0 ? 0 : layout.count;
    PyMem_Free(data);
    py_layout_free(&layout);
    return result;
}

static PyObject *engine_submit(PyObject *object, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"data", "keep", "samples", "steps", "lr_sum", "final", NULL};
    Engine *self = (Engine *)object;
    struct solo *solo = usable(self);
    PyObject *addresses;
    PyObject *keep;
    struct solo_contribution contribution = {.size = sizeof contribution};
    unsigned long long samples;
    unsigned long long steps;
    if (!solo || !PyArg_ParseTupleAndKeywords(arguments, keywords, "O!O$KKdp:submit", names,
                                              &PyList_Type, &addresses, &keep, &samples, &steps,
                                              &contribution.lr_sum, &contribution.final)) {
        return NULL;
    }
    if (self->keep) { /* set before the GIL is given up, and as long as anything is borrowed */
        return py_raise_text(SOLO_EAGAIN, "one merge at a time: wait for the one in flight");
    }
    self->data = py_addresses(addresses, self->count);
    if (!self->data) {
        return NULL;
    }
    contribution.samples = samples;
    contribution.steps = steps;
    Py_INCREF(keep);
    self->keep = keep;
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = solo_submit(solo, self->data, &contribution, &self->handle);
    Py_END_ALLOW_THREADS;
    if (rc < 0) {
        py_raise(rc);
        release(self);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *result_dict(const struct solo_result *result)
{
    return Py_BuildValue("{s:i,s:K,s:K,s:I,s:I,s:I,s:N,s:K,s:K,s:K,s:K,s:K,s:K}", "outcome",
                         (int)result->outcome, "version", result->version, "round", result->round,
                         "member_count", result->member_count, "contributor_count",
                         result->contributor_count, "attempts", result->attempts,
                         "zero_inner_momentum", PyBool_FromLong(result->zero_inner_momentum),
                         "digest", result->digest, "sent_bytes", result->sent_bytes,
                         "received_bytes", result->received_bytes, "wait_us", result->wait_us,
                         "exchange_us", result->exchange_us, "apply_us", result->apply_us);
}

/* Waits in slices, so that a signal's handler (KeyboardInterrupt) runs in time. */
static PyObject *engine_wait(PyObject *object, PyObject *seconds)
{
    Engine *self = (Engine *)object;
    double timeout = PyFloat_AsDouble(seconds);
    if (!usable(self) || (timeout == -1.0 && PyErr_Occurred())) {
        return NULL;
    }
    if (!self->handle) {
        return py_raise_text(SOLO_EINVAL, "no merge is in flight");
    }
    if (self->waiting) {
        return py_raise_text(SOLO_EINUSE, "another thread waits for this merge already");
    }
    struct solo_result result = {.size = sizeof result};
    uint64_t left_ms = timeout > 0
                           ? (uint64_t)(timeout < FOREVER_S ? timeout * 1e3 : FOREVER_S * 1e3)
                           : 0; /* no number: only looks */
    for (;;) {
        uint32_t slice_ms = left_ms < SLICE_MS ? (uint32_t)left_ms : SLICE_MS;
        struct solo_handle *handle = self->handle;
        int rc;
        self->waiting = 1;
        Py_BEGIN_ALLOW_THREADS;
        rc = solo_wait(handle, slice_ms, &result);
        Py_END_ALLOW_THREADS;
        self->waiting = 0;
        if (rc == SOLO_EAGAIN && !self->handle) {
            (void)solo_wait(handle, 0, NULL); /* closed by another thread, which left it to us */
            return py_raise_text(SOLO_ECLOSED, "this engine was closed");
        }
        if (rc == SOLO_EAGAIN) {
            left_ms -= slice_ms;
            if (PyErr_CheckSignals() < 0) {
                return NULL;
            }
            if (left_ms == 0) {
                Py_RETURN_NONE;
            }
            continue;
        }
        PyObject *answer = rc < 0 ? py_raise(rc) : result_dict(&result);
        release(self);
        return answer;
    }
}

static PyObject *engine_waiting_for(PyObject *object, PyObject *unused)
{
    (void)unused;
    char text[SOLO_TEXT_MAX] = "";
    struct solo *solo = usable((Engine *)object);
    if (!solo) {
        return NULL;
    }
    int rc = solo_waiting_for(solo, text, sizeof text);
    return rc < 0 ? py_raise(rc) : py_text(text);
}

static PyObject *engine_due(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct solo *solo = usable((Engine *)object);
    return solo ? PyBool_FromLong(solo_due(solo)) : NULL;
}

static PyObject *engine_over(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct solo *solo = usable((Engine *)object);
    return solo ? PyBool_FromLong(solo_over(solo)) : NULL;
}

static PyObject *engine_version(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct solo *solo = usable((Engine *)object);
    return solo ? PyLong_FromUnsignedLongLong(solo_job_version(solo)) : NULL;
}

static PyObject *engine_job_step(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct solo *solo = usable((Engine *)object);
    return solo ? PyLong_FromUnsignedLongLong(solo_job_step(solo)) : NULL;
}

static PyObject *engine_members(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct solo *solo = usable((Engine *)object);
    if (!solo) {
        return NULL;
    }
    struct solo_member *members = PyMem_Calloc(SOLO_MEMBERS_MAX, sizeof *members);
    if (!members) {
        return PyErr_NoMemory();
    }
    int count = solo_members(solo, members, SOLO_MEMBERS_MAX);
    PyObject *list = count < 0 ? py_raise(count) : PyList_New(0);
    for (int i = 0; list && i < count; i++) {
        PyObject *row =
            Py_BuildValue("{s:I,s:I,s:I,s:N,s:N}", "node_rank", members[i].node_rank, "slot",
                          members[i].slot, "device_count", members[i].device_count, "name",
                          py_text(members[i].name), "address", py_text(members[i].address));
        if (!row || PyList_Append(list, row) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(row);
    }
    PyMem_Free(members);
    return list;
}

static PyObject *engine_events(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct solo *solo = usable((Engine *)object);
    PyObject *list = solo ? PyList_New(0) : NULL;
    char *text = list ? PyMem_Malloc(EVENT_BYTES) : NULL;
    for (int i = 0; text && list && i < EVENTS_MAX; i++) {
        int length = solo_next_event(solo, text, EVENT_BYTES);
        if (length <= 0) {
            break;
        }
        PyObject *event = PyUnicode_DecodeUTF8(text, length, "replace");
        if (!event || PyList_Append(list, event) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(event);
    }
    PyMem_Free(text);
    return list;
}

static PyObject *engine_read_anchor(PyObject *object, PyObject *arguments)
{
    unsigned long long index;
    unsigned long long anchor;
    unsigned long long momentum;
    struct solo *solo = usable((Engine *)object);
    if (!solo || !PyArg_ParseTuple(arguments, "KKK:read_anchor", &index, &anchor, &momentum)) {
        return NULL;
    }
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = solo_read_anchor(solo, (size_t)index, (float *)(uintptr_t)anchor,
                          (float *)(uintptr_t)momentum);
    Py_END_ALLOW_THREADS;
    if (rc < 0) {
        return py_raise(rc);
    }
    Py_RETURN_NONE;
}

static PyObject *engine_leave(PyObject *object, PyObject *arguments)
{
    int finished;
    const char *reason;
    struct solo *solo = usable((Engine *)object);
    if (!solo || !PyArg_ParseTuple(arguments, "ps:leave", &finished, &reason)) {
        return NULL;
    }
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = solo_leave(solo, finished, reason);
    Py_END_ALLOW_THREADS;
    if (rc < 0) {
        return py_raise(rc);
    }
    Py_RETURN_NONE;
}

static PyMethodDef engine_methods[] = {
    {"attach", engine_attach, METH_VARARGS, "attach(layout, data): joins the job; blocks."},
    {"submit", (PyCFunction)(void (*)(void))engine_submit, METH_VARARGS | METH_KEYWORDS,
     "submit(data, keep, *, samples, steps, lr_sum, final): begins a merge."},
    {"wait", engine_wait, METH_O, "wait(seconds): the merge's result, or None: not yet."},
    {"waiting_for", engine_waiting_for, METH_NOARGS, "Whom it is waiting for, in words."},
    {"due", engine_due, METH_NOARGS, "Whether the others wait for this node's merge."},
    {"over", engine_over, METH_NOARGS, "Whether the job is over for this node."},
    {"version", engine_version, METH_NOARGS, "Rounds the job has committed."},
    {"job_step", engine_job_step, METH_NOARGS, "Optimizer steps the job has done."},
    {"members", engine_members, METH_NOARGS, "The members in slot order, as dicts."},
    {"events", engine_events, METH_NOARGS, "New events, each one JSON text."},
    {"read_anchor", engine_read_anchor, METH_VARARGS,
     "read_anchor(index, anchor, momentum): copies to these addresses; 0: not wanted."},
    {"leave", engine_leave, METH_VARARGS, "leave(finished, reason): says goodbye."},
    {"close", engine_close, METH_NOARGS, "Closes all; safe to call twice."},
    {NULL, NULL, 0, NULL},
};

PyObject *py_engine_type(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_doc, (void *)"The sync engine of one node; see solo.h."},
        {Py_tp_new, (void *)engine_new},
        {Py_tp_dealloc, (void *)engine_dealloc},
        {Py_tp_methods, engine_methods},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "solo._C.Engine",
        .basicsize = sizeof(Engine),
        .flags = Py_TPFLAGS_DEFAULT,
        .slots = slots,
    };
    return PyType_FromModuleAndSpec(module, &spec, NULL);
}
