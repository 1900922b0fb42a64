/* load_functions.c - what solo._C offers for checkpoints beside its types. */
#include "py/load.h"

#include <stdlib.h>
#include <string.h>

/* (names: [(name, file)], files: [name], total, faults) */
static PyObject *shards(PyObject *module, PyObject *bytes)
{
    char *data;
    Py_ssize_t size;
    struct solo_ckpt_shards *index;
    (void)module;
    if (PyBytes_AsStringAndSize(bytes, &data, &size) < 0) {
        return NULL;
    }
    int rc = solo_ckpt_shards_open(data, (size_t)size, &index);
    if (rc < 0) {
        return py_raise(rc);
    }
    const struct solo_ckpt_shard_name *rows;
    size_t count = solo_ckpt_shards_names(index, &rows);
    PyObject *all = PyList_New(0), *files = PyList_New(0), *wrong = PyList_New(0);
    for (size_t i = 0; all && i < count; i++) {
        PyObject *name = load_text_of(rows[i].text, rows[i].bytes);
        all = load_append(all, name ? Py_BuildValue("(NI)", name, rows[i].file) : NULL);
    }
    const char *file;
    for (uint32_t i = 0; files && (size = (Py_ssize_t)solo_ckpt_shards_file(index, i, &file));
         i++) {
        files = load_append(files, load_text_of(file, (size_t)size));
    }
    struct solo_ckpt_fault fault;
    for (uint32_t i = 0; wrong && solo_ckpt_shards_fault_get(index, i, &fault) == 0; i++) {
        wrong = load_append(wrong, load_fault_row(&fault));
    }
    PyObject *result = NULL;
    if (all && files && wrong) {
        result = Py_BuildValue("(OOKO)", all, files,
                               (unsigned long long)solo_ckpt_shards_total(index), wrong);
    }
    Py_XDECREF(all);
    Py_XDECREF(files);
    Py_XDECREF(wrong);
    solo_ckpt_shards_close(index);
    return result;
}

#define CHUNK_BYTES (64u << 10) /* small archives are read whole, once */

struct chunk_memory {
    const struct solo_ckpt_source *file;
    uint64_t base;
    uint8_t bytes[CHUNK_BYTES];
};

static int read_chunk(void *context, uint64_t offset, void *bytes, size_t count)
{
    struct chunk_memory *memory = context;
    memcpy(bytes, memory->bytes + (offset - memory->base), count);
    return 0;
}

static int open_chunk(struct solo_file *file, uint64_t base, uint64_t size, struct solo_ckpt **out)
{
    struct solo_ckpt_source source;
    solo_file_source(file, &source);
    struct chunk_memory memory = {&source, base, {0}};
    if (size > sizeof memory.bytes) {
        source.base = base;
        source.size = size;
        return solo_ckpt_open(&source, NULL, out);
    }
    int rc = source.read(source.context, base, memory.bytes, (size_t)size);
    struct solo_ckpt_source here = {&memory, base, size, read_chunk};
    return rc < 0 ? rc : solo_ckpt_open(&here, NULL, out);
}

/* A small archive of one whole tensor inside a file, as torch.distributed.checkpoint writes
 * them by the thousand: (offset in the file, bytes, dtype, sizes, crc), or a list of faults. */
static PyObject *chunk(PyObject *module, PyObject *arguments)
{
    PyObject *file_object;
    unsigned long long base, size;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OKK:chunk", &file_object, &base, &size)) {
        return NULL;
    }
    struct load_file *file = load_file_of(file_object);
    struct solo_ckpt *ckpt;
    int rc = file ? open_chunk(file->file, base, size, &ckpt) : -1;
    if (rc < 0) {
        return file ? py_raise(rc) : NULL;
    }
    struct load_checkpoint view = {.ckpt = ckpt};
    const struct solo_ckpt_storage *rows;
    const struct solo_ckpt_tensor *row;
    struct solo_ckpt_info of;
    solo_ckpt_info_get(ckpt, &of);
    PyObject *result;
    if (solo_ckpt_fault_count(ckpt)) {
        result = load_faults((PyObject *)&view, NULL);
    } else if (solo_ckpt_storages(ckpt, &rows) != 1 || solo_ckpt_tensors(ckpt, &row) != 1 ||
               row->first || !load_is_contiguous(row) || rows->packed_bytes != rows->bytes ||
               of.big_endian) {
        result = PyList_New(0);
    } else {
        result = Py_BuildValue("(KKINI)", (unsigned long long)(base + rows->offset),
                               (unsigned long long)rows->bytes, row->dtype,
                               load_counts(row->sizes, row->dims), rows->crc);
    }
    solo_ckpt_close(ckpt);
    return result;
}

static PyObject *dtype_names(PyObject *module, PyObject *unused)
{
    PyObject *list = PyList_New(0);
    uint32_t bits;
    const char *name;
    (void)module;
    (void)unused;
    for (uint32_t i = 0; list && (name = solo_ckpt_dtype(i, &bits)); i++) {
        list = load_append(list, Py_BuildValue("(sI)", name, bits));
    }
    return list;
}

static PyObject *sniff(PyObject *module, PyObject *arguments)
{
    const char *head;
    Py_ssize_t size;
    unsigned long long file_bytes;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y#K:sniff", &head, &size, &file_bytes)) {
        return NULL;
    }
    return PyUnicode_FromString(
        solo_ckpt_kind_name(solo_ckpt_sniff(head, (size_t)size, file_bytes)));
}

static PyObject *crc32(PyObject *module, PyObject *arguments)
{
    Py_buffer view;
    unsigned start = 0;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*|I:crc32", &view, &start)) {
        return NULL;
    }
    uint32_t value;
    Py_BEGIN_ALLOW_THREADS value = solo_crc32(start, view.buf, (size_t)view.len);
    Py_END_ALLOW_THREADS PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(value);
}

/* For bytes that Python fetched itself: into an arena, and their checksum there. */
static PyObject *store(PyObject *module, PyObject *arguments)
{
    unsigned long long address;
    const char *bytes;
    Py_ssize_t size;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Ky#:store", &address, &bytes, &size)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS memcpy((void *)(uintptr_t)address, bytes, (size_t)size);
    Py_END_ALLOW_THREADS return Py_NewRef(Py_None);
}

static PyObject *crc32_at(PyObject *module, PyObject *arguments)
{
    unsigned long long address, size;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "KK:crc32_at", &address, &size)) {
        return NULL;
    }
    uint32_t value;
    Py_BEGIN_ALLOW_THREADS value = solo_crc32(0, (const void *)(uintptr_t)address, (size_t)size);
    Py_END_ALLOW_THREADS return PyLong_FromUnsignedLong(value);
}

static PyObject *swap(PyObject *module, PyObject *arguments)
{
    PyObject *from, *to;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O&O&:swap", PyUnicode_FSConverter, &from,
                          PyUnicode_FSConverter, &to)) {
        return NULL;
    }
    const char *old = PyBytes_AsString(from), *new = PyBytes_AsString(to);
    int rc = old && new ? solo_file_swap(old, new) : SOLO_EINVAL;
    Py_DECREF(from);
    Py_DECREF(to);
    return rc < 0 ? py_raise(rc) : PyBool_FromLong(rc);
}

static PyMethodDef functions[] = {
    {"shards", shards, METH_O, "shards(json) -> (names, files, total, faults)"},
    {"chunk", chunk, METH_VARARGS,
     "chunk(file, base, size) -> (offset, bytes, dtype, sizes, crc), or [fault]"},
    {"dtype_names", dtype_names, METH_NOARGS, "[(name, bits)], by dtype number"},
    {"sniff", sniff, METH_VARARGS, "sniff(head, file_bytes) -> kind"},
    {"swap", swap, METH_VARARGS, "swap(from, to): names; whether `to` was there"},
    {"store", store, METH_VARARGS, "store(address, bytes)"},
    {"crc32_at", crc32_at, METH_VARARGS, "crc32_at(address, size): of zip"},
    {"crc32", crc32, METH_VARARGS, "crc32(bytes, start=0): of zip"},
    {NULL, NULL, 0, NULL},
};

int py_load_init(PyObject *module)
{
    PyObject *(*const types[])(PyObject *) = {load_file_type, load_checkpoint_type, load_arena_type,
                                              load_slice_type, load_reading_type};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        PyObject *type = types[i](module);
        int rc = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;
        Py_XDECREF(type);
        if (rc < 0) {
            return -1;
        }
    }
    return PyModule_AddFunctions(module, functions);
}
