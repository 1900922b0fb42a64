/* load_memory.c - File, Arena and Slice of solo._C. */
#include "py/load.h"

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
