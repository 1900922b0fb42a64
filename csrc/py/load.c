/* load.c - Checkpoint of solo._C: the index of one file as Python tables. */
#include "py/load.h"

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
    static char *names[] = {
        "source",         "base",           "size",        "allowed",   "placeholders",
        "allow_trailing", "allow_expanded", "pickle_only", "constants", "metadata_max",
        "tensors_max",    "depth_max",      NULL};
    struct solo_ckpt_options options = {.size = sizeof options};
    PyObject *from, *allowed = NULL;
    unsigned long long base = 0, size = 0, metadata_max = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|KKO!pppppKII:Checkpoint", names, &from,
                                     &base, &size, &PyTuple_Type, &allowed, &options.placeholders,
                                     &options.allow_trailing, &options.allow_expanded,
                                     &options.pickle_only, &options.constants, &metadata_max,
                                     &options.tensors_max, &options.depth_max)) {
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

PyObject *load_text_of(const char *text, size_t size)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)size, "backslashreplace");
}

PyObject *load_append(PyObject *list, PyObject *item)
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

PyObject *load_fault_row(const struct solo_ckpt_fault *fault)
{
    PyObject *text = load_text_of(fault->text, strlen(fault->text));
    return text ? Py_BuildValue("(sKN)", fault_names[fault->code],
                                (unsigned long long)fault->offset, text)
                : NULL;
}

PyObject *load_faults(PyObject *self, PyObject *unused)
{
    struct solo_ckpt_fault fault;
    PyObject *list = PyList_New(0);
    (void)unused;
    for (uint32_t i = 0; list && solo_ckpt_fault_get(ckpt_of(self), i, &fault) == 0; i++) {
        list = load_append(list, load_fault_row(&fault));
    }
    return list;
}

static PyObject *fault_count(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(solo_ckpt_fault_count(ckpt_of(self)));
}

static PyObject *records(PyObject *self, PyObject *unused)
{
    const struct solo_ckpt_record *rows;
    size_t count = solo_ckpt_records(ckpt_of(self), &rows);
    PyObject *list = PyList_New(0);
    (void)unused;
    for (size_t i = 0; list && i < count; i++) {
        PyObject *name = load_text_of(rows[i].name, rows[i].name_bytes);
        list = load_append(
            list, name ? Py_BuildValue("(NKKKI)", name, (unsigned long long)rows[i].offset,
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
    return load_text_of(text, size);
}

static PyObject *metadata(PyObject *self, PyObject *unused)
{
    const void *directory, *rest;
    size_t directory_bytes = solo_ckpt_metadata(ckpt_of(self), 0, &directory);
    size_t rest_bytes = solo_ckpt_metadata(ckpt_of(self), 1, &rest);
    (void)unused;
    directory = directory ? directory : "";
    rest = rest ? rest : "";
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
            PyObject *name = load_text_of(key.bytes ? key.bytes : "", key.size);
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
        {"faults", load_faults, METH_NOARGS, "[(code, offset, text)], the first 32"},
        {"fault_count", fault_count, METH_NOARGS, "How many faults there are in all."},
        {"storages", load_storages, METH_O,
         "[kind((key, dtype, bytes, offset, packed_bytes, crc, location))]"},
        {"tensors", load_tensors, METH_O,
         "[kind((storage, dtype, first, sizes, strides, requires_grad, contiguous, "
         "has_metadata))]"},
        {"names", load_names, METH_O, "[kind((name, key_at, tensor))]"},
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
