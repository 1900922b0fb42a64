/* load_memory.c - File, Arena and Slice of solo._C, and the reading of many ranges. */
#include "py/load.h"

#include <stdlib.h>

#define TICK_MS 100u /* how often a long read looks for Ctrl-C and reports */

static PyTypeObject *file_type, *arena_type, *slice_type;

static void free_object(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* ---- File ----------------------------------------------------------------------------------- */

struct load_file *load_file_of(PyObject *object)
{
    if (!PyObject_TypeCheck(object, file_type)) {
        PyErr_SetString(PyExc_TypeError, "a solo._C.File is expected");
        return NULL;
    }
    return (struct load_file *)object;
}

static PyObject *file_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    PyObject *path;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "O&:File", PyUnicode_FSConverter, &path)) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct load_file *self = (struct load_file *)allocate(type, 0);
    int rc = 0;
    if (self) {
        const char *text = PyBytes_AsString(path);
        Py_BEGIN_ALLOW_THREADS rc = solo_file_open(text, &self->file);
        Py_END_ALLOW_THREADS
    }
    Py_DECREF(path);
    if (rc < 0) {
        Py_DECREF(self);
        return py_raise(rc);
    }
    return (PyObject *)self;
}

static void file_dealloc(PyObject *self)
{
    solo_file_close(((struct load_file *)self)->file);
    free_object(self);
}

static PyObject *file_info(PyObject *self, PyObject *unused)
{
    struct solo_file_info info;
    (void)unused;
    solo_file_info_get(((struct load_file *)self)->file, &info);
    return Py_BuildValue("(KKKKis)", (unsigned long long)info.bytes,
                         (unsigned long long)info.modified_ns, (unsigned long long)info.inode,
                         (unsigned long long)info.device, info.network, info.filesystem);
}

static PyObject *file_cached(PyObject *self, PyObject *unused)
{
    struct solo_file_info info;
    (void)unused;
    solo_file_info_get(((struct load_file *)self)->file, &info);
    return PyLong_FromLong(solo_file_cached(((struct load_file *)self)->file, 0, info.bytes));
}

static PyObject *file_read(PyObject *self, PyObject *arguments)
{
    unsigned long long offset;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(arguments, "Kn:read", &offset, &size)) {
        return NULL;
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, size);
    if (!bytes) {
        return NULL;
    }
    struct solo_ckpt_source source;
    solo_file_source(((struct load_file *)self)->file, &source);
    char *room = PyBytes_AsString(bytes);
    int rc;
    Py_BEGIN_ALLOW_THREADS rc = source.read(source.context, offset, room, (size_t)size);
    Py_END_ALLOW_THREADS if (rc < 0)
    {
        Py_DECREF(bytes);
        return py_raise(rc);
    }
    return bytes;
}

PyObject *load_file_type(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"info", file_info, METH_NOARGS,
         "(bytes, modified_ns, inode, device, network, filesystem)"},
        {"cached", file_cached, METH_NOARGS, "Percent of sampled pages in the page cache, or -1."},
        {"read", file_read, METH_VARARGS, "read(offset, size) -> bytes"},
        {NULL, NULL, 0, NULL},
    };
    static PyType_Slot slots[] = {{Py_tp_new, (void *)file_new},
                                  {Py_tp_dealloc, (void *)file_dealloc},
                                  {Py_tp_methods, methods},
                                  {Py_tp_doc, "A regular file, open for reading."},
                                  {0, NULL}};
    static PyType_Spec spec = {"solo._C.File", sizeof(struct load_file), 0, Py_TPFLAGS_DEFAULT,
                               slots};
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    file_type = (PyTypeObject *)type;
    return type;
}

/* ---- Arena and Slice -------------------------------------------------------------------------- */

struct arena_object {
    PyObject_HEAD struct solo_arena arena;
};

/* A part of an arena that gives its pages back when nothing uses it any more. */
struct slice_object {
    PyObject_HEAD struct arena_object *arena;
    uint64_t offset, bytes;
};

static PyObject *arena_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    unsigned long long bytes, congruent_to;
    PyObject *file = Py_None;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "KK|O:Arena", &bytes, &congruent_to, &file)) {
        return NULL;
    }
    struct load_file *mapped = file == Py_None ? NULL : load_file_of(file);
    if (file != Py_None && !mapped) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct arena_object *self = (struct arena_object *)allocate(type, 0);
    if (!self) {
        return NULL;
    }
    int rc = mapped ? solo_arena_map_file(mapped->file, bytes, &self->arena)
                    : solo_arena_map(bytes, congruent_to, &self->arena);
    if (rc < 0) {
        Py_DECREF(self);
        return py_raise(rc);
    }
    return (PyObject *)self;
}

static void arena_dealloc(PyObject *self)
{
    solo_arena_unmap(&((struct arena_object *)self)->arena);
    free_object(self);
}

static int arena_buffer(PyObject *self, Py_buffer *view, int flags)
{
    struct solo_arena *arena = &((struct arena_object *)self)->arena;
    return PyBuffer_FillInfo(view, self, arena->at, (Py_ssize_t)arena->bytes, 0, flags);
}

static PyObject *arena_address(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromVoidPtr(((struct arena_object *)self)->arena.at);
}

static PyObject *arena_slice(PyObject *self, PyObject *arguments)
{
    unsigned long long offset, bytes;
    struct arena_object *arena = (struct arena_object *)self;
    if (!PyArg_ParseTuple(arguments, "KK:slice", &offset, &bytes)) {
        return NULL;
    }
    if (offset > arena->arena.bytes || bytes > arena->arena.bytes - offset) {
        PyErr_SetString(PyExc_ValueError, "the slice reaches beyond its arena");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(slice_type, Py_tp_alloc);
    struct slice_object *slice = (struct slice_object *)allocate(slice_type, 0);
    if (slice) {
        slice->arena = (struct arena_object *)Py_NewRef(self);
        slice->offset = offset;
        slice->bytes = bytes;
    }
    return (PyObject *)slice;
}

static void slice_dealloc(PyObject *self)
{
    struct slice_object *slice = (struct slice_object *)self;
    if (slice->arena) {
        solo_arena_drop(&slice->arena->arena, slice->offset, slice->bytes);
        Py_DECREF(slice->arena);
    }
    free_object(self);
}

static int slice_buffer(PyObject *self, Py_buffer *view, int flags)
{
    struct slice_object *slice = (struct slice_object *)self;
    return PyBuffer_FillInfo(view, self, slice->arena->arena.at + slice->offset,
                             (Py_ssize_t)slice->bytes, 0, flags);
}

PyObject *load_arena_type(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"slice", arena_slice, METH_VARARGS, "slice(offset, bytes): frees its pages by itself"},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef attributes[] = {
        {"address", arena_address, NULL, "Where it begins.", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {{Py_tp_new, (void *)arena_new},
                                  {Py_tp_dealloc, (void *)arena_dealloc},
                                  {Py_tp_methods, methods},
                                  {Py_tp_getset, attributes},
                                  {Py_bf_getbuffer, (void *)arena_buffer},
                                  {Py_tp_doc, "Arena(bytes, congruent_to[, file])"},
                                  {0, NULL}};
    static PyType_Spec spec = {"solo._C.Arena", sizeof(struct arena_object), 0, Py_TPFLAGS_DEFAULT,
                               slots};
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    arena_type = (PyTypeObject *)type;
    return type;
}

PyObject *load_slice_type(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_dealloc, (void *)slice_dealloc}, {Py_bf_getbuffer, (void *)slice_buffer}, {0, NULL}};
    static PyType_Spec spec = {"solo._C.Slice", sizeof(struct slice_object), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    slice_type = (PyTypeObject *)type;
    return type;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* (offset, bytes, address, storage): storage -1 belongs to no table. */
static int take_reads(PyObject *list, const struct solo_ckpt *ckpt, int verify,
                      struct solo_ckpt_read *reads)
{
    const struct solo_ckpt_storage *storages = NULL;
    size_t storage_count = ckpt ? solo_ckpt_storages(ckpt, &storages) : 0;
    Py_ssize_t count = PyList_Size(list);
    for (Py_ssize_t i = 0; i < count; i++) {
        unsigned long long offset, bytes, address;
        long storage;
        PyObject *item = PyList_GetItem(list, i);
        if (!PyTuple_Check(item) ||
            !PyArg_ParseTuple(item, "KKKl", &offset, &bytes, &address, &storage)) {
            return -1;
        }
        reads[i] = (struct solo_ckpt_read){.offset = offset,
                                           .bytes = bytes,
                                           .to = (void *)(uintptr_t)address,
                                           .ckpt = ckpt,
                                           .header_offset = SOLO_CKPT_NONE};
        if (storage >= 0 && (size_t)storage < storage_count) {
            reads[i].storage = (uint32_t)storage;
            if (offset == storages[storage].offset) { /* a part of a record has no checksum */
                reads[i].header_offset = storages[storage].header_offset;
                reads[i].crc =
                    verify && bytes == storages[storage].bytes ? storages[storage].crc : 0;
            }
        }
    }
    return 0;
}

/* Waits with an eye on Ctrl-C; tick(done, total, direct) is told how far it is. */
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

static PyObject *wrong_checksums(const struct solo_ckpt_read *reads, Py_ssize_t count)
{
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list && i < count; i++) {
        if (reads[i].crc && reads[i].crc != reads[i].crc_found) {
            PyObject *row = PyLong_FromLong((long)reads[i].storage);
            if (!row || PyList_Append(list, row) < 0) {
                Py_CLEAR(list);
            }
            Py_XDECREF(row);
        }
    }
    return list;
}

PyObject *load_read(PyObject *module, PyObject *arguments)
{
    PyObject *file_object, *ckpt_object, *list, *tick;
    unsigned threads;
    int direct, gaps, verify;
    unsigned long long base;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOO!IipKpO:read", &file_object, &ckpt_object, &PyList_Type,
                          &list, &threads, &direct, &gaps, &base, &verify, &tick)) {
        return NULL;
    }
    struct load_file *file = load_file_of(file_object);
    struct load_checkpoint *checkpoint =
        ckpt_object == Py_None ? NULL : load_checkpoint_of(ckpt_object);
    if (!file || (ckpt_object != Py_None && !checkpoint)) {
        return NULL;
    }
    Py_ssize_t count = PyList_Size(list);
    struct solo_ckpt_read *reads = calloc((size_t)count + 1, sizeof *reads);
    if (!reads) {
        return PyErr_NoMemory();
    }
    PyObject *result = NULL;
    struct solo_reading *reading = NULL;
    struct solo_read_options options = {.size = sizeof options,
                                        .threads = threads,
                                        .direct = (enum solo_read_direct)direct,
                                        .gaps_writable = gaps,
                                        .base = base};
    if (take_reads(list, checkpoint ? checkpoint->ckpt : NULL, verify, reads) == 0) {
        int rc;
        Py_BEGIN_ALLOW_THREADS rc =
            solo_read_start(file->file, reads, (size_t)count, &options, &reading);
        Py_END_ALLOW_THREADS if (rc < 0)
        {
            py_raise(rc);
        }
        else if (wait_for(reading, tick) == 0)
        {
            result = wrong_checksums(reads, count);
        }
    }
    Py_BEGIN_ALLOW_THREADS solo_read_free(reading);
    Py_END_ALLOW_THREADS free(reads);
    return result;
}
