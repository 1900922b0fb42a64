/* load_reading.c - Reading of solo._C: many ranges of a file on their way to memory. */
#include "py/load.h"

#include <stdlib.h>

#define TICK_MS 100u /* how often a long wait looks for Ctrl-C and reports */

/* Runs from when it is made; what it uses stays alive with it. */
struct reading_object {
    PyObject_HEAD struct solo_reading *reading; /* NULL: over */
    struct solo_ckpt_read *reads;
    Py_ssize_t count;
    PyObject *file, *checkpoint, *memory;
};

/* A whole number of a tuple; all ones, which no file reaches, with an exception. */
static uint64_t number_of(PyObject *tuple, Py_ssize_t at)
{
    return PyLong_AsUnsignedLongLong(PyTuple_GetItem(tuple, at));
}

/* (offset, bytes, address, storage): storage -1 belongs to no table. */
static int take_read(PyObject *item, struct solo_ckpt_read *read, long *storage_out)
{
    if (!PyTuple_Check(item) || PyTuple_Size(item) != 4) {
        PyErr_SetString(PyExc_TypeError, "a read is (offset, bytes, address, storage)");
        return -1;
    }
    *read = (struct solo_ckpt_read){
        .offset = number_of(item, 0), .bytes = number_of(item, 1), .header_offset = SOLO_CKPT_NONE};
    read->to = (void *)(uintptr_t)number_of(item, 2);
    *storage_out = PyLong_AsLong(PyTuple_GetItem(item, 3));
    return PyErr_Occurred() ? -1 : 0;
}

static int take_reads(PyObject *list, const struct solo_ckpt *ckpt, int verify,
                      struct solo_ckpt_read *reads)
{
    const struct solo_ckpt_storage *storages = NULL;
    size_t storage_count = ckpt ? solo_ckpt_storages(ckpt, &storages) : 0;
    Py_ssize_t count = PyList_Size(list);
    for (Py_ssize_t i = 0; i < count; i++) {
        long row;
        if (take_read(PyList_GetItem(list, i), &reads[i], &row) < 0) {
            return -1;
        }
        reads[i].ckpt = ckpt;
        if (row >= 0 && (size_t)row < storage_count) {
            const struct solo_ckpt_storage *storage = &storages[row];
            reads[i].storage = (uint32_t)row;
            if (reads[i].offset == storage->offset) { /* a part of a record has no checksum */
                reads[i].header_offset = storage->header_offset;
                reads[i].crc = verify && reads[i].bytes == storage->bytes ? storage->crc : 0;
            }
        }
    }
    return 0;
}

/* Nothing is written to memory any more. */
static void end(struct reading_object *self)
{
    struct solo_reading *reading = self->reading;
    self->reading = NULL;
    Py_BEGIN_ALLOW_THREADS solo_read_free(reading);
    Py_END_ALLOW_THREADS
}

static void reading_dealloc(PyObject *object)
{
    struct reading_object *self = (struct reading_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    end(self);
    free(self->reads);
    Py_XDECREF(self->file);
    Py_XDECREF(self->checkpoint);
    Py_XDECREF(self->memory);
    release(object);
    Py_DECREF(type);
}

static int begin(struct reading_object *self, PyObject *list, int verify,
                 const struct solo_read_options *options)
{
    struct load_file *file = load_file_of(self->file);
    struct load_checkpoint *checkpoint =
        self->checkpoint == Py_None ? NULL : load_checkpoint_of(self->checkpoint);
    if (!file || (self->checkpoint != Py_None && !checkpoint)) {
        return -1;
    }
    self->count = PyList_Size(list);
    self->reads = calloc((size_t)self->count + 1, sizeof *self->reads);
    if (!self->reads) {
        PyErr_NoMemory();
        return -1;
    }
    if (take_reads(list, checkpoint ? checkpoint->ckpt : NULL, verify, self->reads) < 0) {
        return -1;
    }
    int rc;
    Py_BEGIN_ALLOW_THREADS rc =
        solo_read_start(file->file, self->reads, (size_t)self->count, options, &self->reading);
    Py_END_ALLOW_THREADS if (rc < 0)
    {
        py_raise(rc);
    }
    return rc < 0 ? -1 : 0;
}

static PyObject *reading_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    PyObject *file, *checkpoint, *list, *memory;
    struct solo_read_options options = {.size = sizeof options};
    int direct, verify;
    unsigned long long base;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "OOO!IiOKp:Reading", &file, &checkpoint, &PyList_Type, &list,
                          &options.threads, &direct, &memory, &base, &verify)) {
        return NULL;
    }
    options.direct = (enum solo_read_direct)direct;
    options.gaps_writable = memory != Py_None;
    options.base = base;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct reading_object *self = (struct reading_object *)allocate(type, 0);
    if (self) {
        self->file = Py_NewRef(file);
        self->checkpoint = Py_NewRef(checkpoint);
        self->memory = Py_NewRef(memory);
        if (begin(self, list, verify, &options) < 0) {
            Py_CLEAR(self);
        }
    }
    return (PyObject *)self;
}

/* With an eye on Ctrl-C; tick(done, total, direct) is told how far it is. */
static int wait_for(struct solo_reading *reading, PyObject *tick)
{
    int rc;
    for (;;) {
        Py_BEGIN_ALLOW_THREADS rc = solo_read_wait(reading, TICK_MS);
        Py_END_ALLOW_THREADS if (rc != SOLO_EAGAIN)
        {
            break;
        }
        struct solo_read_progress progress;
        solo_read_progress_get(reading, &progress);
        PyObject *result =
            tick == Py_None
                ? Py_NewRef(Py_None)
                : PyObject_CallFunction(tick, "KKi", (unsigned long long)progress.bytes_done,
                                        (unsigned long long)progress.bytes_total, progress.direct);
        Py_XDECREF(result);
        if (!result || PyErr_CheckSignals() < 0) {
            solo_read_stop(reading);
            return -1;
        }
    }
    if (rc < 0) {
        py_raise(rc);
        return -1;
    }
    return 0;
}

static PyObject *wrong_checksums(const struct reading_object *self)
{
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list && i < self->count; i++) {
        const struct solo_ckpt_read *read = &self->reads[i];
        if (read->crc && read->crc != read->crc_found) {
            list = load_append(list, PyLong_FromLong((long)read->storage));
        }
    }
    return list;
}

static PyObject *reading_wait(PyObject *object, PyObject *tick)
{
    struct reading_object *self = (struct reading_object *)object;
    if (!self->reading) {
        PyErr_SetString(PyExc_ValueError, "this reading is over");
        return NULL;
    }
    PyObject *result = wait_for(self->reading, tick) == 0 ? wrong_checksums(self) : NULL;
    end(self);
    return result;
}

PyObject *load_reading_type(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"wait", reading_wait, METH_O, "wait(tick): the storages whose checksum is wrong"},
        {NULL, NULL, 0, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_new, (void *)reading_new},
        {Py_tp_dealloc, (void *)reading_dealloc},
        {Py_tp_methods, methods},
        {Py_tp_doc,
         "Reading(file, checkpoint, reads, threads, direct, memory, base, verify): begins at once\n"
         "and ends when it is waited for or dropped. With the memory that holds all targets,\n"
         "what lies between two of them may be overwritten."},
        {0, NULL}};
    static PyType_Spec spec = {"solo._C.Reading", sizeof(struct reading_object), 0,
                               Py_TPFLAGS_DEFAULT, slots};
    return PyType_FromModuleAndSpec(module, &spec, NULL);
}
