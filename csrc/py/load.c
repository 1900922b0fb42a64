/* load.c - Checkpoint of solo._C: the index of one file as Python tables. */
#include "load.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static PyTypeObject *checkpoint_type;

struct load_checkpoint *load_checkpoint_of(PyObject *object)
{
    if (!PyObject_TypeCheck(object, checkpoint_type)) {
        PyErr_SetString(PyExc_TypeError, "a solo._C.Checkpoint is expected");
        return NULL;
    }
    return (struct load_checkpoint *)object;
}

/* ---- opening ---------------------------------------------------------------------------------- */

/* A source in Python: read(offset, size) -> bytes. */
static int read_python(void *context, uint64_t offset, void *bytes, size_t count)
{
    PyObject *result =
        PyObject_CallFunction(context, "Kn", (unsigned long long)offset, (Py_ssize_t)count);
    char *data;
    Py_ssize_t size;
    if (!result || PyBytes_AsStringAndSize(result, &data, &size) < 0 || (size_t)size != count) {
        if (result && !PyErr_Occurred()) {
            PyErr_Format(PyExc_EOFError, "%zd bytes instead of %zd at %llu", size,
                         (Py_ssize_t)count, (unsigned long long)offset);
        }
        Py_XDECREF(result);
        return SOLO_ESYS;
    }
    memcpy(bytes, data, count);
    Py_DECREF(result);
    return 0;
}

/* Texts of a tuple of str, borrowed from it; NULL with an exception. */
static const char **texts_of(PyObject *tuple)
{
    Py_ssize_t count = PyTuple_Size(tuple);
    const char **texts = calloc((size_t)count + 1, sizeof *texts);
    for (Py_ssize_t i = 0; texts && i < count; i++) {
        Py_ssize_t size;
        texts[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(tuple, i), &size);
        if (!texts[i]) {
            free(texts);
            return NULL;
        }
    }
    return texts ? texts : (const char **)PyErr_NoMemory();
}

static int open_source(PyObject *from, unsigned long long base, unsigned long long size,
                       const struct solo_ckpt_options *options, struct solo_ckpt **out)
{
    struct solo_ckpt_source source = {.context = from, .read = read_python};
    bool local = !PyCallable_Check(from);
    if (local) {
        struct load_file *file = load_file_of(from);
        if (!file) {
            return -1;
        }
        solo_file_source(file->file, &source);
        if (base > source.size || size > source.size - base) {
            PyErr_SetString(PyExc_ValueError, "the part reaches beyond the file");
            return -1;
        }
        source.size = size ? size : source.size - base;
    } else {
        source.size = size;
    }
    source.base = base;
    int rc;
    if (local) {
        Py_BEGIN_ALLOW_THREADS rc = solo_ckpt_open(&source, options, out);
        Py_END_ALLOW_THREADS
    } else {
        rc = solo_ckpt_open(&source, options, out);
    }
    if (rc < 0 && !PyErr_Occurred()) {
        py_raise(rc);
    }
    return rc < 0 ? -1 : 0;
}

static PyObject *checkpoint_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"source",       "base",           "size",           "allowed",
                            "placeholders", "allow_trailing", "allow_expanded", "pickle_only",
                            "metadata_max", "tensors_max",    "depth_max",      NULL};
    struct solo_ckpt_options options = {.size = sizeof options};
    PyObject *from, *allowed = NULL;
    unsigned long long base = 0, size = 0, metadata_max = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|KKO!ppppKII:Checkpoint", names, &from,
                                     &base, &size, &PyTuple_Type, &allowed, &options.placeholders,
                                     &options.allow_trailing, &options.allow_expanded,
                                     &options.pickle_only, &metadata_max, &options.tensors_max,
                                     &options.depth_max)) {
        return NULL;
    }
    options.metadata_max = metadata_max;
    const char **texts = allowed ? texts_of(allowed) : NULL;
    if (allowed && !texts) {
        return NULL;
    }
    options.allowed = texts;
    options.allowed_count = allowed ? (size_t)PyTuple_Size(allowed) : 0;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct load_checkpoint *self = (struct load_checkpoint *)allocate(type, 0);
    if (self && open_source(from, base, size, &options, &self->ckpt) < 0) {
        Py_CLEAR(self);
    }
    free(texts);
    return (PyObject *)self;
}

static void checkpoint_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    solo_ckpt_close(((struct load_checkpoint *)self)->ckpt);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static const struct solo_ckpt *ckpt_of(PyObject *self)
{
    return ((struct load_checkpoint *)self)->ckpt;
}

/* ---- tables ----------------------------------------------------------------------------------- */

static PyObject *text_of(const char *text, size_t size)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)size, "backslashreplace");
}

static PyObject *append(PyObject *list, PyObject *item)
{
    if (!item || PyList_Append(list, item) < 0) {
        Py_CLEAR(list);
    }
    Py_XDECREF(item);
    return list;
}

static PyObject *info(PyObject *self, PyObject *unused)
{
    struct solo_ckpt_info of;
    (void)unused;
    solo_ckpt_info_get(ckpt_of(self), &of);
    return Py_BuildValue("{sssKsKsIsIsIsNsNss}", "kind", solo_ckpt_kind_name(of.kind), "file_bytes",
                         (unsigned long long)of.file_bytes, "metadata_bytes",
                         (unsigned long long)of.metadata_bytes, "version", of.version, "protocol",
                         of.protocol, "alignment", of.alignment, "big_endian",
                         PyBool_FromLong(of.big_endian), "crc_known", PyBool_FromLong(of.crc_known),
                         "identity", of.identity);
}

static const char *const fault_names[SOLO_CKPT_FAULT_COUNT] = {
    [SOLO_CKPT_TRUNCATED] = "truncated",     [SOLO_CKPT_DAMAGED] = "damaged",
    [SOLO_CKPT_DUPLICATE] = "duplicate",     [SOLO_CKPT_OVERLAP] = "overlap",
    [SOLO_CKPT_MISMATCH] = "mismatch",       [SOLO_CKPT_MISSING] = "missing",
    [SOLO_CKPT_UNSAFE] = "unsafe",           [SOLO_CKPT_LIMIT] = "limit",
    [SOLO_CKPT_UNSUPPORTED] = "unsupported", [SOLO_CKPT_CHECKSUM] = "checksum",
    [SOLO_CKPT_CHANGED] = "changed",
};

static PyObject *fault_row(const struct solo_ckpt_fault *fault)
{
    PyObject *text = text_of(fault->text, strlen(fault->text));
    return text ? Py_BuildValue("(sKN)", fault_names[fault->code],
                                (unsigned long long)fault->offset, text)
                : NULL;
}

static PyObject *faults(PyObject *self, PyObject *unused)
{
    struct solo_ckpt_fault fault;
    PyObject *list = PyList_New(0);
    (void)unused;
    for (uint32_t i = 0; list && solo_ckpt_fault_get(ckpt_of(self), i, &fault) == 0; i++) {
        list = append(list, fault_row(&fault));
    }
    return list;
}

static PyObject *fault_count(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(solo_ckpt_fault_count(ckpt_of(self)));
}

static PyObject *storages(PyObject *self, PyObject *unused)
{
    const struct solo_ckpt_storage *rows;
    size_t count = solo_ckpt_storages(ckpt_of(self), &rows);
    PyObject *list = PyList_New(0);
    (void)unused;
    for (size_t i = 0; list && i < count; i++) {
        const struct solo_ckpt_storage *row = &rows[i];
        PyObject *key = text_of(row->key, row->key_bytes);
        PyObject *location = text_of(row->location, row->location_bytes);
        list = append(
            list, key && location
                      ? Py_BuildValue("(NIKKKIN)", key, row->dtype, (unsigned long long)row->bytes,
                                      (unsigned long long)row->offset,
                                      (unsigned long long)row->packed_bytes, row->crc, location)
                      : NULL);
    }
    return list;
}

static PyObject *counts(const uint64_t *values, uint32_t count)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (uint32_t i = 0; tuple && i < count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(values[i]);
        if (!number || PyTuple_SetItem(tuple, (Py_ssize_t)i, number) < 0) {
            Py_CLEAR(tuple);
        }
    }
    return tuple;
}

/* 1: row-major over exactly its elements: the common case, which needs no strides. */
static int is_contiguous(const struct solo_ckpt_tensor *row)
{
    uint64_t stride = 1;
    for (uint32_t i = row->dims; i-- > 0;) {
        if (row->sizes[i] != 1 && row->strides[i] != stride) {
            return 0;
        }
        stride *= row->sizes[i];
    }
    return 1;
}

static PyObject *tensors(PyObject *self, PyObject *unused)
{
    const struct solo_ckpt_tensor *rows;
    size_t count = solo_ckpt_tensors(ckpt_of(self), &rows);
    PyObject *list = PyList_New(0);
    (void)unused;
    for (size_t i = 0; list && i < count; i++) {
        const struct solo_ckpt_tensor *row = &rows[i];
        PyObject *sizes = counts(row->sizes, row->dims);
        PyObject *strides = counts(row->strides, row->dims);
        list =
            append(list, sizes && strides
                             ? Py_BuildValue("(IIKNNiiO)", row->storage, row->dtype,
                                             (unsigned long long)row->first, sizes, strides,
                                             (int)row->requires_grad, is_contiguous(row),
                                             row->metadata == SOLO_CKPT_NONE ? Py_False : Py_True)
                             : NULL);
    }
    return list;
}

static PyObject *names(PyObject *self, PyObject *unused)
{
    const struct solo_ckpt_name *rows;
    size_t count = solo_ckpt_names(ckpt_of(self), &rows);
    PyObject *list = PyList_New(0);
    (void)unused;
    for (size_t i = 0; list && i < count; i++) {
        PyObject *name = text_of(rows[i].text, rows[i].bytes);
        list = append(list,
                      name ? Py_BuildValue("(NII)", name, rows[i].key_at, rows[i].tensor) : NULL);
    }
    return list;
}

static PyObject *records(PyObject *self, PyObject *unused)
{
    const struct solo_ckpt_record *rows;
    size_t count = solo_ckpt_records(ckpt_of(self), &rows);
    PyObject *list = PyList_New(0);
    (void)unused;
    for (size_t i = 0; list && i < count; i++) {
        PyObject *name = text_of(rows[i].name, rows[i].name_bytes);
        list =
            append(list, name ? Py_BuildValue("(NKKKI)", name, (unsigned long long)rows[i].offset,
                                              (unsigned long long)rows[i].bytes,
                                              (unsigned long long)rows[i].packed_bytes, rows[i].crc)
                              : NULL);
    }
    return list;
}

static PyObject *note(PyObject *self, PyObject *unused)
{
    const char *text;
    size_t size = solo_ckpt_note(ckpt_of(self), &text);
    (void)unused;
    return text_of(text, size);
}

static PyObject *metadata(PyObject *self, PyObject *unused)
{
    const void *directory, *rest;
    size_t directory_bytes = solo_ckpt_metadata(ckpt_of(self), 0, &directory);
    size_t rest_bytes = solo_ckpt_metadata(ckpt_of(self), 1, &rest);
    (void)unused;
    return Py_BuildValue("(y#y#)", directory, (Py_ssize_t)directory_bytes, rest,
                         (Py_ssize_t)rest_bytes);
}

static PyObject *local_check(PyObject *self, PyObject *arguments)
{
    const struct solo_ckpt_storage *rows;
    size_t count = solo_ckpt_storages(ckpt_of(self), &rows);
    unsigned row;
    Py_buffer local;
    if (!PyArg_ParseTuple(arguments, "Iy*:local_check", &row, &local)) {
        return NULL;
    }
    if (row >= count) {
        PyBuffer_Release(&local);
        PyErr_SetString(PyExc_IndexError, "no such storage");
        return NULL;
    }
    int rc = solo_ckpt_local_check(ckpt_of(self), &rows[row], local.buf, (size_t)local.len);
    PyBuffer_Release(&local);
    return rc < 0 ? py_raise(rc) : Py_NewRef(Py_None);
}

/* Its conj and neg bits: {name: bool}. */
static PyObject *tensor_metadata(PyObject *self, PyObject *row_object)
{
    const struct solo_ckpt_tensor *rows;
    size_t count = solo_ckpt_tensors(ckpt_of(self), &rows), row = PyLong_AsSize_t(row_object);
    PyObject *dict = PyErr_Occurred() ? NULL : PyDict_New();
    if (!dict || row >= count || rows[row].metadata == SOLO_CKPT_NONE) {
        return dict;
    }
    uint64_t cursor = 0;
    const uint64_t *items;
    size_t run;
    while (dict && (run = solo_ckpt_items(ckpt_of(self), rows[row].metadata, &cursor, &items))) {
        for (size_t i = 0; dict && i < run; i += 2) {
            struct solo_ckpt_value key, value;
            solo_ckpt_value_get(ckpt_of(self), items[i], &key);
            solo_ckpt_value_get(ckpt_of(self), items[i + 1], &value);
            PyObject *name = text_of(key.bytes ? key.bytes : "", key.size);
            if (!name ||
                PyDict_SetItem(dict, name, value.type == SOLO_CKPT_TRUE ? Py_True : Py_False) < 0) {
                Py_CLEAR(dict);
            }
            Py_XDECREF(name);
        }
    }
    return dict;
}

static PyObject *header_offset(PyObject *self, PyObject *row_object)
{
    const struct solo_ckpt_storage *rows;
    size_t count = solo_ckpt_storages(ckpt_of(self), &rows);
    size_t row = PyLong_AsSize_t(row_object);
    if (PyErr_Occurred() || row >= count || rows[row].header_offset == SOLO_CKPT_NONE) {
        PyErr_Clear();
        return PyLong_FromLong(-1);
    }
    return PyLong_FromUnsignedLongLong(rows[row].header_offset);
}

PyObject *load_checkpoint_type(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"info", info, METH_NOARGS, "What kind of file it is, and of which version."},
        {"faults", faults, METH_NOARGS, "[(code, offset, text)], the first 32"},
        {"fault_count", fault_count, METH_NOARGS, "How many faults there are in all."},
        {"storages", storages, METH_NOARGS,
         "[(key, dtype, bytes, offset, packed_bytes, crc, location)]"},
        {"tensors", tensors, METH_NOARGS,
         "[(storage, dtype, first, sizes, strides, requires_grad, contiguous, has_metadata)]"},
        {"names", names, METH_NOARGS, "[(name, key_at, tensor)]"},
        {"records", records, METH_NOARGS, "[(name, offset, bytes, packed_bytes, crc)]"},
        {"note", note, METH_NOARGS, "The JSON text of a safetensors file's metadata."},
        {"metadata", metadata, METH_NOARGS, "The bytes that describe the file, in two parts."},
        {"local_check", local_check, METH_VARARGS, "local_check(storage, header)"},
        {"header_offset", header_offset, METH_O, "Where the storage's zip header begins, or -1."},
        {"tensor_metadata", tensor_metadata, METH_O, "Its conj and neg bits, as a dict."},
        {"build", load_build, METH_VARARGS, "build(tensors, storage, resolve, call, state)"},
        {NULL, NULL, 0, NULL},
    };
    static PyType_Slot slots[] = {{Py_tp_new, (void *)checkpoint_new},
                                  {Py_tp_dealloc, (void *)checkpoint_dealloc},
                                  {Py_tp_methods, methods},
                                  {Py_tp_doc, "The index of one checkpoint file."},
                                  {0, NULL}};
    static PyType_Spec spec = {"solo._C.Checkpoint", sizeof(struct load_checkpoint), 0,
                               Py_TPFLAGS_DEFAULT, slots};
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    checkpoint_type = (PyTypeObject *)type;
    return type;
}

/* ---- functions -------------------------------------------------------------------------------- */

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
        PyObject *name = text_of(rows[i].text, rows[i].bytes);
        all = append(all, name ? Py_BuildValue("(NI)", name, rows[i].file) : NULL);
    }
    const char *file;
    for (uint32_t i = 0; files && (size = (Py_ssize_t)solo_ckpt_shards_file(index, i, &file));
         i++) {
        files = append(files, text_of(file, (size_t)size));
    }
    struct solo_ckpt_fault fault;
    for (uint32_t i = 0; wrong && solo_ckpt_shards_fault_get(index, i, &fault) == 0; i++) {
        wrong = append(wrong, fault_row(&fault));
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
        result = faults((PyObject *)&view, NULL);
    } else if (solo_ckpt_storages(ckpt, &rows) != 1 || solo_ckpt_tensors(ckpt, &row) != 1 ||
               row->first || !is_contiguous(row) || rows->packed_bytes != rows->bytes ||
               of.big_endian) {
        result = PyList_New(0);
    } else {
        result = Py_BuildValue("(KKINI)", (unsigned long long)(base + rows->offset),
                               (unsigned long long)rows->bytes, row->dtype,
                               counts(row->sizes, row->dims), rows->crc);
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
        list = append(list, Py_BuildValue("(sI)", name, bits));
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

static PyObject *huge(PyObject *module, PyObject *arguments)
{
    unsigned long long address, size;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "KK:huge", &address, &size)) {
        return NULL;
    }
    solo_memory_huge((void *)(uintptr_t)address, size);
    return Py_NewRef(Py_None);
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

static PyMethodDef functions[] = {
    {"read", load_read, METH_VARARGS,
     "read(file, checkpoint, [(offset, bytes, address, storage)], threads, direct, gaps, base, "
     "verify, tick) -> [storage whose checksum is wrong]"},
    {"shards", shards, METH_O, "shards(json) -> (names, files, total, faults)"},
    {"chunk", chunk, METH_VARARGS,
     "chunk(file, base, size) -> (offset, bytes, dtype, sizes, crc), or [fault]"},
    {"dtype_names", dtype_names, METH_NOARGS, "[(name, bits)], by dtype number"},
    {"sniff", sniff, METH_VARARGS, "sniff(head, file_bytes) -> kind"},
    {"store", store, METH_VARARGS, "store(address, bytes)"},
    {"huge", huge, METH_VARARGS, "huge(address, size): huge pages for untouched memory"},
    {"crc32_at", crc32_at, METH_VARARGS, "crc32_at(address, size): of zip"},
    {"crc32", crc32, METH_VARARGS, "crc32(bytes, start=0): of zip"},
    {NULL, NULL, 0, NULL},
};

int py_load_init(PyObject *module)
{
    PyObject *(*const types[])(PyObject *) = {load_file_type, load_checkpoint_type, load_arena_type,
                                              load_slice_type};
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
